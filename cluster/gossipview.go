package cluster

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/countd/countd/internal/lograte"
)

const (
	// membersMax bounds the members known, the dead among them. A cluster has
	// tens; more are a mistake or an attack.
	membersMax = 1024
	// refusedMax bounds the members whose refusal was logged; past it all are
	// logged once more.
	refusedMax = 64
)

// gossipView is what this node knows of the others, and what it says of itself.
// It answers memberlist's questions, which come under memberlist's lock: nothing
// here calls memberlist or waits.
type gossipView struct {
	logger  *slog.Logger
	limited *slog.Logger // for what gossip repeats

	mu struct {
		sync.Mutex
		self     Member            // what this node says of itself
		members  map[string]Member // by key, this node among them
		snapshot []Member          // of members; replaced whole, never changed
		changed  chan struct{}     // closed when snapshot is replaced
		refused  map[string]bool   // by key: its refusal was logged
	}
}

var (
	_ memberlist.Delegate         = (*gossipView)(nil)
	_ memberlist.EventDelegate    = (*gossipView)(nil)
	_ memberlist.AliveDelegate    = (*gossipView)(nil)
	_ memberlist.MergeDelegate    = (*gossipView)(nil)
	_ memberlist.ConflictDelegate = (*gossipView)(nil)
)

func newGossipView(self Member, logger *slog.Logger) *gossipView {
	v := &gossipView{logger: logger, limited: new(lograte.Limiter).Logger(logger)}
	v.mu.self = self
	v.mu.members = map[string]Member{}
	v.mu.changed = make(chan struct{})
	v.mu.refused = map[string]bool{}
	return v
}

// state returns the members by key, ascending, and the channel that is closed
// when they change. The caller must not change the slice.
func (v *gossipView) state() ([]Member, <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.snapshot, v.mu.changed
}

// alone tells whether no other member is alive.
func (v *gossipView) alone() bool {
	members, _ := v.state()
	alive := 0
	for _, m := range members {
		if m.Alive {
			alive++
		}
	}
	return alive <= 1
}

// edit changes what this node says of itself. memberlist is yet to be told.
func (v *gossipView) edit(change func(*Member)) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	self := v.mu.self
	change(&self)
	if err := self.check(); err != nil {
		return err
	}
	v.mu.self = self
	return nil
}

// NodeMeta implements memberlist.Delegate.
func (v *gossipView) NodeMeta(int) []byte {
	v.mu.Lock()
	defer v.mu.Unlock()
	return appendMeta(nil, &v.mu.self)
}

// NotifyMsg implements memberlist.Delegate: countd sends no messages by gossip.
func (v *gossipView) NotifyMsg([]byte) {}

// GetBroadcasts implements memberlist.Delegate.
func (v *gossipView) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (v *gossipView) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (v *gossipView) MergeRemoteState([]byte, bool) {}

// NotifyAlive implements memberlist.AliveDelegate: an error keeps the peer out.
func (v *gossipView) NotifyAlive(peer *memberlist.Node) error {
	m, err := parseMember(peer.Name, peer.Address(), peer.Meta)
	v.mu.Lock()
	defer v.mu.Unlock()
	if err == nil {
		err = v.refusalLocked(&m)
	}
	if err != nil {
		v.logRefusalLocked(peer, err)
	}
	return err
}

// NotifyMerge implements memberlist.MergeDelegate: an error ends a join, of the
// peer to this node or of this node to the peer.
func (v *gossipView) NotifyMerge(peers []*memberlist.Node) error {
	for _, peer := range peers {
		if peer.State != memberlist.StateAlive {
			continue
		}
		if err := v.NotifyAlive(peer); err != nil {
			return err
		}
	}
	return nil
}

// refusalLocked returns why m may not be a member here, or nil. A node without
// a cluster lets members of any in: that it sees two is for it to refuse.
func (v *gossipView) refusalLocked(m *Member) error {
	self := &v.mu.self
	if m.Key == self.Key {
		return nil
	}
	if self.ClusterID != "" && m.ClusterID != "" && m.ClusterID != self.ClusterID {
		return fmt.Errorf("it is of cluster %s, this node of %s", m.ClusterID, self.ClusterID)
	}
	if _, known := v.mu.members[m.Key]; !known && len(v.mu.members) >= membersMax && v.oldestDeadLocked() == "" {
		return fmt.Errorf("%d members are known, which is the bound", membersMax)
	}
	return nil
}

// logRefusalLocked logs a refusal once a member: gossip repeats itself.
func (v *gossipView) logRefusalLocked(peer *memberlist.Node, err error) {
	if v.mu.refused[peer.Name] {
		return
	}
	if len(v.mu.refused) >= refusedMax {
		clear(v.mu.refused)
	}
	v.mu.refused[peer.Name] = true
	v.logger.Warn("refused a node in gossip", "node", peer.Name, "gossip_addr", peer.Address(), "why", err)
}

// NotifyJoin implements memberlist.EventDelegate.
func (v *gossipView) NotifyJoin(n *memberlist.Node) { v.set(n, true) }

// NotifyLeave implements memberlist.EventDelegate.
func (v *gossipView) NotifyLeave(n *memberlist.Node) { v.set(n, false) }

// NotifyUpdate implements memberlist.EventDelegate.
func (v *gossipView) NotifyUpdate(n *memberlist.Node) { v.set(n, true) }

// NotifyConflict implements memberlist.ConflictDelegate. Both may be one node
// that has moved, until its old address is found dead.
func (v *gossipView) NotifyConflict(existing, other *memberlist.Node) {
	v.limited.Warn("two addresses claim to be one node: it has moved, or runs twice from copies of one data directory",
		"node", existing.Name, "known_at", existing.Address(), "claimed_at", other.Address())
}

func (v *gossipView) set(n *memberlist.Node, alive bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	m, err := parseMember(n.Name, n.Address(), n.Meta)
	if err != nil {
		return // NotifyAlive has refused it, so memberlist does not have it
	}
	before, known := v.mu.members[m.Key]
	if m.Alive, m.Since = alive || m.Key == v.mu.self.Key, time.Now(); known && before.Alive == m.Alive {
		m.Since = before.Since
	}
	if !known && len(v.mu.members) >= membersMax {
		delete(v.mu.members, v.oldestDeadLocked())
	}
	v.mu.members[m.Key] = m
	v.publishLocked()
}

// oldestDeadLocked returns the key of the member that is dead for longest, or "".
func (v *gossipView) oldestDeadLocked() string {
	oldest := Member{}
	for _, m := range v.mu.members {
		if !m.Alive && (oldest.Key == "" || m.Since.Before(oldest.Since)) {
			oldest = m
		}
	}
	return oldest.Key
}

// publishLocked replaces the snapshot. Members of another cluster that were let
// in while this node had none are not in it.
func (v *gossipView) publishLocked() {
	mine := v.mu.self.ClusterID
	v.mu.snapshot = slices.SortedFunc(maps.Values(v.mu.members), func(a, b Member) int { return strings.Compare(a.Key, b.Key) })
	v.mu.snapshot = slices.DeleteFunc(v.mu.snapshot, func(m Member) bool {
		return mine != "" && m.ClusterID != "" && m.ClusterID != mine
	})
	close(v.mu.changed)
	v.mu.changed = make(chan struct{})
}

package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/countd/countd/internal/program"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/rpc"
)

const (
	// membersMax bounds the known members, including dead ones. More members than twice the nodes
	// of the largest cluster are a sign of a fault or an attack.
	membersMax = 2 * catalog.NodesMax
	// refusedMax bounds the record of clusters whose refusal was logged. A full record is cleared,
	// so each refusal may be logged once more.
	refusedMax = 64
	// refusalLogEvery is the interval between two log lines about refused nodes of one cluster.
	refusalLogEvery = 10 * time.Minute
)

// gossipView holds the members that this node knows, and its own entry. memberlist calls it while
// holding memberlist's lock, so no method calls memberlist or waits.
type gossipView struct {
	logger  *slog.Logger
	limited *slog.Logger // logger for events that gossip repeats

	mu struct {
		sync.Mutex
		self     Member               // the entry of this node
		members  map[string]Member    // by key, this node among them
		answered map[string]time.Time // member key → time of the member's last answer to a probe of this node
		snapshot []Member             // sorted copy of members; replaced, never changed in place
		changed  chan struct{}        // closed when snapshot is replaced
		refused  map[string]time.Time // cluster, or key of a node without a cluster → when its refusal was last logged
		contacts contacts             // empty if this node has a cluster
	}
}

var (
	_ memberlist.Delegate         = (*gossipView)(nil)
	_ memberlist.EventDelegate    = (*gossipView)(nil)
	_ memberlist.AliveDelegate    = (*gossipView)(nil)
	_ memberlist.MergeDelegate    = (*gossipView)(nil)
	_ memberlist.ConflictDelegate = (*gossipView)(nil)
	_ memberlist.PingDelegate     = (*gossipView)(nil)
)

// These errors keep a member out of gossip, but not out of calls.
var (
	// errBare is returned in a node with a cluster for a member without a cluster.
	errBare = errors.New("it has no cluster, and joins one by asking, not by gossip")
	// errStranger is returned in a node without a cluster for a member of a cluster that is not in
	// contacts.
	errStranger = errors.New("no address of --join has led this node, which has no cluster yet, to that cluster")
)

func newGossipView(self Member, contacts contacts, logger *slog.Logger) *gossipView {
	v := &gossipView{logger: logger, limited: new(program.LogLimiter).Logger(logger)}
	v.mu.self = self
	v.mu.members, v.mu.answered = map[string]Member{}, map[string]time.Time{}
	v.mu.changed = make(chan struct{})
	v.mu.refused = map[string]time.Time{}
	v.mu.contacts = contacts
	return v
}

// state returns the members by key, ascending, and a channel that is closed when they change. The
// caller must not change the slice.
func (v *gossipView) state() ([]Member, <-chan struct{}) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.snapshot, v.mu.changed
}

// peers returns the living or the dead members except this node. In a node without a cluster it
// returns only contacts, so that the search continues even if another node, which is no contact,
// has dialled this node.
func (v *gossipView) peers(alive bool) []Member {
	v.mu.Lock()
	defer v.mu.Unlock()
	var peers []Member
	for _, m := range v.mu.snapshot {
		if m.Alive == alive && m.Key != v.mu.self.Key && (v.mu.self.ClusterID != "" || v.mu.contacts.has(&m)) {
			peers = append(peers, m)
		}
	}
	return peers
}

// alone reports whether no peer is alive.
func (v *gossipView) alone() bool { return len(v.peers(true)) == 0 }

// trust adds nodes to contacts if this node has no cluster.
func (v *gossipView) trust(keys []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.mu.contacts.add(keys)
}

// dial must be called before an exchange with a seed. If it returns true, this node has no cluster
// yet, and dialled must be called after the exchange.
func (v *gossipView) dial() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.self.ClusterID == "" {
		v.mu.contacts.dial()
		return true
	}
	return false
}

// dialled reports whether the exchange has added a cluster that the node may join.
func (v *gossipView) dialled(addr string, answered bool) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.mu.contacts.dialled(addr, answered)
}

// edit changes the entry of this node. The caller must then announce it through memberlist.
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

// NotifyMsg implements memberlist.Delegate. It is never called, because countd sends no messages
// by gossip.
func (v *gossipView) NotifyMsg([]byte) {}

// GetBroadcasts implements memberlist.Delegate.
func (v *gossipView) GetBroadcasts(int, int) [][]byte { return nil }

// LocalState implements memberlist.Delegate.
func (v *gossipView) LocalState(bool) []byte { return nil }

// MergeRemoteState implements memberlist.Delegate.
func (v *gossipView) MergeRemoteState([]byte, bool) {}

// NotifyAlive implements memberlist.AliveDelegate: an error keeps the peer out.
func (v *gossipView) NotifyAlive(peer *memberlist.Node) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, err := v.checkLocked(peer)
	return err
}

// checkLocked returns the peer as a Member, and an error if gossip must not admit it. It logs
// refusals that an operator should know about.
func (v *gossipView) checkLocked(peer *memberlist.Node) (Member, error) {
	m, err := parseMember(peer.Name, peer.Address(), peer.Meta)
	if err == nil {
		err = v.refusalLocked(&m)
	}
	if err == nil {
		if v.mu.self.ClusterID == "" && m.ClusterID != "" {
			v.mu.contacts.clusters[m.ClusterID] = true // this contact has just got a cluster
		}
		return m, nil
	}
	if !errors.Is(err, errBare) && !(errors.Is(err, errStranger) && v.mu.contacts.dialling) {
		v.logRefusalLocked(peer, &m, err)
	}
	// A node never loses its cluster, so the known entry, without a cluster, is older than the
	// refused one. Remove it.
	if known, ok := v.mu.members[m.Key]; ok && known.ClusterID == "" && m.ClusterID != "" {
		delete(v.mu.members, m.Key)
		v.publishLocked()
	}
	return m, err
}

// NotifyMerge implements memberlist.MergeDelegate: an error ends a join in either direction. It
// returns an error only if gossip must refuse all peers. NotifyAlive refuses single peers.
func (v *gossipView) NotifyMerge(peers []*memberlist.Node) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var answer []Member
	var refused error
	some := false
	for _, peer := range peers {
		if peer.State != memberlist.StateAlive || peer.Name == v.mu.self.Key {
			continue
		}
		m, err := v.checkLocked(peer)
		switch {
		case err == nil, errors.Is(err, errStranger):
			answer, some = append(answer, m), true
		case errors.Is(err, errBare):
			some = true
		default:
			refused = err
		}
	}
	if refused != nil && !some {
		return refused
	}
	v.mu.contacts.recordAnswer(answer)
	return nil
}

// refusalLocked returns why gossip must not admit m, or nil.
func (v *gossipView) refusalLocked(m *Member) error {
	self := &v.mu.self
	if m.Key == self.Key {
		return nil
	}
	member := self.ClusterID != "" && self.ClusterID == m.ClusterID
	foreign := self.ClusterID != "" && m.ClusterID != "" && !member
	switch {
	case foreign || !rpc.ClustersAgree(self.ClusterName, m.ClusterName, member):
		return fmt.Errorf("it is of %s, this node of %s%s", rpc.DescribeCluster(m.ClusterID, m.ClusterName),
			rpc.DescribeCluster(self.ClusterID, self.ClusterName), rpc.AfterRecovery(m.ClusterID, self.ClusterID))
	case self.ClusterID != "" && m.ClusterID == "":
		return errBare
	case self.ClusterID == "" && m.ClusterID != "" && !v.mu.contacts.has(m):
		return fmt.Errorf("it is of %s: %w", rpc.DescribeCluster(m.ClusterID, m.ClusterName), errStranger)
	}
	if _, known := v.mu.members[m.Key]; !known && len(v.mu.members) >= membersMax && v.oldestDeadLocked() == "" {
		return fmt.Errorf("%d members are known, which is the bound", membersMax)
	}
	return nil
}

// logRefusalLocked logs a refusal once in refusalLogEvery for all nodes of a cluster, because
// gossip repeats each refusal.
func (v *gossipView) logRefusalLocked(peer *memberlist.Node, m *Member, err error) {
	of := m.ClusterID + "/" + m.ClusterName
	if of == "/" {
		of = peer.Name // the member has no cluster and no cluster name, or its data cannot be decoded
	}
	if logged, ok := v.mu.refused[of]; ok && time.Since(logged) < refusalLogEvery {
		return
	}
	if len(v.mu.refused) >= refusedMax {
		clear(v.mu.refused)
	}
	v.mu.refused[of] = time.Now()
	v.logger.Warn("refused a node in gossip", "node", peer.Name, "gossip_addr", peer.Address(), "why", err)
}

// NotifyJoin implements memberlist.EventDelegate.
func (v *gossipView) NotifyJoin(n *memberlist.Node) { v.set(n, true) }

// NotifyLeave implements memberlist.EventDelegate.
func (v *gossipView) NotifyLeave(n *memberlist.Node) { v.set(n, false) }

// NotifyUpdate implements memberlist.EventDelegate.
func (v *gossipView) NotifyUpdate(n *memberlist.Node) { v.set(n, true) }

// NotifyConflict implements memberlist.ConflictDelegate. A conflict is normal for a short time
// after a node has moved, until gossip declares the old address dead.
func (v *gossipView) NotifyConflict(existing, other *memberlist.Node) {
	v.limited.Warn("two addresses claim to be one node: it has moved, or runs twice from copies of one data directory",
		"node", existing.Name, "known_at", existing.Address(), "claimed_at", other.Address())
}

// AckPayload implements memberlist.PingDelegate.
func (v *gossipView) AckPayload() []byte { return nil }

// NotifyPingComplete implements memberlist.PingDelegate.
func (v *gossipView) NotifyPingComplete(n *memberlist.Node, _ time.Duration, _ []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.mu.answered) >= membersMax {
		clear(v.mu.answered) // forget members that have left; the others will soon answer again
	}
	v.mu.answered[n.Name] = time.Now()
}

// sinceLocked returns Member.Since for a member whose Alive has changed. A member that announces
// its stop dies now. For any other dead member, Since is the time of its last answer.
func (v *gossipView) sinceLocked(name string, before, m Member) time.Time {
	if answered := v.mu.answered[name]; !m.Alive && m.State != MemberStopping && answered.After(before.Since) {
		return answered
	}
	return time.Now()
}

func (v *gossipView) set(n *memberlist.Node, alive bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	m, err := parseMember(n.Name, n.Address(), n.Meta)
	if err != nil {
		return // NotifyAlive has refused this member
	}
	before, known := v.mu.members[m.Key]
	m.Alive = alive || m.Key == v.mu.self.Key
	if m.Since = before.Since; !known || before.Alive != m.Alive {
		m.Since = v.sinceLocked(n.Name, before, m)
	}
	if !known && len(v.mu.members) >= membersMax {
		delete(v.mu.members, v.oldestDeadLocked())
	}
	v.mu.members[m.Key] = m
	v.publishLocked()
}

// oldestDeadLocked returns the key of the member that has been dead the longest, or "".
func (v *gossipView) oldestDeadLocked() string {
	oldest := Member{}
	for _, m := range v.mu.members {
		if !m.Alive && (oldest.Key == "" || m.Since.Before(oldest.Since)) {
			oldest = m
		}
	}
	return oldest.Key
}

// publishLocked replaces the snapshot. It omits members of another cluster that were admitted
// while this node had no cluster.
func (v *gossipView) publishLocked() {
	mine := v.mu.self.ClusterID
	v.mu.snapshot = slices.SortedFunc(maps.Values(v.mu.members), func(a, b Member) int { return strings.Compare(a.Key, b.Key) })
	v.mu.snapshot = slices.DeleteFunc(v.mu.snapshot, func(m Member) bool {
		return mine != "" && m.ClusterID != "" && m.ClusterID != mine
	})
	close(v.mu.changed)
	v.mu.changed = make(chan struct{})
}

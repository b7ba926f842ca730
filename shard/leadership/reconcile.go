package leadership

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
)

// reconcileTimeout bounds one group's step, including its calls to other nodes.
const reconcileTimeout = time.Second

// Wanted returns, as target, the replicas that the catalog wants as voters of a group. If the group
// should have a replica on every node, others lists the replicas of all nodes. complete is false
// while the local catalog lacks a node or the number of a voter.
func Wanted(view *catalog.View, group uint32) (target, others []replica.Member, complete bool) {
	placement := view.Groups[group]
	for _, key := range placement.Target {
		node, there := view.Nodes[key]
		id, numbered := MemberID(&placement, key)
		if !there || !numbered {
			return nil, nil, false
		}
		target = append(target, replica.Member{ID: id, Addr: node.ClusterAddr})
	}
	if !view.EveryNode(group) {
		return target, nil, true
	}
	for key, node := range view.Nodes {
		if id, numbered := MemberID(&placement, key); numbered && !Displaced(view, key) {
			others = append(others, replica.Member{ID: id, Addr: node.ClusterAddr})
		}
	}
	return target, others, true
}

// InitialMembers returns the first voters of a group if the replica id is one of them, and
// otherwise nil.
func InitialMembers(view *catalog.View, group uint32, id raft.ServerID) []replica.Member {
	placement := view.Groups[group]
	var members []replica.Member
	for i, key := range placement.Initial {
		members = append(members, replica.Member{ID: raft.ServerID(placement.InitialID(i)), Addr: view.Nodes[key].ClusterAddr})
	}
	if !slices.ContainsFunc(members, func(m replica.Member) bool { return m.ID == id }) {
		return nil
	}
	return members
}

// MemberID returns the Raft id of a node's current or next replica of a group. It returns false
// while the catalog has assigned no number to that replica.
func MemberID(p *catalog.Placement, node string) (raft.ServerID, bool) {
	if !p.Numbered() {
		return replica.RaftID(node, 0), true
	}
	number, has := p.Number(node)
	return replica.RaftID(node, number), has
}

// Reconcile changes the members of a group by one step, if this node leads the group. If no step is
// due and this node should not lead, it hands the leadership over. It reports whether this node
// leads the group and is ready to serve.
func (m *Membership) Reconcile(g *replica.Replica, view *catalog.View) bool {
	if g.Ready() != nil {
		m.shedStuck(g, view)
		return false
	}
	if _, placed := view.Groups[g.Group()]; !placed {
		return true // the catalog's own group, before the first node is placed
	}
	target, others, known := Wanted(view, g.Group())
	if !known || m.catalogIsBehind(g, view) {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), reconcileTimeout)
	defer cancel()
	step, err := g.MembersStep(ctx, target, others, func(ctx context.Context, id raft.ServerID) (uint64, error) {
		return m.behind(ctx, g, id, methodProgress)
	})
	shedding := err == nil && step == ""
	if shedding {
		step, err = m.shed(ctx, g, view)
	}
	switch {
	case err != nil:
		m.cfg.Limited.Warn("a change of members failed and is tried again", "group", g.Group(), "step", step, "err", err)
	case step != "":
		level := slog.LevelInfo
		if shedding {
			level = slog.LevelDebug // a draining node hands many groups over
		}
		m.cfg.Logger.Log(ctx, level, "members", "group", g.Group(), "step", step)
		m.cfg.Wake()
	}
	return true
}

// shed hands the leadership of a group over if this node should not lead: the node is draining,
// writes to its disk fail, or it cannot read all rows. It skips a group with a hanging write,
// because package replica hands that group over.
func (m *Membership) shed(ctx context.Context, g *replica.Replica, view *catalog.View) (string, error) {
	may := view.Nodes[m.cfg.Key].State == catalog.NodeActive && !m.HandingOver.Load() && !m.cfg.Replicas.Damaged(g.Group()) && g.Stuck() == nil && m.cfg.Unfit() == nil
	if may || g.Hangs() {
		return "", nil
	}
	method := methodProgress
	if g.Growth.Unborn() {
		method = methodUnborn
	}
	to, hope := m.successor(ctx, g, view, method)
	g.Heirless.Store(!hope)
	if to.ID == "" {
		return "", nil
	}
	return "handed over to " + string(to.ID), g.Transfer(to)
}

// shedStuck hands the leadership of a group over if this node leads the group but cannot apply its
// entries, or if the shard is unborn and another voter can serve it sooner.
func (m *Membership) shedStuck(g *replica.Replica, view *catalog.View) {
	if g.Stuck() == nil && !g.Growth.Unborn() || !g.Leads() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), reconcileTimeout)
	defer cancel()
	step, err := m.shedUnborn(ctx, g, view)
	if step == "" && err == nil {
		step, err = m.shed(ctx, g, view)
	}
	if step != "" || err != nil {
		m.cfg.Logger.Info("members", "group", g.Group(), "step", step, "err", err)
	}
}

// successor returns the caught-up voter that leads the fewest groups, as far as this node knows. It
// skips a voter that does not answer, or whose node is draining, stopping or out of disk space. method decides
// which voters have caught up. hope is false if waiting for a voter is pointless, because at least one refuses and the others do
// not answer.
func (m *Membership) successor(ctx context.Context, g *replica.Replica, view *catalog.View, method string) (best replica.Member, hope bool) {
	bestLed, unwilling := 0, false
	for _, id := range g.Voters() {
		key := replica.NodeOf(id)
		node, known := view.Nodes[key]
		if key == m.cfg.Key || !known {
			continue
		}
		lag, err := m.behind(ctx, g, id, method)
		switch {
		case node.State != catalog.NodeActive || errors.Is(err, errs.ErrDraining), errors.Is(err, errs.ErrDiskFull):
			unwilling = true
			continue
		case err != nil:
			continue
		case lag > replica.CaughtUpEntries:
			hope = true
			continue
		}
		hope = true
		if led := m.cfg.Replicas.LedBy(key); best.ID == "" || led < bestLed {
			best, bestLed = replica.Member{ID: id, Addr: node.ClusterAddr}, led
		}
	}
	return best, hope || !unwilling
}

func (m *Membership) handOver(_ context.Context, t transfer) (rpc.None, error) {
	return rpc.None{}, m.HandOver(t.Group, t.To)
}

// HandOver hands this node's leadership of a group over to another node.
func (m *Membership) HandOver(number uint32, node string) error {
	g := m.cfg.Replicas.Replica(number)
	if g == nil {
		return fmt.Errorf("%w: group %d is not here", errs.ErrNoLeader, number)
	}
	if err := g.Ready(); err != nil {
		return err
	}
	for _, s := range g.Configuration().Servers {
		if replica.NodeOf(s.ID) == node && s.Suffrage == raft.Voter {
			return g.Transfer(replica.Member{ID: s.ID, Addr: string(s.Address)})
		}
	}
	return &errs.ArgumentError{Field: "to", Problem: fmt.Sprintf("node %s has no vote in group %d", node, number)}
}

// WasRemoved reports whether the catalog has retired a replica's number and the group's leader
// confirms that no configuration has the replica.
//
// If a replica was removed while it was down, or its leader died at that moment, it never gets a
// message of a leader again. So WasRemoved asks for the leader's answer; without it, the old replica
// would stay. WasRemoved asks all nodes, because the leader may be on a node that the placement lacks:
// a surplus member, which waits until this node's next replica has replaced it.
func (m *Membership) WasRemoved(group uint32, number uint64, leader string, view *catalog.View) bool {
	placement := view.Groups[group]
	if !placement.Retired(m.cfg.Key, number) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), reconcileTimeout)
	defer cancel()
	all := slices.Sorted(maps.Keys(view.Nodes))
	for _, node := range append([]string{leader}, Without(all, leader)...) {
		if node == "" || node == m.cfg.Key || m.cfg.Calls.Doubtful(node) {
			continue
		}
		if gone, err := rpc.CallJSON[bool](ctx, m.cfg.Calls, node, methodGone, MemberQuery{group, replica.RaftID(m.cfg.Key, number)}); err == nil {
			return gone
		}
	}
	return false
}

func Without(keys []string, key string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return k == key })
}

// catalogIsBehind reports whether the group has a member whose number is missing in the local
// catalog. After a restart, the local catalog may be older than the catalog that chose the members.
// With such a catalog, this node would undo that choice.
func (m *Membership) catalogIsBehind(g *replica.Replica, view *catalog.View) bool {
	placement := view.Groups[g.Group()]
	return slices.ContainsFunc(g.Configuration().Servers, func(s raft.Server) bool {
		_, number := catalog.ParseReplicaID(string(s.ID))
		return number > 0 && number >= placement.NextReplica
	})
}

// AddrOf returns the cluster address of a node, and whether the node is known. If another node has
// taken the address, it returns "". Gossip has precedence over the catalog, which gets a new
// address only after other nodes have reached the node there.
func AddrOf(view *catalog.View, live func(node string) string, node string) (string, bool) {
	found, ok := view.Nodes[node]
	if Displaced(view, node) {
		return "", true
	}
	if live != nil {
		if addr := live(node); addr != "" {
			return addr, true
		}
	}
	return found.ClusterAddr, ok
}

// Displaced reports whether a node is leaving and another node has its address. The leaving node
// was wiped and cannot return.
func Displaced(view *catalog.View, node string) bool {
	old := view.Nodes[node]
	if old.State != catalog.NodeLeaving {
		return false
	}
	for key, other := range view.Nodes {
		if key != node && other.ClusterAddr == old.ClusterAddr && other.State != catalog.NodeLeaving {
			return true
		}
	}
	return false
}

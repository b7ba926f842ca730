package membership

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/replica"
)

// behind returns how many entries of this node's log, as of the call, another replica has not
// applied.
func (m *Membership) behind(ctx context.Context, g *replica.Replica, id raft.ServerID) (uint64, error) {
	last := g.LastIndex()
	node, number := catalog.ParseReplicaID(string(id))
	theirs, err := m.Progress(ctx, node, []raftstore.ReplicaID{{Group: g.Group(), Number: number}})
	if err != nil {
		return 0, err
	}
	if inForce := g.ConfigurationInForce(); inForce == nil || theirs[0] < inForce.Index {
		return 0, fmt.Errorf("%w: replica %s of group %d", ErrNotMember, id, g.Group())
	}
	return last - min(last, theirs[0]), nil
}

// ErrNotMember is returned for a replica that is missing, or has not applied the configuration in
// force. Even if it lacks only a few entries, it can neither lead nor vote until it knows that it
// is a member.
var ErrNotMember = errors.New("it has not applied the configuration that is in force")

// serveProgress answers the index up to which each replica has applied its log; the log may reach
// further. It answers 0 for a replica that is missing, has unreadable cold rows, or is not in its
// own configuration, because a voter should be able to lead at once. It returns ErrDraining if
// this node is stopping, or why its disk takes no writes: nobody should hand a group to it.
func (m *Membership) serveProgress(_ context.Context, replicas []raftstore.ReplicaID) ([]uint64, error) {
	if m.HandingOver.Load() {
		return nil, errs.ErrDraining
	}
	if err := m.cfg.Unfit(); err != nil {
		return nil, err
	}
	applied := make([]uint64, len(replicas))
	for i, r := range replicas {
		g := m.cfg.Replicas.Replica(r.Group)
		if g != nil && g.Number() == r.Number && !m.cfg.Replicas.Damaged(r.Group) && replica.Contains(g.Configuration().Servers, g.ID()) {
			applied[i] = g.AppliedIndex()
		}
	}
	return applied, nil
}

// MemberQuery names a replica by its group and its Raft id.
type MemberQuery struct {
	Group uint32
	ID    raft.ServerID
}

// ServeGone answers whether no configuration of a group that this node leads has a replica. After
// the answer yes, the asking node may delete its replica. So this node must lead the group now, and
// the absence must be committed.
func (m *Membership) ServeGone(ctx context.Context, q MemberQuery) (gone bool, err error) {
	g := m.cfg.Replicas.Replica(q.Group)
	if g == nil {
		return false, fmt.Errorf("%w: group %d is not here", errs.ErrNoLeader, q.Group)
	}
	return m.provedGone(ctx, g, q.ID)
}

// provedGone reports whether no configuration, committed or not, of a group that this node leads
// has the replica. It proves that this node led the group at a moment after the call.
func (m *Membership) provedGone(ctx context.Context, g *replica.Replica, id raft.ServerID) (bool, error) {
	term := g.ReadyTerm()
	if err := g.Ready(); err != nil {
		return false, err
	}
	committed, latest := g.CommittedServers(), g.Configuration().Servers
	if committed == nil || replica.Contains(committed, id) || replica.Contains(latest, id) {
		return false, nil
	}
	return true, m.cfg.Prove(ctx, g, term)
}

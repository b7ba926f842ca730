package leadership

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

// behind returns the number of entries of this node's log that another replica has not applied
// yet. method is methodProgress or methodUnborn.
func (m *Membership) behind(ctx context.Context, g *replica.Replica, id raft.ServerID, method string) (uint64, error) {
	last := g.LastIndex()
	node, number := catalog.ParseReplicaID(string(id))
	theirs, err := m.progress(ctx, node, method, []raftstore.ReplicaID{{Group: g.Group(), Number: number}})
	if err != nil {
		return 0, err
	}
	if inForce := g.ConfigurationInForce(); inForce == nil || theirs[0] < inForce.Index {
		return 0, fmt.Errorf("%w: replica %s of group %d", ErrNotMember, id, g.Group())
	}
	return last - min(last, theirs[0]), nil
}

// ErrNotMember is returned for a replica that is missing, or has not applied the committed
// configuration. Even if such a replica lags by only a few entries, it cannot lead or vote,
// because it does not know that it is a member.
var ErrNotMember = errors.New("it has not applied the configuration that is in force")

// serveProgress answers methodProgress. A voter counts as caught up only if it can lead at once. So
// the answer is 0 for a replica that is missing, has unreadable cold rows, is stuck or unborn, or is not in
// its own configuration. If this node is stopping, or writes to its disk fail or hang, serveProgress
// returns an error, so that no leader hands a group to this node.
func (m *Membership) serveProgress(_ context.Context, replicas []raftstore.ReplicaID) ([]uint64, error) {
	return m.progressHere(replicas, func(g *replica.Replica) bool {
		return !m.cfg.Replicas.Damaged(g.Group()) && g.Stuck() == nil && !g.Growth.Unborn()
	})
}

// serveUnborn answers methodUnborn. The leader cannot serve either, so each replica with the log may lead in
// its place. Otherwise a node that stops could not hand an unborn shard over.
func (m *Membership) serveUnborn(_ context.Context, replicas []raftstore.ReplicaID) ([]uint64, error) {
	return m.progressHere(replicas, func(*replica.Replica) bool { return true })
}

func (m *Membership) progressHere(replicas []raftstore.ReplicaID, counts func(*replica.Replica) bool) ([]uint64, error) {
	if m.HandingOver.Load() {
		return nil, errs.ErrDraining
	}
	if err := m.cfg.Unfit(); err != nil {
		return nil, err
	}
	applied := make([]uint64, len(replicas))
	for i, r := range replicas {
		g := m.cfg.Replicas.Replica(r.Group)
		if g != nil && g.Number() == r.Number && replica.Contains(g.Configuration().Servers, g.ID()) && counts(g) {
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

// ServeGone answers methodGone. If the answer is true, the calling node may delete its replica. So
// this node must prove that it leads the group, and that the removal is committed.
func (m *Membership) ServeGone(ctx context.Context, q MemberQuery) (gone bool, err error) {
	g := m.cfg.Replicas.Replica(q.Group)
	if g == nil {
		return false, fmt.Errorf("%w: group %d is not here", errs.ErrNoLeader, q.Group)
	}
	return m.provedGone(ctx, g, q.ID)
}

// provedGone reports whether no configuration of the group, committed or not, has the replica. It
// returns an error unless this node proves that it leads the group at a moment after the call
// began.
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

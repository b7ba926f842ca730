package membership

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/wire"
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
func (m *Membership) serveProgress(_ context.Context, request []byte) ([]byte, error) {
	replicas, err := ParseReplicas(request)
	if err != nil {
		return nil, err
	}
	if m.HandingOver.Load() {
		return nil, errs.ErrDraining
	}
	if err := m.cfg.Unfit(); err != nil {
		return nil, err
	}
	var answer []byte
	for _, r := range replicas {
		var index uint64
		g := m.cfg.Replicas.Replica(r.Group)
		if g != nil && g.Number() == r.Number && !m.cfg.Replicas.Damaged(r.Group) && replica.Contains(g.Configuration().Servers, g.ID()) {
			index = g.AppliedIndex()
		}
		answer = binary.AppendUvarint(answer, index)
	}
	return answer, nil
}

// ServeMember answers whether a replica is, or may become again, a member of a group that this
// node leads. After the answer no, the asking node may delete its replica. So this node must lead
// the group now, and the absence must be committed.
func (m *Membership) ServeMember(ctx context.Context, request []byte) ([]byte, error) {
	r := wire.Reader{Rest: request}
	number, id := uint32(r.UintTo(1<<32-1)), raft.ServerID(r.Bytes())
	if err := r.End(); err != nil {
		return nil, err
	}
	g := m.cfg.Replicas.Replica(number)
	if g == nil {
		return nil, fmt.Errorf("%w: group %d is not here", errs.ErrNoLeader, number)
	}
	if gone, err := m.provedGone(ctx, g, id); err != nil || gone {
		return []byte{0}, err
	}
	return []byte{1}, nil
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

// serveTransfer hands the leadership of a group from this node to another.
func (m *Membership) serveTransfer(_ context.Context, request []byte) ([]byte, error) {
	r := wire.Reader{Rest: request}
	number, node := uint32(r.UintTo(1<<32-1)), string(r.Bytes())
	if err := r.End(); err != nil {
		return nil, err
	}
	return nil, m.HandOver(number, node)
}

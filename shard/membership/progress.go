package membership

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/wire"
)

// behind returns how many entries another replica of a group lacks of what this
// node's log had before the call.
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

// ErrNotMember is returned for a replica that has not applied the configuration that is
// in force, or is not there. It may lack only a few entries, but if it does not know
// that it is a member it can neither lead nor vote.
var ErrNotMember = errors.New("it has not applied the configuration that is in force")

// serveProgress answers the index up to which each replica has applied its log.
// It answers 0 for a replica that is not here, has cold rows that cannot be read, or is
// not in its own configuration. The log may reach further; a voter should be able to
// lead at once. A node that is stopping answers ErrDraining, and one whose disk takes no
// writes why: nothing is to be handed to it.
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

// ServeMember answers whether a replica is, or may become again, a member of a group
// that this node leads. After the answer no, the other node may delete its replica, so
// this node must lead the group now, and its answer must be committed.
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

// provedGone reports whether a replica is in no configuration, committed or not, of a
// group that this node leads. It proves that this node led the group at a moment after
// the call.
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

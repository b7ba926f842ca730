package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/shard/prover"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/retry"
	"github.com/countd/countd/shard/rpc"
)

// ErrNotBackedUp is returned by OpenSnapshot for a group that no keyspace has:
// the catalog's own is made anew with a new cluster.
var ErrNotBackedUp = errors.New("only groups of keyspaces are backed up")

// Snapshot is a snapshot of one shard on its way out.
type Snapshot = replica.Snapshot

// LeaderOf returns the key of the node that leads a group, as far as this node
// knows, or "".
func (n *Node) LeaderOf(number uint32) string {
	if number == catalogGroup {
		return n.registry.meta.Leader()
	}
	if g := n.registry.shardOf(number); g != nil {
		return g.leader()
	}
	return ""
}

// OpenSnapshot takes a snapshot of a shard that this node leads, between two
// entries, with all in it that was acknowledged before the call. It is one of
// the group's own snapshots, read back and checked whole before it is handed
// out. ErrNoLeader means that another node leads the group, ErrOverloaded that
// none had begun by the end of ctx, or that it failed behind that.
func (n *Node) OpenSnapshot(ctx context.Context, number uint32) (*replica.Snapshot, error) {
	g := n.registry.shardOf(number)
	if g == nil {
		return nil, ErrNotBackedUp
	}
	for {
		r, err := g.led()
		if err != nil {
			return nil, rpc.ErrLedBy(g.leader())
		}
		s, err := n.openProved(ctx, r.group, g)
		if err == nil {
			return s, nil
		}
		// It is put off while the members change, may be replaced by another leader's
		// before it is open, and is worth nothing if the others cannot be asked.
		select {
		case <-time.After(retry.PauseMax):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: no snapshot of group %d by the deadline: %w", ErrOverloaded, number, err)
		}
	}
}

// openProved takes a snapshot of a group that this node leads, and proves then that
// no later leader had acknowledged anything before.
func (n *Node) openProved(ctx context.Context, r *replica.Replica, g *shardReplica) (*replica.Snapshot, error) {
	term := r.ReadyTerm()
	s, err := r.OpenSnapshot(ctx, g.kind, g.of())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), prover.ConfirmTimeout) // it may have ended since
	defer cancel()
	if !n.asking.Begin() {
		return nil, errors.Join(ErrDraining, s.Close())
	}
	defer n.asking.Done()
	if err := n.prover.ProveTerm(ctx, r, term); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

package shard

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/prover"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
)

// ErrNotBackedUp is returned by OpenSnapshot for a group of no keyspace. A backup leaves out the
// catalog's group, because a new cluster makes its own.
var ErrNotBackedUp = errors.New("only groups of keyspaces are backed up")

// Snapshot is a snapshot of one shard that a caller reads.
type Snapshot = replica.Snapshot

// LeaderOf returns the key of the node that leads a group, as far as this node knows, or "".
func (n *Node) LeaderOf(number uint32) string {
	if number == catalogGroup {
		return n.registry.meta.Leader()
	}
	if g := n.registry.shardOf(number); g != nil {
		return g.leader()
	}
	return ""
}

// OpenSnapshot takes a snapshot of a shard that this node leads. The snapshot has everything that
// was acknowledged before the call. It is one of the group's own snapshots, read back and checked
// whole. If another node leads the group, OpenSnapshot returns ErrNoLeader. If no snapshot succeeds
// before ctx ends, OpenSnapshot returns ErrOverloaded.
func (n *Node) OpenSnapshot(ctx context.Context, number uint32) (*Snapshot, error) {
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
		// Try again. The group's members may have been changing, or another leader's snapshot may
		// have replaced this one before it was open, or the other voters did not confirm this
		// leader.
		select {
		case <-time.After(errs.RetryPauseMax):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: no snapshot of group %d by the deadline: %w", ErrOverloaded, number, err)
		}
	}
}

// openProved takes a snapshot of a group that this node leads. It then proves that no later leader
// had acknowledged anything before the snapshot.
func (n *Node) openProved(ctx context.Context, r *replica.Replica, g *shardReplica) (*Snapshot, error) {
	term := r.ReadyTerm()
	s, err := r.OpenSnapshot(ctx, g.kind, g.of())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), prover.ConfirmTimeout) // ctx may have ended during the snapshot
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

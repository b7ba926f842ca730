package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
)

// ErrNotBackedUp is returned by OpenSnapshot and ShardOf for a group that belongs to no keyspace.
// A backup omits the catalog's group, because a new cluster has its own catalog.
var ErrNotBackedUp = errors.New("only groups of keyspaces are backed up")

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

// ShardOf returns the keyspace of a group, and the number of the group's shard in it.
func (n *Node) ShardOf(number uint32) (*Keyspace, int, error) {
	g := n.registry.shardOf(number)
	if g == nil {
		return nil, 0, ErrNotBackedUp
	}
	ks := n.Keyspace(g.keyspace)
	if ks == nil {
		return nil, 0, orDropped(n.catalog.View(), number, fmt.Errorf("%w: keyspace %s is being created", errs.ErrNoLeader, g.keyspace))
	}
	if !slices.Contains(ks.Groups, number) {
		return nil, 0, errs.ErrUnknownKeyspace // the group's keyspace was dropped, and another keyspace got its name
	}
	return ks, g.shard, nil
}

// OpenSnapshot takes a snapshot of a shard that this node leads. The snapshot has everything that
// was acknowledged before the call. It is one of the group's own snapshots, which OpenSnapshot has
// read back and checked completely. If another node leads the group, OpenSnapshot returns
// ErrNoLeader. If no snapshot succeeds before ctx ends, OpenSnapshot returns ErrOverloaded.
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
		// Retry. Either the group's members were changing, another leader's snapshot replaced this
		// one before it was open, or the other voters did not confirm this leader.
		select {
		case <-time.After(errs.RetryPauseMax):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: no snapshot of group %d by the deadline: %w", errs.ErrOverloaded, number, err)
		}
	}
}

// openProved takes a snapshot of a group that this node leads. It then proves that no later leader
// had acknowledged a write before the snapshot.
func (n *Node) openProved(ctx context.Context, r *replica.Replica, g *shardReplica) (*replica.Snapshot, error) {
	term := r.ReadyTerm()
	s, err := r.Snapshotter().Open(ctx, g.kind, g.first)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leadership.ConfirmTimeout) // a new deadline, because ctx may have ended during the snapshot
	defer cancel()
	if !n.asking.Begin() {
		return nil, errors.Join(errs.ErrDraining, s.Close())
	}
	defer n.asking.Done()
	if err := n.prover.ProveTerm(ctx, r, term); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

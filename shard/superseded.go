package shard

import (
	"context"
	"time"

	"github.com/countd/countd/shard/rpc"
)

const (
	// leaderCheckEvery is the interval at which the caller of a group's leader checks whether the
	// called node still leads.
	leaderCheckEvery = 250 * time.Millisecond
	// If leaderChecksMax checks in a row find another leader, the caller stops waiting. A node that
	// merely handed the leadership over answers sooner.
	leaderChecksMax = 2
)

// whileLed returns a context that ends once leaderChecksMax checks in a row found that the called
// node is silent or does not lead the group. A frozen or unreachable node does not answer. Without
// this context, the call would wait until the connection to that node is closed, which takes far
// longer than the election of another leader.
func (wr *writer) whileLed(ctx context.Context, g *shardReplica, node string) (context.Context, context.CancelFunc) {
	return wr.while(ctx, func(ctx context.Context) bool {
		return !wr.calls.Doubtful(node) && wr.leaderBy(ctx, g, node) == node
	})
}

// while returns a context that ends once holds has returned false in leaderChecksMax checks in a
// row.
//
// The goroutine of while starts only at the first check, because most calls end sooner. It ends
// with the context, which the caller must cancel. Close waits for the goroutine.
func (wr *writer) while(ctx context.Context, holds func(context.Context) bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	wr.asking.Add(1)
	first := time.AfterFunc(leaderCheckEvery, func() {
		defer wr.asking.Done()
		tick := time.NewTicker(leaderCheckEvery)
		defer tick.Stop()
		for failed := 0; ; {
			if holds(ctx) {
				failed = 0
			} else if failed++; failed == leaderChecksMax {
				break
			}
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
		cancel()
	})
	return ctx, func() {
		if first.Stop() {
			wr.asking.Done()
		}
		cancel()
	}
}

// leaderBy returns the leader of a group. If this node's replica is in touch with its group,
// leaderBy returns the leader that the replica knows. Otherwise it asks a third node that holds the
// group. If there is no such node, or that node knows no leader, leaderBy returns called.
func (wr *writer) leaderBy(ctx context.Context, g *shardReplica, called string) string {
	if r := g.replica.Load(); r != nil && r.group.InTouch() {
		return r.group.Leader()
	}
	other := wr.guess(g)
	if other == "" || other == called {
		return called
	}
	ctx, cancel := context.WithTimeout(ctx, leaderCheckEvery)
	defer cancel()
	_, err := wr.prover.Confirm(ctx, other, g.number)
	if err == nil {
		return other
	}
	if hinted := rpc.LeaderHint(err); hinted != "" {
		return hinted
	}
	return called
}

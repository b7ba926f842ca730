package shard

import (
	"context"
	"time"

	"github.com/countd/countd/shard/rpc"
)

const (
	// supersededLookEvery is how often a call that waits for the leader of a group
	// is compared with who leads it by now.
	supersededLookEvery = 250 * time.Millisecond
	// supersededLooks is how often the node that was called is not seen to lead
	// until the call is given up: one that handed the group over has answered by
	// then.
	supersededLooks = 2
)

// whileLed returns a context that ends when the node that is called has not led
// the group, or not been heard of, for a while. One that is paused or cut off does not answer; what waits
// in line behind the call would wait until its connection is given up, which takes
// far longer than to elect another leader.
func (wr *writer) whileLed(ctx context.Context, g *shardReplica, node string) (context.Context, context.CancelFunc) {
	return wr.while(ctx, func(ctx context.Context) bool {
		return !wr.calls.Doubtful(node) && wr.leaderBy(ctx, g, node) == node
	})
}

// while returns a context that ends when a condition has not held for a while.
//
// Its goroutine starts with the first look, since most calls are answered before. It
// ends with the context, which the caller ends; closing waits for it as for all that asks.
func (wr *writer) while(ctx context.Context, holds func(context.Context) bool) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	wr.asking.Add(1)
	first := time.AfterFunc(supersededLookEvery, func() {
		defer wr.asking.Done()
		look := time.NewTicker(supersededLookEvery)
		defer look.Stop()
		for seen := 0; ; {
			if holds(ctx) {
				seen = 0
			} else if seen++; seen == supersededLooks {
				break
			}
			select {
			case <-ctx.Done():
				return
			case <-look.C:
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

// leaderBy returns who leads a group as the replica here knows it or, if there is
// none that would, as one of the nodes that hold it says: the one that is called
// unless another node knows better.
func (wr *writer) leaderBy(ctx context.Context, g *shardReplica, called string) string {
	if r := g.replica.Load(); r != nil && r.group.InTouch() {
		return r.group.Leader()
	}
	other := wr.guess(g)
	if other == "" || other == called {
		return called
	}
	ctx, cancel := context.WithTimeout(ctx, supersededLookEvery)
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

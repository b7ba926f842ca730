package shard

import (
	"context"

	"github.com/countd/countd/shard/rpc"
)

// whileLed returns a context that ends once some checks in a row (rpc.Questions) found that the called
// node is silent or does not lead the group. A frozen or unreachable node does not answer. Without
// this context, the call would wait until the connection to that node is closed, which takes far
// longer than the election of another leader.
func (wr *writer) whileLed(ctx context.Context, g *shardReplica, node string) (context.Context, context.CancelFunc) {
	return wr.asking.While(ctx, func(ctx context.Context) bool {
		return !wr.calls.Doubtful(node) && wr.leaderBy(ctx, g, node) == node
	})
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
	ctx, cancel := context.WithTimeout(ctx, rpc.CheckEvery)
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

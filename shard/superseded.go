package shard

import (
	"context"
	"time"
)

const (
	// supersededLookEvery is how often a call that waits for the leader of a group
	// is compared with who leads it by now.
	supersededLookEvery = 250 * time.Millisecond
	// supersededLooks is how often another leader is seen until the call is given
	// up: one that handed the group over has answered by then.
	supersededLooks = 2
)

// whileLed returns a context that ends when another node than the one that is
// called has led the group for a while. A node that is paused or cut off does not
// answer; what waits in line behind the call would wait until its connection is
// given up, which takes far longer than to elect another leader.
//
// Its goroutine ends with the context, which the caller ends; closing waits for
// it as for all that asks.
func (n *Node) whileLed(ctx context.Context, g *counterGroup, node string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	n.asking.Go(func() {
		look := time.NewTicker(supersededLookEvery)
		defer look.Stop()
		for seen := 0; seen < supersededLooks; {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
			}
			if leader := n.leaderBy(ctx, g, node); leader != "" && leader != node {
				seen++
			} else {
				seen = 0
			}
		}
		cancel()
	})
	return ctx, cancel
}

// leaderBy returns who leads a group as the replica here knows it or, without one,
// as one of the nodes that hold it says that is not the one that is called.
func (n *Node) leaderBy(ctx context.Context, g *counterGroup, called string) string {
	if r := g.replica.Load(); r != nil {
		return r.group.leader()
	}
	other := n.guess(g)
	if other == "" || other == called {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, supersededLookEvery)
	defer cancel()
	answer, err := n.peer(other).confirm.do(ctx, g.number)
	if err == nil {
		err = answer.err
	}
	if err == nil {
		return other
	}
	return leaderHint(err)
}

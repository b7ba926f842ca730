package e2e

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

// TestSourceGrowth counts a queue while the shards of posts grow, and while nodes are killed. Meanwhile the source is
// paused and resumed. At the end, it has counted each message once, and replicas agree. In the long form posts grows twice,
// and the test has 10 rounds.
func TestSourceGrowth(t *testing.T) {
	long(t)
	beside(t)
	for round := range short(1, 10) {
		store := []string{"shared", "boltdb"}[round%2]
		t.Run(store, func(t *testing.T) {
			c := proctest.NewCluster(t, bin, proctest.Options{LogStore: store, Shards: oneShard})
			nodes, q := c.Nodes(), startNATSQueue(t)
			q.create(t, nodes[0])
			ctx, stop := context.WithCancel(t.Context())
			var meanwhile sync.WaitGroup
			t.Cleanup(func() { stop(); meanwhile.Wait() })
			meanwhile.Go(func() { q.keepWriting(ctx) })
			meanwhile.Go(func() { q.keepPausing(ctx, nodes) })
			meanwhile.Go(func() {
				for ctx.Err() == nil {
					n := nodes[rand.IntN(len(nodes))]
					n.Kill()
					time.Sleep(rand.N(time.Second))
					n.Start()
					c.AwaitReady(n)
					time.Sleep(rand.N(2 * time.Second))
				}
			})
			for _, from := range short([]int{1}, []int{1, 3}) {
				time.Sleep(2 * time.Second) // some messages before each growth
				begun := time.Now()
				grow(t, c, "posts", from)
				t.Logf("posts has %d shards after %v", 3*from, time.Since(begun))
			}
			stop()
			meanwhile.Wait()
			c.AwaitReady(nodes...)
			nodes[0].MustCtl("source", "resume", q.name)
			q.awaitCounted(t, nodes[1], nodes[2])
			c.AwaitAgreement(nodes...)
		})
	}
}

// keepPausing pauses and resumes the source until ctx ends. Calls fail while a node is down.
func (q *queue) keepPausing(ctx context.Context, nodes []*proctest.Member) {
	for ctx.Err() == nil {
		for _, change := range []string{"pause", "resume"} {
			_, _ = nodes[rand.IntN(len(nodes))].Call(http.MethodPost, "/v1/sources/"+q.name+"/"+change, nil, nil)
			select {
			case <-ctx.Done():
			case <-time.After(rand.N(time.Second)):
			}
		}
	}
}

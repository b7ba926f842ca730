package proctest

import (
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/countd/countd/internal/must"
)

// WritesResume sends writes to the given shards of posts, through the nodes, until each shard has
// acknowledged one. It returns the times from start to these acknowledgements, ascending.
func (c *Cluster) WritesResume(start time.Time, shards []int, nodes ...*Member) []time.Duration {
	c.t.Helper()
	took := make([]time.Duration, len(shards))
	var writers sync.WaitGroup
	for i, shard := range shards {
		writers.Go(func() { // ends with an answer, or with the timeout
			o := op{strconv.Itoa(shard + c.Shards("posts")), map[string]int64{"repost": 1}}
			r := &request{method: http.MethodPost, path: "/v1/counters/posts/incr", body: map[string]any{"ops": []op{o}}}
			for node := nodes[i%len(nodes)]; time.Since(start) < must.BecomeMax; node = after(nodes, node) {
				var a answer
				if try := node.try(c.t.Context(), r, RequestDeadline, &a); try.fate == done {
					took[i] = time.Since(start)
					return
				}
				time.Sleep(tryPause)
			}
		})
	}
	writers.Wait()
	for i, d := range took {
		if d == 0 {
			c.t.Fatalf("shard %d takes no writes after %v", shards[i], must.BecomeMax)
		}
	}
	slices.Sort(took)
	return took
}

package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

const (
	growingPosts = 30 // posts with many members
	growingLikes = 5000
)

// TestMembersGrowth multiplies the one shard of posts by 3 while members change and nodes are killed with kill -9. The
// shard has more members than Apply could copy in time. Before the growth, during it and afterwards, nodes are killed. At
// the end, the answers, counts and lists agree with the model of TestMembers, each node has read all its sets, and the
// replicas agree.
func TestMembersGrowth(t *testing.T) {
	long(t)
	beside(t)
	c := proctest.NewCluster(t, bin, proctest.Options{LogStore: "shared", Shards: oneShard, Args: []string{"--scrub-every=1s"}})
	shards := func(want int) {
		if n := len(c.Nodes()[0].Cluster().Digests("posts")); n != want {
			t.Errorf("posts has %d shards, want %d", n, want)
		}
	}
	shards(1)
	m := &memberRun{t: t, c: c}
	for post := range growingPosts {
		var ops []memberOp
		for user := range growingLikes {
			ops = append(ops, memberOp{growingPost(post), strconv.Itoa(2_000_000 + user), true})
		}
		m.send(fmt.Sprintf("many-%d", post), ops, post)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var callers sync.WaitGroup
	for i := range memberCallers {
		w := &memberCaller{run: m, number: i, rand: rand.New(rand.NewPCG(uint64(i), 1)), in: map[memberPair]bool{}}
		m.callers = append(m.callers, w)
		callers.Go(func() { w.loop(ctx) })
	}
	grown := make(chan struct{})
	go func() { // ends once the keyspace has grown; the loop below waits for it
		defer close(grown)
		grow(t, c, "posts", 1)
	}()
	killed := func(round int) {
		before := m.answered.Load()
		n := c.Nodes()[round%len(c.Nodes())]
		n.Kill()
		eventually(t, "members change without the node that was killed", func() bool { return m.answered.Load() > before+50 })
		n.StartReady()
	}
	for round, growing := 0, true; growing; round++ {
		select {
		case <-grown:
			growing = false
		default:
			if round < short(2, 10) { // then the growth goes on without kills
				killed(round)
				continue
			}
			<-grown
		}
	}
	killed(0)
	stop()
	callers.Wait()
	shards(3)
	m.checkCallers()
	for post := range growingPosts {
		var want []string
		for user := range growingLikes {
			want = append(want, strconv.Itoa(2_000_000+user))
		}
		m.checkPost(c.Nodes()[post%len(c.Nodes())], growingPost(post), want)
	}
	m.scrubbed()
	c.AwaitAgreement(c.Nodes()...)
	c.Nodes()[0].MustCtl("verify")
}

func growingPost(n int) string { return strconv.Itoa(500 + n) }

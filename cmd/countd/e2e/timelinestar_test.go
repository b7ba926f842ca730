package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/proctest"
)

const (
	star          = 7
	starFollowee0 = 1000 // lowest id of the other users whom followers follow
	starFollower0 = 1_000_000
	// starPage is the number of posts of a page. The star begins with twice as many posts.
	starPage = 12
)

// starRun is a cluster with followers of one author, the star. No other author publishes.
type starRun struct {
	*testing.T
	c         *proctest.Cluster
	http      *client.Client
	followers int
	keys      int
	last      uint64      // id of the newest post
	posts     []client.ID // newest first
}

// TestPostOfAStarThroughFaults: the next page of every follower contains each post exactly once,
// and no deleted post, while
//
//  1. a node is down after kill -9, each time a different node;
//  2. for each shard of users and feeds, a replica moves to the node that has none;
//  3. outboxes and feeds are on disk;
//  4. writes are repeated, under the same key and under another key.
func TestPostOfAStarThroughFaults(t *testing.T) {
	long(t)
	beside(t)
	r := &starRun{
		T: t, c: newCluster(t, proctest.Options{Nodes: 4, Args: []string{"--feed-idle=1s"}}),
		followers: short(20, 5_000), last: timelinePost,
	}
	r.http = clientOf(t, r.c.Nodes()...)
	for i := range r.followers {
		followees := []client.ID{client.Number(star)}
		for other := range 20 {
			followees = append(followees, client.Number(uint64(starFollowee0+(i*13+other)%500)))
		}
		if _, err := r.http.Feeds().Follow(t.Context(), client.Number(uint64(starFollower0+i)), followees, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 * starPage { // enough posts that the outbox is worth moving to disk
		r.publish()
	}
	r.check()
	for round := range short(1, 12) {
		victim := r.c.Nodes()[(round+1)%4]
		r.awaitSpilled()
		r.check()
		r.awaitSpilled()
		r.publish()
		r.check()
		moveTimelines(t, r.c)
		r.publish()
		r.remove(1)
		r.check()
		victim.Kill()
		r.http = clientOf(t, r.c.Others(victim)...)
		r.publish()
		r.check()
		r.remove(0)
		r.check()
		victim.Start()
		r.c.AwaitReady(victim)
		r.c.AwaitVoters(3)
		r.http = clientOf(t, r.c.Nodes()...)
		r.check()
	}
	r.c.AwaitAgreement(r.c.Nodes()...)
	for _, n := range r.c.Nodes() {
		r.http = clientOf(t, n)
		r.check()
	}
}

// publish publishes the next post. It repeats the write.
func (r *starRun) publish() {
	r.Helper()
	r.last += timelineStep
	id := client.Number(r.last)
	r.posts = slices.Insert(r.posts, 0, id)
	r.write("publish", func(o client.WriteOptions) (client.PostResult, error) {
		return r.http.AddPost(r.Context(), client.Number(star), id, o)
	})
}

// remove removes the post r.posts[at]. It repeats the write.
func (r *starRun) remove(at int) {
	r.Helper()
	id := r.posts[at]
	r.posts = slices.Delete(r.posts, at, at+1)
	r.write("remove", func(o client.WriteOptions) (client.PostResult, error) {
		return r.http.RemovePost(r.Context(), client.Number(star), id, o)
	})
}

// write makes the same write three times: twice under one key, and once under another key.
func (r *starRun) write(what string, write func(client.WriteOptions) (client.PostResult, error)) {
	r.Helper()
	r.keys++
	for i, key := range []string{fmt.Sprintf("key %d", r.keys), fmt.Sprintf("key %d", r.keys), fmt.Sprintf("key %d again", r.keys)} {
		answer, err := write(client.WriteOptions{Key: key})
		if err != nil || answer.Posts != int64(len(r.posts)) || answer.Changed && i > 0 {
			r.Fatalf("%s, time %d: %+v, %v, want %d posts", what, i+1, answer, err, len(r.posts))
		}
	}
}

// check reads the page of every follower.
func (r *starRun) check() {
	r.Helper()
	want := r.posts[:min(starPage, len(r.posts))]
	for i := range r.followers {
		user := client.Number(uint64(starFollower0 + i))
		var page client.PostPage
		eventually(r.T, "all shards can be read", func() bool { // repeat the read while a shard has no leader
			var err error
			if page, err = r.http.Timeline(r.Context(), user, client.PostQuery{Limit: starPage}, linearizableRead); err != nil {
				r.Fatal(err)
			}
			return len(page.UnreadableShards) == 0
		})
		if !slices.EqualFunc(page.Posts, want, func(p client.Post, id client.ID) bool { return p.ID == id && p.Author == client.Number(star) }) {
			r.Fatalf("the page of user %s is %v, want %v", user, page.Posts, want)
		}
	}
}

// awaitSpilled waits until every replica of the star's shard has moved the outbox to disk, and most
// feeds are on disk too.
func (r *starRun) awaitSpilled() {
	r.Helper()
	eventually(r.T, "outboxes and feeds leave memory", func() bool {
		outboxes, feeds := 0.0, 0.0
		for _, n := range r.c.Nodes() {
			metrics := n.Text("/metrics")
			outboxes += metricOf(r.T, metrics, "countd_outboxes_spilled")
			feeds += metricOf(r.T, metrics, "countd_feeds_spilled")
		}
		return outboxes >= 3 && feeds >= 3*float64(r.followers)/2
	})
}

// moveTimelines orders, for each shard of users and feeds, the move of one replica to a node that
// has none. It does not wait for the moves.
func moveTimelines(t *testing.T, c *proctest.Cluster) {
	t.Helper()
	nodes := c.Nodes()
	eventually(t, "a replica begins to move", func() bool {
		ordered := 0
		for _, p := range nodes[0].Placed() {
			to := slices.IndexFunc(nodes, func(n *proctest.Member) bool { return !slices.Contains(p.Target, n.Name) })
			from := slices.IndexFunc(nodes, func(n *proctest.Member) bool { return len(p.Target) > 0 && n.Name == p.Target[0] })
			if p.Keyspace != "users" && p.Keyspace != "feed" || to < 0 || from < 0 {
				continue
			}
			if nodes[0].OrderMove(p.ID, nodes[from], nodes[to]) == "" {
				ordered++
			}
		}
		return ordered > 0
	})
}

func metricOf(t *testing.T, metrics, name string) (value float64) {
	t.Helper()
	_, rest, found := strings.Cut(metrics, "\n"+name+" ")
	if _, err := fmt.Sscan(rest, &value); !found || err != nil {
		t.Fatalf("no metric %s: %v", name, err)
	}
	return value
}

package shard

import (
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
)

// newBodiesCluster returns a cluster of three nodes whose feeds and outboxes leave memory when a test says so.
func newBodiesCluster(t *testing.T) *growingCluster {
	t.Helper()
	c := &growingCluster{T: t}
	var all []*Node
	for i := range c.nodes {
		dir := t.TempDir()
		cfg := memberConfig(t, filepath.Join(dir, "groups"), i+1, len(c.nodes))
		cfg.Cold.Dir, cfg.FeedIdle = filepath.Join(dir, "cold"), 1000*time.Hour
		all = append(all, joinAs(t, all, cfg))
	}
	for i, n := range all {
		c.nodes[i].Store(n)
		c.cfgs[i] = n.cfg
		c.cfgs[i].ClusterAddr = n.mux.Addr().String()
	}
	for i := range c.nodes {
		mustDo(t, c.node(i).WaitReady(must.Context(t)))
	}
	return c
}

// spill moves all bodies to disk, once all replicas have them.
func (c *growingCluster) spill() {
	c.Helper()
	eventually(c, "digests agree", func() bool { return digestsAgree([]*Node{c.node(0), c.node(1), c.node(2)}) })
	for i := range c.nodes {
		spillAll(c.T, c.node(i))
	}
}

// mustWrite repeats a write at all nodes until one acknowledges it.
func (c *growingCluster) mustWrite(keyspace string, w *Write) {
	c.Helper()
	once(w)
	eventually(c, "the write is acknowledged", func() bool {
		for i := range c.nodes {
			n := c.node(i)
			w.Deadline = soon()
			if n.Write(n.Keyspace(keyspace), w) == nil {
				return true
			}
		}
		return false
	})
}

// Feeds and outboxes, most of them on disk, grow from one shard to three, while users follow and authors publish, and a node is closed and
// opened again:
//
//  1. Each node has all feeds and timelines, with what was acknowledged meanwhile, and nothing twice.
//  2. On a node that was not closed, bodies that nobody used are still on disk, in the parts too.
//  3. They move to disk again, and the digests agree.
func TestBodiesGrowUnderWriters(t *testing.T) {
	t.Parallel()
	c := newBodiesCluster(t)
	fillNode(t, c.node(0))
	authors := fillAuthors(t, c.node(0))
	c.spill()
	spilled, bodies := onDisk(c.node(2))
	if spilled != bodies || bodies != feedTestUsers+spillAuthors {
		t.Fatalf("%d of %d bodies are on disk", spilled, bodies)
	}

	stop := make(chan struct{})
	var writing sync.WaitGroup
	since := map[uint64]feed.Followee{}
	writing.Go(func() {
		for round := uint64(1); ; round++ {
			user, author := round%5, round%3
			id := authors.posts[author][0] + 1
			for name, w := range map[string]*Write{
				kinds.KeyspaceFeed:  {Ops: feed.Ops{{Kind: feed.Reset, User: user, Followees: []feed.Followee{{ID: 7, Posts: int64(user)}, {ID: 8, Posts: int64(round)}}}}},
				kinds.KeyspaceUsers: {Ops: counters.OutboxOps{{Author: author, PostOp: counters.PostOp{Kind: counters.Publish, ID: id, Limits: counters.OutboxLimits{Posts: 10_000}}}}},
			} {
				c.mustWrite(name, w)
			}
			since[user] = feed.Followee{ID: 8, Posts: int64(round)}
			authors.posts[author] = append([]uint64{id}, authors.posts[author]...)
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
	for _, name := range []string{kinds.KeyspaceFeed, kinds.KeyspaceUsers} {
		c.name = name
		c.grow()
		if name == kinds.KeyspaceUsers {
			c.restart(0)
		}
		c.grown()
	}
	close(stop)
	writing.Wait()

	if n, _ := onDisk(c.node(2)); n < bodies-8 || n > bodies {
		t.Errorf("%d of %d bodies are on disk after the growth, 8 were used", n, bodies)
	}
	check := func() {
		t.Helper()
		for i := range c.nodes {
			n := c.node(i)
			mustDo(t, n.WaitReady(must.Context(t)))
			for name, groups := range map[string]int{kinds.KeyspaceFeed: 3, kinds.KeyspaceUsers: 3} {
				eventually(t, "the node sees the growth", func() bool { return len(n.Catalog().Keyspaces[name].Groups) == groups })
			}
			eventually(t, "the node reads all feeds", func() bool {
				return n.Feeds(n.Keyspace(kinds.KeyspaceFeed), []uint64{0, 1, 2, 3, 4, 5}, &ReadOptions{Consistency: Linearizable, Deadline: soon()}, new(Feeds)) == nil
			})
			checkFeeds(t, n, ReadOptions{Consistency: Linearizable}, since)
			authors.check(t, n, ReadOptions{Consistency: Linearizable})
		}
		eventually(t, "digests agree", func() bool { return digestsAgree([]*Node{c.node(0), c.node(1), c.node(2)}) })
	}
	check()
	for i := range c.nodes {
		spillAll(t, c.node(i))
		if n, all := onDisk(c.node(i)); n != all || all != bodies {
			t.Errorf("node %d: %d of %d bodies are on disk again, there were %d", i, n, all, bodies)
		}
	}
	check()
}

// Many large outboxes grow, on disk and in memory, while authors publish. Each has what was published.
func TestLargeOutboxesGrow(t *testing.T) {
	if testing.Short() {
		t.Skip("it writes 70 MB to three nodes")
	}
	t.Parallel()
	const authors, posts = 1000, 10_000
	c := newBodiesCluster(t)
	c.name = kinds.KeyspaceUsers
	newest := func(author uint64) uint64 { return posts<<48 + author }
	for author := range uint64(authors) {
		var box counters.Outbox
		for i := range uint64(posts) {
			box.IDs = append(box.IDs, newest(author)-i<<48)
		}
		op := counters.OutboxOp{Author: author, PostOp: counters.PostOp{Kind: counters.PutOutbox, Outbox: box}}
		mustDo(t, c.node(0).Write(c.node(0).Keyspace(c.name), once(&Write{Ops: counters.OutboxOps{op}, Deadline: soon()})))
	}
	c.spill()
	for author := range uint64(authors / 10) { // these return to memory
		mustReadNewest(t, c.node(2), NewestPosts{Authors: []uint64{author}, Limit: 1}, ReadOptions{Consistency: Linearizable}, Post{ID: newest(author), Author: author})
	}
	for i := range c.nodes {
		var bytes uint64
		for _, r := range c.node(i).registry.bodies() {
			bytes += r.Stats().Bytes + r.Stats().SpilledBytes
		}
		if bytes <= 64<<20 {
			t.Fatalf("%d bytes of bodies", bytes)
		}
	}
	c.grow()
	published := uint64(0)
	for grown := false; !grown; grown = len(c.keyspace().Groups) == 3 && c.keyspace().Growth == nil {
		op := counters.PostOp{Kind: counters.Publish, ID: newest(published%authors) + published/authors + 1, Limits: counters.OutboxLimits{Posts: posts + 100}}
		c.mustWrite(kinds.KeyspaceUsers, &Write{Ops: counters.OutboxOps{{Author: published % authors, PostOp: op}}})
		if published++; published == 20 {
			c.restart(1)
		}
	}
	eventually(t, "digests agree", func() bool { return digestsAgree([]*Node{c.node(0), c.node(1), c.node(2)}) })
	for i := range c.nodes {
		mustDo(t, c.node(i).WaitReady(must.Context(t)))
	}
	t.Logf("%d posts were published meanwhile", published)
	for author := range uint64(authors) {
		want := []Post{}
		for id := newest(author) + (published+authors-1-author)/authors; len(want) < 2; id-- {
			if want = append(want, Post{ID: id, Author: author}); id == newest(author) {
				want = append(want, Post{ID: id - 1<<48, Author: author})
				break
			}
		}
		mustReadNewest(t, c.node(int(author%3)), NewestPosts{Authors: []uint64{author}, Limit: 2}, ReadOptions{Consistency: Linearizable}, want[:2]...)
	}
}

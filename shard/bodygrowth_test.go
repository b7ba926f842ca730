package shard

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
)

// Feeds and outboxes, most of them on disk, grow from one shard to three, while users follow and authors publish, and a node is closed and
// opened again:
//
//  1. Each node has all feeds and timelines, with what was acknowledged meanwhile, and nothing twice.
//  2. On a node that was not closed, bodies that nobody used are still on disk, in the parts too.
//  3. They move to disk again, and the digests agree.
func TestBodiesGrowUnderWriters(t *testing.T) {
	t.Parallel()
	c := &growingCluster{T: t, name: kinds.KeyspaceFeed}
	var all []*Node
	for i := range c.nodes {
		dir := t.TempDir()
		cfg := memberConfig(t, filepath.Join(dir, "groups"), i+1, len(c.nodes))
		cfg.Cold.Dir, cfg.FeedIdle = filepath.Join(dir, "cold"), 1000*time.Hour
		all = append(all, joinAs(t, all, cfg))
		c.cfgs[i] = cfg
	}
	for i, n := range all {
		c.nodes[i].Store(n)
		c.cfgs[i] = n.cfg
		c.cfgs[i].ClusterAddr = n.mux.Addr().String()
	}
	for i := range c.nodes {
		mustDo(t, c.node(i).WaitReady(must.Context(t)))
	}
	fillNode(t, c.node(0))
	authors := fillAuthors(t, c.node(0))
	eventually(t, "the replicas are alike", func() bool { return digestsAgree(all) })
	for _, n := range all {
		spillAll(t, n)
	}
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
			for key, ops := range map[string]*Write{
				"follow":  {Ops: feed.Ops{{Kind: feed.Reset, User: user, Followees: []feed.Followee{{ID: 7, Posts: int64(user)}, {ID: 8, Posts: int64(round)}}}}},
				"publish": {Ops: counters.OutboxOps{{Author: author, PostOp: counters.PostOp{Kind: counters.Publish, ID: id, Limits: counters.OutboxLimits{Posts: 10_000}}}}},
			} {
				name := map[string]string{"follow": kinds.KeyspaceFeed, "publish": kinds.KeyspaceUsers}[key]
				ops.ID = dedup.ByKey(fmt.Appendf(nil, "%s-%d", key, round))
				for try := 0; ; try++ { // a repeat decides
					n := c.node(try % 3)
					ops.Deadline = soon()
					if n.Write(n.Keyspace(name), ops) == nil {
						break
					}
				}
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

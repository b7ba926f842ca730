package shard

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
)

// Rows are packed in memory by themselves once they are old and nobody writes to them,
// answer as before, and are packed again when a restart has read the snapshot.
func TestRowsAreSealed(t *testing.T) {
	dir := t.TempDir()
	open := func() *Node {
		cfg := memberConfig(t, filepath.Join(dir, "groups"), 1, 1)
		cfg.Shards = map[string]int{"posts": 1, "users": 1}
		cfg.Cold = ColdConfig{Dir: filepath.Join(dir, "cold"), SealAfter: time.Second, Layouts: map[string]IDLayout{"posts": LayoutWeibo}}
		n, err := Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeCold(t, n) })
		if err := n.WaitReady(t.Context()); err != nil {
			t.Fatal(err)
		}
		return n
	}
	posts := func(n *Node) GroupStatus {
		for _, g := range n.Status().Groups {
			if g.Keyspace == "posts" {
				return g
			}
		}
		t.Fatal("no shard of posts")
		return GroupStatus{}
	}
	check := func(n *Node, want int64) {
		t.Helper()
		eventually(t, "rows are sealed", func() bool { return posts(n).SealedRows >= coldTestRows/2 })
		checkCold(t, n, n.Keyspace("posts"), want)
		if rows := countRows(t, n, n.Keyspace("posts")); rows != coldTestRows {
			t.Errorf("a scan gives %d rows", rows)
		}
		g, _ := n.groupsOf(n.Keyspace("posts"))
		if err := g[0].replica.Load().fsm.(*raftfsm.Counters).Table().Check(); err != nil {
			t.Error(err)
		}
	}
	n := open()
	ops := make([]engine.Op, coldTestRows)
	for i := range ops {
		ops[i] = addTo(coldID(uint64(i)), 0, 1)
	}
	mustWrite(t, n, n.Keyspace("posts"), ops...)
	hot := posts(n)
	check(n, 1)
	if s := posts(n); s.Bytes > hot.Bytes*3/4 || s.SealedBytes >= s.Bytes || n.sealed.Load() < s.SealedRows {
		t.Errorf("%+v, was %+v", s, hot)
	}
	g, _ := n.groupsOf(n.Keyspace("posts"))
	r := g[0].replica.Load()
	r.group.log.bytes.Store(1 << 40) // entries so large that few are kept
	mustDo(t, r.group.snapshot())
	before := digests(n)
	closeCold(t, n)
	n = open()
	if s := posts(n); s.SealedRows < coldTestRows/2 || s.Bytes > hot.Bytes*3/4 {
		t.Errorf("after the restart %+v, hot %+v", s, hot)
	}
	if after := digests(n); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("after the restart %v, before %v", after, before)
	}
	check(n, 2)
}

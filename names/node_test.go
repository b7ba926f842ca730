package names

import (
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

func openNode(t *testing.T, dir string) *shard.Node {
	t.Helper()
	n, err := shard.Open(shard.Config{
		Dir: dir, NodeKey: "n1.0", NodeName: "n1", Bootstrap: true, ClusterID: strings.Repeat("5", 32), Version: "1.2.3",
		ClusterAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:7400", GossipAddr: "127.0.0.1:7402", Texts: map[string]bool{"users": true},
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Fatal: func(err error) { t.Errorf("fatal: %v", err) },
	})
	must.Do(t, err)
	must.Do(t, n.WaitReady(must.Context(t)))
	return n
}

// A node creates a keyspace together with its names, counts by the numbers of texts, knows them after
// a restart, and drops both. A later keyspace of the same name begins with number 1.
func TestNamesOfANode(t *testing.T) {
	dir := t.TempDir()
	node := openNode(t, dir)
	ks, err := node.CreateKeyspace(t.Context(), shard.Keyspace{Name: "articles", Columns: []string{"like"}, IDs: shard.IDsText})
	must.Do(t, err)
	if ks.Names != "articles@ids" || ks.IDs != shard.IDsText || node.Keyspace(ks.Names).Kind != kinds.Names {
		t.Fatalf("made %+v and %+v", ks, node.Keyspace(ks.Names))
	}
	_, err = node.CreateKeyspace(t.Context(), shard.Keyspace{Name: "articles", Columns: []string{"like"}})
	if !errors.Is(err, errs.ErrKeyspaceExists) {
		t.Errorf("the same for numbers: %v", err)
	}
	assign := func(n *Names, texts ...string) []uint64 {
		t.Helper()
		numbers := make([]uint64, len(texts))
		must.Do(t, n.Assign(ks.Names, texts, numbers, &shard.Write{Deadline: soon()}))
		return numbers
	}
	n := New(node)
	numbers := assign(n, "b", "a", "b")
	wantNumbers(t, "new", numbers, 1, 2, 1)
	must.Do(t, node.Write(ks, &shard.Write{Ops: counters.Ops{{ID: numbers[0], Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 5}}}}, Deadline: soon()}))
	for _, name := range []string{"users", "unread", "feed"} {
		if k := node.Keyspace(name); k.Names != "users@ids" || k.IDs != shard.IDsText {
			t.Errorf("keyspace %s has the names %q", name, k.Names)
		}
	}
	if k := node.Keyspace("posts"); k.Names != "" || k.IDs != "" {
		t.Errorf("posts have the names %q", k.Names)
	}

	must.Do(t, node.Close(must.Context(t)))
	node = openNode(t, dir)
	defer func() { must.Do(t, node.Close(must.Context(t))) }()
	n, ks = New(node), node.Keyspace("articles")
	found, texts := make([]uint64, 3), make([]string, 2)
	must.Do(t, n.Find(ks.Names, []string{"a", "c", "b"}, found, &shard.ReadOptions{Consistency: shard.Linearizable, Deadline: soon()}))
	wantNumbers(t, "restarted", found, 2, 0, 1)
	must.Do(t, n.Texts(ks.Names, []uint64{2, 1}, texts, &shard.ReadOptions{Deadline: soon()}))
	q := rows.Query{Width: 1, Rows: make([]int64, 1)}
	must.Do(t, node.Read(ks, &q, found[2:], &shard.ReadOptions{Consistency: shard.Linearizable, Deadline: soon()}))
	if !slices.Equal(texts, []string{"a", "b"}) || q.Rows[0] != 5 {
		t.Errorf("texts %q, count %d", texts, q.Rows[0])
	}
	wantNumbers(t, "after a restart", assign(n, "c", "a"), 3, 2)

	_, err = node.DropKeyspace(t.Context(), "articles@ids")
	if err == nil {
		t.Error("the names were dropped alone")
	}
	_, err = node.DropKeyspace(t.Context(), "articles")
	must.Do(t, err)
	if err := n.Find(ks.Names, []string{"a"}, found[:1], &shard.ReadOptions{Deadline: soon()}); !errors.Is(err, errs.ErrUnknownKeyspace) {
		t.Errorf("names of a dropped keyspace: %v", err)
	}
	ks, err = node.CreateKeyspace(t.Context(), shard.Keyspace{Name: "articles", Columns: []string{"like"}, IDs: shard.IDsText})
	must.Do(t, err)
	wantNumbers(t, "in a later keyspace", assign(n, "a"), 1)
}

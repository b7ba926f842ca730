package names

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/tiering"
)

// Rows of texts leave memory once their numbers were given long enough ago, also if the keyspace has a
// layout of ids, and by an operator's order. They come back with their counts. A bound by id is refused.
func TestRowsOfTextsBecomeCold(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	node, err := shard.Open(shard.Config{
		Dir: filepath.Join(dir, "groups"), NodeKey: "n1.0", NodeName: "n1", Bootstrap: true, ClusterID: strings.Repeat("5", 32), Version: "1.2.3",
		ClusterAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:7400", GossipAddr: "127.0.0.1:7402",
		Shards: map[string]int{"posts": 1}, Texts: map[string]bool{"posts": true},
		Cold:   tiering.ColdConfig{Dir: filepath.Join(dir, "cold"), After: 2 * time.Second, Layouts: map[string]tiering.IDLayout{"posts": tiering.LayoutWeibo}},
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Fatal: func(err error) { t.Errorf("fatal: %v", err) },
	})
	must.Do(t, err)
	defer func() { must.Do(t, node.Close(must.Context(t))) }()
	must.Do(t, node.WaitReady(must.Context(t)))
	const total, batch = 20_000, 1000
	n, ks := New(node), node.Keyspace("posts")
	texts, numbers := make([]string, total), make([]uint64, total)
	for i := range texts {
		texts[i] = fmt.Sprintf("post %d", i)
	}
	must.Do(t, n.Assign(ks.Names, texts, numbers, &shard.Write{Deadline: soon()}))
	for from := 0; from < total; from += batch {
		var ops counters.Ops
		for i := from; i < from+batch; i++ {
			ops = append(ops, engine.Op{ID: numbers[i], Kind: engine.OpAdd, Cells: []engine.Cell{{Value: int64(i + 1)}}})
		}
		must.Do(t, node.Write(ks, &shard.Write{Ops: ops, Deadline: soon()}))
	}
	cold := func() (rows uint64) {
		for _, g := range node.Status().Groups {
			if g.Keyspace == "posts" {
				rows = g.ColdRows
			}
		}
		return rows
	}
	must.Become(t, "rows are cold", func() bool { return cold() >= total/2 })
	q := rows.Query{Width: 1, Rows: make([]int64, total)}
	for from := 0; from < total; from += batch {
		q.Rows = q.Rows[:batch]
		must.Do(t, node.Read(ks, &q, numbers[from:from+batch], &shard.ReadOptions{Consistency: shard.Linearizable, Deadline: soon()}))
		for i, count := range q.Rows {
			if count != int64(from+i+1) {
				t.Fatalf("%q has %d, want %d", texts[from+i], count, from+i+1)
			}
		}
	}
	w := shard.Write{Ops: counters.Ops{{ID: numbers[7], Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 5}}}}, Width: 1, Rows: make([]int64, 1), Deadline: soon()}
	must.Do(t, node.Write(ks, &w))
	if w.Rows[0] != 8+5 {
		t.Errorf("%q has %d after a write, want 13", texts[7], w.Rows[0])
	}

	_, answers, err := node.OrderCold(t.Context(), tiering.TieringJob{Verb: tiering.ColdMigrate, Keyspace: "posts", OlderThan: time.Hour, DryRun: true})
	must.Do(t, err)
	if rows := answers["n1.0"].Rows; rows > 0 {
		t.Errorf("%d rows are an hour old", rows)
	}
	_, _, err = node.OrderCold(t.Context(), tiering.TieringJob{Verb: tiering.ColdMigrate, Keyspace: "posts", Before: 9})
	argument, is := errors.AsType[*errs.ArgumentError](err)
	if !is || argument.Field != "before" {
		t.Errorf("up to an id: %v", err)
	}
}

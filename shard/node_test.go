package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

const testClusterID = "000102030405060708090a0b0c0d0e0f"

// openNode opens a node and waits until it serves. At the end of the test, mustStop closes the node
// and verifies its tables.
func openNode(t *testing.T, dir string, shards map[string]int) *Node {
	t.Helper()
	shards = fewShards(shards)
	n, err := Open(Config{
		Dir: dir, NodeKey: "n1.0", NodeName: "n1", Bootstrap: true, ClusterID: testClusterID, Version: "1.2.3", ClusterAddr: "127.0.0.1:0",
		HTTPAddr: "127.0.0.1:7400", GossipAddr: "127.0.0.1:7402", Shards: shards,
		Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Fatal: func(err error) { t.Errorf("fatal: %v", err) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mustStop(t, n) })
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	if err := n.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	return n
}

// fewShards adds one shard of each keyspace that tests of counters do not use.
func fewShards(shards map[string]int) map[string]int {
	few := map[string]int{kinds.KeyspaceUnread: 1, kinds.KeyspaceFeed: 1}
	maps.Copy(few, shards)
	return few
}

// counterKeyspaces returns the keyspaces of a node that hold only counters.
func counterKeyspaces(n *Node) []*Keyspace {
	return slices.DeleteFunc(slices.Clone(n.Keyspaces()), func(k *Keyspace) bool { return k.Kind != kinds.Counters })
}

// mustStop closes a node and verifies its tables. It may be called again.
func mustStop(t *testing.T, n *Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), eventuallyMax)
	defer cancel()
	if err := n.Close(ctx); err != nil {
		t.Error(err)
	}
	for _, g := range n.registry.groups.Load().all {
		if r := g.replica.Load(); r != nil {
			for _, table := range []*engine.Table{r.fsm.TableOf(rows.Counts), r.fsm.TableOf(unread.Cursors)} {
				if table == nil {
					continue
				}
				if err := rafttest.CheckTable(table); err != nil {
					t.Errorf("group %d: %v", g.number, err)
				}
			}
		}
	}
}

// soon returns a deadline that even a busy machine meets: the longest of a client's request.
func soon() time.Time { return time.Now().Add(rpc.CallTimeoutMax) }

func addTo(id uint64, column uint8, delta int64) engine.Op {
	return engine.Op{ID: id, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: column, Value: delta}}}
}

func mustWrite(t *testing.T, n *Node, ks *Keyspace, ops ...engine.Op) *Write {
	t.Helper()
	w := &Write{Ops: counters.Ops(ops), Width: len(ks.Columns), Rows: make([]int64, len(ops)*len(ks.Columns)), Deadline: soon()}
	if err := n.Write(ks, w); err != nil {
		t.Fatal(err)
	}
	return w
}

func mustGet(t *testing.T, n *Node, ks *Keyspace, opt ReadOptions, ids ...uint64) []int64 {
	t.Helper()
	opt.Deadline = soon()
	rows := make([]int64, len(ids)*len(ks.Columns))
	if err := n.Get(ks, ids, len(ks.Columns), &opt, rows); err != nil {
		t.Fatal(err)
	}
	return rows
}

// digests returns the digest and the number of rows of each group but the catalog's. The catalog
// has the node's addresses, which may change with each start.
func digests(n *Node) map[uint32]string {
	all := map[uint32]string{}
	for _, g := range n.Status().Groups[1:] {
		all[g.ID] = fmt.Sprintf("%s %s/%d: %d rows", g.Digest, g.Keyspace, g.Shard, g.Rows)
	}
	return all
}

// A node that is closed and opened again has:
//
//  1. its keyspaces, with columns that were added;
//  2. equal digests;
//  3. every row, whether it comes from the log or from a snapshot.
func TestNodeKeepsEverything(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name     string
		snapshot bool
	}{{"from the log", false}, {"from snapshots and log", true}} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			n := openNode(t, dir, map[string]int{"posts": 2, "users": 1})
			mine, err := n.CreateKeyspace(t.Context(), Keyspace{Name: "mine", Columns: []string{"a"}, Shards: 3})
			mustDo(t, err)
			_, err = n.AddColumns(t.Context(), "mine", column.Named("b"))
			mustDo(t, err)
			r := rand.New(rand.NewPCG(7, 7))
			for round := range 3 {
				for _, ks := range counterKeyspaces(n) {
					var ops []engine.Op
					for range 500 {
						ops = append(ops, addTo(r.Uint64()>>r.IntN(60), uint8(r.IntN(len(ks.Columns))), r.Int64N(1<<40)-1<<20))
					}
					mustWrite(t, n, ks, ops...)
				}
				if test.snapshot && round == 1 {
					for _, g := range n.registry.groups.Load().all {
						mustDo(t, g.replica.Load().group.Snapshotter().Take())
					}
					mustDo(t, n.registry.meta.Snapshotter().Take())
				}
			}
			keyspaces, before := n.Keyspaces(), digests(n)
			page := mustGet(t, n, mine, ReadOptions{}, 0, 1, 2, 3, 4, 5)
			mustStop(t, n)

			// The configured shards of built-in keyspaces count only when the keyspaces are
			// created.
			n = openNode(t, dir, map[string]int{"posts": 9})
			if got := n.Keyspaces(); !reflect.DeepEqual(got, keyspaces) {
				t.Errorf("keyspaces %+v, want %+v", got, keyspaces)
			}
			if got := digests(n); !reflect.DeepEqual(got, before) {
				t.Errorf("digests %v, want %v", got, before)
			}
			if got := mustGet(t, n, mine, ReadOptions{}, 0, 1, 2, 3, 4, 5); !slices.Equal(got, page) {
				t.Errorf("rows %v, want %v", got, page)
			}
		})
	}
}

// A node may have been stopped while it created the built-in keyspaces. It later creates the
// missing ones.
func TestNodeCompletesItsKeyspaces(t *testing.T) {
	t.Parallel()
	cfg := memberConfig(t, t.TempDir(), 1, 2) // creates no built-in keyspaces before there are two nodes
	cfg.Place, cfg.Shards = nil, fewShards(map[string]int{"posts": 2, "users": 2})
	n, err := Open(cfg)
	mustDo(t, err)
	t.Cleanup(func() { mustStop(t, n) })
	eventually(t, "the node is in its catalog", func() bool { return len(n.catalog.View().Nodes) == 1 })
	first := catalog.Keyspace{Name: "posts", Kind: kinds.Counters, Columns: []string{"repost", "comment", "like", "view"}, Divisor: 1}
	mustDo(t, n.catalogClient.MustChange(t.Context(), &catalog.Command{Create: &catalog.CreateEntry{Keyspace: first}}))
	eventually(t, "the others are there", func() bool { return n.Keyspace(kinds.KeyspaceBoard) != nil })
	posts, users := n.Keyspace("posts"), n.Keyspace("users")
	if posts == nil || users == nil || posts.Shards != 1 || users.Shards != 2 || users.FirstGroup != 2 {
		t.Errorf("posts %+v, users %+v", posts, users)
	}
}

func TestCreateKeyspace(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	ctx := t.Context()
	want := Keyspace{Name: "x1", Kind: kinds.Counters, Columns: []string{"a", "b"}, Shards: 3, FirstGroup: 6, Groups: []uint32{6, 7, 8}, Divisor: 3}
	ask := Keyspace{Name: "x1", Columns: []string{"a", "b"}, Shards: 3}

	t.Run("at once by many", func(t *testing.T) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				got, err := n.CreateKeyspace(ctx, ask)
				if err != nil || !reflect.DeepEqual(*got, want) {
					t.Errorf("%+v, %v", got, err)
					return
				}
				if err := n.Write(got, &Write{Ops: counters.Ops{addTo(1, 0, 1), addTo(2, 0, 1), addTo(3, 0, 1)}, Deadline: soon()}); err != nil {
					t.Errorf("cannot write at once: %v", err)
				}
			})
		}
		wg.Wait()
		if got := mustGet(t, n, n.Keyspace("x1"), ReadOptions{}, 1, 2, 3); !slices.Equal(got, []int64{8, 0, 8, 0, 8, 0}) {
			t.Errorf("rows %v", got)
		}
		if got := len(n.registry.groups.Load().all); got != 8 {
			t.Errorf("%d groups", got)
		}
	})
	for name, other := range map[string]Keyspace{
		"other columns": {Name: "x1", Columns: []string{"a", "c"}, Shards: 3},
		"other order":   {Name: "x1", Columns: []string{"b", "a"}, Shards: 3},
		"other shards":  {Name: "x1", Columns: []string{"a", "b"}, Shards: 4},
		"built in":      {Name: "posts", Columns: []string{"a"}, Shards: 1},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := n.CreateKeyspace(ctx, other); !errors.Is(err, errs.ErrKeyspaceExists) {
				t.Errorf("told %v", err)
			}
		})
	}
	for _, test := range []struct {
		field string
		ask   Keyspace
	}{
		{"name", Keyspace{Name: "", Columns: []string{"a"}, Shards: 1}},
		{"name", Keyspace{Name: "1a", Columns: []string{"a"}, Shards: 1}},
		{"name", Keyspace{Name: "Aa", Columns: []string{"a"}, Shards: 1}},
		{"name", Keyspace{Name: "a\n", Columns: []string{"a"}, Shards: 1}},
		{"name", Keyspace{Name: strings.Repeat("a", 64), Columns: []string{"a"}, Shards: 1}},
		{"name", Keyspace{Name: "meta", Columns: []string{"a"}, Shards: 1}},
		{"name", Keyspace{Name: "unread", Columns: []string{"a"}, Shards: 1}},
		{"name", Keyspace{Name: "feed", Columns: []string{"a"}, Shards: 1}},
		{"name", Keyspace{Name: "board", Columns: []string{"a"}, Shards: 1}},
		{"shards", Keyspace{Name: "y", Columns: []string{"a"}, Shards: -1}},
		{"shards", Keyspace{Name: "y", Columns: []string{"a"}, Shards: ShardsMax + 1}},
		{"columns", Keyspace{Name: "y", Shards: 1}},
		{"columns", Keyspace{Name: "y", Columns: make([]string, engine.ColumnsMax+1), Shards: 1}},
		{"columns[1]", Keyspace{Name: "y", Columns: []string{"a", "B"}, Shards: 1}},
		{"columns[2]", Keyspace{Name: "y", Columns: []string{"a", "b", "a"}, Shards: 1}},
		{"columns[1]", Keyspace{Name: "y", Columns: []string{"a", "id"}, Shards: 1}},
	} {
		var argument *errs.ArgumentError
		if _, err := n.CreateKeyspace(ctx, test.ask); !errors.As(err, &argument) || argument.Field != test.field {
			t.Errorf("%+v: told %v, want of %s", test.ask, err, test.field)
		}
	}
	if len(n.Keyspaces()) != 6 {
		t.Errorf("%d keyspaces", len(n.Keyspaces()))
	}
	if _, err := n.AddColumns(ctx, "x1", column.Named("id")); err == nil {
		t.Error("a column has the name of the id")
	}
	if got, err := n.CreateKeyspace(ctx, Keyspace{Name: "x1", Columns: []string{"a", "b"}}); err != nil || got.Shards != 3 {
		t.Errorf("of any number of shards: %+v, %v", got, err)
	}
	if got, err := n.CreateKeyspace(ctx, Keyspace{Name: "x2", Columns: []string{"a"}}); err != nil || got.Shards != ShardsDefault {
		t.Errorf("of the usual number of shards: %+v, %v", got, err)
	}
	if _, err := n.AddColumns(ctx, "nobody", column.Named("a")); !errors.Is(err, errs.ErrUnknownKeyspace) {
		t.Errorf("columns of nothing: %v", err)
	}
	var argument *errs.ArgumentError
	many := make([]string, engine.ColumnsMax)
	for i := range many {
		many[i] = fmt.Sprintf("more%d", i)
	}
	if _, err := n.AddColumns(ctx, "x1", column.Named(many...)); !errors.As(err, &argument) || argument.Field != "columns" {
		t.Errorf("66 columns: %v", err)
	}
}

// A change that the catalog has applied is never reported as failed.
func TestKeyspaceMadePastItsDeadlineIsOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	late, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.Change(t.Context(), &catalog.Command{Create: &catalog.CreateEntry{Keyspace: catalog.Keyspace{
		Name: "x1", Kind: kinds.Counters, Columns: []string{"a"}, Divisor: 8,
	}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.served(late, "x1", 0); !errors.Is(err, errs.ErrOutcomeUnknown) {
		t.Errorf("told %v", err)
	}
	if k, err := n.served(t.Context(), "x1", 0); err != nil || k.Shards != 8 {
		t.Errorf("%+v, %v", k, err)
	}
}

// Columns are added while writes go on:
//
//  1. no write fails or is lost;
//  2. old counts stay;
//  3. a Keyspace from before stays unchanged and can still be used.
func TestAddColumnsWhileWritesGoOn(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 2, "users": 1})
	old := n.Keyspace("users")
	var written atomic.Int64
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				ks := n.Keyspace("users")
				last := len(ks.Columns) - 1
				w := &Write{Ops: counters.Ops{addTo(1, uint8(last), 1)}, Width: len(ks.Columns), Rows: make([]int64, len(ks.Columns)), Deadline: soon()}
				if err := n.Write(ks, w); err != nil {
					t.Errorf("write: %v", err)
					return
				}
				if w.Rows[last] < 1 {
					t.Errorf("row %v of %v", w.Rows, ks.Columns)
				}
				written.Add(1)
			}
		})
	}
	for i := range 8 {
		at := written.Load()
		eventually(t, "writes go on", func() bool { return written.Load() > at })
		ks, err := n.AddColumns(t.Context(), "users", column.Named("posts", fmt.Sprintf("more%d", i)))
		if err != nil || len(ks.Columns) != 4+i || ks.Column(fmt.Sprintf("more%d", i)) != 3+i {
			t.Fatalf("columns %+v, %v", ks, err)
		}
	}
	close(stop)
	wg.Wait()
	if len(old.Columns) != 3 {
		t.Errorf("an old view has columns %v", old.Columns)
	}
	sum := int64(0)
	for _, v := range mustGet(t, n, n.Keyspace("users"), ReadOptions{}, 1) {
		sum += v
	}
	if sum != written.Load() {
		t.Errorf("sum %d, %d writes", sum, written.Load())
	}
	mustWrite(t, n, old, addTo(1, 0, 1))
}

// Close while writes are in flight, then open again: all acknowledged writes are there,
// and nothing else except writes of unknown outcome.
func TestCloseWhileWritesAreInFlight(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := openNode(t, dir, map[string]int{"posts": 3, "users": 1})
	ks := n.Keyspace("posts")
	const ids = 20
	var acknowledged, unknown [ids]atomic.Int64
	var total atomic.Int64
	var wg sync.WaitGroup
	for c := range 16 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(5, uint64(c)))
			for {
				w := &Write{Deadline: soon()}
				for range 1 + r.IntN(5) {
					w.Ops = append(rowOps(w), addTo(r.Uint64N(ids), 0, 1))
				}
				count(w, n.Write(ks, w), acknowledged[:], unknown[:])
				total.Add(1)
				if n.draining.Load() {
					return
				}
			}
		})
	}
	eventually(t, "writes go on", func() bool { return total.Load() > 200 })
	mustStop(t, n)
	wg.Wait()
	if err := n.Write(ks, &Write{Ops: counters.Ops{addTo(1, 0, 1)}, Deadline: soon()}); !errors.Is(err, errs.ErrDraining) {
		t.Errorf("a write after the end: %v", err)
	}
	if err := n.Get(ks, []uint64{1}, 1, &ReadOptions{Deadline: soon()}, make([]int64, 1)); !errors.Is(err, errs.ErrDraining) {
		t.Errorf("a read after the end: %v", err)
	}
	if err := n.Ready(); !errors.Is(err, errs.ErrDraining) {
		t.Errorf("ready after the end: %v", err)
	}
	if _, err := n.CreateKeyspace(t.Context(), Keyspace{Name: "z", Columns: []string{"a"}, Shards: 1}); !errors.Is(err, errs.ErrDraining) {
		t.Errorf("a keyspace after the end: %v", err)
	}
	if s := n.Status(); s.Nodes[0].State != "stopping" {
		t.Errorf("state %s", s.Nodes[0].State)
	}

	n = openNode(t, dir, nil)
	for id := range uint64(ids) {
		got, least := mustGet(t, n, n.Keyspace("posts"), ReadOptions{}, id)[0], acknowledged[id].Load()
		if got < least || got > least+unknown[id].Load() {
			t.Errorf("id %d: count %d, acknowledged %d, unknown %d", id, got, least, unknown[id].Load())
		}
	}
}

// count records the outcome of a write whose ops each add 1.
func count(w *Write, err error, acknowledged, unknown []atomic.Int64) {
	var partial *PartialError
	switch {
	case err == nil:
		for _, op := range rowOps(w) {
			acknowledged[op.ID].Add(1)
		}
	case errors.As(err, &partial):
		for _, id := range partial.Applied {
			acknowledged[id].Add(1)
		}
		for _, id := range partial.Unknown {
			unknown[id].Add(1)
		}
	case errors.Is(err, errs.ErrOutcomeUnknown):
		for _, op := range rowOps(w) {
			unknown[op.ID].Add(1)
		}
	}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 2, "users": 1})
	w := mustWrite(t, n, n.Keyspace("posts"), addTo(2, 0, 1), addTo(4, 0, 1), addTo(3, 0, 1))
	s := n.Status()
	if s.ClusterID != testClusterID || len(s.Nodes) != 1 || len(s.Groups) != 7 {
		t.Fatalf("status %+v", s)
	}
	if node := s.Nodes[0]; node.ID != "n1" || node.State != "alive" || node.Version != "1.2.3" || node.HTTPAddr != "127.0.0.1:7400" {
		t.Errorf("node %+v", node)
	}
	for i, want := range []GroupStatus{
		{ID: 0, Keyspace: "meta"}, {ID: 1, Keyspace: "posts", Rows: 2}, {ID: 2, Keyspace: "posts", Shard: 1, Rows: 1}, {ID: 3, Keyspace: "users"},
	} {
		got := s.Groups[i]
		if got.ID != want.ID || got.Keyspace != want.Keyspace || got.Shard != want.Shard || got.Rows != want.Rows ||
			got.Role != "leader" || got.Leader != "n1" || got.Term == 0 || got.CommitIndex < got.AppliedIndex {
			t.Errorf("group %+v, want %+v", got, want)
		}
		if index := w.Token.Index(got.ID); index != 0 && got.AppliedIndex != index {
			t.Errorf("group %d applied %d, the write is at %d", got.ID, got.AppliedIndex, index)
		}
		if (got.Digest == "0000000000000000") != (want.Rows == 0 && i > 0) || len(got.Digest) != 16 {
			t.Errorf("group %d: digest %s of %d rows", got.ID, got.Digest, want.Rows)
		}
		if i > 0 && got.Bytes == 0 {
			t.Errorf("group %d has no bytes", got.ID)
		}
	}
}

func TestOpenRefusesItsConfig(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Config){
		"short cluster id":     func(c *Config) { c.ClusterID = "00" },
		"cluster id of no hex": func(c *Config) { c.ClusterID = strings.Repeat("g", 32) },
		"no shards":            func(c *Config) { c.Shards = map[string]int{"posts": 0} },
		"too many shards":      func(c *Config) { c.Shards = map[string]int{"posts": ShardsMax + 1} },
		"brief cursors":        func(c *Config) { c.CursorIdle = time.Hour },
		"bad address":          func(c *Config) { c.ClusterAddr = "127.0.0.1:99999" },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{
				Dir: t.TempDir(), NodeKey: "n1.0", NodeName: "n1", Bootstrap: true, ClusterID: testClusterID, ClusterAddr: "127.0.0.1:0",
				Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
				Fatal: func(err error) { t.Errorf("fatal: %v", err) },
			}
			change(&cfg)
			if n, err := Open(cfg); err == nil {
				mustStop(t, n)
				t.Error("it was opened")
			}
		})
	}
}

// Close does not wait past its deadline, whatever holds it up.
func TestCloseEndsInTime(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	g := n.registry.shardOf(1).replica.Load().group
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	release := g.Hold() // as if a proposal were on its way into raft's queue
	if err := g.Close(ctx, false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a group with a proposal under way: %v", err)
	}
	release()
	n.registry.changing.Lock() // as if a replica were being opened
	if err := n.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a node that opens a replica: %v", err)
	}
	n.registry.changing.Unlock()
	eventually(t, "the rest stops behind it", func() bool { return n.registry.meta.Stats().Role == "shutdown" })
}

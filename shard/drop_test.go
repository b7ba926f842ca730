package shard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
)

func mustMake(t *testing.T, n *Node, name string, shards int, columns ...string) *Keyspace {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	ks, err := n.CreateKeyspace(ctx, Keyspace{Name: name, Columns: columns, Shards: shards})
	if err != nil {
		t.Fatal(err)
	}
	return ks
}

func mustDrop(t *testing.T, n *Node, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	if k, err := n.DropKeyspace(ctx, name); err != nil || k.Name != name {
		t.Fatalf("%+v, %v", k, err)
	}
}

// allKnow waits until all nodes know that a keyspace was dropped. They know it already, unless the
// machine is slow.
func allKnow(t *testing.T, all []*Node, old *Keyspace) {
	t.Helper()
	for _, n := range all {
		eventually(t, n.cfg.NodeName+" knows of the drop", func() bool { return n.registry.groups.Load().byFirst[old.FirstGroup] == nil })
	}
}

// dirsOf returns the names of the directories of some groups on a node.
func dirsOf(t *testing.T, dir string, first uint32, shards int) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	mustDo(t, err)
	for _, e := range entries {
		for s := range shards {
			if strings.HasPrefix(e.Name(), fmt.Sprintf("%05d", first+uint32(s))) {
				all = append(all, e.Name())
			}
		}
	}
	return all
}

// isDeleted reports whether nothing but empty directories is left of some groups, in memory
// and on disk.
func isDeleted(t *testing.T, n *Node, first uint32, shards int) bool {
	t.Helper()
	for _, name := range dirsOf(t, n.cfg.Dir, first, shards) {
		left, err := os.ReadDir(filepath.Join(n.cfg.Dir, name))
		if !strings.HasSuffix(name, replica.RemovedSuffix) || err != nil || len(left) > 0 {
			return false
		}
	}
	table := n.registry.groups.Load()
	for s := range shards {
		if table.byNumber[first+uint32(s)] != nil {
			return false
		}
	}
	return len(table.dropped) == 0
}

// A dropped keyspace is unknown to every node at once, also to callers with a pointer to
// it. Its replicas are deleted, and the next keyspace of its name begins at zero.
func TestDropKeyspace(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 4)
	old := mustMake(t, all[0], "songs", 3, "plays")
	var ops []engine.Op
	for id := range uint64(9) {
		ops = append(ops, addTo(id, 0, 5))
	}
	w := once(&Write{Ops: counters.Ops(ops), Deadline: soon()})
	mustDo(t, all[3].Write(old, w))
	mustDrop(t, all[3], "songs")
	allKnow(t, all, old)
	for _, n := range all {
		if k := n.Keyspace("songs"); k != nil {
			t.Errorf("%s knows %+v", n.cfg.NodeName, k)
		}
		if n.Holds(old) {
			t.Errorf("%s holds a dropped keyspace", n.cfg.NodeName)
		}
		if err := n.Write(old, once(&Write{Ops: counters.Ops(ops), Deadline: soon()})); !errors.Is(err, errs.ErrUnknownKeyspace) {
			t.Errorf("%s: a write: %v", n.cfg.NodeName, err)
		}
		for _, consistency := range []Consistency{Stale, Bounded, Linearizable} {
			opt := &ReadOptions{Consistency: consistency, Token: w.Token, Deadline: soon()}
			if err := n.Get(old, []uint64{1, 2, 3}, 1, opt, make([]int64, 3)); !errors.Is(err, errs.ErrUnknownKeyspace) {
				t.Errorf("%s: a read: %v", n.cfg.NodeName, err)
			}
			if _, err := n.Scan(old, 0, false, 10, 1, opt); !errors.Is(err, errs.ErrUnknownKeyspace) {
				t.Errorf("%s: a scan: %v", n.cfg.NodeName, err)
			}
		}
	}
	made := mustMake(t, all[1], "songs", 2, "plays", "likes")
	for _, n := range all {
		rows := mustGet(t, n, made, ReadOptions{Consistency: Linearizable}, 1, 2, 3)
		if slices.ContainsFunc(rows, func(count int64) bool { return count != 0 }) {
			t.Errorf("%s: the new keyspace has %v", n.cfg.NodeName, rows)
		}
	}
	mustDo(t, all[0].Write(made, once(&Write{Ops: counters.Ops{addTo(1, 1, 2)}, Deadline: soon()})))
	if rows := mustGet(t, all[2], made, ReadOptions{Consistency: Linearizable}, 1); rows[0] != 0 || rows[1] != 2 {
		t.Errorf("the new keyspace counts %v", rows)
	}
	for _, n := range all {
		eventually(t, n.cfg.NodeName+" deletes its replicas", func() bool { return isDeleted(t, n, old.FirstGroup, old.Shards) })
	}
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	if _, err := all[0].DropKeyspace(ctx, "none"); !errors.Is(err, errs.ErrUnknownKeyspace) {
		t.Errorf("a drop of none: %v", err)
	}
	for _, name := range []string{"posts", "users", "unread", "feed", "board", "meta"} {
		if _, err := all[0].DropKeyspace(ctx, name); !errors.As(err, new(*catalog.RefusedError)) {
			t.Errorf("a drop of %s: %v", name, err)
		}
	}
}

// Writes and reads in flight while their keyspace is dropped end with ErrUnknownKeyspace,
// and with nothing else once it is gone. No write to the old keyspace counts in a new one
// of its name.
func TestDropUnderLoad(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 4)
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	for range rounds {
		old := mustMake(t, all[0], "songs", 3, "plays")
		stop := make(chan struct{})
		began := make(chan struct{}, 100)
		var callers sync.WaitGroup
		for i, n := range all {
			callers.Go(func() { // ends with the first ErrUnknownKeyspace
				for j := uint64(0); ; j++ {
					err := n.Write(old, &Write{Ops: counters.Ops{addTo(j, 0, 1), addTo(j+1, 0, 1), addTo(j+2, 0, 1)}, Deadline: soon()})
					if errors.Is(err, errs.ErrUnknownKeyspace) {
						return
					}
					select {
					case <-stop:
						t.Errorf("node %d: after the drop: %v", i+1, err)
						return
					default:
					}
					if err != nil && !errors.Is(err, errs.ErrOutcomeUnknown) {
						t.Errorf("node %d: %v", i+1, err)
						return
					}
					began <- struct{}{}
				}
			})
			callers.Go(func() {
				for {
					opt := &ReadOptions{Consistency: Linearizable, Deadline: soon()}
					if err := n.Get(old, []uint64{1, 2, 3}, 1, opt, make([]int64, 3)); errors.Is(err, errs.ErrUnknownKeyspace) {
						return
					} else if err != nil {
						t.Errorf("node %d: a read: %v", i+1, err)
						return
					}
				}
			})
		}
		go func() { // ends when all callers have
			for range began { //nolint:revive // makes room
			}
		}()
		for range 20 {
			began <- struct{}{}
		}
		mustDrop(t, all[0], "songs")
		made := mustMake(t, all[2], "songs", 3, "plays")
		mustDo(t, all[3].Write(made, once(&Write{Ops: counters.Ops{addTo(7, 0, 1)}, Deadline: soon()})))
		allKnow(t, all, old)
		close(stop)
		callers.Wait()
		close(began)
		rows := mustGet(t, all[1], made, ReadOptions{Consistency: Linearizable}, 0, 1, 2, 3, 4, 5, 6, 7)
		if want := []int64{0, 0, 0, 0, 0, 0, 0, 1}; !slices.Equal(rows, want) {
			t.Errorf("the new keyspace has %v", rows)
		}
		mustDrop(t, all[1], "songs")
	}
}

// A node that was down during a drop opens the replicas that its older catalog names, and deletes them
// once it learns of the drop. At its next start it forgets that they existed.
func TestDropWhileANodeIsDown(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	old := mustMake(t, all[0], "songs", 2, "plays")
	mustDo(t, all[0].Write(old, once(&Write{Ops: counters.Ops{addTo(1, 0, 1), addTo(2, 0, 1)}, Deadline: soon()})))
	down := all[2]
	eventually(t, "all nodes hold it", func() bool { return len(dirsOf(t, down.cfg.Dir, old.FirstGroup, 2)) == 2 })
	closeNode := func() {
		ctx, cancel := context.WithTimeout(context.Background(), eventuallyMax)
		defer cancel()
		mustDo(t, down.Close(ctx))
	}
	cfg := down.cfg
	cfg.ClusterAddr = down.mux.Addr().String()
	closeNode()
	mustDrop(t, all[0], "songs")
	made := mustMake(t, all[1], "songs", 2, "plays")
	open := func() {
		cfg.Metrics = prometheus.NewRegistry()
		var err error
		down, err = Open(cfg)
		mustDo(t, err)
	}
	open()
	defer func() { closeNode() }()
	eventually(t, "the node that was down deletes its replicas", func() bool {
		return down.Keyspace("songs") != nil && isDeleted(t, down, old.FirstGroup, 2)
	})
	if rows := mustGet(t, down, made, ReadOptions{Consistency: Linearizable}, 1, 2); rows[0] != 0 || rows[1] != 0 {
		t.Errorf("the new keyspace has %v", rows)
	}
	eventually(t, "its catalog is on disk", func() bool { return down.registry.meta.Snapshots().NewestIndex() >= down.catalog.Applied() })
	closeNode()
	open()
	if left := dirsOf(t, cfg.Dir, old.FirstGroup, 2); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// A node reports a dropped keyspace also to a node that does not know of the drop yet.
func TestDropIsToldToOlderCatalogs(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 2)
	old := mustMake(t, all[0], "songs", 1, "plays")
	number := old.FirstGroup
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Whole, &dedup.RequestID{})
	op := addTo(1, 0, 1)
	counters.Ops{op}.AppendTo(&w, 1, 0)
	mustDrop(t, all[0], "songs")
	allKnow(t, all, old)
	g := all[0].newShardReplica(&Keyspace{Name: "songs", Kind: kinds.Counters, Shards: 1, Groups: []uint32{number}}, 0, codec.Whole)
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	other := all[1].cfg.NodeKey
	parts := []*propose.ForwardedPart{{Section: w.Section(), Ops: 1}}
	for _, method := range []string{methodPropose, methodRelay} {
		if _, err := all[0].writer.sendParts(ctx, g, other, method, parts); !errors.Is(rpc.Fate(err), errs.ErrUnknownKeyspace) || mayTryAgain(rpc.Fate(err), true) {
			t.Errorf("%s: %v", method, err)
		}
	}
	row := &rows.Query{Width: 1}
	if err := all[0].reader.readAt(ctx, other, row, &raftfsm.Part{Route: g.first, Keys: []uint64{1}}, g, &ReadOptions{}); !errors.Is(err, errs.ErrUnknownKeyspace) {
		t.Errorf("a read: %v", err)
	}
}

// A dropped column is shown nowhere, and the next column of its name begins at zero, whatever is
// written to the number of the old one.
func TestDropColumn(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	ks := mustMake(t, n, "songs", 2, "plays", "likes", "skips")
	mustWrite(t, n, ks, addTo(1, 0, 1), addTo(1, 1, 2), addTo(2, 1, 3), addTo(3, 2, 4))
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	changed, err := n.DropColumn(ctx, "songs", "likes")
	mustDo(t, err)
	text, err := changed.MarshalJSON()
	if want := `{"name":"songs","kind":"counters","columns":["plays","skips"],"shards":2,"dropped_columns":[1]}`; err != nil || string(text) != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
	if changed.Column("likes") >= 0 || changed.Column("") >= 0 || changed.Column("skips") != 2 {
		t.Errorf("columns %q", changed.Columns)
	}
	if page, err := n.Scan(changed, 0, false, 10, 3, &ReadOptions{Deadline: soon()}); err != nil || !slices.Equal(page.IDs, []uint64{1, 3}) || !slices.Equal(page.Rows, []int64{1, 0, 0, 0, 0, 4}) {
		t.Errorf("a scan: %+v, %v", page, err)
	}
	changed, err = n.AddColumns(ctx, "songs", column.Named("likes"))
	mustDo(t, err)
	mustDo(t, n.Write(ks, &Write{Ops: counters.Ops{addTo(2, 1, 1)}, Deadline: soon()})) // by a caller that does not know of the drop
	if rows := mustGet(t, n, changed, ReadOptions{Consistency: Linearizable}, 1, 2); rows[3] != 0 || rows[7] != 0 {
		t.Errorf("the new column has %v", rows)
	}
	for _, c := range []struct {
		keyspace, column string
		want             func(error) bool
	}{
		{"songs", "none", func(err error) bool { return errors.Is(err, errs.ErrUnknownColumn) }},
		{"songs", "", func(err error) bool { return errors.Is(err, errs.ErrUnknownColumn) }},
		{"none", "likes", func(err error) bool { return errors.Is(err, errs.ErrUnknownKeyspace) }},
		{"posts", "like", func(err error) bool { return errors.As(err, new(*catalog.RefusedError)) }},
		{"unread", "dm", func(err error) bool { return errors.As(err, new(*catalog.RefusedError)) }},
	} {
		if _, err := n.DropColumn(ctx, c.keyspace, c.column); !c.want(err) {
			t.Errorf("column %q of %s: %v", c.column, c.keyspace, err)
		}
	}
	for _, column := range []string{"plays", "skips"} {
		if _, err := n.DropColumn(ctx, "songs", column); err != nil {
			t.Errorf("%s: %v", column, err)
		}
	}
	if _, err := n.DropColumn(ctx, "songs", "likes"); !errors.As(err, new(*catalog.RefusedError)) {
		t.Errorf("the last column: %v", err)
	}
}

// A node has not heard that a column was dropped and added again. The leader refuses its
// writes, which would count nowhere.
func TestDroppedColumnIsRefused(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	old := mustMake(t, all[0], "songs", 1, "plays", "likes")
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	_, err := all[0].DropColumn(ctx, "songs", "likes")
	mustDo(t, err)
	_, err = all[0].AddColumns(ctx, "songs", column.Named("likes"))
	mustDo(t, err)
	for _, n := range all {
		eventually(t, n.cfg.NodeName+" knows of the new column", func() bool { return n.Keyspace("songs").Column("likes") == 2 })
	}
	followers := 0
	for _, n := range all {
		if n.registry.groups.Load().byFirst[old.FirstGroup].all[0].leader() == n.cfg.NodeKey {
			continue
		}
		followers++
		for name, op := range map[string]engine.Op{"a join": engine.Join(7, 1, 9), "a leave": engine.Leave(7, 1, 9), "an uncounted join": engine.Copy(7, 1, 9, 0)} {
			if err := n.Write(old, &Write{Ops: counters.Ops{op}, Deadline: soon()}); !errors.Is(err, errs.ErrUnknownColumn) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := n.Write(old, &Write{Ops: counters.Ops{addTo(7, 1, 1)}, Deadline: soon()}); !errors.Is(err, errs.ErrUnknownColumn) {
			t.Errorf("a write to the dropped column through %s: %v", n.cfg.NodeName, err)
		}
		mustDo(t, n.Write(old, once(&Write{Ops: counters.Ops{addTo(7, 0, 1)}, Deadline: soon()})))
	}
	if followers == 0 {
		t.Error("no node follows")
	}
}

// Snapshots from before and after columns were dropped are restored by column names;
// without names nothing is guessed.
func TestRestoreByColumns(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	ks := mustMake(t, n, "songs", 1, "plays", "likes", "skips")
	mustWrite(t, n, ks, addTo(1, 0, 1), addTo(1, 1, 2), addTo(1, 2, 3), addTo(2, 1, 4))
	snapshot := func() string {
		s, err := n.OpenSnapshot(ctx, ks.FirstGroup)
		mustDo(t, err)
		defer s.Close()
		text, err := io.ReadAll(s)
		mustDo(t, err)
		return string(text)
	}
	before := snapshot()
	_, err := n.DropColumn(ctx, "songs", "likes")
	mustDo(t, err)
	after := snapshot()
	ks, err = n.AddColumns(ctx, "songs", column.Named("likes"))
	mustDo(t, err)
	old, dropped := []string{"plays", "likes", "skips"}, []string{"plays", "", "skips"}
	for _, c := range []struct {
		name, snapshot string
		columns        []string
		want           []int64 // rows 1 and 2
		refused        bool
	}{
		{"before", before, old, []int64{1, 0, 3, 2, 0, 0, 0, 4}, false},
		{"after", after, dropped, []int64{1, 0, 3, 0, 0, 0, 0, 0}, false},
		{"in another order", before, []string{"skips", "plays", "likes"}, []int64{2, 0, 1, 3, 4, 0, 0, 0}, false},
		{"without names", before, nil, nil, true},
		{"with too few", before, old[:2], nil, true},
		{"with a name that there is not", before, []string{"plays", "none", "skips"}, nil, true},
		{"with one twice", before, []string{"plays", "plays", "skips"}, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			facts, err := RestoreShard(ctx, n, ks.FirstGroup, strings.NewReader(c.snapshot), true, c.columns)
			if c.refused {
				if err == nil {
					t.Error("restored")
				}
				return
			}
			mustDo(t, err) // the shard's digest and rows are as facts say, or it is refused
			if rows := mustGet(t, n, ks, ReadOptions{Consistency: Linearizable}, 1, 2); !slices.Equal(rows, c.want) {
				t.Errorf("restored %v, want %v, %+v", rows, c.want, facts)
			}
		})
	}
	other := mustMake(t, n, "albums", 1, "skips", "likes", "plays")
	if _, err := RestoreShard(ctx, n, other.FirstGroup, strings.NewReader(after), false, dropped); err != nil {
		t.Fatal(err)
	}
	if rows := mustGet(t, n, other, ReadOptions{Consistency: Linearizable}, 1, 2); !slices.Equal(rows, []int64{3, 0, 1, 0, 0, 0}) {
		t.Errorf("another keyspace has %v", rows)
	}
}

// The memory of a dropped keyspace is free for others: nothing in the node holds its
// replicas any more.
func TestDroppedMemoryIsFreed(t *testing.T) {
	all := openMembers(t, 3)
	old := mustMake(t, all[0], "songs", 2, "plays")
	var held []weak.Pointer[localReplica]
	for i, n := range all {
		mustDo(t, n.Write(old, once(&Write{Ops: counters.Ops{addTo(uint64(i), 0, 1), addTo(uint64(i+1), 0, 1)}, Deadline: soon()})))
		mustGet(t, n, old, ReadOptions{Consistency: Linearizable}, 0, 1, 2)
		for s := range uint32(2) {
			if r := n.registry.shardOf(old.FirstGroup + s).replica.Load(); r != nil {
				held = append(held, weak.Make(r))
			}
		}
	}
	if len(held) == 0 {
		t.Fatal("no node has a replica")
	}
	mustDrop(t, all[0], "songs")
	eventually(t, "the replicas are collected", func() bool {
		time.Sleep(100 * time.Millisecond) // a collection takes processor time from what holds them
		runtime.GC()
		return !slices.ContainsFunc(held, func(p weak.Pointer[localReplica]) bool { return p.Value() != nil })
	})
}

// A node that closes while it deletes a keyspace completes the deletion first, and Close waits for
// it.
func TestCloseWhileAKeyspaceIsDropped(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	mustMake(t, all[0], "songs", 4, "plays")
	mustDrop(t, all[0], "songs")
	for _, n := range all {
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), eventuallyMax)
		defer cancel()
		mustDo(t, n.Close(ctx))
		for _, g := range slices.Concat(n.registry.groups.Load().all, n.registry.groups.Load().dropped) {
			if r := g.replica.Load(); r != nil && !r.group.Closed() {
				t.Errorf("%s: group %d is not closed, after %s", n.cfg.NodeName, g.number, time.Since(began))
			}
		}
	}
}

// If the local catalog has a drop that the node's table does not have yet, nothing is deleted,
// because the replicas are still open. That is so while the node opens replicas of another
// keyspace.
func TestDropThatIsNotFollowedYet(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, "users": 1})
	ks := mustMake(t, n, "songs", 2, "plays")
	mustWrite(t, n, ks, addTo(1, 0, 1), addTo(2, 0, 2))
	newer := &catalog.View{NextGroup: n.catalog.View().NextGroup} // all keyspaces were dropped
	n.removeDropped(newer)
	// A table without the keyspace is replaced while removeDropped waits for the change of the table.
	n.registry.changing.Lock()
	table := n.registry.groups.Swap(&groupTable{})
	removed := make(chan struct{})
	go func() { n.removeDropped(newer); close(removed) }()
	time.Sleep(100 * time.Millisecond)
	n.registry.groups.Store(table)
	n.registry.changing.Unlock()
	<-removed
	for s := range ks.Shards {
		if _, here := n.registry.dirs.Number(ks.FirstGroup + uint32(s)); !here {
			t.Errorf("shard %d was deleted while it was open", s)
		}
	}
	mustWrite(t, n, ks, addTo(1, 0, 1), addTo(2, 0, 1))
	if rows := mustGet(t, n, ks, ReadOptions{Consistency: Linearizable}, 1, 2); !slices.Equal(rows, []int64{2, 3}) {
		t.Errorf("it counts %v", rows)
	}
	mustDrop(t, n, "songs")
	eventually(t, "the node deletes its replicas", func() bool { return isDeleted(t, n, ks.FirstGroup, ks.Shards) })
}

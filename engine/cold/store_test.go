package cold

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/scarce"
)

func openStore(t testing.TB, fs vfs.FS) *Store {
	t.Helper()
	s, err := Open(Config{Dir: "cold", FS: fs, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustGroup(t testing.TB, s *Store, number uint32) *Group {
	t.Helper()
	g, err := s.Group(number)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func mustWrite(t testing.TB, g *Group, pages ...*engine.Page) []*Generation {
	t.Helper()
	made, err := g.Write(pages)
	if err != nil {
		t.Fatal(err)
	}
	var all []*Generation
	for _, n := range made {
		all = append(all, n.(*Generation))
	}
	return all
}

func names(names ...string) func() ([]string, error) {
	return func() ([]string, error) { return names, nil }
}

func TestGenerationsAreReadBack(t *testing.T) {
	fs := vfs.NewMem()
	s := openStore(t, fs)
	g := mustGroup(t, s, 7)
	p := syntheticRows(5000)
	made := mustWrite(t, g, p, &engine.Page{IDs: []uint64{9}, Width: 1, Counts: []int64{4}})
	check := func(n *Generation) {
		t.Helper()
		row := make([]int64, 4)
		for i := 0; i < len(p.IDs); i += 7 {
			err := n.Get(context.Background(), p.IDs[i], row)
			if err != nil || !slices.Equal(row, p.Row(i)) {
				t.Fatalf("row %d: %v, want %v: %v", i, row, p.Row(i), err)
			}
		}
		for _, id := range []uint64{p.IDs[0] - 1, p.IDs[10] + 1, p.IDs[4999] + 1, 1<<64 - 1} {
			if err := n.GetNow(id, row); err != nil || !slices.Equal(row, make([]int64, 4)) {
				t.Errorf("absent row %d: %v, %v", id, row, err)
			}
		}
		got := engine.Page{Width: 4}
		if err := n.Load(p.IDs[100], p.IDs[4000], &got); err != nil || !slices.Equal(got.IDs, p.IDs[100:4001]) {
			t.Errorf("%d rows, %v", len(got.IDs), err)
		}
	}
	check(made[0])
	if made[0].Rows() != 5000 || made[0].Width() != 4 || made[1].Width() != 1 {
		t.Errorf("%d rows of %d columns", made[0].Rows(), made[0].Width())
	}
	if err := g.Pin("snapshot", made); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, fs)
	defer s.Close()
	g = mustGroup(t, s, 7)
	again, err := g.Open(made[0].Number(), made[0].Sum())
	if err != nil {
		t.Fatal(err)
	}
	check(again)
	if _, err := g.Open(made[0].Number(), made[0].Sum()+1); !errors.Is(err, ErrDamaged) {
		t.Errorf("another sum: %v", err)
	}
	if _, err := g.Open(99, 0); !errors.Is(err, ErrDamaged) {
		t.Errorf("another number: %v", err)
	}
	if next := mustWrite(t, g, p); next[0].Number() <= made[1].Number() {
		t.Errorf("number %d after %d", next[0].Number(), made[1].Number())
	}
}

// A generation exists while somebody retains it or a snapshot names it.
func TestGenerationsGo(t *testing.T) {
	fs := vfs.NewMem()
	s := openStore(t, fs)
	g := mustGroup(t, s, 1)
	page := func(id uint64) *engine.Page { return &engine.Page{IDs: []uint64{id}, Width: 1, Counts: []int64{1}} }
	made := mustWrite(t, g, page(1), page(2), page(3))
	there := func(g *Group) []bool {
		var all []bool
		for _, n := range made {
			again, err := g.Open(n.Number(), n.Sum())
			if all = append(all, err == nil); err == nil {
				again.Release()
			} else if !errors.Is(err, ErrDamaged) {
				t.Error(err)
			}
		}
		return all
	}
	if err := g.Pin("snap", made[1:2]); err != nil {
		t.Fatal(err)
	}
	made[0].Retain()
	release := g.Hold()
	for _, n := range made {
		n.Release()
	}
	if got := there(g); !slices.Equal(got, []bool{true, true, true}) {
		t.Errorf("held: %v", got)
	}
	release()
	if err := g.Sweep(names("snap")); err != nil {
		t.Fatal(err)
	}
	if got := there(g); !slices.Equal(got, []bool{true, true, false}) {
		t.Errorf("one retained, one named: %v", got)
	}
	// A crash: nobody retains anything, and removed generations may return.
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, fs)
	defer s.Close()
	g = mustGroup(t, s, 1)
	if err := g.Sweep(names("snap", "other")); err != nil {
		t.Fatal(err)
	}
	if got := there(g); !slices.Equal(got, []bool{false, true, false}) {
		t.Errorf("one named: %v", got)
	}
	if err := g.Sweep(names("other")); err != nil {
		t.Fatal(err)
	}
	if got := there(g); !slices.Equal(got, []bool{false, false, false}) {
		t.Errorf("none named: %v", got)
	}
	made = mustWrite(t, g, page(1))
	made[0].Release()
	if err := s.Drop(1); err != nil {
		t.Fatal(err)
	}
	if got := there(mustGroup(t, s, 1)); got[0] {
		t.Error("a group that was dropped has rows")
	}
}

// A group that was dropped and created again has no old data, and a late release of an old generation removes
// none of its data.
func TestGroupsThatComeBack(t *testing.T) {
	s := openStore(t, vfs.NewMem())
	defer s.Close()
	page := func(count int64) *engine.Page {
		return &engine.Page{IDs: []uint64{1}, Width: 1, Counts: []int64{count}}
	}
	before := mustWrite(t, mustGroup(t, s, 1), page(3))[0]
	row := make([]int64, 1)
	if err := before.GetNow(1, row); err != nil { // this puts the block into the cache
		t.Fatal(err)
	}
	if err := s.Erase(1); err != nil {
		t.Fatal(err)
	}
	after := mustWrite(t, mustGroup(t, s, 1), page(5))[0]
	before.Release()
	s.cache.InvalidateAll()
	if err := after.GetNow(1, row); err != nil || row[0] != 5 {
		t.Errorf("%v, %v", row, err)
	}
	if before.Number() == after.Number() {
		t.Errorf("two generations have the number %d", after.Number())
	}
}

// A number that a snapshot names is never reused, even if its generation is lost.
func TestNumbersThatAreNamed(t *testing.T) {
	fs := vfs.NewMem()
	s := openStore(t, fs)
	n := mustWrite(t, mustGroup(t, s, 1), syntheticRows(10))[0]
	if err := mustGroup(t, s, 1).Pin("snap", []*Generation{n}); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Delete(generationKey(keyGeneration, 1, n.Number()), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, fs)
	defer s.Close()
	if again := mustWrite(t, mustGroup(t, s, 1), syntheticRows(10))[0]; again.Number() <= n.Number() {
		t.Errorf("number %d after %d", again.Number(), n.Number())
	}
}

// The sum of a generation in a snapshot covers the counts. A valid block with the same name but
// other counts is refused.
func TestSumsAreOfTheRows(t *testing.T) {
	write := func(count int64) *Generation {
		s := openStore(t, vfs.NewMem())
		t.Cleanup(func() { s.Close() })
		return mustWrite(t, mustGroup(t, s, 1), &engine.Page{IDs: []uint64{1}, Width: 1, Counts: []int64{count}})[0]
	}
	a, b := write(4), write(5)
	if a.Number() != b.Number() || a.sizes[0] != b.sizes[0] {
		t.Fatal("the generations are not alike")
	}
	if a.Sum() == b.Sum() {
		t.Error("different rows have one sum")
	}
	other, err := b.Block(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.group.store.db.Set(a.blockKey(0).encode(), other, pebble.Sync); err != nil {
		t.Fatal(err)
	}
	row := make([]int64, 1)
	if err := a.GetNow(1, row); !errors.Is(err, ErrDamaged) {
		t.Errorf("row %v, %v", row, err)
	}
	if a.group.store.Stats().Damaged == 0 {
		t.Error("it is not counted")
	}
}

// Close waits for users of the store, and a user may wait for a group's lock. If a goroutine waited
// for Close while it held that lock, all three would wait forever.
func TestCloseBesideReleases(t *testing.T) {
	for range 20 {
		s := openStore(t, vfs.NewMem())
		g := mustGroup(t, s, 1)
		n := mustWrite(t, g, syntheticRows(10))[0]
		done, err := s.db.Use()
		if err != nil {
			t.Fatal(err)
		}
		var others sync.WaitGroup
		others.Go(func() {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
		<-s.db.Stopping.Done()
		time.Sleep(time.Millisecond) // Close waits
		others.Go(n.Release)
		for range 100 {
			runtime.Gosched()
		}
		g.mu.Lock() // Sweep and Pin also lock it while they use the store
		held := g.mu.held
		g.mu.Unlock()
		done()
		if held != 0 {
			t.Errorf("%d holds", held)
		}
		others.Wait()
		if _, err := s.Group(2); !errors.Is(err, scarce.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	}
}

// Acknowledged writes survive a crash of the machine that loses all unsynced data.
func TestGenerationsOutliveTheMachine(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := openStore(t, fs)
	g := mustGroup(t, s, 1)
	made := mustWrite(t, g, syntheticRows(3000))
	if err := g.Pin("snap", made[:1]); err != nil {
		t.Fatal(err)
	}
	after := fs.CrashClone(vfs.CrashCloneCfg{})
	defer s.Close()
	s2 := openStore(t, after)
	defer s2.Close()
	g2 := mustGroup(t, s2, 1)
	if err := g2.Sweep(names("snap")); err != nil {
		t.Fatal(err)
	}
	n, err := g2.Open(made[0].Number(), made[0].Sum())
	if err != nil {
		t.Fatal(err)
	}
	got := engine.Page{Width: 4}
	if err := n.Load(0, 1<<64-1, &got); err != nil || len(got.IDs) != 3000 {
		t.Errorf("%d rows, %v", len(got.IDs), err)
	}
}

// If a block is changed, lost, or replaced by another block, reads of its rows fail.
func TestDamagedGenerations(t *testing.T) {
	for name, damage := range map[string]func(s *Store, n *Generation) error{
		"a bit": func(s *Store, n *Generation) error {
			b, err := n.Block(1)
			if err != nil {
				return err
			}
			b = slices.Clone(b)
			b[len(b)/2] ^= 4
			return s.db.Set(n.blockKey(1).encode(), b, pebble.Sync)
		},
		"a block is missing": func(s *Store, n *Generation) error {
			return s.db.Delete(n.blockKey(1).encode(), pebble.Sync)
		},
		"a block is another's": func(s *Store, n *Generation) error {
			b, err := n.Block(2)
			if err != nil {
				return err
			}
			return s.db.Set(n.blockKey(1).encode(), b, pebble.Sync)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := openStore(t, vfs.NewMem())
			defer s.Close()
			n := mustWrite(t, mustGroup(t, s, 1), syntheticRows(3000))[0]
			if err := damage(s, n); err != nil {
				t.Fatal(err)
			}
			s.cache.InvalidateAll()
			row := make([]int64, 4)
			if err := n.Get(context.Background(), n.firsts[1], row); !errors.Is(err, ErrDamaged) {
				t.Errorf("get: %v", err)
			}
			if err := n.GetNow(n.firsts[1], row); !errors.Is(err, ErrDamaged) {
				t.Errorf("get now: %v", err)
			}
			if err := n.Load(0, 1<<64-1, &engine.Page{Width: 4}); !errors.Is(err, ErrDamaged) {
				t.Errorf("load: %v", err)
			}
			if err := n.GetNow(n.firsts[0], row); err != nil {
				t.Errorf("another block: %v", err)
			}
		})
	}
}

// No flip of a bit in Pebble's files makes a read return wrong rows: Open fails, a read fails, or
// all rows are right.
func TestFlippedFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cold")
	config := Config{Dir: dir, Logger: slog.New(slog.DiscardHandler), Fatal: func(error) {}}
	s, err := Open(config)
	if err != nil {
		t.Fatal(err)
	}
	p := syntheticRows(3000)
	n := mustWrite(t, mustGroup(t, s, 1), p)[0]
	if err := s.db.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("%d tables, %v", len(tables), err)
	}
	whole, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 1))
	found := 0
	for range 40 {
		flipped := slices.Clone(whole)
		flipped[r.IntN(len(flipped))] ^= 1 << r.IntN(8)
		if err := os.WriteFile(tables[0], flipped, 0o600); err != nil {
			t.Fatal(err)
		}
		got := engine.Page{Width: 4}
		err := func() error {
			s, err := Open(config)
			if err != nil {
				return err
			}
			defer s.Close()
			g, err := s.Group(1)
			if err != nil {
				return err
			}
			n, err := g.Open(n.Number(), n.Sum())
			if err != nil {
				return err
			}
			return n.Load(0, 1<<64-1, &got)
		}()
		if err != nil {
			found++
		} else if !slices.Equal(got.IDs, p.IDs) || !slices.Equal(got.Counts, p.Counts) {
			t.Fatal("other rows were read")
		}
	}
	if found == 0 {
		t.Error("no flip was found")
	}
}

// If generations cannot be listed, nothing is removed, no number is reused, and new writes are readable.
func TestDamagedListOfGenerations(t *testing.T) {
	fs := vfs.NewMem()
	s := openStore(t, fs)
	g := mustGroup(t, s, 1)
	first := mustWrite(t, g, syntheticRows(3000))[0]
	if err := s.db.Set(append(groupKey(keyGeneration, 1), 1, 2, 3), nil, pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, fs)
	defer s.Close()
	g = mustGroup(t, s, 1)
	if s.Stats().Damaged == 0 {
		t.Error("it is not counted")
	}
	p := syntheticRows(2000)
	n := mustWrite(t, g, p)[0]
	if n.Number() <= first.Number()+1000 {
		t.Errorf("generation %d comes behind %d, and others that are not listed", n.Number(), first.Number())
	}
	got := engine.Page{Width: p.Width}
	if err := n.Load(0, 1<<64-1, &got); err != nil || !slices.Equal(got.IDs, p.IDs) {
		t.Errorf("%d rows, %v", len(got.IDs), err)
	}
	n.Release()
	if err := g.Sweep(names()); err != nil {
		t.Error(err)
	}
	if _, err := g.Open(first.Number(), first.Sum()); err != nil {
		t.Errorf("it was removed: %v", err)
	}
}

// If a process could not list the generations and wrote new ones, the next process reuses none of
// their numbers.
func TestDamagedListAtTwoStarts(t *testing.T) {
	fs := vfs.NewMem()
	s := openStore(t, fs)
	if err := s.db.Set(append(groupKey(keyGeneration, 1), 0), nil, pebble.Sync); err != nil {
		t.Fatal(err)
	}
	var before *Generation
	for range 3 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openStore(t, fs)
		g := mustGroup(t, s, 1)
		n := mustWrite(t, g, syntheticRows(10))[0]
		if before != nil {
			if n.Number() == before.Number() {
				t.Fatalf("generation %d is there twice", n.Number())
			}
			if _, err := g.Open(before.Number(), before.Sum()); err != nil {
				t.Fatal(err)
			}
		}
		before = n
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// Concurrent readers of one block share one read, and nobody waits beyond its own deadline.
func TestReadsAreShared(t *testing.T) {
	s := openStore(t, vfs.NewMem())
	defer s.Close()
	p := syntheticRows(600)
	n := mustWrite(t, mustGroup(t, s, 1), p)[0]
	s.cache.InvalidateAll()
	before := s.Stats().Misses
	for range readersMax {
		s.readers <- struct{}{} // occupy all readers
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := n.Get(ended, p.IDs[0], make([]int64, 4)); !errors.Is(err, context.Canceled) {
		t.Errorf("past its end: %v", err)
	}
	var readers sync.WaitGroup
	for range 50 {
		readers.Go(func() {
			if err := n.Get(context.Background(), p.IDs[0], make([]int64, 4)); err != nil {
				t.Error(err)
			}
		})
	}
	for s.waiting.Load() < 50 { // until all readers have arrived
		runtime.Gosched()
	}
	for range readersMax {
		<-s.readers
	}
	readers.Wait()
	if got := s.Stats().Misses - before; got != 1 {
		t.Errorf("%d reads of one block", got)
	}
}

// If a disk hangs, abandoned reads do not pile up.
func TestReadsThatWereGivenUp(t *testing.T) {
	s := openStore(t, vfs.NewMem())
	defer s.Close()
	n := mustWrite(t, mustGroup(t, s, 1), syntheticRows(60_000))[0]
	for range readersMax {
		s.readers <- struct{}{}
	}
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(context.Background())
	var readers sync.WaitGroup
	for _, first := range n.firsts {
		readers.Go(func() {
			if err := n.Get(ctx, first, make([]int64, 4)); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	for s.waiting.Load() < int64(len(n.firsts)) {
		runtime.Gosched()
	}
	cancel()
	readers.Wait()
	must.Become(t, "no goroutine is left", func() bool { return runtime.NumGoroutine() <= before })
}

func FuzzParseIndex(f *testing.F) {
	x := index{width: 4, rows: 9, last: 77, firsts: []uint64{1, 50}, sizes: []uint16{4000, 30}, sums: []uint32{7, 8}}
	f.Add(x.appendTo(nil, testName))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseIndex(testName, b)
		if err != nil {
			if !errors.Is(err, ErrDamaged) {
				t.Fatal(err)
			}
			return
		}
		if again := got.appendTo(nil, testName); !slices.Equal(again, b) {
			t.Fatalf("% x was taken for % x", b, again)
		}
	})
}

// A late sweep of a dropped group removes no pin of a new group with the same number.
func TestSweepOfADroppedGroup(t *testing.T) {
	s := openStore(t, vfs.NewMem())
	defer s.Close()
	before := mustGroup(t, s, 1)
	page := &engine.Page{IDs: []uint64{1}, Width: 1, Counts: []int64{3}}
	pin := func(g *Group) {
		made := mustWrite(t, g, page)[0]
		if err := g.Pin("one", []*Generation{made}); err != nil {
			t.Fatal(err)
		}
		made.Release()
	}
	pin(before)
	if err := s.Drop(1); err != nil {
		t.Fatal(err)
	}
	after := mustGroup(t, s, 1)
	pin(after)
	if err := before.Sweep(names()); err != nil {
		t.Fatal(err)
	}
	pins := 0
	if err := after.each(keyPin, func(_, _ []byte) error { pins++; return nil }); err != nil || pins != 1 {
		t.Errorf("%d pins are on disk, want 1: %v", pins, err)
	}
}

// An index that the next start could not read is not written.
func TestIndexesThatCannotBeRead(t *testing.T) {
	for name, x := range map[string]index{
		"too many blocks": {width: 1, rows: 1, firsts: make([]uint64, indexItemsMax+1)},
		"no column":       {rows: 1, firsts: make([]uint64, 1)},
		"too many rows":   {width: 1, rows: blockRowsMax + 1, firsts: make([]uint64, 1)},
	} {
		x.sizes, x.sums = make([]uint16, len(x.firsts)), make([]uint32, len(x.firsts))
		if _, err := parseIndex(testName, x.appendTo(nil, testName)); !errors.Is(err, ErrDamaged) {
			t.Errorf("%s: read with %v", name, err)
		}
		if err := checkIndex(len(x.firsts), x.width, uint64(x.rows)); err == nil {
			t.Errorf("%s: may be written", name)
		}
	}
}

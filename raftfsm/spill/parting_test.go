package spill

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/internal/wire"
)

// testPartition has as many parts as its value.
type testPartition int

func (p testPartition) Of(key uint64) int       { return int(key / 3 % uint64(p)) }
func (p testPartition) Classes() []engine.Class { return make([]engine.Class, p) }

func (p testPartition) Filters() []engine.Filter { return make([]engine.Filter, p) }

func testDigest(key uint64, body []byte) uint64 {
	sum := wire.MixNext(key)
	for _, c := range body {
		sum = wire.MixNext(sum + uint64(c))
	}
	return sum
}

// partingWorld has the bodies of a shard, and later those of its parts, each with a naive copy.
type partingWorld struct {
	rapid.TB
	store *cold.Store
	tight bool
	now   uint32
	all   []*naive
	views []capturedNaive
	first *cold.Records // the records of the undivided shard
	most  uint32        // the highest version of a record
	split bool          // then a shard gets no new keys, because they might be another part's
}

// naive is a shard with what it must have.
type naive struct {
	s    *Shard
	want map[uint64][]byte
}

type capturedNaive struct {
	view *View
	want map[uint64][]byte
}

func newPartingWorld(t rapid.TB, onDisk bool) *partingWorld {
	w := &partingWorld{TB: t}
	var err error
	if w.store, err = cold.Open(cold.Config{Dir: "cold", FS: vfs.NewMem(), Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { panic(err) }}); err != nil {
		t.Fatal(err)
	}
	w.all = []*naive{{w.shard(onDisk), map[uint64][]byte{}}}
	if out := w.all[0].s.Current().out; out != nil {
		w.first = out.records
	}
	return w
}

func (w *partingWorld) shard(onDisk bool) *Shard {
	c := Config{What: "body", PageBytes: 128, BytesMin: 3, Digest: testDigest, Summarise: func(mark, body []byte) []byte { return append(mark, body[1]) }}
	if onDisk {
		c.Place = Place{Store: w.store, Group: 1, Tight: func() bool { return w.tight }}
	}
	s := NewShard(c)
	s.Show(s.New())
	return s
}

func (w *partingWorld) set(n *naive, key uint64, body []byte) {
	b := n.s.Current()
	if err := b.LockReturned(func(yield func(uint64)) { yield(key) }); err != nil {
		w.Fatal(err)
	}
	defer b.Unlock()
	was := b.Get(key)
	if !bytes.Equal(was, n.want[key]) {
		w.Fatalf("key %d has %x, want %x", key, was, n.want[key])
	}
	digest := uint64(0)
	if was != nil {
		digest -= testDigest(key, was)
	}
	if body != nil {
		digest += testDigest(key, body)
	}
	b.Set(key, body, digest)
	if n.want[key] = body; body == nil {
		delete(n.want, key)
	}
}

func (w *partingWorld) spill(n *naive, idle uint32, most int64) {
	if _, err := n.s.Spill(idle, most, func() bool { return true }); err != nil {
		w.Fatal(err)
	}
	if out := n.s.Current().out; out != nil {
		w.most = max(w.most, out.turn.version)
	}
}

// divide splits a shard, and shows the parts. Each part but the first goes to another shard, as Adopt moves it.
func (w *partingWorld) divide(n *naive, by testPartition, onDisk bool) {
	shards, to := []*Shard{n.s}, []*Bodies{n.s.New()}
	for range by - 1 {
		shards = append(shards, w.shard(false))
		to = append(to, shards[len(shards)-1].Current())
	}
	was := n.s.Current()
	w.split = true
	parts, err := was.Split(by, to)
	if err != nil {
		w.Fatal(err)
	}
	whole := n.want
	for i, part := range parts {
		shards[i].Show(part)
		if i > 0 {
			child := w.shard(onDisk)
			took, err := part.HandOver(child.New())
			if err != nil {
				w.Fatal(err)
			}
			child.Show(took)
			shards[i].Close() // the parked part is discarded
			n = &naive{s: child}
			w.all = append(w.all, n)
		}
		n.want = maps.Clone(whole)
		maps.DeleteFunc(n.want, func(key uint64, _ []byte) bool { return by.Of(key) != i })
	}
	if _, err := was.Part(by); !errors.Is(err, ErrEnded) {
		w.Fatalf("a step after the split: %v", err)
	}
}

// check compares a shard with what it must have, and its sizes with its pages.
func (w *partingWorld) check(n *naive) {
	b := n.s.Current()
	var sum Stats
	var digest uint64
	for _, tables := range b.pages.tables() {
		for _, t := range tables {
			sum.Slots += len(t.dir.Load().slots)
		}
	}
	sum.Bytes = uint64(8 * sum.Slots)
	seen := map[uint64]bool{}
	b.pages.eachPage(func(page *page) {
		sum.Bytes += uint64(page.bytes())
		for i := range page.keys() {
			if seen[page.key(i)] {
				w.Fatalf("key %d is in two pages", page.key(i))
			}
			seen[page.key(i)] = true
			if IsMark(page.body(i)) {
				sum.Spilled++
				sum.SpilledBytes += uint64(len(n.want[page.key(i)]))
			}
		}
	})
	sum.Keys = uint64(len(n.want))
	for key, body := range n.want {
		digest += testDigest(key, body)
		switch got := b.Peek(key); {
		case IsMark(got) && string(Summary(got)) != string(body[1:2]):
			w.Fatalf("key %d has the summary %x", key, Summary(got))
		case !IsMark(got) && !bytes.Equal(got, body):
			w.Fatalf("key %d has %x, want %x", key, got, body)
		}
	}
	if got := n.s.Stats(); got != sum || len(seen) != len(n.want) || b.Digest() != digest || n.s.Bytes() != got.Bytes {
		w.Fatalf("%+v in pages with %d keys, digest %x, want %x, counted %+v, %d bytes", sum, len(seen), b.Digest(), digest, got, n.s.Bytes())
	}
	v := capturedNaive{b.Capture(), n.want}
	w.enumerate(v)
}

// enumerate compares a view with the bodies at its moment.
func (w *partingWorld) enumerate(v capturedNaive) {
	defer v.view.Close()
	keys, last := 0, uint64(0)
	for ; v.view.More(); keys++ {
		key, body, err := v.view.Next()
		if err != nil || !bytes.Equal(body, v.want[key]) || keys > 0 && Hash(key) <= last {
			w.Fatalf("key %d has %x, %v, want %x", key, body, err, v.want[key])
		}
		last = Hash(key)
	}
	if keys != len(v.want) || int(v.view.Keys) != keys {
		w.Fatalf("%d keys, %d told, want %d", keys, v.view.Keys, len(v.want))
	}
}

// Bodies that are parted, in any steps and by several Partitions, are those of a naive map, in memory and on disk, and
// so are those of their parts after a split, and after a second one. A view shows each body once, as of its moment. The
// sizes are exact. Once all shards are closed, in any order, no record is left.
func TestPartedBodiesEqualANaiveMap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newPartingWorld(t, rapid.IntRange(0, 3).Draw(t, "disk") > 0)
		const keys = 80
		key := rapid.Uint64Range(0, keys-1)
		pick := func() *naive { return w.all[rapid.IntRange(0, len(w.all)-1).Draw(t, "shard")] }
		ofShard := func(n *naive) (uint64, bool) {
			k := key.Draw(t, "key")
			_, has := n.want[k]
			return k, has || !w.split
		}
		t.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) {
				for _, n := range w.all {
					w.check(n)
				}
			},
			"set": func(t *rapid.T) {
				n := pick()
				if k, has := ofShard(n); has {
					w.set(n, k, append([]byte{1, byte(k)}, rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "body")...))
				}
			},
			"set many": func(t *rapid.T) {
				n := pick()
				for k := range uint64(keys) {
					if _, has := n.want[k]; has || !w.split {
						w.set(n, k, bytes.Repeat([]byte{1, byte(w.now)}, 1+int(k%9)))
					}
				}
			},
			"delete": func(t *rapid.T) {
				n := pick()
				if k, has := ofShard(n); has {
					w.set(n, k, nil)
				}
			},
			"clear": func(t *rapid.T) {
				if n := pick(); rapid.IntRange(0, 5).Draw(t, "clear") == 0 {
					b := n.s.Current()
					b.pages.mu.Lock()
					b.Clear()
					b.pages.mu.Unlock()
					n.want = map[uint64][]byte{}
				}
			},
			"tick": func(t *rapid.T) {
				w.now++
				for _, n := range w.all {
					n.s.Tick(w.now)
				}
			},
			"tight": func(t *rapid.T) { w.tight = !w.tight },
			"spill": func(t *rapid.T) {
				w.spill(pick(), uint32(rapid.IntRange(0, 2).Draw(t, "idle")), rapid.Int64Range(1, 1000).Draw(t, "bytes"))
			},
			"spill all": func(t *rapid.T) { w.spill(pick(), 0, math.MaxInt64) },
			"fetch": func(t *rapid.T) {
				n := pick()
				k := key.Draw(t, "key")
				if body, _, err := n.s.Fetch(t.Context(), k); err != nil || !bytes.Equal(body, n.want[k]) {
					t.Fatalf("key %d has %x, %v, want %x", k, body, err, n.want[k])
				}
			},
			"part": func(t *rapid.T) {
				n, by := pick(), testPartition(rapid.IntRange(2, 4).Draw(t, "parts"))
				if _, err := n.s.Current().part(by, rapid.IntRange(1, 2000).Draw(t, "step"), keys); err != nil {
					t.Fatal(err)
				}
			},
			"capture": func(t *rapid.T) {
				n := pick()
				w.views = append(w.views, capturedNaive{n.s.Current().Capture(), maps.Clone(n.want)})
			},
			"enumerate": func(t *rapid.T) {
				if len(w.views) > 0 {
					i := rapid.IntRange(0, len(w.views)-1).Draw(t, "view")
					w.enumerate(w.views[i])
					w.views = slices.Delete(w.views, i, i+1)
				}
			},
			"split": func(t *rapid.T) {
				if len(w.all) < 6 {
					w.divide(pick(), testPartition(rapid.IntRange(2, 4).Draw(t, "parts")), true)
				}
			},
			"restore": func(t *rapid.T) {
				if len(w.all) == 1 {
					return
				}
				n := pick()
				next := n.s.New()
				for k, body := range n.want {
					next.Set(k, body, testDigest(k, body))
				}
				n.s.Show(next)
			},
			"close": func(t *rapid.T) {
				if len(w.all) > 1 {
					i := rapid.IntRange(0, len(w.all)-1).Draw(t, "closed")
					w.all[i].s.Close()
					w.all = slices.Delete(w.all, i, i+1)
				}
			},
		})
		w.end()
	})
}

// end closes all shards, and checks that none has left a record.
func (w *partingWorld) end() {
	for _, v := range w.views {
		v.view.Close()
	}
	for _, n := range w.all {
		n.s.Close()
	}
	for key := uint64(0); key < 100 && w.first != nil; key++ {
		for version := uint32(1); version <= w.most; version++ {
			if body, err := w.first.ReadNow(Hash(key), version); !errors.Is(err, cold.ErrDamaged) {
				w.Fatalf("key %d has the record %x, %v", key, body, err)
			}
		}
	}
	if err := w.store.Close(); err != nil {
		w.Fatal(err)
	}
}

// recordsOf returns how many of the first keys have a record of a version up to 9 in the records of the undivided shard.
func (w *partingWorld) recordsOf(keys uint64, of func(key uint64) bool) (n int) {
	for key := range keys {
		for version := uint32(1); version < 10 && of(key); version++ {
			if _, err := w.first.ReadNow(Hash(key), version); err == nil {
				n++
			}
		}
	}
	return n
}

// The parts of a shard share its records:
//
//  1. They stay while one part uses them, whichever ends first, even if the group of the undivided shard is dropped.
//  2. The next round of that part removes those of a part that has ended, and of a part that was cleared, and no others.
//  3. The last one removes them all.
//  4. A lost record makes only reads of its own key fail.
func TestPartsShareRecords(t *testing.T) {
	t.Parallel()
	const keys = 90
	for _, tc := range []struct {
		name  string
		first int // ends first
		clear bool
	}{{"the parent ends first", 0, false}, {"the child ends first", 1, false}, {"the parent is cleared", 0, true}, {"the child is cleared", 1, true}} {
		w := newPartingWorld(t, true)
		for key := range uint64(keys) {
			w.set(w.all[0], key, testBody(key))
		}
		w.spill(w.all[0], 0, math.MaxInt64)
		w.divide(w.all[0], 2, true)
		ends, stays := w.all[tc.first], w.all[1-tc.first]
		if tc.clear {
			b := ends.s.Current()
			b.pages.mu.Lock()
			b.Clear()
			b.pages.mu.Unlock()
			w.spill(ends, 0, math.MaxInt64)
		} else {
			ends.s.Close()
			if err := w.store.Drop(1); err != nil {
				t.Fatal(err)
			}
		}
		w.check(stays)
		lost := func(key uint64) bool { _, stay := stays.want[key]; return !stay }
		w.spill(stays, 0, math.MaxInt64)
		if n := w.recordsOf(keys, lost); n > 0 {
			t.Errorf("%s: %d of its records are left", tc.name, n)
		}
		if n := w.recordsOf(keys, func(key uint64) bool { return !lost(key) }); n != len(stays.want) {
			t.Errorf("%s: %d of %d records are left to the other part", tc.name, n, len(stays.want))
		}
		w.check(stays)
		for key := range stays.want {
			if err := w.first.Delete([]uint64{Hash(key)}); err != nil {
				t.Fatal(err)
			}
			if _, _, err := stays.s.Fetch(t.Context(), key); !errors.Is(err, ErrLost) {
				t.Errorf("%s: a lost record: %v", tc.name, err)
			}
			delete(stays.want, key)
			break
		}
		for key, body := range stays.want {
			if got, _, err := stays.s.Fetch(t.Context(), key); err != nil || !bytes.Equal(got, body) {
				t.Errorf("%s: key %d has %x, %v", tc.name, key, got, err)
			}
		}
		if w.all = []*naive{stays}; tc.clear {
			w.all = append(w.all, ends)
		}
		w.end()
	}
}

// A reader of the undivided shard may still wait for the disk when the shard splits:
//
//  1. It gets its body, and returns none to the pages of a part.
//  2. A round that waited meanwhile moves no body of a part.
//  3. A part does not remove the record of a key of another part, although a record of that key was useless before the split.
//  4. Once a part has moved another body of the key to disk, the reader does not take that for the one of its mark.
func TestReadersOfASplitShard(t *testing.T) {
	t.Parallel()
	w := newPartingWorld(t, true)
	n := w.all[0]
	for key := range uint64(40) {
		w.set(n, key, testBody(key))
	}
	w.spill(n, 0, math.MaxInt64)
	w.set(n, 1, testBody(1)) // back in memory
	w.set(n, 4, testBody(4)) // of the other part
	was, child := n.s.Current(), w.shard(true)
	mark := was.Peek(7)
	parts, err := was.Split(testPartition(2), []*Bodies{n.s.New(), child.Current()})
	if err != nil {
		t.Fatal(err)
	}
	if moved := mustSpill(t, n.s, 0); moved > 0 {
		t.Errorf("%d bodies moved to disk", moved)
	}
	n.s.Show(parts[0])
	child.Show(parts[1])
	whole := n.want
	w.all, n.want = append(w.all, &naive{child, maps.Clone(whole)}), maps.Clone(whole)
	for i, part := range w.all {
		maps.DeleteFunc(part.want, func(key uint64, _ []byte) bool { return testPartition(2).Of(key) != i })
	}
	if body, err := was.FetchMark(t.Context(), 7, mark); err != nil || !bytes.Equal(body, testBody(7)) {
		t.Errorf("%x, %v", body, err)
	}
	if spilled := n.s.Stats().Spilled + child.Stats().Spilled; spilled != 38 {
		t.Errorf("%d bodies of 38 are on disk", spilled)
	}
	mustSpill(t, child, 0)
	mustSpill(t, n.s, 0)
	for _, part := range w.all {
		w.check(part)
		if _, has := part.want[7]; has {
			w.set(part, 7, testBody(9))
			w.spill(part, 0, math.MaxInt64)
			if body, err := was.FetchMark(t.Context(), 7, mark); !errors.Is(err, ErrMoved) {
				t.Errorf("the mark stands for %x, %v", body, err)
			}
		}
	}
	w.end()
}

// A step moves nothing during a round that moves bodies to disk: the round would look for its bodies in pages that have
// moved. The step does not wait for the round either, which may take minutes.
func TestStepDuringARound(t *testing.T) {
	t.Parallel()
	s := newTestShard(t)
	b, stepped := s.Current(), make(chan error, 1)
	mayStep := func() bool {
		go func() {
			more, err := b.Part(testPartition(2))
			if !more || b.pages.dir.Load().parted != nil {
				err = errors.Join(err, errors.New("it has moved bodies"))
			}
			stepped <- err
		}()
		select {
		case err := <-stepped:
			if err != nil {
				t.Errorf("a step during a round: %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("the step waits for the round")
		}
		return false // which ends the round
	}
	if _, err := s.Spill(0, math.MaxInt64, mayStep); err != nil {
		t.Error(err)
	}
	for more := true; more; {
		var err error
		if more, err = b.Part(testPartition(2)); err != nil {
			t.Fatal(err)
		}
	}
	for key := range uint64(testKeys) {
		mustBe(t, s, key, testBody(key))
	}
}

// A part that cannot be handed over, because it was discarded meanwhile, is refused.
func TestDiscardedPartIsRefused(t *testing.T) {
	t.Parallel()
	w := newPartingWorld(t, true)
	w.set(w.all[0], 1, testBody(1))
	other := w.shard(true)
	w.all[0].s.Close()
	if _, err := w.all[0].s.Current().HandOver(other.New()); !errors.Is(err, ErrEnded) {
		t.Error(err)
	}
}

// While steps move bodies, the writer, readers and the rounds that move bodies to disk run:
//
//  1. A reader of a key gets one of the bodies that the key has had.
//  2. Each view has all keys.
//  3. Nothing is lost, and the parts add up.
func TestStepsBesideReaders(t *testing.T) {
	t.Parallel()
	w := newPartingWorld(t, true)
	n := w.all[0]
	const keys = 4000
	for key := range uint64(keys) {
		w.set(n, key, testBody(key))
	}
	stop := make(chan struct{})
	var running sync.WaitGroup
	until := func(do func(i uint64) error) {
		running.Go(func() {
			for i := uint64(0); ; i++ {
				select {
				case <-stop:
					return
				default:
				}
				if err := do(i); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	whole := func(key uint64, body []byte) error {
		if len(body) < 2 || body[0] != 1 || body[1] != byte(key) {
			return fmt.Errorf("key %d has %x", key, body)
		}
		return nil
	}
	until(func(i uint64) error {
		key := Hash(i) % keys
		body, _, err := n.s.Fetch(t.Context(), key)
		return errors.Join(err, whole(key, body))
	})
	until(func(i uint64) error {
		some := []uint64{i % keys, Hash(i) % keys, Hash(i+1) % keys}
		got := 0
		n.s.Current().GetMany(some, func(at int, body []byte) {
			if got++; !IsMark(body) && whole(some[at], body) != nil {
				got = -1 << 20
			}
		})
		if got != len(some) {
			return fmt.Errorf("%d of %d bodies", got, len(some))
		}
		return nil
	})
	until(func(uint64) error {
		v, all := n.s.Current().Capture(), 0
		defer v.Close()
		for ; v.More(); all++ {
			key, body, err := v.Next()
			if err = errors.Join(err, whole(key, body)); err != nil {
				return err
			}
		}
		if all != keys {
			return fmt.Errorf("a view of %d keys", all)
		}
		return nil
	})
	until(func(uint64) error {
		_, err := n.s.Spill(0, 20_000, func() bool { return true })
		var ages Ages
		n.s.Ages(&ages)
		if s := n.s.Stats(); s.Keys != keys {
			return fmt.Errorf("%+v", s)
		}
		return err
	})
	until(func(i uint64) error { // the writer
		key := Hash(i) % keys
		w.set(n, key, bytes.Repeat([]byte{1, byte(key)}, 3+int(i%40)))
		return nil
	})
	for i, more := uint64(0), true; more; i++ {
		by := testPartition(3)
		if i < 40 {
			by = 2 // then other parts are parted anew
		}
		var err error
		if more, err = n.s.Current().part(by, 2000, 60); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	running.Wait()
	w.check(n)
	w.divide(n, 3, true)
	for _, part := range w.all {
		w.check(part)
	}
	w.end()
}

// A Split or an Adopt may fail after the bodies were handed over:
//
//  1. If the shard or the parked part is closed then, the next round of another user removes all its records, also useless ones.
//  2. If Adopt is repeated and succeeds, no record is removed.
func TestFailedHandOverLeavesNoRecords(t *testing.T) {
	t.Parallel()
	const keys = 90
	for _, tc := range []string{"Adopt fails", "Adopt is repeated", "Split fails"} {
		w := newPartingWorld(t, true)
		n := w.all[0]
		for key := range uint64(keys) {
			w.set(n, key, testBody(key))
		}
		w.spill(n, 0, math.MaxInt64)
		by, other := testPartition(2), w.shard(false)
		for key := range uint64(9) {
			w.set(n, key, testBody(key)) // its record is useless now
		}
		parts, err := n.s.Current().Split(by, []*Bodies{n.s.New(), other.Current()})
		if err != nil {
			t.Fatal(err)
		}
		n.s.Show(parts[0])
		other.Show(parts[1])
		child := w.shard(true)
		if tc == "Split fails" {
			var made []*Bodies
			made, err = parts[1].Split(testPartition(3), []*Bodies{other.New(), w.shard(false).Current(), w.shard(false).Current()})
			for _, part := range made {
				part.Dispose()
			}
		} else {
			var took *Bodies
			if took, err = parts[1].HandOver(child.New()); err == nil {
				took.Dispose()
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		whole := n.want
		n.want = maps.Clone(whole)
		maps.DeleteFunc(n.want, func(key uint64, _ []byte) bool { return by.Of(key) != 0 })
		want := 0
		if tc == "Adopt is repeated" {
			took, err := parts[1].HandOver(child.New())
			if err != nil {
				t.Fatal(err)
			}
			child.Show(took)
			adopted := &naive{s: child, want: maps.Clone(whole)}
			maps.DeleteFunc(adopted.want, func(key uint64, _ []byte) bool { return by.Of(key) != 1 })
			w.all = append(w.all, adopted)
			want = len(adopted.want)
		}
		other.Close()
		for _, n := range w.all {
			w.spill(n, 0, math.MaxInt64)
			w.check(n)
		}
		if got := w.recordsOf(keys, func(key uint64) bool { return by.Of(key) == 1 }); got != want {
			t.Errorf("%s: %d records are left, want %d", tc, got, want)
		}
		w.end()
	}
}

// endPart moves the bodies of so many keys to disk, and divides the shard. It closes one part, and returns the other.
func (w *partingWorld) endPart(keys int) *naive {
	n := w.all[0]
	for key := uint64(0); len(n.want) < keys; key++ {
		w.set(n, key, []byte{1, byte(key), 2})
	}
	w.spill(n, 0, math.MaxInt64)
	w.divide(n, 2, true)
	w.all[1].s.Close()
	w.all = w.all[:1]
	return n
}

// A round that must end removes only some useless records, of its own keys and of a part that has ended:
//
//  1. It moves no body as long as useless records are left, because it would write a record that is removed later.
//  2. Later rounds remove the others, and move the bodies. Nothing is lost.
func TestRoundEndsWhileItRemoves(t *testing.T) {
	t.Parallel()
	const each = removedAtOnce * 3 / 2
	w := newPartingWorld(t, true)
	n := w.endPart(2 * each)
	b := n.s.Current()
	if err := b.LockReturned(func(yield func(uint64)) {
		for key := range n.want {
			yield(key)
		}
	}); err != nil {
		t.Fatal(err)
	}
	b.Unlock()
	moved, err := n.s.Spill(0, math.MaxInt64, func() bool { return false })
	if err != nil || moved > 0 {
		t.Errorf("%d bodies have moved: %v", moved, err)
	}
	if got := w.recordsOf(2*each, func(uint64) bool { return true }); got != 2*each-2*removedAtOnce {
		t.Errorf("%d records are left of %d", got, 2*each)
	}
	w.spill(n, 0, math.MaxInt64)
	if s := n.s.Stats(); int(s.Spilled) != len(n.want) {
		t.Errorf("%d of %d bodies have moved", s.Spilled, len(n.want))
	}
	if got := w.recordsOf(2*each, func(key uint64) bool { return n.want[key] == nil }); got > 0 {
		t.Errorf("%d useless records are left", got)
	}
	w.check(n)
	w.end()
}

// On a full disk, a round removes all useless records, of its own keys and of a part that has ended, and writes nothing.
func TestRoundOnAFullDisk(t *testing.T) {
	t.Parallel()
	const each = removedAtOnce * 3 / 2
	w := newPartingWorld(t, true)
	n := w.endPart(2 * each)
	for key := range n.want {
		w.set(n, key, []byte{2, byte(key), 1})
	}
	n.s.cfg.Full = func() bool { return true }
	w.spill(n, 0, math.MaxInt64)
	if left := w.recordsOf(2*each, func(uint64) bool { return true }); left > 0 {
		t.Errorf("%d records are left", left)
	}
	if s := n.s.Stats(); s.Spilled > 0 {
		t.Errorf("%d bodies have moved to a full disk", s.Spilled)
	}
	n.s.cfg.Full = nil
	w.spill(n, 0, math.MaxInt64)
	if s := n.s.Stats(); int(s.Spilled) != len(n.want) {
		t.Errorf("%d of %d bodies have moved", s.Spilled, len(n.want))
	}
	w.check(n)
	w.end()
}

// Steps of another Partition, for an attempt that was withdrawn, may go on while a shard splits:
//
//  1. Split ends.
//  2. Each part has its bodies.
func TestSplitBesideStepsOfAnotherPartition(t *testing.T) {
	t.Parallel()
	const keys = 200
	w := &partingWorld{TB: t}
	for i := range 3000 {
		b := w.shard(false).Current()
		for key := range uint64(keys) {
			b.pages.mu.Lock()
			b.Set(key, testBody(key), 0)
			b.pages.mu.Unlock()
		}
		var stepping sync.WaitGroup
		stepping.Go(func() {
			for more := true; more; { // until the split
				var err error
				if more, err = b.Part(testPartition(2 + i%3*2)); err != nil && !errors.Is(err, ErrEnded) {
					t.Error(err)
				}
				more = more && i%2 > 0 // or one step
			}
		})
		by := testPartition(3)
		parts, err := b.Split(by, []*Bodies{b.shard.New(), w.shard(false).Current(), w.shard(false).Current()})
		stepping.Wait()
		if err != nil {
			t.Fatal(err)
		}
		for key := range uint64(keys) {
			if part := parts[by.Of(key)]; part == nil || !bytes.Equal(part.Peek(key), testBody(key)) {
				t.Fatalf("round %d: key %d is missing in its part", i, key)
			}
		}
	}
}

// askedPartition calls asked when a parting begins.
type askedPartition struct {
	testPartition
	asked func()
}

func (p *askedPartition) Classes() []engine.Class {
	p.asked()
	return p.testPartition.Classes()
}

// A parting makes the tables of the parts, as large as the directory, while the writer goes on. The writer may even
// remove the bodies on whose division the parting builds.
func TestPartingBeginsBesideTheWriter(t *testing.T) {
	t.Parallel()
	w := newPartingWorld(t, false)
	n := w.all[0]
	b := n.s.Current()
	for key := range uint64(90) {
		w.set(n, key, testBody(key))
	}
	if _, err := b.part(testPartition(2), 1, 1); err != nil {
		t.Fatal(err)
	}
	cleared := false
	by := &askedPartition{testPartition: 3, asked: func() {
		if !b.pages.mu.TryLock() {
			t.Error("the writer waits")
			return
		}
		defer b.pages.mu.Unlock()
		if !cleared {
			b.Clear()
			n.want, cleared = map[uint64][]byte{}, true
		}
	}}
	if _, err := b.part(by, 1, 1); err != nil {
		t.Fatal(err)
	}
	for key := range uint64(90) {
		w.set(n, key, testBody(key+1))
	}
	for more := true; more; {
		var err error
		if more, err = b.part(by, 1, 1); err != nil {
			t.Fatal(err)
		}
		w.check(n)
	}
	w.end()
}

// A view does not keep the pages in memory that it has shown, once others have replaced them.
func TestViewFreesPages(t *testing.T) {
	t.Parallel()
	w := newPartingWorld(t, false)
	n := w.all[0]
	for key := range uint64(90) {
		w.set(n, key, testBody(key))
	}
	b := n.s.Current()
	page := weak.Make(b.pages.page(0))
	v := b.Capture()
	for range 80 {
		if _, _, err := v.Next(); err != nil {
			t.Fatal(err)
		}
	}
	b.pages.mu.Lock()
	b.Clear()
	b.pages.mu.Unlock()
	n.want = map[uint64][]byte{}
	runtime.GC()
	if page.Value() != nil {
		t.Error("the first page is still in memory")
	}
	v.Close()
	w.end()
}

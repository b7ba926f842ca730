package members

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"
)

// The model test replays entries, takes snapshots and loads them into another store, and simulates
// crashes that lose unsynced data. It checks:
//
//  1. An op changes its set if and only if it changes a map to which the ops are applied in the
//    order of the log.
//  2. A replay of an entry judges each op as before, and ends in the same state.
//  3. Contains, both lists and the digest agree with the map after each entry and each restart.

// op is one member op of an entry in the log of the model.
type op struct {
	pair   Pair
	kind   byte // j: join, l: leave, d: delete the row, p: purge, c: clear
	refuse bool // the table refuses the op if it would change the set
	stamp  Stamp
}

type entry struct {
	now    int64
	ops    []op
	judged []bool // results when the entry was first applied; nil before
	after  State

	// If split is set, the entry has no ops. It splits the sets, or adopts part, which is above 0.
	split *modelSplit
	part  int
}

// modelSplit is a Split of the group modelParent.
type modelSplit struct {
	index uint64
	after State                      // of the parent
	parts [modelParts]map[Pair]Stamp // sets of the parts
}

// modelPartition is the Partition of a Split. other makes another value of it, for another Parting.
type modelPartition struct{ other bool }

func (modelPartition) Of(row uint64) int { return modelPart(row) }

// modelParts is the number of parts of a Split. The group with number i adopts part i.
const modelParts = 3

func modelPart(row uint64) int { return int(row % modelParts) }

const modelParent = 0 // the group that splits

// world is a log, and a map with the sets after its last entry.
type world struct {
	log     []entry // entry i has index i+1
	sets    map[Pair]Stamp
	adopted bool // it has adopted a part, and ignores further entries that adopt one
}

const logTimeStart = 1_700_000_000_000

func storeOf(t interface{ Fatal(...any) }, fs vfs.FS) *Store {
	groups := func() []uint32 { return []uint32{0, 1, 2} } // the groups of a damagedDisk
	s, err := Open(Config{Dir: "members", FS: fs, Groups: groups, MemoryBytes: MemoryBytesMin, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { panic(err) }})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// give applies an entry to a group, as a state machine does. It calls hooks before and after Read.
func give(g *Group, at State, index uint64, e *entry, hooks ...func()) (judged []bool, after State, err error) {
	if e.split != nil {
		after, err = grow(g, at, index, e, hooks)
		return nil, after, err
	}
	b, err := g.Begin(at, index, e.now)
	if err != nil {
		return nil, at, err
	}
	for i := range e.ops {
		switch o := &e.ops[i]; o.kind {
		case 'd':
			err = b.TouchRow(o.pair.Row)
		case 'p':
			err = b.TouchDead(3)
		case 'c':
		default:
			b.Touch(o.pair)
		}
		if err != nil {
			return nil, at, err
		}
	}
	for _, fn := range hooks {
		fn()
	}
	if err = b.Read(); err != nil {
		return nil, at, err
	}
	for _, fn := range hooks {
		fn()
	}
	for i := range e.ops {
		o := &e.ops[i]
		changes := false
		switch o.kind {
		case 'j':
			changes = b.Join(o.pair, o.stamp)
		case 'l':
			changes = b.Leave(o.pair)
		case 'd':
			b.DeleteRow(o.pair.Row)
		case 'p':
			b.Purge()
		case 'c':
			b.Clear()
		}
		if o.kind == 'j' || o.kind == 'l' {
			judged = append(judged, changes)
			if changes && o.refuse {
				b.Undo()
			}
		}
	}
	after, err = b.Commit()
	return judged, after, err
}

// grow applies an entry that splits the sets or adopts a part. It calls hooks while the sets are being parted.
func grow(g *Group, at State, index uint64, e *entry, hooks []func()) (after State, err error) {
	if e.part > 0 {
		if after, err = g.AdoptPart(modelParent, e.split.index, e.part, index); err == nil && (after.Index != index || after.Stamp != e.split.after.Stamp) {
			err = fmt.Errorf("part %d adopts %+v at %d, after %+v", e.part, after, index, e.split.after)
		}
		return after, err
	}
	if p, err := g.Part(modelPartition{}, modelParts); err == nil && len(hooks) > 0 {
		for _, fn := range hooks {
			_, _ = p.Step() // Split repeats it if it fails
			fn()
		}
	}
	states, err := g.Split(at, index, modelParts, modelPartition{}, func() {})
	if err != nil {
		return at, err
	}
	sum := State{Index: index, Stamp: at.Stamp}
	for i, s := range states {
		sum.Digest += s.Digest
		sum.Pairs += s.Pairs
		if i > 0 && s.Index > 0 || s.Stamp != at.Stamp {
			err = fmt.Errorf("part %d of %+v is %+v", i, at, s)
		}
	}
	if at.Index = index; sum != at {
		err = fmt.Errorf("parts of %+v: %+v", at, states)
	}
	e.split.after = states[0]
	return states[0], err
}

// model applies the ops of an entry to the map. It returns for each join and leave whether it
// changed the map.
func (w *world) model(e *entry) (judged []bool) {
	if e.split != nil && !w.adopted {
		w.adopted = e.part > 0
		for i := 0; i < modelParts && e.part == 0; i++ {
			e.split.parts[i] = maps.Clone(w.sets)
			maps.DeleteFunc(e.split.parts[i], func(p Pair, _ Stamp) bool { return modelPart(p.Row) != i })
		}
		w.sets = maps.Clone(e.split.parts[e.part])
	}
	for i := range e.ops {
		o := &e.ops[i]
		_, in := w.sets[o.pair]
		switch o.kind {
		case 'j', 'l':
			changes := in != (o.kind == 'j')
			judged = append(judged, changes)
			if !changes || o.refuse {
				continue
			}
			if o.kind == 'l' {
				delete(w.sets, o.pair)
			} else {
				w.sets[o.pair] = o.stamp
			}
		case 'd':
			for p := range w.sets {
				if p.Row == o.pair.Row {
					delete(w.sets, p)
				}
			}
		case 'c':
			clear(w.sets)
		}
	}
	return judged
}

// check compares the group with the map.
func (w *world) check(t *rapid.T, g *Group) {
	if err := g.Verify(); err != nil {
		t.Fatal(err)
	}
	for row := range uint64(modelRows) {
		for column := range uint8(2) {
			var want []uint64
			for p := range w.sets {
				if p.Row == row && p.Column == column {
					want = append(want, p.Member)
				}
			}
			slices.Sort(want)
			got := all(t, row, func(page Page) (List, error) { return g.Members(row, column, page) }, 0)
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Fatalf("members of %d.%d: %v, want %v", row, column, got, want)
			}
			for member := range uint64(modelMembers) {
				in := make([]bool, 1)
				if err := g.Contains(member, column, []uint64{row}, in); err != nil {
					t.Fatal(err)
				}
				if in[0] != slices.Contains(want, member) {
					t.Fatalf("%d in %d.%d: %v", member, row, column, in[0])
				}
			}
		}
	}
	for member := range uint64(modelMembers) {
		var want []uint64
		for p := range w.sets {
			if p.Member == member && p.Column == 0 {
				want = append(want, p.Row)
			}
		}
		slices.Sort(want)
		got := all(t, member, func(page Page) (List, error) { return g.Rows(member, 0, page) }, 1)
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Fatalf("rows of %d: %v, want %v", member, got, want)
		}
	}
}

// all reads a list in pages of three. The next page begins at the last id plus skip.
func all(t *rapid.T, of uint64, read func(Page) (List, error), skip uint64) (ids []uint64) {
	page := Page{Limit: 3}
	var last Entry
	for {
		l, err := read(page)
		if err != nil {
			t.Fatal(err)
		}
		for i, e := range l.Entries {
			if (page.Continues || i > 0) && last.Compare(e) >= 0 {
				t.Fatalf("list of %d: %v behind %v", of, e, last)
			}
			ids, last = append(ids, e.ID), e
		}
		if !l.More {
			return ids
		}
		page.After, page.Continues = Entry{last.ID + skip, last.At}, true
	}
}

const (
	modelRows    = 4
	modelMembers = 6
)

func drawEntry(t *rapid.T, index int) entry {
	e := entry{now: logTimeStart + int64(index)*rapid.Int64Range(0, 2).Draw(t, "ms")}
	kinds := rapid.SampledFrom([]byte("jjjjjjjjjjllllldpcjjjjjjlllldpjjl"))
	for range rapid.IntRange(1, 8).Draw(t, "ops") {
		o := op{kind: kinds.Draw(t, "kind"), refuse: rapid.IntRange(0, 3).Draw(t, "refuse") == 0}
		if o.kind == 'c' && rapid.IntRange(0, 4).Draw(t, "really") > 0 {
			o.kind = 'j'
		}
		o.pair = Pair{
			Row: rapid.Uint64Range(0, modelRows-1).Draw(t, "row"), Column: uint8(rapid.IntRange(0, 1).Draw(t, "column")),
			Member: rapid.Uint64Range(0, modelMembers-1).Draw(t, "member"),
		}
		if rapid.IntRange(0, 9).Draw(t, "copied") == 0 {
			o.stamp = StampOf(e.now - rapid.Int64Range(0, 1000).Draw(t, "age"))
		}
		e.ops = append(e.ops, o)
	}
	return e
}

// replica is a group with the state of its state machine.
type replica struct {
	fs    *vfs.MemFS
	store *Store
	group *Group
	at    State // of the state machine
	index int   // index of the last applied entry

	snapshot struct { // stored
		index      int
		at         State
		generation uint32
	}
}

func (r *replica) open(t *rapid.T) {
	r.store = storeOf(t, r.fs)
	var err error
	if r.group, err = r.store.Group(7); err != nil {
		t.Fatal(err)
	}
	r.at, r.index = r.snapshot.at, r.snapshot.index
	generation := r.snapshot.generation
	if r.snapshot.index == 0 {
		generation = r.group.Generation()
	}
	if err := r.group.Adopts(generation, r.at); err != nil {
		t.Fatal(err)
	}
}

func (r *replica) close(t *rapid.T) {
	r.group.Close()
	if err := r.store.Close(); err != nil {
		t.Fatal(err)
	}
}

// apply applies the entries of the log up to index to.
func (r *replica) apply(t *rapid.T, w *world, to int) {
	for r.index < to {
		e := &w.log[r.index]
		judged, after, err := give(r.group, r.at, uint64(r.index+1), e)
		if err != nil {
			t.Fatalf("entry %d: %v", r.index+1, err)
		}
		if e.judged == nil {
			e.judged, e.after = judged, after
		}
		n := max(len(judged), len(e.judged))
		for i := range n {
			if judged[i] != e.judged[i] {
				t.Fatalf("entry %d, op %d of a member: judged %v, the first time %v", r.index+1, i, judged[i], e.judged[i])
			}
		}
		if after != e.after {
			t.Fatalf("entry %d: %+v, the first time %+v", r.index+1, after, e.after)
		}
		r.at, r.index = after, r.index+1
	}
}

func (r *replica) takeSnapshot(t *rapid.T) {
	if err := errors.Join(r.group.Capture(), r.group.Sync()); err != nil {
		t.Fatal(err)
	}
	r.snapshot.index, r.snapshot.at, r.snapshot.generation = r.index, r.at, r.group.Generation()
	if err := r.group.Trim(uint64(r.index)); err != nil {
		t.Fatal(err)
	}
}

// receive loads the stored snapshot of another replica.
func (r *replica) receive(t *rapid.T, from *replica) {
	v, err := from.group.OpenView(from.snapshot.at)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	l, err := r.group.Load()
	if err != nil {
		t.Fatal(err)
	}
	n, bytes := v.Size()
	for {
		b, err := v.Next(nil)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = l.Block(b)
		}
		if err != nil {
			t.Fatal(err)
		}
		n--
		bytes -= int64(len(b))
	}
	if n != 0 || bytes != 0 {
		t.Fatalf("%d blocks and %d bytes did not come", n, bytes)
	}
	if err := l.Switch(v.State()); err != nil {
		t.Fatal(err)
	}
	r.at, r.index = from.snapshot.at, from.snapshot.index
	r.snapshot = from.snapshot
	r.snapshot.generation = r.group.Generation()
}

func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{sets: map[Pair]Stamp{}}
		a, b := &replica{fs: vfs.NewCrashableMem()}, &replica{fs: vfs.NewCrashableMem()}
		a.open(t)
		b.open(t)
		defer func() { a.close(t); b.close(t) }()
		restart := func(t *rapid.T, r *replica) {
			before := r.index
			lost := rapid.IntRange(0, 100).Draw(t, "kept")
			clone := r.fs.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: lost, RNG: rand.New(rand.NewPCG(1, uint64(lost)))})
			r.close(t)
			r.fs = clone
			r.open(t)
			r.apply(t, w, before)
			if r == a {
				w.check(t, r.group)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"entry": func(t *rapid.T) {
				e := drawEntry(t, len(w.log))
				w.log = append(w.log, e)
				want := w.model(&e)
				a.apply(t, w, len(w.log))
				if got := w.log[len(w.log)-1].judged; !slices.Equal(got, want) {
					t.Fatalf("judged %v, want %v", got, want)
				}
			},
			"follow":     func(t *rapid.T) { b.apply(t, w, rapid.IntRange(b.index, len(w.log)).Draw(t, "to")) },
			"snapshot a": func(t *rapid.T) { a.takeSnapshot(t) },
			"snapshot b": func(t *rapid.T) { b.takeSnapshot(t) },
			"restart a":  func(t *rapid.T) { restart(t, a) },
			"restart b":  func(t *rapid.T) { restart(t, b) },
			"fill": func(t *rapid.T) {
				if err := a.group.fillFilter(); err != nil {
					t.Fatal(err)
				}
				w.check(t, a.group)
			},
			"send": func(t *rapid.T) {
				if a.snapshot.index > b.index {
					b.receive(t, a)
				}
			},
			"": func(t *rapid.T) {},
		})
		w.check(t, a.group)
		b.apply(t, w, len(w.log))
		w.check(t, b.group)
	})
}

// TestLargeRow deletes a row with more pairs than one entry removes.
func TestLargeRow(t *testing.T) {
	store := storeOf(t, vfs.NewMem())
	defer store.Close()
	g, err := store.Group(1)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	at, index := State{}, uint64(0)
	next := func(ops ...op) {
		t.Helper()
		index++
		if _, at, err = give(g, at, index, &entry{now: logTimeStart, ops: ops}); err != nil {
			t.Fatal(err)
		}
	}
	var joins []op
	const n = 3 * purgedAtOnce
	for m := range uint64(n) {
		joins = append(joins, op{kind: 'j', pair: Pair{Row: 5, Member: m}})
	}
	next(joins...)
	next(op{kind: 'j', pair: Pair{Row: 6, Member: 1}})
	next(op{kind: 'd', pair: Pair{Row: 5}}, op{kind: 'j', pair: Pair{Row: 5, Member: 3}})
	if g.Dying() != 1 {
		t.Fatalf("%d rows are dying, want 1", g.Dying())
	}
	for _, of := range []uint64{0, 3, n - 1} {
		in := make([]bool, 1)
		if err := g.Contains(of, 0, []uint64{5}, in); err != nil || in[0] != (of == 3) {
			t.Fatalf("member %d of a deleted row: %v, %v", of, in[0], err)
		}
	}
	l, err := g.Members(5, 0, Page{Limit: 10})
	if err != nil || len(l.Entries) != 1 || l.Entries[0].ID != 3 || l.More {
		t.Fatalf("members of a deleted row: %+v, %v", l, err)
	}
	for g.Dying() > 0 {
		if next(op{kind: 'p'}); index > n {
			t.Fatal("the row is not removed")
		}
		if err := g.Verify(); err != nil {
			t.Fatal(err)
		}
	}
	if at.Pairs != 2 {
		t.Fatalf("%d pairs are left, want 2", at.Pairs)
	}
}

// A list has the joins of one millisecond in the order of the log.
func TestOrderOfJoins(t *testing.T) {
	store := storeOf(t, vfs.NewMem())
	defer store.Close()
	g, err := store.Group(1)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	at := State{}
	order := []uint64{9, 3, 7, 1}
	for i, m := range order {
		if _, at, err = give(g, at, uint64(i+1), &entry{now: logTimeStart, ops: []op{{kind: 'j', pair: Pair{Member: m}}}}); err != nil {
			t.Fatal(err)
		}
	}
	l, err := g.Members(0, 0, Page{Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range l.Entries {
		if e.ID != order[len(order)-1-i] || e.At.Time().UnixMilli() != logTimeStart {
			t.Errorf("line %d is %v", i, e)
		}
	}
}

// Even if an entry has more joins than a millisecond has stamps, a list has them in the order of
// the entry.
func TestOrderOfManyJoins(t *testing.T) {
	d := diskOf(t)
	const n = 10_000
	var ops []op
	for i := range uint64(n) {
		ops = append(ops, op{kind: 'j', pair: Pair{Member: i * 7919 % n}})
	}
	d.give(ops...)
	l, err := d.group.Members(0, 0, Page{Limit: n})
	if err != nil || len(l.Entries) != n {
		t.Fatalf("%d entries, %v", len(l.Entries), err)
	}
	for i, e := range l.Entries {
		if want := ops[n-1-i].pair.Member; e.ID != want {
			t.Fatalf("line %d is member %d, want %d", i, e.ID, want)
		}
	}
	if ahead := l.Entries[0].At.Time().UnixMilli() - logTimeStart; ahead > 1000 {
		t.Errorf("joins are %d ms ahead of the log", ahead)
	}
	for range 10 {
		var ops []op
		for i := range uint64(n) {
			ops = append(ops, op{kind: 'j', pair: Pair{Row: d.index, Member: i}})
		}
		d.give(ops...)
	}
	if ahead := d.at.Stamp.Time().UnixMilli() - logTimeStart; ahead > 1000 {
		t.Errorf("many joins are %d ms ahead of the log", ahead)
	}
}

func TestCursor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		e := Entry{ID: rapid.Uint64().Draw(t, "id"), At: Stamp(rapid.Uint64Range(1, uint64(stampMax)).Draw(t, "at"))}
		got, err := ParseCursor(AppendCursor(nil, e))
		if err != nil || got != e {
			t.Fatalf("%v, %v, want %v", got, err, e)
		}
	})
	for _, bad := range []string{"", "a", "AAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAA!", "AAAAAAAAAAAAAAAAAAAA", "AAAAAAAAAAAAAAAAAAB", "AAAAAAAAAAAAAAAAAAA"} {
		if e, err := ParseCursor([]byte(bad)); err == nil {
			t.Errorf("%q is %v", bad, e)
		}
	}
}

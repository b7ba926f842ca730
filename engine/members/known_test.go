package members

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"pgregory.net/rapid"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/scarce"
)

// A filter returns true for each added pair. Its share of false positives is as small as the
// comments of filterBits and the other sizes promise.
func TestFilter(t *testing.T) {
	s := storeOf(t, vfs.NewMem())
	defer s.Close()
	rapid.Check(t, func(t *rapid.T) {
		pairs := rapid.Uint64Range(0, 5000).Draw(t, "pairs")
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		f := s.newFilter(pairs)
		defer f.release()
		added := map[Pair]bool{}
		draw := func() Pair {
			return Pair{Row: random.Uint64N(1000) << 22, Column: uint8(random.IntN(3)), Member: random.Uint64N(10_000_000)}
		}
		fill := func(n uint64, most int) {
			for range n {
				p := draw()
				added[p] = true
				f.add(p)
			}
			for p := range added {
				if !f.has(p) {
					t.Fatalf("%v was missed", p)
				}
			}
			wrong := 0
			for range 1000 {
				if p := draw(); !added[p] && f.has(p) {
					wrong++
				}
			}
			if wrong > most {
				t.Fatalf("%d of 1000 absent pairs are reported with %d pairs, room for %d", wrong, len(added), f.room)
			}
		}
		fill(pairs, 40)
		if f.full() {
			t.Fatal("a new filter is full")
		}
		fill(uint64(f.room)-pairs, 230)
		for range f.room {
			f.add(draw())
		}
		if !f.full() {
			t.Fatalf("room for %d, not full with %d", f.room, f.pairs.Load())
		}
	})
	if s.filters.bytes != 0 {
		t.Errorf("%d bytes were not given back", s.filters.bytes)
	}
}

// All groups of a store share the memory for filters. If a filter would be too small to save
// lookups, there is none.
func TestFiltersShareMemory(t *testing.T) {
	s := storeOf(t, vfs.NewMem())
	defer s.Close()
	most := uint64(s.filterMemory()) * 8 / filterBitsMin
	pairs := most * 8 / 10 // an eighth of the memory is a reserve
	s.pairs.Store(int64(pairs))
	for range 7 {
		if s.newFilter(pairs/7) == nil {
			t.Fatalf("no room for a filter beside %d bytes", s.filters.bytes)
		}
	}
	if s.filters.bytes > s.filterMemory() {
		t.Errorf("filters have %d bytes, of %d", s.filters.bytes, s.filterMemory())
	}
	s.filters.bytes = 0
	s.pairs.Store(int64(most))
	if f := s.newFilter(most / 7); f != nil {
		t.Errorf("a filter of %d bytes for %d pairs", len(f.lines)*lineBytes, most/7)
	}
}

// Pairs that are committed while a filter is filled are in that filter, and in the one in use. The
// filter also has the earlier pairs, from disk.
func TestFillBesideCommits(t *testing.T) {
	d := diskOf(t)
	const earlier, later = 3 * fillPairs, 4000
	d.give(joins(1, earlier)...)
	var filling sync.WaitGroup
	filling.Go(func() {
		for range 5 {
			if err := d.group.fillFilter(); err != nil {
				t.Error(err)
			}
		}
	})
	in := make([]bool, 1)
	for m := range uint64(later) {
		d.give(op{kind: 'j', pair: Pair{Row: 1, Member: m}})
		if err := d.group.Contains(m, 0, []uint64{1}, in); err != nil || !in[0] {
			t.Fatalf("member %d is absent once it has joined: %v", m, err)
		}
	}
	filling.Wait()
	if err := d.group.fillFilter(); err != nil || d.group.known.now.Load() == nil {
		t.Fatal("no filter", err)
	}
	d.known(joins(1, earlier)...)
	for m := range uint64(later) {
		d.known(op{pair: Pair{Row: 1, Member: m}})
	}
}

func (d *disk) known(ops ...op) {
	d.Helper()
	for _, o := range ops {
		if !d.group.known.now.Load().mayHave(o.pair) {
			d.Fatalf("%v is not known", o.pair)
		}
	}
}

// While a filter is being filled, commits add their pairs to it.
func TestCommitsAddToAFilterThatIsBeingFilled(t *testing.T) {
	d := diskOf(t)
	d.give(joins(1, 10)...)
	f, err := d.group.beginFilter()
	if err != nil {
		t.Fatal(err)
	}
	late := Pair{Row: 2, Member: 3}
	if d.give(op{kind: 'j', pair: late}); !f.has(late) {
		t.Error("a commit did not add its pair")
	}
	// A Load replaces all pairs, so the unfinished filter of the earlier pairs is dropped.
	l, err := d.group.Load()
	if err == nil {
		err = l.Switch(State{})
	}
	if _, ended := d.group.fillPart(f, nil); !errors.Is(ended, scarce.ErrClosed) {
		t.Errorf("the filter is filled further: %v", ended)
	}
	if err != nil || d.group.known.now.Load() != nil || d.store.filters.bytes != 0 {
		t.Errorf("filters are left after a load: %v", err)
	}
}

// Once a filter is full, commits request a larger one.
func TestFilterGrows(t *testing.T) {
	d := diskOf(t)
	for m := uint64(0); m < 20_000; m += 1000 {
		var ops []op
		for i := range uint64(1000) {
			ops = append(ops, op{kind: 'j', pair: Pair{Row: 7, Member: m + i}})
		}
		d.give(ops...)
	}
	for d.group.known.wanted.Load() || func() bool {
		d.group.known.mu.Lock()
		defer d.group.known.mu.Unlock()
		return d.group.known.filling != nil || d.group.known.now.Load().full()
	}() {
		d.give(op{kind: 'j', pair: Pair{Row: 8, Member: d.index}}) // commits check for fullness
	}
	if f := d.group.known.now.Load(); f.room < 20_000 {
		t.Errorf("room for %d", f.room)
	}
	for m := range uint64(20_000) {
		d.known(op{pair: Pair{Row: 7, Member: m}})
	}
}

// A store that is opened again fills the filters of its groups.
func TestFiltersAfterOpen(t *testing.T) {
	fs := vfs.NewMem()
	d := &disk{T: t, store: storeOf(t, fs)}
	d.group = d.open(1)
	d.give(joins(20, 100)...)
	d.group.Close()
	if err := d.store.Close(); err != nil {
		t.Fatal(err)
	}
	d.store = storeOf(t, fs)
	defer d.store.Close()
	if n := d.store.mu.unopened[1]; n != 2000 {
		t.Errorf("%d pairs at the opening", n)
	}
	d.group = d.open(1)
	defer d.group.Close()
	filterComes := func() bool {
		d.group.known.mu.Lock()
		defer d.group.known.mu.Unlock()
		return d.group.known.wanted.Load() || d.group.known.filling != nil || d.group.known.now.Load() != nil
	}
	// The goroutine that received the request may not have begun the filter yet.
	must.Become(t, "a filter is wanted, filled or there", filterComes)
	if err := d.group.fillFilter(); err != nil {
		t.Fatal(err)
	}
	d.known(joins(20, 100)...)
	if d.group.known.now.Load().mayHave(Pair{Row: 50, Member: 1}) && d.group.known.now.Load().mayHave(Pair{Row: 51, Member: 1}) && d.group.known.now.Load().mayHave(Pair{Row: 52, Member: 1}) {
		t.Error("absent pairs are not known to be absent")
	}
}

// settle waits until no group wants a filter.
func (d *disk) settle() {
	d.Helper()
	for range 10_000 {
		busy := false
		for _, g := range d.store.groups() {
			g.known.mu.Lock()
			busy = busy || g.known.filling != nil || g.known.wanted.Load()
			g.known.mu.Unlock()
			busy = busy || g.retries()
		}
		if !busy && len(d.store.filters.look) == 0 {
			return
		}
		time.Sleep(time.Millisecond)
	}
	d.Fatal("filters are filled without end")
}

// Contains returns the state of all rows at one moment, even if filters are replaced while it runs.
func TestContainsIsOfOneMoment(t *testing.T) {
	d := diskOf(t)
	const n, in = 20_000, 20 // rows, and rows that a member joins in one entry
	d.give(op{kind: 'j', pair: Pair{Row: n, Member: 1}})
	rows := make([]uint64, n)
	for r := range uint64(n) {
		rows[r] = r
	}
	var join, leave []op
	for r := uint64(0); r < n; r += n / in {
		join = append(join, op{kind: 'j', pair: Pair{Row: r, Member: 7}})
		leave = append(leave, op{kind: 'l', pair: Pair{Row: r, Member: 7}})
	}
	var pages sync.WaitGroup
	ended := make(chan struct{})
	for range 3 {
		pages.Go(func() {
			is := make([]bool, n)
			for {
				select {
				case <-ended:
					return
				default:
				}
				if err := d.group.Contains(7, 0, rows, is); err != nil {
					t.Error(err)
					return
				}
				found := 0
				for r := 0; r < n; r += n / in {
					if is[r] {
						found++
					}
				}
				if found != 0 && found != in {
					t.Errorf("a member is in %d of %d rows that it joins and leaves in one entry", found, in)
					return
				}
			}
		})
	}
	fill := func() {
		if err := d.group.fillFilter(); err != nil {
			t.Error(err)
		}
	}
	for range 200 {
		for i, o := range join { // the filter has half of these pairs, but the disk never had them
			if f := d.group.known.now.Load(); i%2 == 0 {
				f.add(o.pair)
			}
		}
		fill()
		d.give(join...)
		d.give(leave...)
		fill()
	}
	close(ended)
	pages.Wait()
}

// A group that had too many pairs for a filter gets one once it has fewer.
func TestFilterOfAShrunkGroup(t *testing.T) {
	d := diskOf(t)
	d.store.cfg.MemoryBytes = 16 << 10
	thousand := func(kind byte, row uint64) (ops []op) {
		for m := range uint64(1000) {
			ops = append(ops, op{kind: kind, pair: Pair{Row: row, Member: m}})
		}
		return ops
	}
	for r := range uint64(25) {
		d.give(thousand('j', r)...)
	}
	d.settle()
	if err := d.group.fillFilter(); err != nil || d.group.known.now.Load() != nil {
		t.Fatal("a filter for 25000 pairs", err)
	}
	for r := range uint64(24) {
		d.give(thousand('l', r)...)
	}
	d.settle()
	if f := d.group.known.now.Load(); f == nil || f.full() {
		t.Errorf("no filter for %d pairs", d.at.Pairs)
	}
}

// If there is no memory for a group's filter, the filters of other groups shrink to their share.
// Then each group has a filter.
func TestFiltersOfManyGroups(t *testing.T) {
	d := diskOf(t)
	d.store.cfg.MemoryBytes = 16 << 10 // two thirds are for filters
	groups := []*disk{d}
	for i := range uint32(11) {
		groups = append(groups, &disk{T: t, store: d.store, group: d.open(i + 2)})
	}
	for _, g := range groups {
		for m := range uint64(4) { // each round adds member m to 225 rows, after a repeat of member 0
			g.give(joins(225, 1)...)
			var ops []op
			for r := range uint64(225) {
				ops = append(ops, op{kind: 'j', pair: Pair{Row: r, Member: m}})
			}
			g.give(ops...)
		}
		d.settle()
	}
	for i, g := range groups {
		if g.group.known.now.Load() == nil {
			t.Errorf("group %d of %d has no filter, %d of %d bytes", i, len(groups), d.store.filters.bytes, d.store.filterMemory())
		}
	}
	// Too many pairs for the memory, and then few again.
	large := groups[1]
	for r := range uint64(15) {
		var ops []op
		for m := range uint64(1000) {
			ops = append(ops, op{kind: 'j', pair: Pair{Row: 1000 + r, Member: m}})
		}
		large.give(ops...)
	}
	d.settle()
	if d.store.filters.bytes > d.store.filterMemory() {
		t.Errorf("%d bytes of %d", d.store.filters.bytes, d.store.filterMemory())
	}
	if large.group.known.now.Load() != nil && !large.group.known.now.Load().full() {
		t.Error("there is memory for more pairs than it has room for")
	}
	for _, g := range groups[1:] {
		g.group.Close()
		if err := d.store.Drop(g.group.number); err != nil {
			t.Fatal(err)
		}
	}
	d.settle()
	if f := d.group.known.now.Load(); f == nil || f.full() {
		t.Error("no filter, although the memory is free again")
	}
}

// Members that leave and join again do not make a filter full.
func TestRejoins(t *testing.T) {
	d := diskOf(t)
	d.give(joins(1, 500)...)
	before := d.group.known.now.Load()
	var leave []op
	for m := range uint64(500) {
		leave = append(leave, op{kind: 'l', pair: Pair{Member: m}})
	}
	for range 10 {
		d.give(leave...)
		d.give(joins(1, 500)...)
	}
	d.settle()
	if f := d.group.known.now.Load(); f != before || f.full() {
		t.Errorf("another filter after rejoins, %d pairs", f.pairs.Load())
	}
}

package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// byResidue divides a class of ids into parts by residue, as a shard of a keyspace by modulo.
type byResidue struct {
	of    Class
	parts int
}

func (b byResidue) Of(id uint64) int {
	return int((id - b.of.Residue) / uint64(b.of.Stride) % uint64(b.parts))
}

func (b byResidue) Classes() (classes []Class) {
	for i := range uint64(b.parts) {
		classes = append(classes, ClassOf(uint64(b.of.Stride)*uint64(b.parts), b.of.Residue+i*uint64(b.of.Stride)))
	}
	return classes
}

// byHash divides all ids into parts by a hash, as a shard of a keyspace by hash.
type byHash struct{ parts int }

func (b byHash) Of(id uint64) int { return int(id * mixA >> 40 % uint64(b.parts)) }

func (b byHash) Classes() []Class { return slices.Repeat([]Class{allIDs}, b.parts) }

// partOf returns the rows of a part of m.
func (m model) partOf(by Partition, part int) model {
	of := model{}
	for id, row := range m {
		if by.Of(id) == part {
			of[id] = row
		}
	}
	return of
}

func begunParting(t rapid.TB, tab *Table, by Partition) *Parting {
	g, err := NewParting(tab, by)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// split parts a table to the end, splits it, and compares the parts with the model.
func (m model) split(t rapid.TB, g *Parting) []*Table {
	if _, err := Split(g.table, g.by); err != nil && !errors.Is(err, ErrUnparted) {
		t.Fatal(err)
	}
	for more := true; more; {
		var err error
		if more, err = g.Step(); err != nil {
			t.Fatal(err)
		}
	}
	whole := g.table.Digest()
	parts, err := Split(g.table, g.by)
	if err != nil {
		t.Fatal(err)
	}
	for i, part := range parts {
		whole -= part.Digest()
		m.partOf(g.by, i).equal(t, part)
		if err := part.Check(); err != nil {
			t.Fatalf("part %d: %v", i, err)
		}
	}
	if whole != 0 {
		t.Fatalf("the digests of the parts do not add up")
	}
	return parts
}

// restored returns a table of the rows of a snapshot.
func restored(t rapid.TB, snap *Snapshot, class Class) *Table {
	tab := newTableOf(testSecret, class)
	if err := snap.Pages(tab.Load); err != nil {
		t.Fatal(err)
	}
	if tab.Digest() != snap.Digest() || tab.Stats().Rows != uint64(snap.Rows()) {
		t.Fatalf("restored %d rows, %016x, want %d, %016x", tab.Stats().Rows, tab.Digest(), snap.Rows(), snap.Digest())
	}
	return tab
}

// The test parts a table. Between the steps it applies random ops, seals and unseals segments, takes
// snapshots, restores them, drops the parting and takes it up again. Some ops come within a step,
// after it has captured the rows. The table always equals a model; so do its snapshots, and after
// the split, the parts. Then the test parts one of the parts once more.
func TestPartingAgainstModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 0))
		class := rapid.SampledFrom([]Class{allIDs, ClassOf(7, 3)}).Draw(rt, "class")
		var by Partition = byResidue{class, rapid.SampledFrom([]int{1, 2, 3, 5}).Draw(rt, "parts")}
		if class == allIDs && rapid.Bool().Draw(rt, "hash") {
			by = byHash{3}
		}
		names := []string{"dense in order", "weibo nearly ordered", "any 64 bits", "10 to 19 digits", "both ends"}
		shape := idShapes[rapid.SampledFrom(names).Draw(rt, "shape")]
		ids := make([]uint64, rapid.SampledFrom([]int{1, 50, 3000, 40_000}).Draw(rt, "ids"))
		for i := range ids {
			ids[i] = class.floor(shape(r, i))
		}
		tab, m := newTableOf(testSecret, class), model{}
		fill := make([]Op, len(ids)/2)
		for i := range fill {
			fill[i] = Op{ID: ids[i], Kind: OpAdd, Cells: []Cell{{uint8(i % 3), 1 + r.Int64N(90)}}}
			m.apply(fill[i])
		}
		tab.Apply(fill, 0, nil, nil)
		var g *Parting
		var older *Snapshot
		var olderRows int
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"step", "step", "step", "step written", "write", "write few", "seal", "snapshot", "restore", "drop"}).Draw(rt, "do") {
			case "step":
				if g == nil {
					g = begunParting(rt, tab, by)
				}
				if _, err := g.Step(); err != nil {
					rt.Fatal(err)
				}
			case "step written":
				if g == nil {
					g = begunParting(rt, tab, by)
				}
				if mv, err := g.capture(); mv != nil && err == nil {
					g.build(mv)
					near := nearFrontier(r, ids, mv)
					applyBatch(rt, r, tab, m, near, 5)
					p := g.lock()
					if mv.follow() {
						mv.publish()
					}
					g.unlock(p)
				}
			case "write":
				applyBatch(rt, r, tab, m, ids, 5)
			case "write few":
				few := r.IntN(len(ids))
				applyBatch(rt, r, tab, m, ids[few:min(few+200, len(ids))], 5)
			case "seal":
				sealAll(tab)
				sealAll(tab)
			case "snapshot":
				if older != nil {
					if n := restored(rt, older, class).Stats().Rows; n != uint64(olderRows) {
						rt.Fatalf("%d rows, want %d", n, olderRows)
					}
					older.Close()
				}
				older, olderRows = tab.Snapshot(), len(m.ids())
			case "restore":
				snap := tab.Snapshot()
				copied := restored(rt, snap, class)
				snap.Close()
				if r.IntN(4) == 0 {
					tab, g = copied, nil
				}
			case "drop":
				if g != nil {
					if _, err := NewParting(tab, byResidue{class, 11}); !errors.Is(err, ErrParted) {
						rt.Fatal(err)
					}
				}
				g = nil
			}
			if err := tab.Check(); err != nil {
				rt.Fatal(err)
			}
		}
		m.equal(rt, tab)
		checkScans(rt, r, tab, m)
		if g == nil {
			g = begunParting(rt, tab, by)
		}
		parts := m.split(rt, g)
		n := r.IntN(len(parts))
		part, rows := parts[n], m.partOf(by, n)
		if of := part.salts.class; of != allIDs {
			var mine []uint64
			for _, id := range ids {
				if by.Of(id) == n {
					mine = append(mine, id)
				}
			}
			if len(mine) > 0 {
				applyBatch(rt, r, part, rows, mine, 5)
			}
			rows.split(rt, begunParting(rt, part, byResidue{of, 3}))
		}
	})
}

// nearFrontier returns those ids that the move concerns.
func nearFrontier(r *rand.Rand, ids []uint64, m *move) []uint64 {
	var near []uint64
	for _, id := range ids {
		if id <= m.last && (id >= m.p.above || m.parts[m.p.by.Of(id)].first <= id) {
			near = append(near, id)
		}
	}
	if len(near) == 0 {
		return ids
	}
	from := r.IntN(len(near))
	return near[from:min(len(near), from+1+r.IntN(300))]
}

// checkScans compares scans from random ids with the model.
func checkScans(rt *rapid.T, r *rand.Rand, tab *Table, m model) {
	ids := m.ids()
	for range 5 {
		start := r.Uint64()
		if len(ids) > 0 && r.IntN(5) > 0 {
			start = ids[r.IntN(len(ids))] + uint64(r.IntN(2))
		}
		n, _ := slices.BinarySearch(ids, start)
		tab.Scan(start, ColumnsMax, func(p *Page) bool {
			for i, id := range p.IDs {
				if n == len(ids) || id != ids[n] || !slices.Equal(p.Row(i), m[id]) {
					rt.Fatalf("scan from %d: row %d is id %d", start, n, id)
				}
				n++
			}
			return true
		})
		if n != len(ids) {
			rt.Fatalf("scan from %d ended at row %d of %d", start, n, len(ids))
		}
		if id, rows := tab.InMemory(start, 1<<64-1); tab.Stats().SealedRows == 0 {
			at, _ := slices.BinarySearch(ids, start)
			if rows != len(ids)-at || rows > 0 && id > ids[at] {
				rt.Fatalf("in memory from %d: %d rows from %d, want %d from %d", start, rows, id, len(ids)-at, ids[at])
			}
		}
	}
	if least := tab.Least(); len(ids) > 0 && least > ids[0] {
		rt.Fatalf("least %d, want %d", least, ids[0])
	}
}

// One goroutine applies ops, each of which adds 1. Concurrently another one parts the table and
// seals its segments, and others read. The test holds these properties:
//
//  1. A reader never sees a count fall.
//  2. Digest, Stats and snapshots never show a row twice, or none of it.
//  3. The parts have each op.
func TestPartingBesideTheWriter(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 77))
	tab, m := newTableOf(testSecret, allIDs), model{}
	ids := make([]uint64, 60_000)
	ops := make([]Op, len(ids))
	for i := range ids {
		ids[i] = idShapes["weibo nearly ordered"](r, i)
		ops[i] = Op{ID: ids[i], Kind: OpAdd, Cells: []Cell{{uint8(i % 5), 1}}}
		m.apply(ops[i])
	}
	tab.Apply(ops, 0, nil, nil)
	rows := uint64(len(m.ids()))
	var done atomic.Bool
	var others sync.WaitGroup
	others.Go(func() { // property 1
		r := rand.New(rand.NewPCG(8, 8))
		seen := map[uint64]int64{}
		page, counts := make([]uint64, 50), make([]int64, 50*5)
		for !done.Load() {
			for i := range page {
				page[i] = ids[r.IntN(2000)*len(ids)/2000]
			}
			tab.GetMany(page, 5, counts, nil)
			for i, id := range page {
				sum := int64(0)
				for _, v := range counts[i*5 : i*5+5] {
					sum += v
				}
				if sum < seen[id] {
					t.Errorf("id %d fell from %d to %d", id, seen[id], sum)
				}
				seen[id] = sum
			}
		}
	})
	others.Go(func() { // property 2
		for !done.Load() {
			if n := tab.Stats().Rows; n != rows {
				t.Errorf("%d rows, want %d", n, rows)
			}
			snap := tab.Snapshot()
			digest, n := uint64(0), int64(0)
			if err := snap.Pages(func(p *Page) error {
				for i, id := range p.IDs {
					digest += RowDigest(id, p.Row(i))
				}
				n += int64(len(p.IDs))
				return nil
			}); err != nil || digest != snap.Digest() || n != snap.Rows() || n != int64(rows) {
				t.Errorf("snapshot of %d rows, digest %016x, says %d, %016x: %v", n, digest, snap.Rows(), snap.Digest(), err)
			}
			snap.Close()
			n = 0
			tab.Scan(0, ColumnsMax, func(p *Page) bool {
				n += int64(len(p.IDs))
				return true
			})
			if n != int64(rows) {
				t.Errorf("scan of %d rows, want %d", n, rows)
			}
		}
	})
	parted := make(chan *Parting)
	go func() {
		sealAll(tab)
		sealAll(tab)
		g, err := NewParting(tab, byResidue{allIDs, 3})
		for more := true; more && err == nil; {
			more, err = g.Step()
			sealAll(tab)
		}
		if err != nil {
			t.Error(err)
		}
		parted <- g
	}()
	var g *Parting
	for n := 0; g == nil; n++ {
		ops := make([]Op, 1+n%50)
		from := r.IntN(len(ids))
		for i := range ops {
			id := ids[(from+r.IntN(3000))%len(ids)]
			ops[i] = Op{ID: id, Kind: OpAdd, Cells: []Cell{{uint8(r.IntN(5)), 1}}}
			m.apply(ops[i])
		}
		tab.Apply(ops, 0, nil, nil)
		select {
		case g = <-parted:
		default:
		}
	}
	done.Store(true)
	others.Wait()
	m.equal(t, tab)
	m.split(t, g)
}

// The Cuts and refusals of a batch name its ops, whichever part has their rows.
func TestPartedAnswers(t *testing.T) {
	tab, g := partedTable(t, 100)
	if _, err := g.Step(); err != nil {
		t.Fatal(err)
	}
	cut := func(id uint64) Op {
		return Op{ID: id, Kind: OpAdd, Cells: []Cell{{FloorMark, 0}, {0, -5}}}
	}
	big := Op{ID: 4, Kind: OpAdd, Cells: []Cell{{0, 1<<63 - 1}}}
	refused, err := tab.Apply([]Op{cut(1), big, cut(5), cut(2)}, 0, nil, nil)
	if err != nil || fmt.Sprint(tab.Cuts()) != "[{0 0 -1} {2 0 -1} {3 0 -1}]" || len(refused) != 1 || refused[0].Op != 1 {
		t.Errorf("cuts %v, refused %v, %v", tab.Cuts(), refused, err)
	}
	tab.Rises.Watch(0, Place{})
	tab.Apply([]Op{{ID: 1000, Kind: OpAdd, Cells: []Cell{{0, 1}}}}, 0, nil, nil)
	if rises, _ := tab.Rises.Take(nil); len(rises) != 1 || rises[0].ID != 1000 {
		t.Errorf("rises %v", rises)
	}
}

// After Split, the parts are written by different goroutines, so they share no memory of Cuts.
func TestCutsOfSplitParts(t *testing.T) {
	tab, g := partedTable(t, 100)
	cut := func(id uint64) Op {
		return Op{ID: id, Kind: OpAdd, Cells: []Cell{{FloorMark, 0}, {0, -5}}}
	}
	tab.Apply([]Op{cut(0), cut(1), cut(2)}, 0, nil, nil)
	for more := true; more; {
		var err error
		more, err = g.Step()
		if err != nil {
			t.Fatal(err)
		}
	}
	tab.Apply([]Op{{ID: 3, Kind: OpAdd, Cells: []Cell{{0, 1}}}, {ID: 4, Kind: OpAdd, Cells: []Cell{{0, 1}}}, {ID: 5, Kind: OpAdd, Cells: []Cell{{0, 1}}}}, 0, nil, nil)
	parts, err := Split(tab, g.by)
	if err != nil {
		t.Fatal(err)
	}
	parts[0].Apply([]Op{cut(6)}, 0, nil, nil)
	parts[1].Apply([]Op{{ID: 7, Kind: OpAdd, Cells: []Cell{{0, 1}}}, cut(10)}, 0, nil, nil)
	if got, want := fmt.Sprint(parts[0].Cuts()), "[{0 0 -1}]"; got != want {
		t.Errorf("cuts of the first part are %s after a write to another one, want %s", got, want)
	}
}

// partedTable returns a table of ids 0 … rows-1, with count 1 each, and its Parting in three.
func partedTable(t *testing.T, rows int) (*Table, *Parting) {
	tab := newTable(t)
	ops := make([]Op, rows)
	for i := range ops {
		ops[i] = Op{ID: uint64(i), Kind: OpAdd, Cells: []Cell{{0, 1}}}
	}
	tab.Apply(ops, 0, nil, nil)
	return tab, begunParting(t, tab, byResidue{allIDs, 3})
}

// A parted table has as few and as full segments as before.
func TestPartingKeepsSegmentsFull(t *testing.T) {
	t.Parallel()
	for _, seal := range []bool{false, true} {
		tab, g := partedTable(t, 12*rowsMax)
		if seal {
			sealAll(tab)
			sealAll(tab)
		}
		before := tab.Stats()
		for more := true; more; {
			more, _ = g.Step()
		}
		after := tab.Stats()
		if after.SealedRows < before.SealedRows || after.Segments > before.Segments+3 || float64(after.Bytes) > 1.05*float64(before.Bytes) {
			t.Errorf("before %+v, after %+v", before, after)
		}
	}
}

func TestPartingRefusesRowsOnDisk(t *testing.T) {
	tab, g := partedTable(t, 3*rowsMax)
	tab.Watch(anyAge)
	firsts, _ := tab.Watch(anyAge)
	if _, err := tab.Freeze(&memCold{}, firsts[:1]); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Step(); !errors.Is(err, ErrOnDisk) {
		t.Error(err)
	}
	if _, err := Split(g.table, g.by); !errors.Is(err, ErrUnparted) {
		t.Error(err)
	}
}

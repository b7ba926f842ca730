package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/countd/countd/internal/wire"
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

func (b byResidue) Filters() (filters []Filter) {
	stride := uint64(b.of.Stride)
	for i := range uint64(b.parts) {
		filters = append(filters, Filter{uint32(stride * uint64(b.parts)), uint32(b.of.Residue + i*stride), false})
	}
	return filters
}

// byHash divides all ids into parts by a hash, as a shard of a keyspace by hash.
type byHash struct{ parts int }

func (b byHash) Of(id uint64) int { return int(wire.MixID(id) % uint64(b.parts)) }

func (b byHash) Classes() []Class { return slices.Repeat([]Class{allIDs}, b.parts) }

func (b byHash) Filters() (filters []Filter) {
	for i := range b.parts {
		filters = append(filters, Filter{uint32(b.parts), uint32(i), true})
	}
	return filters
}

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

// partAll makes the steps that are left.
func partAll(t rapid.TB, g *Parting) {
	for more := true; more; {
		var err error
		if more, err = g.Step(); err != nil {
			t.Fatal(err)
		}
	}
}

// split parts a table to the end, splits it, and compares the parts with the model.
func (m model) split(t rapid.TB, g *Parting) []*Table {
	early, err := Split(g.table, g.by)
	if err != nil && !errors.Is(err, ErrUnparted) {
		t.Fatal(err)
	}
	for _, part := range early { // as after a split that failed
		part.Close()
	}
	partAll(t, g)
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

// The test parts a table. Between the steps it applies random ops, seals and unseals segments, moves segments to disk,
// takes snapshots, restores them, with the rows on disk or all rows, drops the parting and takes it up again. Some
// ops come within a step, after it has captured the rows. The table always equals a model; so do its snapshots, and
// after the split, the parts. Then the test parts one of the parts once more, and folds what the tables share.
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
		disk := &memCold{}
		for range rapid.IntRange(1, 25).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"step", "step", "step", "step written", "write", "write few", "seal", "snapshot", "restore", "reload", "freeze", "freeze", "drop"}).Draw(rt, "do") {
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
				if mv := g.capture(); mv != nil {
					if err := g.build(mv); err != nil {
						rt.Fatal(err)
					}
					near := nearFrontier(r, ids, mv)
					applyBatch(rt, r, tab, m, near, 5)
					p := g.lock()
					followed := mv.follow()
					if followed {
						mv.publish()
					}
					g.unlock(p)
					if followed {
						mv.releaseCold()
					}
					g.disk.of = nil
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
					tab.Close()
					tab, g = copied, nil
				}
			case "reload":
				checkParts(rt, tab)
				copied := reloaded(rt, tab, nil)
				m.equal(rt, copied)
				if err := copied.Check(); err != nil {
					rt.Fatal(err)
				}
				if class != allIDs || r.IntN(4) > 0 {
					copied.Close()
				} else {
					tab.Close()
					tab, g = copied, nil
				}
			case "freeze":
				freeze(rt, tab, disk, 1+r.IntN(5))
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
		if older != nil {
			older.Close()
		}
		parts := m.split(rt, g)
		tab.Close()
		n := r.IntN(len(parts))
		rows := m.partOf(by, n)
		var mine []uint64
		for _, id := range ids {
			if by.Of(id) == n {
				mine = append(mine, id)
			}
		}
		for i, part := range parts {
			if i != n {
				m.partOf(by, i).folded(rt, part, disk)
				part.Close()
			}
		}
		part := parts[n]
		if r.IntN(2) == 0 {
			rows.folded(rt, part, disk)
		}
		if r.IntN(2) == 0 {
			checkParts(rt, part)
			copied := reloaded(rt, part, nil)
			part.Close()
			part = copied
			rows.equal(rt, part)
		}
		if len(mine) > 0 {
			applyBatch(rt, r, part, rows, mine, 5)
		}
		if of := part.salts.class; of != allIDs {
			again := rows.split(rt, begunParting(rt, part, byResidue{of, 3}))
			part.Close()
			for i, last := range again {
				rows.partOf(byResidue{of, 3}, i).folded(rt, last, disk)
				last.Close()
			}
		} else {
			rows.folded(rt, part, disk)
			part.Close()
		}
		if n := disk.needed(); n != 0 {
			rt.Fatalf("%d generations are needed by nobody and not released", n)
		}
	})
}

// folded moves the shares of a table to generations of its own.
func (m model) folded(t rapid.TB, tab *Table, disk *memCold) {
	for range 100 {
		shared := false
		for _, part := range tab.cold() {
			shared = shared || part.share()
		}
		if !shared {
			m.equal(t, tab)
			if err := tab.Check(); err != nil {
				t.Fatal(err)
			}
			return
		}
		freeze(t, tab, disk, 16)
	}
	t.Fatal("the table still shares generations")
}

// The parts of a half parted table get more rows over one generation than a segment has: its snapshot divides the
// generation. The table that a part is loaded from names it again, with the filter.
func TestRowsInMemoryOverShares(t *testing.T) {
	t.Parallel()
	for _, by := range []Partition{byResidue{allIDs, 3}, byHash{3}} {
		tab, disk, m := newTableOf(testSecret, allIDs), &memCold{}, model{}
		write := func(step int, value int64) {
			ops := make([]Op, 0, 3*rowsMax)
			for id := 0; id < 3*rowsMax; id += step {
				ops = append(ops, Op{ID: uint64(id) * 7, Kind: OpAdd, Cells: []Cell{{uint8(id % 6), value}}})
				m.apply(ops[len(ops)-1])
			}
			if _, err := tab.Apply(ops, 0, nil, nil); err != nil {
				t.Fatal(err)
			}
		}
		write(2, 1)
		tab.Cut(3*rowsMax*7 + 1)
		if freeze(t, tab, disk, 1) < rowsMax/2 {
			t.Fatal("no rows on disk")
		}
		g := begunParting(t, tab, by)
		if _, err := g.Step(); err != nil {
			t.Fatal(err)
		}
		write(1, 5)
		write(3, -5) // deletes some
		checkParts(t, tab)
		snap := tab.Snapshot()
		units := snap.coldOfParts()
		snap.Close()
		if len(units) < 2 {
			t.Errorf("%d units", len(units))
		}
		copied := reloaded(t, tab, nil)
		m.equal(t, copied)
		copied.Close()
		parts := m.split(t, g)
		tab.Close()
		for i, part := range parts {
			if part.Stats().ColdRows == 0 {
				t.Errorf("part %d has no rows on disk", i)
			}
			copied := reloaded(t, part, nil)
			part.Close()
			m.partOf(by, i).folded(t, copied, disk)
			copied.Close()
		}
		if n := disk.needed(); n != 0 {
			t.Errorf("%d generations are needed by nobody and not released", n)
		}
	}
}

// A table whose parts each share many small generations has as few generations as before once they are folded.
func TestFoldJoinsShares(t *testing.T) {
	t.Parallel()
	tab, _ := filled(t, 12*rowsMax)
	disk := &memCold{}
	freeze(t, tab, disk, 100)
	before := len(tab.cold())
	g := begunParting(t, tab, byHash{4})
	partAll(t, g)
	parts, err := Split(tab, g.by)
	if err != nil {
		t.Fatal(err)
	}
	after := 0
	never := func(uint64, uint64) bool { return false }
	for _, part := range parts {
		for range 2 {
			if idle, _ := part.Watch(never, false); len(idle) > 0 {
				t.Errorf("%d segments with shares are to move", len(idle))
			}
		}
		if st := part.Stats(); st.SharedBytes == 0 || st.SharedBytes != st.ColdBytes {
			t.Errorf("%d bytes on disk, %d of them shared", st.ColdBytes, st.SharedBytes)
		}
		freeze(t, part, disk, 100)
		if st := part.Stats(); st.SharedBytes > 0 || st.ColdBytes == 0 {
			t.Errorf("%d bytes on disk, %d of them still shared", st.ColdBytes, st.SharedBytes)
		}
		after += len(part.cold())
		if err := part.Check(); err != nil {
			t.Error(err)
		}
	}
	if after > before*3/2 {
		t.Errorf("%d generations before, %d after", before, after)
	}
}

// While a step reads rows on disk, the writer may change their segment. A step that cannot read them changes nothing.
func TestStepReadsWithoutLocks(t *testing.T) {
	tab, ids := filled(t, 2*rowsMax)
	disk := &memCold{}
	freeze(t, tab, disk, 1)
	g := begunParting(t, tab, byResidue{allIDs, 2})
	reads := 0
	disk.reading = func() {
		reads++
		if _, err := tab.Apply([]Op{{ID: ids[3] + 1, Kind: OpAdd, Cells: []Cell{{0, 1}}}}, 0, nil, nil); err != nil {
			t.Error(err)
		}
	}
	if _, err := g.Step(); err != nil || reads != 1 {
		t.Errorf("%d reads, %v", reads, err)
	}
	disk.reading = nil
	tab2, _ := filled(t, 2*rowsMax)
	freeze(t, tab2, disk, 1)
	disk.fail = errGone
	g = begunParting(t, tab2, byResidue{allIDs, 2})
	if _, err := g.Step(); !errors.Is(err, errGone) || tab2.dir.Load().segs[0].Load().cold == nil {
		t.Errorf("a step over damaged rows: %v", err)
	}
	disk.fail = nil
	if _, err := g.Step(); err != nil {
		t.Error(err)
	}
}

// checkParts verifies that Cold gives the parts of Parts, and that no part has more rows in memory than a segment.
func checkParts(t rapid.TB, tab *Table) {
	snap := tab.Snapshot()
	defer snap.Close()
	var want, got []Part
	if err := snap.Parts(func(p *Part) error {
		if n := len(p.Page.IDs); p.Cold != nil && n > rowsMax {
			t.Fatalf("%d rows in memory over those on disk", n)
		}
		if p.Cold != nil {
			of := *p
			of.Page = nil
			want = append(want, of)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	snap.Cold(func(p *Part) { got = append(got, *p) })
	if !slices.Equal(got, want) {
		t.Fatalf("cold parts %+v, want %+v", got, want)
	}
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
		if id, rows := tab.InMemory(start, 1<<64-1); tab.Stats().SealedRows == 0 && tab.Stats().ColdRows == 0 {
			at, _ := slices.BinarySearch(ids, start)
			if rows != len(ids)-at || rows > 0 && id > ids[at] {
				rt.Fatalf("in memory from %d: %d rows from %d, want %d from %d", start, rows, id, len(ids)-at, ids[at])
			}
		}
	}
	if least := tab.Least(); len(ids) > 0 && least > ids[0] && tab.Stats().ColdRows == 0 {
		rt.Fatalf("least %d, want %d", least, ids[0])
	}
}

// One goroutine applies ops. Each op adds 1. Some rows are on disk. Concurrently another goroutine parts the
// table and seals its segments, and others read. The test holds these properties:
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
	if freeze(t, tab, &memCold{}, 3) == 0 {
		t.Fatal("no rows on disk")
	}
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
			for _, i := range tab.GetMany(page, 5, counts, nil) {
				if err := tab.ReadCold(context.Background(), page[i], counts[i*5:i*5+5]); err != nil {
					t.Error(err)
				}
			}
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
	partAll(t, g)
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

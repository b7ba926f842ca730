package engine

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"
)

// memCold keeps generations in memory. It drops a generation once its last reference is released.
type memCold struct {
	mu   sync.Mutex
	made []*memGeneration
	fail error // if not nil, reads and writes return it

	// These hooks are called where a real disk may block.
	writing, reading, removing func()
}

func call(fn func()) {
	if fn != nil {
		fn()
	}
}

var errGone = errors.New("the generation is gone")

type memGeneration struct {
	cold   *memCold
	number uint64
	page   Page
	needed atomic.Int64
}

func (m *memCold) Write(pages []*Page) ([]Generation, error) {
	call(m.writing)
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return nil, m.fail
	}
	var made []Generation
	for _, p := range pages {
		g := &memGeneration{cold: m, number: uint64(len(m.made)),
			page: Page{slices.Clone(p.IDs), p.Width, slices.Clone(p.Counts)}}
		g.needed.Store(1)
		m.made = append(m.made, g)
		made = append(made, g)
	}
	return made, nil
}

// needed returns the number of retained generations.
func (m *memCold) needed() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for _, g := range m.made {
		if g.needed.Load() > 0 {
			n++
		}
	}
	return n
}

func (g *memGeneration) Number() uint64      { return g.number }
func (g *memGeneration) Rows() int           { return len(g.page.IDs) }
func (g *memGeneration) Width() int          { return g.page.Width }
func (g *memGeneration) Bytes() (_, _ int64) { return 10, int64(8 * len(g.page.IDs)) }
func (g *memGeneration) Retain()             { g.needed.Add(1) }
func (g *memGeneration) Release() {
	switch n := g.needed.Add(-1); {
	case n < 0:
		panic("released more often than retained")
	case n == 0:
		call(g.cold.removing)
	}
}

func (g *memGeneration) failure() error {
	g.cold.mu.Lock()
	defer g.cold.mu.Unlock()
	if g.needed.Load() <= 0 {
		return errGone
	}
	return g.cold.fail
}

func (g *memGeneration) Get(_ context.Context, id uint64, row []int64) error {
	return g.GetNow(id, row)
}

func (g *memGeneration) GetNow(id uint64, row []int64) error {
	clear(row)
	if i, found := slices.BinarySearch(g.page.IDs, id); found {
		copy(row, g.page.Row(i))
	}
	return g.failure()
}

func (g *memGeneration) Load(first, last uint64, p *Page) error {
	call(g.cold.reading)
	for i, id := range g.page.IDs {
		if id >= first && id <= last {
			var row [ColumnsMax]int64
			copy(row[:], g.page.Row(i))
			p.add(id, row[:p.Width])
		}
	}
	return g.failure()
}

func anyAge(uint64, uint64) bool { return true }

// freeze moves at most limit idle segments to disk, and returns the number of their rows.
func freeze(t rapid.TB, tab *Table, cold *memCold, limit int) int {
	t.Helper()
	tab.Watch(anyAge, true)
	firsts, _ := tab.Watch(anyAge, true)
	rows, err := tab.Freeze(cold, firsts[:min(len(firsts), limit)])
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// reloaded returns a table loaded from a snapshot of tab. It seals the rows of ranges for which
// isOld returns true; isOld may be nil.
func reloaded(t rapid.TB, tab *Table, isOld func(first, last uint64) bool) *Table {
	t.Helper()
	snap := tab.Snapshot()
	defer snap.Close()
	n, with := newTableOf(testSecret, allIDs), new(Sealer)
	err := snap.Parts(func(p *Part) error {
		if p.Cold == nil {
			if ids := p.Page.IDs; isOld != nil && isOld(ids[0], ids[len(ids)-1]) {
				return n.LoadSealed(p.Page, with)
			}
			return n.Load(p.Page)
		}
		p.Cold.Retain()
		return n.LoadCold(p)
	})
	if err != nil {
		t.Fatal(err)
	}
	n.Adopt(snap.Rows(), snap.Digest())
	return n
}

// The test applies random ops. Between them it moves segments to disk, folds them, and replaces the
// table by one loaded from its snapshot. The table always equals a model, and has the digest of a
// table that keeps all rows in memory.
func TestColdRowsCount(t *testing.T) {
	t.Parallel()
	for name, idOf := range idShapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && name != "weibo nearly ordered" && name != "any 64 bits" {
				t.Skip("one goroutine has nothing to show the race detector")
			}
			coldRowsCount(t, idOf, uint64(len(name)))
		})
	}
}

func coldRowsCount(t *testing.T, idOf func(*rand.Rand, int) uint64, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 11))
	tab, plain, want, cold := newTableOf(testSecret, allIDs), newTable(t), model{}, &memCold{}
	known := make([]uint64, 13_000) // enough rows for several segments
	for i := range known {
		known[i] = idOf(r, i)
		op := []Op{{ID: known[i], Kind: OpAdd, Cells: []Cell{{uint8(i % 5), 1 + r.Int64N(300)}}}}
		want.apply(op[0])
		for _, t := range []*Table{tab, plain} {
			_, _ = t.Apply(op, 0, nil, nil) // cannot fail, because no row is cold yet
		}
	}
	frozen := 0
	for step := range 25 {
		ops := make([]Op, 1+r.IntN(600))
		for i := range ops {
			id := known[r.IntN(len(known))]
			if r.IntN(3) == 0 {
				id = idOf(r, len(known))
				known = append(known, id)
			}
			ops[i] = randomOp(r, id)
		}
		checkApply(t, tab, plain, want, ops)
		switch step % 5 {
		case 1, 4:
			frozen += freeze(t, tab, cold, 1+r.IntN(20))
		case 3:
			next := reloaded(t, tab, nil)
			tab.Close()
			tab = next
		}
		if tab.Digest() != plain.Digest() || tab.Stats().Rows != plain.Stats().Rows {
			t.Fatalf("seed %d step %d: digest %016x of %d rows, never moved %016x of %d", seed, step,
				tab.Digest(), tab.Stats().Rows, plain.Digest(), plain.Stats().Rows)
		}
		if step%12 == 11 {
			if err := tab.Check(); err != nil {
				t.Fatalf("seed %d step %d: %v", seed, step, err)
			}
			want.equalCold(t, tab)
		}
	}
	if frozen < len(known)/2 && len(want.ids()) > 2*rowsMax {
		t.Errorf("%d rows were frozen of %d", frozen, len(known))
	}
	want.equalCold(t, tab)
	tab.Close()
	if n := cold.needed(); n != 0 {
		t.Errorf("%d generations are needed by nobody and not released", n)
	}
}

func randomOp(r *rand.Rand, id uint64) Op {
	op := Op{ID: id, Kind: OpAdd}
	switch r.IntN(12) {
	case 0:
		return Op{ID: id, Kind: OpDelete}
	case 1, 2:
		op.Kind = OpSet
	}
	columns := 4
	if r.IntN(40) == 0 {
		columns = ColumnsMax
	}
	for range 1 + r.IntN(3) {
		op.Cells = append(op.Cells, Cell{uint8(r.IntN(columns)), countOf(r)})
	}
	return op
}

// checkApply applies ops to both tables and to the model, and compares the resulting rows and
// refusals.
func checkApply(t *testing.T, tab, plain *Table, want model, ops []Op) {
	t.Helper()
	rows := make([]int64, len(ops)*ColumnsMax)
	refused, err := tab.Apply(ops, ColumnsMax, rows, nil)
	if err != nil {
		t.Fatal(err)
	}
	other, err := plain.Apply(ops, 0, nil, nil)
	if err != nil || !slices.Equal(refused, other) {
		t.Fatalf("refused %v, a table without cold rows %v, %v", refused, other, err)
	}
	for i, op := range ops {
		want.apply(op)
		if !slices.Equal(rows[i*ColumnsMax:(i+1)*ColumnsMax], want.row(op.ID)) {
			t.Fatalf("op %d on id %d answers %v, want %v", i, op.ID, rows[i*ColumnsMax:(i+1)*ColumnsMax], want.row(op.ID))
		}
	}
}

// equalCold is like equal, but for a table with cold rows.
func (m model) equalCold(t testing.TB, tab *Table) {
	t.Helper()
	ids := m.ids()
	rows := make([]int64, len(ids)*ColumnsMax)
	for _, i := range tab.GetMany(ids, ColumnsMax, rows, nil) {
		if err := tab.ReadCold(context.Background(), ids[i], rows[i*ColumnsMax:(i+1)*ColumnsMax]); err != nil {
			t.Fatal(err)
		}
	}
	for i, id := range ids {
		if !slices.Equal(rows[i*ColumnsMax:(i+1)*ColumnsMax], m[id]) {
			t.Fatalf("id %d reads %v, want %v", id, rows[i*ColumnsMax:(i+1)*ColumnsMax], m[id])
		}
	}
	n := 0
	err := tab.Scan(0, ColumnsMax, func(p *Page) bool {
		for i, id := range p.IDs {
			if n >= len(ids) || id != ids[n] || !slices.Equal(p.Row(i), m[id]) {
				t.Fatalf("scan: row %d is id %d %v", n, id, p.Row(i))
			}
			n++
		}
		return true
	})
	if n != len(ids) || err != nil {
		t.Fatalf("scan gave %d rows, want %d: %v", n, len(ids), err)
	}
}

// filled returns a table of full segments. Column 0 of each row is 1.
func filled(t testing.TB, rows int) (tab *Table, ids []uint64) {
	tab = newTable(t)
	ids = make([]uint64, rows)
	ops := make([]Op, rows)
	for i := range ids {
		ids[i] = uint64(i) << 20
		ops[i] = Op{ID: ids[i], Kind: OpAdd, Cells: []Cell{{0, 1}}}
	}
	if _, err := tab.Apply(ops, 0, nil, nil); err != nil {
		t.Fatal(err)
	}
	return tab, ids
}

// If cold rows cannot be read, nothing is applied and nothing is lost.
func TestColdRowsThatCannotBeRead(t *testing.T) {
	tab, ids := filled(t, 25_000)
	cold := &memCold{}
	if n := freeze(t, tab, cold, 10); n < 15_000 {
		t.Fatalf("%d rows frozen", n)
	}
	digest := tab.Digest()
	cold.fail = errGone
	ops := []Op{{ID: 1 << 50, Kind: OpAdd, Cells: []Cell{{0, 1}}}, {ID: ids[3], Kind: OpAdd, Cells: []Cell{{0, 1}}}}
	if _, err := tab.Apply(ops, 0, nil, nil); !errors.Is(err, errGone) || tab.Digest() != digest {
		t.Errorf("applied: %v", err)
	}
	var row [4]int64
	if err := tab.ReadCold(context.Background(), ids[3], row[:]); !errors.Is(err, errGone) {
		t.Errorf("read: %v", err)
	}
	if err := tab.Scan(0, 4, func(*Page) bool { return true }); !errors.Is(err, errGone) {
		t.Errorf("scan: %v", err)
	}
	cold.fail = nil
	if _, err := tab.Apply(ops, 0, nil, nil); err != nil {
		t.Error(err)
	}
	if err := tab.ReadCold(context.Background(), ids[3], row[:]); err != nil || row[0] != 2 {
		t.Errorf("row %v, %v", row, err)
	}
}

func TestFailedFreezeKeepsRowsInMemory(t *testing.T) {
	tab, ids := filled(t, 25_000)
	cold := &memCold{fail: errGone}
	tab.Watch(anyAge, true)
	idle, _ := tab.Watch(anyAge, true)
	if _, err := tab.Freeze(cold, idle); !errors.Is(err, errGone) {
		t.Fatal(err)
	}
	var row [1]int64
	if !tab.Get(ids[0], row[:]) || row[0] != 1 || tab.Stats().ColdRows != 0 {
		t.Errorf("row %v, %+v", row, tab.Stats())
	}
}

// Rows that are deleted while their segment moves to disk stay deleted, even if a split meanwhile
// has moved them into a segment without cold rows.
func TestRowsDeletedWhileTheyFreeze(t *testing.T) {
	tab, ids := filled(t, 30_000)
	cold := &memCold{}
	freeze(t, tab, cold, 1)
	second := tab.dir.Load().first(1)
	last := tab.dir.Load().last(1)
	apply := func(kind OpKind, ids []uint64) {
		t.Helper()
		ops := make([]Op, len(ids))
		for i, id := range ids {
			if ops[i] = (Op{ID: id, Kind: kind}); kind == OpAdd {
				ops[i].Cells = []Cell{{0, 1}}
			}
		}
		if _, err := tab.Apply(ops, 0, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	var hot, more []uint64
	for _, id := range ids {
		if id >= second && id <= last {
			hot, more = append(hot, id), append(more, id, id+1)
		}
	}
	apply(OpDelete, hot) // now the first segment owns the ids of the deleted rows
	late := hot[len(hot)-100:]
	apply(OpAdd, late)
	cold.writing = func() {
		segments := tab.Stats().Segments
		apply(OpAdd, more)
		if tab.Stats().Segments == segments {
			t.Fatal("the segment was not divided")
		}
		apply(OpDelete, more)
	}
	if _, err := tab.Freeze(cold, []uint64{0}); err != nil {
		t.Fatal(err)
	}
	var row [1]int64
	if !tab.Get(late[0], row[:]) || row[0] != 0 {
		t.Errorf("a deleted row is %v", row)
	}
	if err := tab.Check(); err != nil {
		t.Error(err)
	}
}

// While rows move to disk, nobody reads or removes a generation under a lock that the writer needs.
func TestMovingRowsHoldsNobodyUp(t *testing.T) {
	tab, ids := filled(t, 25_000)
	cold := &memCold{}
	freeze(t, tab, cold, 1)
	calls := 0
	free := func(lock *sync.Mutex) {
		if calls++; !lock.TryLock() {
			t.Error("the disk is used under a lock")
			return
		}
		lock.Unlock()
	}
	looked := tab
	cold.reading = func() { free(&looked.writing); free(&looked.mu.Mutex) }
	cold.removing = cold.reading
	if _, err := tab.Apply([]Op{{ID: ids[3], Kind: OpAdd, Cells: []Cell{{0, 1}}}}, 0, nil, nil); err != nil {
		t.Fatal(err)
	}
	if n, err := tab.Freeze(cold, []uint64{0}); n == 0 || err != nil {
		t.Fatal(n, err)
	}
	if calls != 4 { // one read and one removal, each of which checks two locks
		t.Errorf("%d locks were looked at", calls)
	}
	looked = reloaded(t, tab, nil)
	if freeze(t, looked, cold, 1<<20) == 0 {
		t.Fatal("nothing is frozen of the table that is closed")
	}
	before := calls
	looked.Close()
	if calls == before { // the removal
		t.Error("Close removed nothing")
	}
}

// Only segments that nobody writes to are idle.
func TestWatch(t *testing.T) {
	tab, ids := filled(t, 45_000)
	tab.Watch(anyAge, true)
	if _, err := tab.Apply([]Op{{ID: ids[15_000], Kind: OpAdd, Cells: []Cell{{0, 1}}}}, 0, nil, nil); err != nil {
		t.Fatal(err)
	}
	segments := tab.Stats().Segments
	if idle, due := tab.Watch(anyAge, true); len(idle) != segments-2 || due == 0 { // all but two
		t.Errorf("%d of %d segments are idle", len(idle), segments)
	}
	young := func(_, last uint64) bool { return last < ids[12_000] }
	if idle, _ := tab.Watch(young, true); len(idle) != 1 || idle[0] != 0 {
		t.Errorf("old and idle: %v", idle)
	}
}

// Readers run concurrently with the writer, and while segments move to disk and are folded. No
// reader sees an older count than before, or misses a row.
func TestReadersBesideFreezing(t *testing.T) {
	t.Parallel()
	tab, ids := filled(t, 25_000)
	cold := &memCold{}
	var stop atomic.Bool
	var readers sync.WaitGroup
	for seed := range uint64(2) {
		readers.Go(func() {
			r := rand.New(rand.NewPCG(seed, 7))
			seen := map[uint64]int64{}
			page, rows := make([]uint64, 40), make([]int64, 40)
			for !stop.Load() {
				// Each id appears at most once in a page: GetMany may read a second occurrence
				// before the first one, and so return an older count for it.
				for i, n := range r.Perm(len(ids) / 100)[:len(page)] {
					page[i] = ids[n*100]
				}
				for _, i := range tab.GetMany(page, 1, rows, nil) {
					if err := tab.ReadCold(context.Background(), page[i], rows[i:i+1]); err != nil {
						t.Error(err)
					}
				}
				for i, id := range page {
					if rows[i] < max(1, seen[id]) {
						t.Errorf("id %d reads %d, was %d", id, rows[i], seen[id])
						stop.Store(true)
					}
					seen[id] = rows[i]
				}
			}
		})
	}
	var freezing sync.WaitGroup
	freezing.Go(func() {
		for range 25 {
			freeze(t, tab, cold, 3)
		}
		stop.Store(true)
	})
	for i := 0; !stop.Load(); i++ {
		id := ids[i*7%(len(ids)/100)*100]
		if _, err := tab.Apply([]Op{{ID: id, Kind: OpAdd, Cells: []Cell{{0, 1}}}}, 0, nil, nil); err != nil {
			t.Error(err)
			break
		}
	}
	stop.Store(true)
	freezing.Wait()
	readers.Wait()
}

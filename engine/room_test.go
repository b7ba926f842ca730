package engine

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// rebuildsPerSegmentMax bounds the rebuilds of a segment. A segment is rebuilt when it grows, is
// split, or gets an id outside of its window.
const rebuildsPerSegmentMax = 40

// In whatever order ids arrive, the number of rebuilds per segment does not grow with the number of
// ids.
func TestRebuildsAreFew(t *testing.T) {
	shapes := map[string]func(r *rand.Rand, i int) uint64{
		"weibo falling":    func(r *rand.Rand, i int) uint64 { return uint64(3335128487-i)<<22 | r.Uint64N(1<<22) },
		"sparse falling":   func(r *rand.Rand, i int) uint64 { return uint64(1<<19-i)<<44 | r.Uint64N(1<<44) },
		"from the middle":  func(_ *rand.Rand, i int) uint64 { return 1<<52 + uint64(i/2) ^ -uint64(i&1) },
		"falling from top": func(_ *rand.Rand, i int) uint64 { return 1<<64 - 1 - uint64(i)<<20 },
	}
	for name, shape := range idShapes {
		shapes[name] = shape
	}
	rows := 2*rowsMax + 500
	if testing.Short() {
		rows = 3000 // short tests are for the race detector, which finds nothing in one goroutine
	}
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			tab, rebuilds := newTable(t), 0
			for i := range rows {
				id := shape(r, i)
				before := tab.locate(id).s
				tab.Apply([]Op{{ID: id, Kind: OpAdd, Cells: []Cell{{0, 1}}}}, 0, nil, nil)
				if tab.locate(id).s != before {
					rebuilds++
				}
			}
			if segments := tab.Stats().Segments; rebuilds > rebuildsPerSegmentMax*segments {
				t.Errorf("%d rebuilds in %d segments", rebuilds, segments)
			}
		})
	}
}

// smallOverflow is larger than the overflow table of a full segment of the smallest size.
const smallOverflow = 1 << 10

// A table frees the memory of deleted rows, in whatever order rows are added and deleted.
// Afterwards it is like a new table.
func TestDeletedRowsGiveTheirMemoryBack(t *testing.T) {
	t.Parallel()
	rows := 2*rowsMax + 500
	if testing.Short() {
		rows = 3000 // short tests are for the race detector, which finds nothing in one goroutine
	}
	for name, shape := range idShapes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := rand.New(rand.NewPCG(1, 2))
			tab := newTable(t)
			empty := tab.Stats().Bytes
			for _, order := range []func(ids []uint64){
				slices.Sort[[]uint64],
				func(ids []uint64) { slices.Sort(ids); slices.Reverse(ids) },
				func(ids []uint64) { r.Shuffle(len(ids), func(i, j int) { ids[i], ids[j] = ids[j], ids[i] }) },
			} {
				m, ids := model{}, make([]uint64, rows)
				for i := range ids {
					ids[i] = shape(r, i)
					op := Op{ID: ids[i], Kind: OpAdd, Cells: []Cell{{0, 1}, {1, 1 << 40}}}
					tab.Apply([]Op{op}, 0, nil, nil)
					m.apply(op)
				}
				full := tab.Stats()
				order(ids)
				for i, id := range ids {
					tab.Apply([]Op{{ID: id, Kind: OpDelete}}, 0, nil, nil)
					delete(m, id)
					if i == len(ids)*9/10 {
						m.equal(t, tab)
						if st := tab.Stats(); st.Bytes > full.Bytes/2 {
							t.Errorf("a tenth of the rows takes %d bytes, all took %d", st.Bytes, full.Bytes)
						}
					}
				}
				if st := tab.Stats(); st.Rows != 0 || st.Segments != 1 || st.Bytes > empty+smallOverflow {
					t.Errorf("no rows: %+v, a new table takes %d bytes", st, empty)
				}
			}
		})
	}
}

// If a few ids at a time are added and deleted at the end of a full table, most of them open no
// segment.
func TestComingAndGoingMakesNoSegments(t *testing.T) {
	for _, few := range []uint64{1, 3, 30} {
		tab, next := newTable(t), uint64(0)
		for ; tab.Stats().Segments == 1; next++ {
			tab.Apply([]Op{{ID: next, Kind: OpAdd, Cells: []Cell{{0, 1}}}}, 0, nil, nil)
		}
		// Delete the only row of the second segment.
		tab.Apply([]Op{{ID: next - 1, Kind: OpDelete}}, 0, nil, nil)
		made, last := 0, (*segment)(nil)
		for i := range uint64(1000) {
			for j := range few {
				tab.Apply([]Op{{ID: next + i*few + j, Kind: OpAdd, Cells: []Cell{{0, 1}}}}, 0, nil, nil)
			}
			if s := tab.locate(1<<64 - 1).s; s != last {
				made++
				last = s
			}
			for j := range few {
				tab.Apply([]Op{{ID: next + i*few + j, Kind: OpDelete}}, 0, nil, nil)
			}
		}
		if made > 3 {
			t.Errorf("%d at a time: %d segments in 1000 rounds", few, made)
		}
	}
}

// A writer fills ranges of ids and deletes them again, so that segments shrink and are dropped.
// Readers, scans and snapshots run concurrently. At every moment:
//  1. rows outside of the ranges are whole, are never missed, and their counts only rise;
//  2. a row of a range is whole or absent;
//  3. a scan returns each row outside of the ranges once, in order;
//  4. the digest of a snapshot's rows is the snapshot's digest.
func TestReadersBesideDroppedSegments(t *testing.T) {
	tab, kept := newTable(t), []uint64{0, 5, 1 << 50, 1<<50 + 1, 1<<64 - 1}
	add := func(id uint64) Op { return Op{ID: id, Kind: OpAdd, Cells: []Cell{{0, 30001}, {1, 30001}}} }
	keep := func() {
		for _, id := range kept {
			tab.Apply([]Op{add(id)}, 0, nil, nil)
		}
	}
	keep()
	var stop atomic.Bool
	var readers sync.WaitGroup
	readers.Go(func() { readUntil(t, &stop, tab, kept, 1, []uint8{0, 1}) })
	readers.Go(func() { scanUntil(t, &stop, tab, kept) })
	rounds := 3
	if testing.Short() {
		rounds = 1
	}
	for round := range rounds {
		for _, base := range []uint64{1 << 20, 1 << 45, 1 << 60} {
			for i := range uint64(rowsMax + 3000) {
				tab.Apply([]Op{add(base + i*977)}, 0, nil, nil)
			}
			keep()
		}
		snap := tab.Snapshot()
		readers.Go(func() { checkDigest(t, snap) })
		before := tab.Stats().Segments
		for _, base := range []uint64{1 << 45, 1 << 60, 1 << 20} {
			for i := range uint64(rowsMax + 3000) {
				tab.Apply([]Op{{ID: base + (i*7+uint64(round))%(rowsMax+3000)*977, Kind: OpDelete}}, 0, nil, nil)
			}
			keep()
		}
		if after := tab.Stats(); after.Segments >= before || after.Rows != uint64(len(kept)) {
			t.Errorf("round %d: %d segments, then %+v", round, before, after)
		}
	}
	stop.Store(true)
	readers.Wait()
}

func scanUntil(t *testing.T, stop *atomic.Bool, tab *Table, kept []uint64) {
	for !stop.Load() {
		var seen []uint64
		last := uint64(0)
		tab.Scan(0, 2, func(p *Page) bool {
			for i, id := range p.IDs {
				if row := p.Row(i); id < last || row[0] != row[1] {
					t.Errorf("id %d %v after %d", id, row, last)
				}
				if last = id; slices.Contains(kept, id) {
					seen = append(seen, id)
				}
			}
			return true
		})
		if !slices.Equal(seen, kept) {
			t.Errorf("a scan saw %v of %v", seen, kept)
			return
		}
	}
}

func checkDigest(t *testing.T, snap *Snapshot) {
	defer snap.Close()
	rows, digest := int64(0), uint64(0)
	err := snap.Pages(func(p *Page) error {
		for i, id := range p.IDs {
			rows++
			digest += RowDigest(id, p.Row(i))
		}
		return nil
	})
	if err != nil || rows != snap.Rows() || digest != snap.Digest() {
		t.Errorf("%d rows, digest %016x, want %d, %016x: %v", rows, digest, snap.Rows(), snap.Digest(), err)
	}
}

package engine

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

// Readers run concurrently with the writer. At every moment:
//  1. A row is whole: every op adds equal amounts to columns 0 and 1 (and 5 in wide rows). A reader
//     that sees different amounts has seen half an op.
//  2. A row is never missed: ids in `kept` have a count before the readers start, and ops only add
//     to it. Meanwhile inserts around these ids move them between buckets, grow and split their
//     segments, and snapshots copy them.
//  3. A count never falls: a reader never sees an older count than before.
func TestReadersBesideTheWriter(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		columns []uint8
		step    int64
	}{
		{"one word", []uint8{0, 1}, 1},
		{"into overflow", []uint8{0, 1}, 20011},
		{"two words", []uint8{0, 1, 5}, 9001},
	} {
		t.Run(c.name, func(t *testing.T) { readersBesideTheWriter(t, c.columns, c.step) })
	}
}

func readersBesideTheWriter(t *testing.T, columns []uint8, step int64) {
	tab := newTable(t)
	add := func(id uint64) Op {
		op := Op{ID: id, Kind: OpAdd}
		for _, c := range columns {
			op.Cells = append(op.Cells, Cell{c, step})
		}
		return op
	}
	kept := make([]uint64, 300)
	r := rand.New(rand.NewPCG(5, 6))
	for i := range kept {
		kept[i] = r.Uint64() >> 8
		tab.Apply([]Op{add(kept[i])}, 0, nil, nil)
	}
	var stop atomic.Bool
	var readers sync.WaitGroup
	for seed := range uint64(3) {
		readers.Go(func() { readUntil(t, &stop, tab, kept, seed, columns) })
	}
	writes := 40000
	if testing.Short() {
		writes = 10000
	}
	for i := range writes {
		other := r.Uint64() >> 8
		tab.Apply([]Op{add(kept[i%len(kept)]), add(other)}, 0, nil, nil)
		switch {
		case i%3 == 0:
			tab.Apply([]Op{{ID: other, Kind: OpDelete}}, 0, nil, nil)
		case i%1000 == 1:
			snap := tab.Snapshot()
			defer snap.Close()
		}
	}
	stop.Store(true)
	readers.Wait()
}

func readUntil(t *testing.T, stop *atomic.Bool, tab *Table, kept []uint64, seed uint64, columns []uint8) {
	r := rand.New(rand.NewPCG(seed, 7))
	seen := make([]int64, len(kept))
	rows := make([]int64, len(kept)*6)
	for !stop.Load() {
		if r.IntN(2) == 0 {
			tab.GetMany(kept, 6, rows, nil)
		} else {
			for i, id := range kept {
				tab.Get(id, rows[i*6:(i+1)*6])
			}
		}
		for i := range kept {
			row := rows[i*6 : (i+1)*6]
			for _, c := range columns {
				if row[c] != row[0] || row[0] <= 0 || row[0] < seen[i] {
					t.Errorf("id %d reads %v, was %d", kept[i], row, seen[i])
					stop.Store(true)
					return
				}
			}
			seen[i] = row[0]
		}
	}
}

// Scans see each row once, in order, while segments split under them.
func TestScanBesideTheWriter(t *testing.T) {
	tab := newTable(t)
	var stop atomic.Bool
	var scanner sync.WaitGroup
	for id := range uint64(5000) {
		tab.Apply([]Op{{ID: id << 30, Kind: OpAdd, Cells: []Cell{{0, 1}}}}, 0, nil, nil)
	}
	scanner.Go(func() {
		for !stop.Load() {
			last, old := int64(-1), 0
			tab.Scan(0, 4, func(p *Page) bool {
				for _, id := range p.IDs {
					if int64(id) <= last {
						t.Errorf("id %d after %d", id, last)
					}
					last = int64(id)
					if id&(1<<30-1) == 0 {
						old++
					}
				}
				return true
			})
			if old != 5000 {
				t.Errorf("%d of 5000 standing rows seen", old)
				return
			}
		}
	})
	r := rand.New(rand.NewPCG(8, 9))
	for range 30000 {
		tab.Apply([]Op{{ID: r.Uint64N(5000)<<30 | 1 + r.Uint64N(1<<29), Kind: OpAdd, Cells: []Cell{{0, 1}}}}, 0, nil, nil)
	}
	stop.Store(true)
	scanner.Wait()
}

func TestHotPathsDoNotAllocate(t *testing.T) {
	tab := newTable(t)
	ids := make([]uint64, 100)
	ops := make([]Op, 100)
	cells := []Cell{{0, 1}, {2, 1}}
	for i := range ids {
		ids[i] = uint64(i) << 22
		ops[i] = Op{ID: ids[i], Kind: OpAdd, Cells: cells}
	}
	rows := make([]int64, 400)
	tab.Apply(ops, 4, rows, nil)
	for name, f := range map[string]func(){
		"Get":     func() { tab.Get(ids[5], rows[:4]) },
		"GetMany": func() { tab.GetMany(ids, 4, rows, nil) },
		"Apply":   func() { tab.Apply(ops, 4, rows, nil) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

package rankings

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"
)

// exact returns the largest counts by reading and sorting all rows.
func exact(t *testing.T, table *engine.Table, column uint8, limit int) (rows []engine.Place) {
	t.Helper()
	err := table.Scan(0, int(column)+1, func(p *engine.Page) bool {
		for i, id := range p.IDs {
			if count := p.Row(i)[column]; count > 0 {
				rows = append(rows, engine.Place{Count: count, ID: id})
			}
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(rows, engine.Place.Compare)
	return rows[:min(len(rows), limit)]
}

func soon() time.Time { return time.Now().Add(must.BecomeMax) }

// While ops of any kind run concurrently with queries and scans, each answer is in order. Whenever
// the ops pause, the answer is exact. That includes ties, packed rows, deletions of the top rows, and
// more rises than a table remembers.
func TestTopIsExact(t *testing.T) {
	t.Parallel()
	for _, spread := range []int64{1, 3, 1 << 40} { // with 1, many counts tie
		table := engine.New()
		lists := NewLargestLists(table)
		defer lists.Close()
		rng := rand.New(rand.NewPCG(uint64(spread), 2))
		apply := func(rounds int, op func() engine.Op) {
			for range rounds {
				ops := make([]engine.Op, 500)
				for i := range ops {
					ops[i] = op()
				}
				if _, err := table.Apply(ops, 0, nil, nil); err != nil {
					t.Error(err)
				}
			}
		}
		ids := uint64(20_000)
		mixed := func() engine.Op {
			id := rng.Uint64N(ids)
			switch rng.IntN(10) {
			case 0:
				return engine.Op{ID: id, Kind: engine.OpDelete}
			case 1:
				return engine.Op{ID: id, Kind: engine.OpSet, Cells: []engine.Cell{{Column: 5, Value: rng.Int64N(spread * 9)}}}
			}
			return engine.Op{ID: id, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: uint8(rng.IntN(2) * 5), Value: rng.Int64N(2*spread) - spread/2}}}
		}
		var top []engine.Place
		drop := func() engine.Op { // deletes a row that was at the top
			return engine.Op{ID: top[rng.IntN(len(top))].ID, Kind: engine.OpDelete}
		}
		next := uint64(1 << 30)
		created := func() engine.Op {
			next++
			return engine.Op{ID: next, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 5, Value: 1 + rng.Int64N(spread)}}}
		}
		for round := range 8 {
			top = exact(t, table, 5, 1500)
			var writing sync.WaitGroup
			writing.Go(func() {
				switch {
				case round%4 == 3:
					apply(3, drop)
				case round == 6:
					apply(150, created) // more rises than a table remembers
				default:
					apply(40, mixed)
				}
			})
			for range 5 {
				rows, err := lists.Top(5, LimitMax, soon())
				if err != nil || !slices.IsSortedFunc(rows, engine.Place.Compare) {
					t.Fatalf("round %d: %v, %v", round, rows, err)
				}
			}
			writing.Wait()
			if round == 5 {
				for start, more := uint64(0), true; more; {
					_, start, more = table.Seal(start, func(uint64, uint64) bool { return true })
				}
			}
			for _, column := range []uint8{5, 0} {
				for _, limit := range []int{1, 100, LimitMax} {
					rows, err := lists.Top(column, limit, soon())
					if want := exact(t, table, column, limit); err != nil || !slices.Equal(rows, want) {
						t.Fatalf("spread %d, round %d, column %d: %d rows, want %d, %v", spread, round, column, len(rows), len(want), err)
					}
				}
			}
		}
	}
}

// A query that cannot wait for the scan returns a ScanningError. The scan continues until it ends
// or Close is called.
func TestScanInTime(t *testing.T) {
	t.Parallel()
	table := engine.New()
	var ops []engine.Op
	for id := range uint64(200_000) {
		ops = append(ops, engine.Op{ID: id, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: int64(id)}}})
	}
	if _, err := table.Apply(ops, 0, nil, nil); err != nil {
		t.Fatal(err)
	}
	lists := NewLargestLists(table)
	_, err := lists.Top(0, 3, time.Now())
	if scanning, is := errors.AsType[*ScanningError](err); !is {
		t.Errorf("%v, %v", scanning, err)
	}
	if rows, err := lists.Top(0, 1, soon()); err != nil || !slices.Equal(rows, []engine.Place{{Count: 199_999, ID: 199_999}}) {
		t.Errorf("%v, %v", rows, err)
	}
	if _, err := lists.Top(1, 3, time.Now()); err == nil {
		t.Error("another column needs no scan")
	}
	lists.Close()
	if _, err := lists.Top(2, 3, soon()); !errors.Is(err, errClosed) {
		t.Errorf("after Close: %v", err)
	}
}

func BenchmarkTop(b *testing.B) {
	table := engine.New()
	rng := rand.New(rand.NewPCG(1, 2))
	const rows = 2_000_000
	for from := uint64(0); from < rows; from += 1000 {
		var ops []engine.Op
		for id := from; id < from+1000; id++ {
			ops = append(ops, engine.Op{ID: id * 977, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: 2, Value: 1 + int64(1/(rng.Float64()+1e-9))}, {Column: 1, Value: rng.Int64N(20)}}})
		}
		if _, err := table.Apply(ops, 0, nil, nil); err != nil {
			b.Fatal(err)
		}
	}
	for _, packed := range []bool{false, true} {
		if packed {
			for range 3 {
				for start, more := uint64(0), true; more; {
					_, start, more = table.Seal(start, func(uint64, uint64) bool { return true })
				}
			}
		}
		b.Run(map[bool]string{false: "scan", true: "scan packed"}[packed], func(b *testing.B) {
			for b.Loop() {
				lists := NewLargestLists(table)
				if _, err := lists.Top(2, 100, soon()); err != nil {
					b.Fatal(err)
				}
				lists.Close()
			}
			b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/rows*1e6, "s/million-rows")
		})
	}
	lists := NewLargestLists(table)
	b.Run("again", func(b *testing.B) {
		for b.Loop() {
			if _, err := lists.Top(2, 100, soon()); err != nil {
				b.Fatal(err)
			}
		}
	})
}

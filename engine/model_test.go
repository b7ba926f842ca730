package engine

import (
	"context"
	"math/big"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// model is a simple table with which tests compare the engine.
type model map[uint64][]int64

func (m model) row(id uint64) []int64 {
	if r, ok := m[id]; ok {
		return r
	}
	return make([]int64, ColumnsMax)
}

// apply applies op, and returns false if op overflows.
func (m model) apply(op Op) bool {
	row := slices.Clone(m.row(op.ID))
	for _, c := range op.Cells {
		v := c.Value
		if op.Kind == OpAdd {
			sum := new(big.Int).Add(big.NewInt(row[c.Column]), big.NewInt(v))
			if !sum.IsInt64() {
				return false
			}
			v = sum.Int64()
		}
		row[c.Column] = v
	}
	if op.Kind == OpDelete {
		clear(row)
	}
	m[op.ID] = row
	return true
}

func (m model) ids() []uint64 {
	var ids []uint64
	for id, row := range m {
		if slices.ContainsFunc(row, func(v int64) bool { return v != 0 }) {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// testSecret is the secret of all tables in tests, so that a test has the same salts and shapes
// each time.
const testSecret = 20121122

// newTable returns a table. When the test ends, its whole structure is checked.
func newTable(t testing.TB) *Table {
	tab := newTableOf(testSecret, allIDs)
	t.Cleanup(func() {
		if err := tab.Check(); err != nil {
			t.Error(err)
		}
	})
	return tab
}

// equal compares every way to read the table with the model.
func (m model) equal(t rapid.TB, tab *Table) {
	t.Helper()
	ids := m.ids()
	if got := tab.Stats().Rows; got != uint64(len(ids)) {
		t.Fatalf("%d rows, want %d", got, len(ids))
	}
	rows := make([]int64, len(ids)*ColumnsMax)
	for _, i := range tab.GetMany(ids, ColumnsMax, rows, nil) {
		if err := tab.ReadCold(context.Background(), ids[i], rows[i*ColumnsMax:(i+1)*ColumnsMax]); err != nil {
			t.Fatal(err)
		}
	}
	var one [ColumnsMax]int64
	for i, id := range ids {
		if !tab.Get(id, one[:]) {
			if err := tab.ReadCold(context.Background(), id, one[:]); err != nil || !tab.MayBeCold(id) {
				t.Fatal(err)
			}
		}
		if !slices.Equal(one[:], m[id]) || !slices.Equal(rows[i*ColumnsMax:(i+1)*ColumnsMax], m[id]) {
			t.Fatalf("id %d: Get %v, GetMany %v, want %v", id, one, rows[i*ColumnsMax:(i+1)*ColumnsMax], m[id])
		}
	}
	n := 0
	tab.Scan(0, ColumnsMax, func(p *Page) bool {
		for i, id := range p.IDs {
			if n >= len(ids) || id != ids[n] || !slices.Equal(p.Row(i), m[id]) {
				t.Fatalf("scan: row %d is id %d %v", n, id, p.Row(i))
			}
			n++
		}
		return true
	})
	if n != len(ids) {
		t.Fatalf("scan gave %d rows, want %d", n, len(ids))
	}
}

// idShapes are sequences of ids. Each function returns the i-th id of its sequence.
var idShapes = map[string]func(r *rand.Rand, i int) uint64{
	"dense in order":       func(_ *rand.Rand, i int) uint64 { return uint64(i) },
	"dense falling":        func(_ *rand.Rand, i int) uint64 { return 1<<40 - uint64(i) },
	"weibo in order":       func(r *rand.Rand, i int) uint64 { return uint64(3335128487+i)<<22 | r.Uint64N(1<<22) },
	"weibo nearly ordered": func(r *rand.Rand, i int) uint64 { return uint64(3335128487+i-r.IntN(50))<<22 | r.Uint64N(1<<22) },
	"sparse in order":      func(r *rand.Rand, i int) uint64 { return uint64(i)<<44 | r.Uint64N(1<<44) },
	"any 64 bits":          func(r *rand.Rand, _ int) uint64 { return r.Uint64() },
	"10 to 19 digits": func(r *rand.Rand, _ int) uint64 {
		n := uint64(1e9)
		for range r.IntN(10) {
			n *= 10
		}
		return n + r.Uint64N(n*8)
	},
	"one field of bits": func(r *rand.Rand, _ int) uint64 { return r.Uint64N(1<<13) << 18 },
	"both ends":         func(r *rand.Rand, i int) uint64 { return uint64(i/2) ^ -uint64(i&1) },
}

func countOf(r *rand.Rand) int64 {
	switch r.IntN(12) {
	case 0:
		return 65533 + r.Int64N(5)
	case 1:
		return -r.Int64N(4)
	case 2:
		return int64(r.Uint64())
	case 3:
		return []int64{1<<63 - 1, -1 << 63, 0}[r.IntN(3)]
	default:
		return r.Int64N(300)
	}
}

package engine

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// pageOfShape returns a page of rows whose ids have the given shape.
func pageOfShape(r *rand.Rand, rows, width int, idOf func(*rand.Rand, int) uint64, countOf func(*rand.Rand) int64) *Page {
	ids := make([]uint64, rows)
	for i := range ids {
		ids[i] = idOf(r, i)
	}
	slices.Sort(ids)
	p := &Page{Width: width}
	for _, id := range slices.Compact(ids) {
		row := make([]int64, width)
		for c := range row {
			row[c] = countOf(r)
		}
		if isZeroRow(row) {
			row[0] = 1
		}
		p.add(id, row)
	}
	return p
}

func smallCount(r *rand.Rand) int64 { return r.Int64N(1 << r.IntN(9)) }

// Every sealed row reads as it was; other ids read as zeros.
func TestSealedRowsReadAsTheyWere(t *testing.T) {
	t.Parallel()
	for name, idOf := range idShapes {
		for _, c := range []struct {
			name    string
			width   int
			countOf func(*rand.Rand) int64
		}{
			{"small counts", 4, smallCount},
			{"one column", 1, smallCount},
			{"one column of ones", 3, func(*rand.Rand) int64 { return 0 }},
			{"any counts", 3, countOf},
			{"wide counts", 4, func(r *rand.Rand) int64 { return 1<<40 + r.Int64N(1<<40) }},
			{"below 0", 4, func(r *rand.Rand) int64 { return -r.Int64() }},
			{"many columns", ColumnsMax, countOf},
		} {
			t.Run(name+"/"+c.name, func(t *testing.T) {
				if testing.Short() && name != "any 64 bits" {
					t.Skip("another shape of ids is run in short")
				}
				r := rand.New(rand.NewPCG(uint64(len(name)), 3))
				for _, rows := range []int{sealRowsMin, rowsMax / c.width} {
					sealedReads(t, r, pageOfShape(r, max(rows, 2*sealRowsMin), c.width, idOf, c.countOf))
				}
			})
		}
	}
}

func sealedReads(t *testing.T, r *rand.Rand, p *Page) {
	t.Helper()
	s := new(Sealer).seal(p, &salts{secret: testSecret, class: allIDs})
	if s.rows != len(p.IDs) {
		t.Fatalf("%d rows sealed of %d", s.rows, len(p.IDs))
	}
	if err := s.check(); err != nil {
		t.Fatal(err)
	}
	row, zeros := make([]int64, p.Width+1), make([]int64, p.Width+1)
	for i, id := range p.IDs {
		want := append(slices.Clone(p.Row(i)), 0)
		if s.read(id, row); !slices.Equal(row, want) {
			t.Fatalf("id %d reads %v, want %v", id, row, want)
		}
		if s.read(id, row[:1]); row[0] != want[0] {
			t.Fatalf("id %d reads %v of one column, want %v", id, row[:1], want)
		}
		other := id + 1 + r.Uint64N(3)
		if _, known := slices.BinarySearch(p.IDs, other); !known {
			if s.read(other, row); !slices.Equal(row, zeros) {
				t.Fatalf("id %d, which is not there, reads %v", other, row)
			}
		}
	}
}

func TestSealedRowsAreSmall(t *testing.T) {
	for name, bytesMax := range map[string]float64{"dense in order": 5.5, "weibo in order": 8.2, "any 64 bits": 11.5} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			s := new(Sealer).seal(pageOfShape(r, rowsMax, 4, idShapes[name], smallCount), &salts{secret: testSecret, class: allIDs})
			if perRow := float64(s.bytes()) / float64(s.rows); perRow > bytesMax {
				t.Errorf("%.2f bytes a row", perRow)
			}
		})
	}
}

package engine

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// craftedIDs returns ids that do not fit in a segment with any of the salts. The segment has wide
// buckets, and their number is buckets·2^i for any i < doublings. For each such number and each
// salt, nine of the ids have the same two buckets.
func craftedIDs(buckets, doublings int, salts []uint64) (ids []uint64) {
	for i := range doublings {
		size := buckets << i
		for _, salt := range salts {
			g := newGeometry(size, true, 0, allIDs, salt)
			found, inv := 0, g.inverse()
			for remainder := uint64(0); found < 2*slotsWide+1; remainder++ {
				want := place{5, 9, remainder<<tagShift | tagUsed}
				id := g.idAt(want.first, want.tag, uint64(size), inv)
				if g.place(id, uint64(size)) == want { // not every remainder is that of an id
					ids = append(ids, id)
					found++
				}
			}
		}
	}
	return ids
}

// saltsOf returns the first n salts that a table draws from a secret.
func saltsOf(secret uint64, n int) []uint64 {
	from, list := salts{secret: secret, class: allIDs}, make([]uint64, n)
	for i := range list {
		list[i] = from.next()
	}
	return list
}

// allocated returns the number of bytes that fn allocates.
func allocated(fn func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	fn()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// attack fills a table with crafted ids and some random ones, and deletes some of the random ones.
// Then it widens one row, so that the table rebuilds the segment. It checks that the table
// allocates at most a few times the size of the rows.
func attack(t rapid.TB, tab *Table, crafted []uint64) {
	t.Helper()
	const rows, temporary = 2500, 500
	r := rand.New(rand.NewPCG(1, 2))
	ids := make([]uint64, rows+temporary-len(crafted))
	for i := range ids {
		ids[i] = r.Uint64()
	}
	var ops []Op
	ids = append(ids, crafted...)
	for _, id := range ids {
		ops = append(ops, Op{ID: id, Kind: OpAdd, Cells: []Cell{{0, 1}}})
	}
	for _, id := range ids[:temporary] {
		ops = append(ops, Op{ID: id, Kind: OpDelete})
	}
	ops = append(ops, Op{ID: ids[temporary], Kind: OpAdd, Cells: []Cell{{wordColumns, 1}}})
	m := model{}
	for _, op := range ops {
		m.apply(op)
	}
	all := allocated(func() { tab.Apply(ops[:len(ops)-1], 0, nil, nil) })
	last := allocated(func() { tab.Apply(ops[len(ops)-1:], 0, nil, nil) })
	if all > 8<<20 || last > 1<<20 {
		t.Errorf("%d bytes were allocated, and %d in the last op", all, last)
	}
	if st := tab.Stats(); st.Bytes > 512<<10 {
		t.Errorf("%d rows take %d bytes", st.Rows, st.Bytes)
	}
	m.equal(t, tab)
}

// Ids that are crafted for the salts 0 to 7 cost no more memory than others, neither when they are
// added nor when an op rebuilds the whole segment. The same holds for ids that are crafted for the
// first salts of the table, because by then the table draws other salts.
func TestCraftedIDsTakeNoMoreMemory(t *testing.T) {
	for _, c := range []struct {
		name  string
		salts []uint64
	}{
		{"salts 0 to 7", []uint64{0, 1, 2, 3, 4, 5, 6, 7}},
		{"the table's first salts", saltsOf(testSecret, 8)},
		{"none", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			attack(t, newTable(t), craftedIDs(bucketsFor(2500, true), 8, c.salts))
		})
	}
}

// An attacker who knows the mixing of ids but not the secret finds no ids that cost more memory
// than others.
func TestCraftedIDsOfAnySalts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		guessed := rapid.SliceOfN(rapid.Uint64(), 8, 8).Draw(rt, "guessed salts")
		secret := rapid.Uint64().Draw(rt, "secret")
		tab := newTableOf(secret, allIDs)
		attack(rt, tab, craftedIDs(bucketsFor(2500, true), 3, guessed))
		if err := tab.Check(); err != nil {
			rt.Fatal(err)
		}
	})
}

// In a segment of twice the needed size, random ids fit with the first salt. So do ids with a
// regular pattern, although the mixing might preserve the pattern.
func TestIDsOfARuleFindRoom(t *testing.T) {
	for name, step := range map[string]func(*rand.Rand) uint64{
		"dense":               func(*rand.Rand) uint64 { return 1 },
		"any step":            (*rand.Rand).Uint64,
		"a step with zeros":   func(r *rand.Rand) uint64 { return r.Uint64() << r.IntN(50) },
		"upper bits":          func(*rand.Rand) uint64 { return 1 << 50 },
		"the inverse of mixB": func(*rand.Rand) uint64 { return mixBInverse },
	} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(7, 8))
			for range 100 {
				from := salts{secret: r.Uint64(), class: allIDs}
				for _, rows := range []int{30, 300, 3000} {
					first, by := r.Uint64(), step(r)
					buckets := bucketsFor(2*rows, true)
					n := newSegment(newGeometry(buckets, true, 0, allIDs, from.next()), buckets, 1, 0)
					for i := range uint64(rows) {
						if !n.insert(first+i*by, []int64{1, 0, 0, 0}) {
							t.Fatalf("%d rows from %d by %d find no room", rows, first, by)
						}
					}
				}
			}
		})
	}
}

// Tables with different salts have arrays of different shapes. Nevertheless they return the same
// results, refuse the same ops, and have the same digest and rows.
func TestSaltsDecideNoAnswer(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	tables := []*Table{newTableOf(1, allIDs), newTableOf(2, allIDs), newTableOf(3, allIDs)}
	ids := make([]uint64, 25_000)
	for i := range ids {
		ids[i] = r.Uint64() >> r.IntN(20)
	}
	rounds := 60
	if testing.Short() {
		rounds = 12 // short tests are for the race detector, which finds nothing in one goroutine
	}
	for range rounds {
		ops := make([]Op, 1000)
		for i := range ops {
			ops[i] = randomOp(r, ids[r.IntN(len(ids))])
		}
		var want []int64
		var wantRefused []Overflow
		for i, tab := range tables {
			rows := make([]int64, len(ops)*8)
			refused, err := tab.Apply(ops, 8, rows, nil)
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				want, wantRefused = rows, refused
			}
			if !slices.Equal(rows, want) || !slices.Equal(refused, wantRefused) || tab.Digest() != tables[0].Digest() || tab.Stats().Rows != tables[0].Stats().Rows {
				t.Fatal("two tables answer otherwise")
			}
		}
	}
	shapes := map[uint64]bool{}
	for _, tab := range tables {
		shapes[tab.Stats().Bytes] = true
		if err := tab.Check(); err != nil {
			t.Error(err)
		}
	}
	if len(shapes) == 1 {
		t.Error("all tables have one shape: the test shows nothing")
	}
}

// pageInOneBucket returns a page in which many rows share a sealed bucket, with each of the salts.
// each is the number of these rows per salt.
func pageInOneBucket(salts []uint64, each int) *Page {
	const rows, bits = 2048, 45
	ids := []uint64{0, 1<<bits - 1} // the first and the last id decide the geometry
	for _, salt := range salts {
		g := geometryOf(bits, rows/bucketRows, 0, 1, salt)
		inv := g.inverse()
		for i := range uint64(each) {
			ids = append(ids, g.idAt(5, i<<tagShift|tagUsed, rows/bucketRows, inv))
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	for len(ids) < rows {
		ids = append(ids, r.Uint64N(1<<bits))
	}
	slices.Sort(ids)
	p := &Page{Width: 1}
	for i, id := range ids {
		p.add(id, []int64{int64(i + 1)})
	}
	return p
}

// Rows that are crafted to share a sealed bucket with one salt are in different buckets with the
// next salts of the table. If all salts that Seal tries put them into one bucket, they are not
// sealed.
func TestCraftedIDsShareNoSealedBucket(t *testing.T) {
	for _, c := range []struct {
		name   string
		page   *Page
		sealed bool
	}{
		{"salt 0", pageInOneBucket([]uint64{0}, 1500), true},
		{"the first salt", pageInOneBucket(saltsOf(testSecret, 2)[1:], 1500), true},
		{"all salts that are tried", pageInOneBucket(saltsOf(testSecret, 1+saltsMax)[1:], bucketRowsMax+1), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			tab, m := newTable(t), model{}
			if err := tab.LoadSealed(c.page, new(Sealer)); err != nil {
				t.Fatal(err)
			}
			for i, id := range c.page.IDs {
				m.apply(Op{ID: id, Kind: OpSet, Cells: []Cell{{0, c.page.Row(i)[0]}}})
			}
			m.equal(t, tab)
			packed := tab.dir.Load().segs[0].Load().cold.sealed()
			if (packed != nil) != c.sealed {
				t.Fatalf("sealed: %v", packed != nil)
			}
			if packed == nil {
				return
			}
			in := map[uint64]int{}
			for _, id := range c.page.IDs {
				if b := packed.place(id).first; in[b] == bucketRowsMax {
					t.Fatalf("bucket %d has more than %d rows", b, bucketRowsMax)
				} else {
					in[b]++
				}
			}
		})
	}
}

package rankings

import (
	"bytes"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
)

// The parts of lists that split keep their bounds:
//
//  1. Each answer of a part bounds the gains of the part's keys, as if the part had applied their
//     changes alone. It has no other keys.
//  2. The parts of two equal replicas have equal bytes, in snapshots too, also if a part was copied to the
//     group that adopts it.
//  3. A gain that was exact stays exact while no other key of its part lacks a cell.
//  4. The undivided lists do not change.
func TestSplitAnswersHold(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		keys := rapid.SampledFrom([]uint64{10, 3000, 20_000, 1 << 40}).Draw(rt, "keys")
		columns := rapid.IntRange(1, 5).Draw(rt, "columns")
		losses := rapid.SampledFrom([]int{0, 3, 50}).Draw(rt, "percent of losses")
		pause := rapid.SampledFrom([]int64{0, 40, 4000, 200_000, 4_000_000}).Draw(rt, "most ms between entries")
		parts := rapid.IntRange(1, 4).Draw(rt, "parts")
		zipf := rand.NewZipf(rng, rapid.SampledFrom([]float64{1.01, 1.3, 2}).Draw(rt, "skew"), 8, keys)
		lists, again, all := []*HotLists{NewHotLists()}, []*HotLists{NewHotLists()}, truth(nil)
		partOf := func(uint64) int { return 0 }
		now := int64(1_700_000_000_000)
		entries := func(n int) {
			for range n {
				if pause > 0 {
					now += rng.Int64N(pause)
				}
				var changes []change
				for range 1 + rng.IntN(120) {
					c := change{zipf.Uint64(), 1 + rng.Int64N(3), uint8(rng.IntN(columns))}
					if rng.IntN(100) < losses {
						c.delta = -c.delta
					}
					changes, all = append(changes, c), append(all, told{c, now})
				}
				for _, f := range slices.Concat(lists, again) {
					f.Begin(now)
				}
				for _, c := range changes {
					for _, f := range []*HotLists{lists[partOf(c.key)], again[partOf(c.key)]} {
						f.Add(c.key, c.column, c.delta)
					}
				}
				for _, f := range slices.Concat(lists, again) {
					f.End()
				}
			}
		}
		check := func(parked bool) {
			for part, f := range lists {
				for w := Minute; w <= Day; w++ {
					column, limit := uint8(rng.IntN(columns)), 1+rng.IntN(200)
					h := f.Hottest(w, column, now+rng.Int64N(3000), limit)
					gains := all.gains(column, h.Since)
					maps.DeleteFunc(gains, func(key uint64, _ int64) bool { return partOf(key) != part })
					if err := check(h, gains, limit); err != nil {
						rt.Fatalf("part %d, window %v: %v", part, w, err)
					}
					for _, g := range h.Gains {
						if partOf(g.Key) != part || keys == 10 && g.Error > 0 {
							rt.Fatalf("part %d, window %v: %+v", part, w, g)
						}
					}
				}
				p := section(f)
				if !bytes.Equal(p, section(again[part])) {
					rt.Fatalf("part %d of two replicas differs", part)
				}
				if again[part] = NewHotLists(); parked && rapid.Bool().Draw(rt, "adopt") {
					f.Split(func(uint64) int { return 0 }, again[part:part+1])
				} else if err := again[part].Load(p); err != nil {
					rt.Fatal(err)
				}
			}
		}
		split := func(from *HotLists) (parts []*HotLists) {
			before := section(from)
			for range cap(lists) {
				parts = append(parts, NewHotLists())
			}
			from.Split(partOf, parts)
			if !bytes.Equal(section(from), before) {
				rt.Fatal("the undivided lists have changed")
			}
			return parts
		}
		entries(rapid.IntRange(0, 300).Draw(rt, "entries before"))
		if rapid.Bool().Draw(rt, "restore") {
			again[0] = NewHotLists()
			if err := again[0].Load(section(lists[0])); err != nil {
				rt.Fatal(err)
			}
		}
		partOf = func(key uint64) int { return int(key % uint64(parts)) }
		whole := lists[0]
		lists = make([]*HotLists, 0, parts)
		lists, again = split(whole), split(again[0])
		check(true)
		for range rapid.IntRange(1, 3).Draw(rt, "rounds") {
			entries(rapid.IntRange(1, 200).Draw(rt, "entries after"))
			check(false)
		}
	})
}

// The parts of a table have the candidates of their rows, so none of them scans its table. Their
// answers stay exact while ops raise rows, and drop rows behind the place.
func TestSplitOfLargest(t *testing.T) {
	t.Parallel()
	const column, rows, parts = 3, 20_000, 3
	partOf := func(key uint64) int { return int(key % parts) }
	whole := engine.New()
	lists := NewLargestLists(whole)
	defer lists.Close()
	rng := rand.New(rand.NewPCG(3, 4))
	apply := func(table *engine.Table, ops ...engine.Op) {
		t.Helper()
		if _, err := table.Apply(ops, 0, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
	set := func(key uint64, count int64) engine.Op {
		return engine.Op{ID: key, Kind: engine.OpSet, Cells: []engine.Cell{{Column: column, Value: count}}}
	}
	counts := map[uint64]int64{}
	for key := range uint64(rows) {
		counts[key] = 1 + rng.Int64N(1000)
		apply(whole, set(key, counts[key]))
	}
	if _, err := lists.Top(column, 10, soon()); err != nil {
		t.Fatal(err)
	}
	for key := range uint64(50) { // these rises still wait in the table
		counts[key] = 5000 + int64(key)
		apply(whole, set(key, counts[key]))
	}
	tables, split := make([]*engine.Table, parts), make([]*LargestLists, parts)
	for i := range tables {
		tables[i] = engine.New()
		split[i] = NewLargestLists(tables[i])
		defer split[i].Close()
	}
	for key, count := range counts {
		apply(tables[partOf(key)], set(key, count))
	}
	lists.Split(partOf, split)
	for round := range 20 {
		for part, table := range tables {
			got, err := split[part].Top(column, 300, time.Now())
			if want := exact(t, table, column, 300); err != nil || !slices.Equal(got, want) {
				t.Fatalf("round %d, part %d: %v, %v, want %v", round, part, got, err, want)
			}
		}
		for range 100 {
			key := rng.Uint64N(2 * rows)
			apply(tables[partOf(key)], set(key, rng.Int64N(2000)))
		}
	}
	for part := range split {
		if _, err := split[part].Top(column+1, 1, time.Unix(0, 0)); err == nil {
			t.Errorf("part %d has a list of a column that nobody has asked for", part)
		}
		if of := split[part].mu.columns[column]; of.place.Count == 0 || of.place.Count == math.MaxInt64 {
			t.Errorf("part %d: place %+v", part, of.place)
		}
	}
}

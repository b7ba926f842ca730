package raftfsm

import (
	"math"
	"reflect"
	"testing"

	"pgregory.net/rapid"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm/codec"
)

// Each key goes to the part that has the key's id by the route after the split, and is of the class of
// that part. The classes of by modulo are disjoint: no key is of two of them.
func TestPartitionFollowsTheRoute(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		created := rapid.IntRange(1, 300).Draw(t, "created")
		n := created * rapid.IntRange(1, 300).Draw(t, "grown")
		k := rapid.IntRange(2, 300).Draw(t, "factor")
		hash := rapid.Bool().Draw(t, "hash")
		before, after := NewRoute(created, n, hash), NewRoute(created, n*k, hash)
		ids := rapid.SliceOfN(rapid.OneOf(rapid.Uint64Range(0, 1000), rapid.Uint64()), 1, 20).Draw(t, "ids")
		parent, _ := before.KeyOf(ids[0])
		e := SplitEntry{From: before.Of(parent), Attempt: 40, Group: 7, Divisor: uint64(created)}
		if hash {
			e.Divisor = 0
		}
		for i := range k - 1 {
			e.Children = append(e.Children, 50+uint32(i))
		}
		s := e.split(9)
		if s.Parts[0].Judge != 40 || s.Parts[1].Judge != 50 || s.By != (Partition{before.Of(parent), e.Divisor, uint32(k)}) {
			t.Fatalf("%+v", s)
		}
		classes := s.By.Classes()
		for _, id := range append(ids, 0, 1, math.MaxUint64-1, math.MaxUint64) {
			if !hash && id < math.MaxUint64-uint64(n) {
				id = id - id%uint64(n) + uint64(parent)
			}
			shard, key := before.KeyOf(id)
			if shard != parent {
				continue
			}
			want, _ := after.KeyOf(id)
			part := s.PartOf(key)
			if got := s.Parts[part].Route; got != after.Of(want) || s.By.Of(key) != part {
				t.Fatalf("id %d, key %d is in %s, want %s", id, key, got, after.Of(want))
			}
			for i, filter := range s.By.Filters() {
				if filter.Has(key) != (i == part) {
					t.Fatalf("key %d of part %d, filter of part %d: %+v", key, part, i, filter)
				}
			}
			for i, class := range classes {
				if class.Has(key) != (i == part || hash || class.Stride == 1) {
					t.Fatalf("key %d of part %d, class %d: %+v", key, part, i, class)
				}
			}
		}
	})
}

func growthEntries() []interface{ Entry(codec.Kind) []byte } {
	from := codec.Route{Modulus: 300, Residue: 2}
	return []interface{ Entry(codec.Kind) []byte }{
		&SplitEntry{From: from, Attempt: 1000, Term: 70_000, Group: 17, Divisor: 3, Children: []uint32{18, 1 << 30}},
		&AbandonEntry{From: from, Attempt: 1000},
		&AdoptEntry{Parent: 17, Split: 1 << 40, Part: 2, Group: 18, Rows: 12345, Digest: 1<<63 + 5},
	}
}

func TestGrowthEntries(t *testing.T) {
	var all []byte
	for _, e := range growthEntries() {
		entry := e.Entry(codec.KindCounters)
		_, width, sections, err := codec.OpenEntry(entry)
		if err != nil || width != 0 || !codec.Grows(sections) {
			t.Fatalf("%+v: %v", e, err)
		}
		got, err := parseGrowth(sections)
		if err != nil || !reflect.DeepEqual(got, any(e)) {
			t.Errorf("%+v, %v, want %+v", got, err, e)
		}
		for n := range len(sections) {
			if _, err := parseGrowth(sections[:n]); err == nil {
				t.Errorf("%T of %d bytes", e, n)
			}
		}
		all = append(all, entry...)
	}
	rafttest.Golden(t, "growth.bin", all)
}

func FuzzParseGrowth(f *testing.F) {
	for _, e := range growthEntries() {
		_, _, sections, _ := codec.OpenEntry(e.Entry(codec.KindCounters))
		f.Add(sections)
	}
	f.Fuzz(func(t *testing.T, sections []byte) {
		if !codec.Grows(sections) {
			return
		}
		if e, err := parseGrowth(sections); err == nil {
			if s, is := e.(*SplitEntry); is && len(s.Children) < 100 {
				for _, part := range s.split(1).Parts {
					part.Route.AppendTo(nil)
				}
			}
		}
	})
}

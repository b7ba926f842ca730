package raftfsm

import (
	"reflect"
	"testing"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/codec/codectest"
)

// A split sends each key to the part that has the key's id by the route after the split.
func TestSplitEntryFollowsTheRoute(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ created, before, after int }{{1, 1, 2}, {3, 3, 9}, {3, 6, 18}, {7, 7, 21}} {
		for _, hash := range []bool{false, true} {
			before, after := NewRoute(tc.created, tc.before, hash), NewRoute(tc.created, tc.after, hash)
			for parent := range tc.before {
				e := SplitEntry{From: before.Of(parent), Attempt: 40, Group: 7, Divisor: uint64(tc.created)}
				if hash {
					e.Divisor = 0
				}
				for i := range tc.after/tc.before - 1 {
					e.Children = append(e.Children, 50+uint32(i))
				}
				s := e.split(9)
				for id := range uint64(500) {
					shard, key := before.KeyOf(id)
					if shard != parent {
						continue
					}
					want, _ := after.KeyOf(id)
					if got := s.Parts[s.PartOf(key)].Route; got != after.Of(want) {
						t.Fatalf("%+v: id %d is in %s, want %s", tc, id, got, after.Of(want))
					}
				}
				if s.Parts[0].Judge != 40 || s.Parts[1].Judge != 50 {
					t.Fatalf("judges of %+v", s.Parts)
				}
			}
		}
	}
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
	codectest.Golden(t, "growth.bin", all)
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

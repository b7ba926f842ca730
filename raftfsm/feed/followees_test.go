package feed

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/spill"
)

// storedFollowees encodes followees and returns the decoded followees.
func storedFollowees(followees []Followee) []Followee {
	f := New(spill.Place{})
	f.Bodies().Current().Set(1, appendBody(nil, followees, 0), 0)
	stored, _, _ := f.Followees(nil, 1)
	return stored
}

func TestFolloweesComeBack(t *testing.T) {
	for name, followees := range map[string][]Followee{
		"one":            {{7, 3}},
		"least":          {{0, 0}},
		"most":           {{1<<64 - 1, math.MaxInt64}},
		"below 0":        {{1, -1}, {2, math.MinInt64}, {3, 5}},
		"neighbours":     {{1, 0}, {2, 0}, {3, 0}, {4, 0}},
		"far apart":      {{0, 1}, {1<<64 - 1, 1 << 62}},
		"a far outlier":  {{1, 1}, {2, 1}, {3, 1 << 40}, {1 << 60, 2}},
		"many, and last": {{10, 1}, {1<<64 - 2, 0}, {1<<64 - 1, 100}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := storedFollowees(followees); !slices.Equal(got, followees) {
				t.Errorf("got %v, want %v", got, followees)
			}
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		shift := rapid.IntRange(0, 63).Draw(t, "shift")
		posts := rapid.OneOf(rapid.Int64Range(0, 300), rapid.Int64())
		byID := rapid.MapOfN(rapid.Custom(func(t *rapid.T) uint64 { return rapid.Uint64().Draw(t, "id") >> shift }), posts, 1, 200).Draw(t, "followees")
		var want []Followee
		for id, n := range byID {
			want = append(want, Followee{id, n})
		}
		slices.SortFunc(want, func(a, b Followee) int {
			if a.ID < b.ID {
				return -1
			}
			return 1
		})
		if got := storedFollowees(want); !slices.Equal(got, want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

// randomFeed returns n random followees, as in a service with 10 million users.
func randomFeed(r *rand.Rand, n int) []Followee {
	ids := map[uint64]bool{}
	for len(ids) < n {
		ids[r.Uint64N(10_000_000)] = true
	}
	var list []Followee
	for id := range ids {
		list = append(list, Followee{id, int64(math.Exp(r.NormFloat64()*1.5 + 4))})
	}
	slices.SortFunc(list, func(a, b Followee) int { return int(a.ID) - int(b.ID) })
	return list
}

func TestFolloweesTakesNoMemory(t *testing.T) {
	f := New(spill.Place{})
	op := Op{Kind: Reset, User: 7, Followees: randomFeed(rand.New(rand.NewPCG(1, 1)), 90)}
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Whole, &dedup.RequestID{})
	Ops{op}.AppendTo(&w, 7, 0)
	f.Apply(rafttest.Command(1, codec.AppendChecksum(append(codec.BeginEntry(nil, codec.KindFeed, 0), w.Section()...))))
	dst := make([]Followee, 0, 90)
	if n := testing.AllocsPerRun(100, func() { dst, _, _ = f.Followees(dst[:0], 7) }); n != 0 || len(dst) != 90 {
		t.Errorf("%v allocations for %d followees", n, len(dst))
	}
}

// BenchmarkFollowees measures the memory of a followee and the time to read it.
func BenchmarkFollowees(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	f := New(spill.Place{})
	const users, each = 20_000, 90
	for key := range uint64(users) {
		f.Bodies().Current().Set(key, appendBody(nil, randomFeed(r, each), 0), 0)
	}
	dst := make([]Followee, 0, each)
	for b.Loop() {
		dst, _, _ = f.Followees(dst[:0], r.Uint64N(users))
	}
	b.ReportMetric(float64(f.Bytes())/(users*each), "B/followee")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*each), "ns/followee")
}

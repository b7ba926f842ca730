package raftfsm

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/codec/codectest"
	"github.com/countd/countd/raftfsm/dedup"
)

// storedFollowees returns followees as a page gives them back.
func storedFollowees(followees []Followee) []Followee {
	p := newFeedPages(new(atomic.Uint32), feedPageBytesMax)
	p.set(1, appendFollowees(nil, followees))
	return decodeFollowees(nil, p.get(1))
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

// randomFeed is what a user of a service of 10 million follows.
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

// Pages hold every user: while they are cut in two, while the directory grows, with
// users who follow one and such who follow thousands; and a capture stays what it
// was.
func TestFeedPagesHoldEveryUser(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	p, want := newFeedPages(new(atomic.Uint32), feedPageBytesMax), map[uint64][]Followee{}
	check := func(pages *feedPages, want map[uint64][]Followee) {
		t.Helper()
		for key, feed := range want {
			if got := decodeFollowees(nil, pages.get(key)); !slices.Equal(got, feed) {
				t.Fatalf("user %d has %d followees, want %d", key, len(got), len(feed))
			}
		}
		users, last := 0, uint64(0)
		for _, page := range pages.pages() {
			for i := range page.users() {
				if hash := feedHash(page.key(i)); users > 0 && hash <= last {
					t.Fatalf("user %d stands out of order", page.key(i))
				} else {
					last = hash
				}
				users++
			}
		}
		if users != len(want) || users != int(pages.users.Load()) {
			t.Fatalf("%d users in pages, %d counted, want %d", users, pages.users.Load(), len(want))
		}
	}
	for i := range 3000 {
		key, n := r.Uint64N(1500), 1+r.IntN(200)
		if i%500 == 0 {
			n = FolloweesMax
		}
		if r.IntN(5) == 0 {
			p.set(key, nil)
			delete(want, key)
			continue
		}
		want[key] = randomFeed(r, n)
		p.set(key, appendFollowees(nil, want[key]))
	}
	check(p, want)
	bytes := 0
	for _, page := range p.pages() {
		bytes += len(page.data) + 4*page.users() + feedPageOverhead
	}
	if kept := int(p.bytes.Load()); kept != bytes {
		t.Errorf("%d bytes in pages, %d counted", bytes, kept)
	}
	if bits := p.dir.Load().bits; bits < 4 {
		t.Errorf("a directory of %d bits shows too little", bits)
	}
	p.clear()
	check(p, map[uint64][]Followee{})
}

// Users whose hashes begin alike do not blow the directory up.
func TestFeedPagesOfHashesAlike(t *testing.T) {
	p := newFeedPages(new(atomic.Uint32), feedPageBytesMax)
	body := appendFollowees(nil, randomFeed(rand.New(rand.NewPCG(3, 3)), FolloweesMax))
	var keys []uint64
	for key := uint64(0); len(keys) < 4; key++ {
		if feedHash(key)>>46 == feedHash(0)>>46 {
			keys = append(keys, key)
			p.set(key, body)
		}
	}
	if slots := len(p.dir.Load().slots); slots > 2*feedSlotsFree {
		t.Errorf("%d slots for 4 users", slots)
	}
	for _, key := range keys {
		if got := decodeFollowees(nil, p.get(key)); len(got) != FolloweesMax {
			t.Errorf("user %d has %d followees", key, len(got))
		}
	}
}

// A reader beside a writer sees a user's feed as one of those that it was given.
func TestFeedReadersSeeWholeFeeds(t *testing.T) {
	t.Parallel()
	p := newFeedPages(new(atomic.Uint32), feedPageBytesMax)
	bodies := make([][]byte, 50)
	r := rand.New(rand.NewPCG(5, 5))
	for i := range bodies {
		feed := randomFeed(r, 10+i)
		for j := range feed {
			feed[j].Posts = int64(i)
		}
		bodies[i] = appendFollowees(nil, feed)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			var feed []Followee
			for key := uint64(0); ; key = (key + 1) % 300 {
				select {
				case <-stop:
					return
				default:
				}
				body := p.get(key)
				if body == nil {
					continue
				}
				feed = decodeFollowees(feed[:0], body)
				for _, f := range feed {
					if f.Posts != feed[0].Posts || len(feed) != 10+int(feed[0].Posts) {
						t.Errorf("user %d has a torn feed of %d", key, len(feed))
						return
					}
				}
			}
		})
	}
	for i := range 20_000 {
		p.set(uint64(i*7%300), bodies[i%len(bodies)])
	}
	close(stop)
	wg.Wait()
}

func TestFolloweesTakesNoMemory(t *testing.T) {
	f := NewFeed()
	op := FeedOp{Kind: FeedReset, User: 7, Followees: randomFeed(rand.New(rand.NewPCG(1, 1)), 90)}
	var w RequestWriter
	w.Reset(nil, &dedup.RequestID{})
	w.Feed(7, &op)
	f.Apply(codectest.Command(1, codec.AppendChecksum(append(codec.BeginEntry(nil, codec.KindFeed, 0), w.Section()...))))
	dst := make([]Followee, 0, 90)
	if n := testing.AllocsPerRun(100, func() { dst, _ = f.Followees(dst[:0], 7) }); n != 0 || len(dst) != 90 {
		t.Errorf("%v allocations for %d followees", n, len(dst))
	}
}

// BenchmarkFollowees tells what a followee takes in memory and in time.
func BenchmarkFollowees(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	p := newFeedPages(new(atomic.Uint32), feedPageBytesMax)
	const users, each = 20_000, 90
	for key := range uint64(users) {
		p.set(key, appendFollowees(nil, randomFeed(r, each)))
	}
	dst := make([]Followee, 0, each)
	for b.Loop() {
		dst = decodeFollowees(dst[:0], p.get(r.Uint64N(users)))
	}
	b.ReportMetric(float64(int(p.bytes.Load())+8*len(p.dir.Load().slots))/(users*each), "B/followee")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*each), "ns/followee")
}

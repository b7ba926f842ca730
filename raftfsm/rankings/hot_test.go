package rankings

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm/codec"
)

// change is one change of a count.
type change struct {
	key    uint64
	delta  int64
	column uint8
}

// told is one change with the time of its entry.
type told struct {
	change
	at int64
}

// truth holds every change, to compute exact gains.
type truth []told

func (t truth) gains(column uint8, since time.Time) map[uint64]int64 {
	gains := map[uint64]int64{}
	for _, c := range t {
		if c.column == column && c.at >= since.UnixMilli() {
			gains[c.key] += c.delta
		}
	}
	return gains
}

// check verifies the bounds that an answer states for the keys in it and for all other keys.
func check(h Hottest, gains map[uint64]int64, limit int) error {
	bound := h.OthersAtMost(limit)
	listed := map[uint64]bool{}
	for i, g := range h.Gains {
		if off := gains[g.Key] - g.Gained; off > g.Error || -off > g.Error || g.Gained <= 0 || g.Error > h.Error {
			return fmt.Errorf("key %d gained %d, not %d±%d of %d", g.Key, gains[g.Key], g.Gained, g.Error, h.Error)
		}
		if i > 0 && g.compare(h.Gains[i-1]) <= 0 {
			return fmt.Errorf("%v comes after %v", g, h.Gains[i-1])
		}
		listed[g.Key] = true
	}
	for key, gained := range gains {
		if !listed[key] && gained > bound {
			return fmt.Errorf("key %d gained %d and is not in the list, which promises %d at most", key, gained, bound)
		}
	}
	return nil
}

// section returns the payload of the section of the lists in a snapshot.
func section(h *HotLists) []byte { return h.Capture().appendTo(nil) }

// The bounds in every answer hold, whatever the changes and their times. A replica that continues
// from a snapshot has equal lists.
func TestAnswersHold(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		keys := rapid.SampledFrom([]uint64{10, 3000, 20_000, 1 << 40}).Draw(rt, "keys")
		skew := rapid.SampledFrom([]float64{1.01, 1.3, 2}).Draw(rt, "skew")
		losses := rapid.SampledFrom([]int{0, 3, 50}).Draw(rt, "percent of losses")
		columns := rapid.IntRange(1, 5).Draw(rt, "columns")
		pause := rapid.SampledFrom([]int64{0, 40, 4000, 200_000, 4_000_000}).Draw(rt, "most ms between entries")
		spread := rapid.SampledFrom([]uint64{1, 0x9e3779b97f4a7c15}).Draw(rt, "spread")
		zipf := rand.NewZipf(rng, skew, 8, keys)
		f, again, all := NewHotLists(), NewHotLists(), truth(nil)
		now := int64(1_700_000_000_000)
		for round := range rapid.IntRange(1, 4).Draw(rt, "rounds") {
			for range rapid.IntRange(1, 300).Draw(rt, "entries") {
				if pause > 0 {
					now += rng.Int64N(pause)
				}
				f.Begin(now)
				again.Begin(now)
				for range 1 + rng.IntN(120) {
					delta := 1 + rng.Int64N(3)
					if rng.IntN(100) < losses {
						delta = -delta
					}
					c := change{zipf.Uint64() * spread, delta, uint8(rng.IntN(columns))}
					f.Add(c.key, c.column, c.delta)
					again.Add(c.key, c.column, c.delta)
					all = append(all, told{c, now})
				}
				f.End()
				again.End()
			}
			for w := Minute; w <= Day; w++ {
				column, limit := uint8(rng.IntN(columns)), 1+rng.IntN(200)
				h := f.Hottest(w, column, now+rng.Int64N(3000), limit)
				if err := check(h, all.gains(column, h.Since), limit); err != nil {
					rt.Fatalf("round %d, window %v: %v", round, w, err)
				}
				if since := now - h.Since.UnixMilli(); since < levels[w].unit.Milliseconds()*levels[w].keeps-3000 {
					rt.Fatalf("window %v covers %d ms", w, since)
				}
			}
			p := section(f)
			if !bytes.Equal(p, section(again)) {
				rt.Fatalf("round %d: two replicas differ", round)
			}
			again = NewHotLists()
			if err := again.Load(p); err != nil {
				rt.Fatalf("round %d: %v", round, err)
			}
		}
	})
}

// The lists of the busiest shard take at most 16 MB, whatever the keys and the gains.
func TestMemoryIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("it fills a day")
	}
	for _, huge := range []bool{false, true} {
		rng := rand.New(rand.NewPCG(1, 2))
		f := NewHotLists()
		now := int64(1_700_000_000_000)
		most := uint64(0)
		for range 25 * 60 * 12 {
			if now += 5000; now%60_000 >= 10_000 && now < 1_700_000_000_000+(24*60+58)*60_000 {
				continue
			}
			f.Begin(now)
			for range 2100 {
				delta := 1 + rng.Int64N(1000)
				if huge {
					delta <<= 40
				}
				f.Add(rng.Uint64(), uint8(rng.IntN(7)), delta)
			}
			f.End()
			most = max(most, f.Bytes())
		}
		f.Hottest(Day, 0, now, 10)
		most = max(most, f.Bytes())
		p := section(f)
		t.Logf("huge gains: %v, %d bytes, %d in a snapshot", huge, most, len(p))
		if most > 16<<20 || len(p) < 5<<20 {
			t.Errorf("huge gains: %v: %d bytes, %d in a snapshot", huge, most, len(p))
		}
	}
}

// The open bucket takes at most 3 MB, whatever the keys. So does an open bucket that a snapshot
// restores.
func TestOpenBucketIsBounded(t *testing.T) {
	f := NewHotLists()
	f.Begin(1000)
	for i := range uint64(64 * 8 * setsMax) {
		f.Add(i, uint8(i%engine.ColumnsMax), 1)
	}
	f.End()
	loaded := NewHotLists()
	must.Do(t, loaded.Load(section(f)))
	for _, of := range []*HotLists{f, loaded} {
		if sets := of.mu.open.sets; sets < setsOfAll || of.Bytes() > 3<<20 {
			t.Errorf("%d sets, %d bytes", sets, of.Bytes())
		}
	}
}

// Add allocates memory only when a column gets more sets.
func TestAddDoesNotAllocate(t *testing.T) {
	f := NewHotLists()
	f.Begin(1000)
	for i := range uint64(100_000) {
		f.Add(i, 1, 1)
	}
	key := uint64(0)
	if n := testing.AllocsPerRun(100_000, func() { key++; f.Add(key*977, 1, 1) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// If a gain does not fit int64, or huge gains leave too much doubt about other keys, the error is
// reported as unknown. The lists never report a wrong number.
func TestHugeGains(t *testing.T) {
	f := NewHotLists()
	f.Begin(1000)
	for range 3 {
		f.Add(7, 0, math.MaxInt64/2)
	}
	f.Add(8, 0, -math.MaxInt64)
	f.Add(8, 0, -math.MaxInt64)
	f.Add(9, 0, 5)
	f.End()
	h := f.Hottest(Minute, 0, 1000, 10)
	want := []Gain{{7, math.MaxInt64, math.MaxInt64}, {9, 5, 0}}
	if !slices.Equal(h.Gains, want) || h.Error != 0 {
		t.Errorf("%+v", h)
	}
	for key := range uint64(3 * 2 * 4096) {
		f.Begin(1000)
		f.Add(key, 1, math.MaxInt64/4)
		f.End()
	}
	if h := f.Hottest(Hour, 1, 1000, 10); h.Error != math.MaxInt64 {
		t.Errorf("%+v", h)
	}
}

func TestWindows(t *testing.T) {
	for w := Minute; w <= Day; w++ {
		if got, err := ParseWindow(w.String()); got != w || err != nil {
			t.Errorf("%v: %v, %v", w, got, err)
		}
	}
	for _, name := range []string{"", "60m", "1d", "2h", "1H"} {
		if w, err := ParseWindow(name); err == nil {
			t.Errorf("%q is window %v", name, w)
		}
	}
}

// If Load accepts a section, the loaded lists answer queries. The section that they write then
// loads as equal lists.
func FuzzSection(f *testing.F) {
	lists := NewHotLists()
	f.Add([]byte{})
	for now := int64(1_700_000_000_000); now < 1_700_000_200_000; now += 1700 {
		lists.Begin(now)
		for key := range uint64(50) {
			lists.Add(key*key, uint8(key%3), int64(key)-9)
		}
		lists.End()
	}
	f.Add(section(lists))
	f.Fuzz(func(t *testing.T, p []byte) {
		lists := NewHotLists()
		if err := lists.Load(p); err != nil {
			if !errors.Is(err, codec.ErrSnapshot) {
				t.Fatal(err)
			}
			return
		}
		p = section(lists) // this section has the shortest form of each number
		again := NewHotLists()
		if err := again.Load(p); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(p, section(again)) {
			t.Fatal("the section of what was read differs")
		}
		now := lists.mu.tick*5000 + 1
		for w := Minute; w <= Day; w++ {
			if a, b := lists.Hottest(w, 1, now, 20), again.Hottest(w, 1, now, 20); !slices.Equal(a.Gains, b.Gains) {
				t.Fatalf("%v and %v", a, b)
			}
		}
		lists.Begin(now + 100_000_000)
		lists.Add(1, 1, 1)
		lists.End()
		lists.Hottest(Day, 1, now, 20)
	})
}

func BenchmarkHotLists(b *testing.B) {
	for _, skew := range []float64{1.01, 1.2} {
		for _, keys := range []uint64{1000, 10_000_000} {
			b.Run(fmt.Sprintf("skew=%v/keys=%d", skew, keys), func(b *testing.B) {
				rng := rand.New(rand.NewPCG(1, 2))
				zipf := rand.NewZipf(rng, skew, 8, keys)
				var draw [1 << 20]uint64
				for i := range draw {
					draw[i] = zipf.Uint64() * 977
				}
				f := NewHotLists()
				b.ReportAllocs()
				i := 0
				now := 1_700_000_000_000.0
				for b.Loop() {
					f.Begin(int64(now))
					for range 100 {
						f.Add(draw[i%len(draw)], uint8(i&3), 1)
						i++
					}
					f.End()
					now += 0.1
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100, "ns/change")
			})
		}
	}
}

package members

import (
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// BenchmarkSplitMembers parts a group in three after -bench-pairs joins, while entries of 100 joins are applied. After
// each step it rests as long, as a preparation does, and after ten it applies an entry. Then it splits the group, and
// another group adopts a part. It reports how long Apply takes for both, the time of all steps without the rests, the
// time of a step in the middle, of one in a hundred and of the longest one, that of an entry before, during and after
// the parting, and the size of the store before, after the Split and after Trim.
func BenchmarkSplitMembers(b *testing.B) {
	s := newBenchStore(b)
	l := newLikes(*benchPairs, time.Duration(*benchPairs)*time.Second/20)
	entry := func() time.Duration {
		var pairs []Pair
		var ms int64
		for range 100 {
			var p Pair
			_, p, ms = l.next()
			pairs = append(pairs, p)
		}
		began := time.Now()
		s.join(0, pairs, ms)
		return time.Since(began)
	}
	g, child := s.groups[0], s.groups[1]
	for range *benchPairs / 100 {
		entry()
	}
	report := func(name string, d time.Duration, n int) { b.ReportMetric(float64(d.Microseconds())/float64(n), name) }
	var before time.Duration
	for range 1000 {
		before += entry()
	}
	settle(s.store)
	disk := func(name string) {
		settle(s.store)
		b.ReportMetric(float64(s.store.db.Metrics().DiskSpaceUsage())/(1<<20), name)
	}
	disk("MiB-before")
	p, err := g.Part(modelPartition{}, modelParts)
	if err != nil {
		b.Fatal(err)
	}
	var steps []time.Duration
	var total, during time.Duration
	n, entries := 0, 0
	for more := true; more; n++ {
		began := time.Now()
		if more, err = p.Step(); err != nil {
			b.Fatal(err)
		}
		took := time.Since(began)
		steps, total = append(steps, took), total+took
		time.Sleep(took)
		if n%10 == 0 {
			during += entry()
			entries++
		}
	}
	at := s.at[0]
	began := time.Now()
	states, err := g.Split(at, at.Index+1, modelParts, modelPartition{}, func() {})
	if err != nil {
		b.Fatal(err)
	}
	split := time.Since(began)
	began = time.Now()
	if _, err := child.AdoptPart(g.number, at.Index+1, 1, 1); err != nil {
		b.Fatal(err)
	}
	adopt := time.Since(began)
	disk("MiB-split")
	s.at[0] = states[0]
	var after time.Duration
	for range 1000 {
		after += entry()
	}
	if err := g.Trim(at.Index + 1); err != nil {
		b.Fatal(err)
	}
	if err := s.store.db.LogData(nil, pebble.Sync); err != nil {
		b.Fatal(err)
	}
	disk("MiB-trimmed")
	if err := s.store.db.Compact(b.Context(), []byte{0}, []byte{0xff}, false); err != nil {
		b.Fatal(err)
	}
	disk("MiB-compacted")
	report("µs/split", split, 1)
	report("µs/adopt", adopt, 1)
	slices.Sort(steps)
	report("µs/step-p50", steps[n/2], 1)
	report("µs/step-p99", steps[n/100*99], 1)
	report("µs/step-max", steps[n-1], 1)
	b.ReportMetric(total.Seconds(), "s/steps")
	report("µs/entry-before", before, 1000)
	report("µs/entry-during", during, entries)
	report("µs/entry-after", after, 1000)
	b.ReportMetric(float64(at.Pairs), "pairs")
}

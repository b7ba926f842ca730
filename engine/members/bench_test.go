package members

import (
	"flag"
	"log/slog"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

var (
	benchPairs  = flag.Int("bench-pairs", 1_000_000, "pairs of BenchmarkSets")
	benchMemory = flag.Uint64("bench-memory", MemoryBytesDefault, "bytes of memory of the store of BenchmarkSets")
	benchSpan   = flag.Duration("bench-span", 0, "time over which they join; 0 for 20 a second")
)

const benchGroups = 7

// likes generates random likes in the order of time. Posts have ids like Weibo's, which grow with
// time. Half of the likes go to one post in a thousand, and most go to posts of the last day.
type likes struct {
	random *rand.Rand
	users  *rand.Zipf
	posts  []uint64
	step   time.Duration // time between likes
	day    float64       // number of posts a day
	now    time.Duration
}

const (
	likesPerPost = 10
	benchUsers   = 10_000_000
)

func newLikes(pairs int, span time.Duration) *likes {
	random := rand.New(rand.NewPCG(1, 2))
	return &likes{random: random, users: rand.NewZipf(random, 1.1, 20, benchUsers-1), step: span / time.Duration(pairs),
		day: float64(pairs) / likesPerPost * min(1, float64(24*time.Hour)/float64(span))}
}

// user returns a random user; active users are likelier. For viewer, all users are equally likely.
func (l *likes) user() uint64   { return userID(l.users.Uint64()) }
func (l *likes) viewer() uint64 { return userID(l.random.Uint64N(benchUsers)) }

func userID(n uint64) uint64 { return n*2_654_435_761%10_000_019 + 1 }

func (l *likes) post(back float64) uint64 {
	at := max(len(l.posts)-1-int(l.random.ExpFloat64()*back), 0)
	if l.random.IntN(2) == 0 {
		at -= at % 1000
	}
	return l.posts[at]
}

// next returns a pair, its group, and its time in Unix milliseconds.
func (l *likes) next() (group int, p Pair, ms int64) {
	l.now += l.step
	if l.random.IntN(likesPerPost) == 0 || len(l.posts) == 0 {
		s := uint64(logTimeStart/1000 + int64(l.now.Seconds()))
		l.posts = append(l.posts, (s-515_483_463)<<22|l.random.Uint64N(1<<22))
	}
	id := l.post(l.day)
	return int(id % benchGroups), Pair{Row: id / benchGroups, Member: l.user(), Column: 2}, logTimeStart + l.now.Milliseconds()
}

// processor returns the CPU time that the process has used.
func processor(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// settle waits until no compaction is running and no filter is being filled.
func settle(s *Store) {
	filling := func(g *Group) bool {
		g.known.mu.Lock()
		defer g.known.mu.Unlock()
		return g.known.filling != nil || g.known.wanted.Load()
	}
	for s.db.Metrics().Compact.NumInProgress > 0 || slices.ContainsFunc(s.groups(), filling) {
		time.Sleep(10 * time.Millisecond)
	}
}

// benchStore is a store on the disk with sets of several groups.
type benchStore struct {
	*testing.B
	store  *Store
	groups [benchGroups]*Group
	at     [benchGroups]State
}

func newBenchStore(b *testing.B) *benchStore {
	s, err := Open(Config{Dir: b.TempDir(), MemoryBytes: *benchMemory, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { panic(err) }})
	if err != nil {
		b.Fatal(err)
	}
	bs := &benchStore{B: b, store: s}
	for i := range bs.groups {
		if bs.groups[i], err = s.Group(uint32(i + 1)); err != nil {
			b.Fatal(err)
		}
	}
	b.Cleanup(func() {
		for _, g := range bs.groups {
			g.Close()
		}
		_ = s.Close()
	})
	return bs
}

// join applies an entry that joins pairs to group n.
func (b *benchStore) join(n int, pairs []Pair, ms int64) {
	batch, err := b.groups[n].Begin(b.at[n], b.at[n].Index+1, ms)
	if err != nil {
		b.Fatal(err)
	}
	for _, p := range pairs {
		batch.Touch(p)
	}
	if err := batch.Read(); err != nil {
		b.Fatal(err)
	}
	for _, p := range pairs {
		batch.Join(p, 0)
	}
	if b.at[n], err = batch.Commit(); err != nil {
		b.Fatal(err)
	}
}

// fill applies -bench-pairs joins, in entries of 100 joins each.
func (b *benchStore) fill() *likes {
	if *benchSpan == 0 {
		*benchSpan = time.Duration(*benchPairs) * time.Second / 20
	}
	l := newLikes(*benchPairs, *benchSpan)
	var waiting [benchGroups][]Pair
	for range *benchPairs {
		n, p, ms := l.next()
		if waiting[n] = append(waiting[n], p); len(waiting[n]) == 100 {
			b.join(n, waiting[n], ms)
			waiting[n] = waiting[n][:0]
		}
	}
	settle(b.store)
	return l
}

// BenchmarkDiscard measures the replacement of a file, for each key order. All data in the file is
// in use and readable. This is the worst case for writes, which wait meanwhile.
func BenchmarkDiscard(b *testing.B) {
	s := newBenchStore(b)
	s.fill()
	if err := s.store.db.Compact(b.Context(), []byte{0}, []byte{0xff}, false); err != nil {
		b.Fatal(err)
	}
	for _, kind := range []byte{keyMember, keyTime, keyOf} {
		levels, err := s.store.db.SSTables()
		if err != nil {
			b.Fatal(err)
		}
		var largest pebble.SSTableInfo
		for _, file := range slices.Concat(levels...) {
			if file.Smallest.UserKey[0] == kind && file.Size > largest.Size {
				largest = file
			}
		}
		f := &damagedFile{loaded: map[uint32]bool{}}
		f.Bounds.Start, f.Bounds.End.Key = largest.Smallest.UserKey, largest.Largest.UserKey
		began := time.Now()
		if err := s.store.discardFile(f, nil); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(began).Milliseconds()), "ms/file-"+string(kind))
		b.ReportMetric(float64(largest.Size)/(1<<20), "MiB-"+string(kind))
	}
}

// BenchmarkSets applies entries of 100 joins and of one join, and looks up one user in the sets of
// 20 posts at a time. It reports the CPU time, and the bytes on disk of each key order. B/pair
// includes the outcomes of the entries.
func BenchmarkSets(b *testing.B) {
	of := newBenchStore(b)
	s := of.store
	began := processor(b)
	l := of.fill()
	report := func(name string, of time.Duration, n int) {
		b.ReportMetric(float64(of.Nanoseconds())/1000/float64(n), name)
	}
	report("µs/join-of-100", processor(b)-began, *benchPairs)
	pages := func(name string, back float64, user func() uint64) {
		const pages = 20_000
		settle(s)
		began := processor(b)
		in, found, blocks := [20]bool{}, 0, s.db.Metrics().BlockCache.Misses
		for range pages {
			var rows [benchGroups][]uint64
			for range in {
				id := l.post(back)
				rows[id%benchGroups] = append(rows[id%benchGroups], id/benchGroups)
			}
			user := user()
			for n, rows := range rows {
				if err := of.groups[n].Contains(user, 2, rows, in[:len(rows)]); err != nil {
					b.Fatal(err)
				}
				for _, is := range in[:len(rows)] {
					if is {
						found++
					}
				}
			}
		}
		report("µs/page-"+name, processor(b)-began, pages)
		b.ReportMetric(float64(found)/pages, "liked/page-"+name)
		b.ReportMetric(float64(s.db.Metrics().BlockCache.Misses-blocks)/pages, "reads/page-"+name)
	}
	pages("new", l.day/24, l.user)
	pages("any", float64(len(l.posts)), l.user)
	pages("any-viewer", float64(len(l.posts)), l.viewer)
	began = processor(b)
	const alone = 50_000
	for range alone {
		n, p, ms := l.next()
		of.join(n, []Pair{p}, ms)
	}
	settle(s)
	report("µs/join-alone", processor(b)-began, alone)
	pairs := 0.0
	for n := range of.at {
		pairs += float64(of.at[n].Pairs)
	}
	b.ReportMetric(float64(s.db.Metrics().Total().TablesSize)/pairs, "B/pair-before")
	began = processor(b)
	if err := s.db.Compact(b.Context(), []byte{0}, []byte{0xff}, false); err != nil {
		b.Fatal(err)
	}
	report("µs/compact", processor(b)-began, int(pairs))
	for _, kind := range []byte{keyMember, keyTime, keyOf} {
		bytes, err := s.db.EstimateDiskUsage([]byte{kind}, []byte{kind + 1})
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(bytes)/pairs, "B/pair-"+string(kind))
	}
	b.ReportMetric(float64(s.db.Metrics().Total().TablesSize)/pairs, "B/pair")
	pages("compacted", float64(len(l.posts)), l.user)
	pages("compacted-viewer", float64(len(l.posts)), l.viewer)
}

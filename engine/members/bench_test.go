package members

import (
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"
)

// BenchmarkJoin applies entries of 100 joins of random users to random posts, to a store of
// many pairs, and reports its size.
func BenchmarkJoin(b *testing.B) {
	s, err := Open(Config{Dir: b.TempDir(), Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { panic(err) }})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	g, err := s.Group(1)
	if err != nil {
		b.Fatal(err)
	}
	defer g.Close()
	random := rand.New(rand.NewPCG(1, 2))
	at, index := State{}, uint64(0)
	const joins = 100
	entry := func() {
		index++
		batch, err := g.Begin(at, index, logTimeStart+int64(index)*2)
		if err != nil {
			b.Fatal(err)
		}
		var pairs [joins]Pair
		for i := range pairs {
			pairs[i] = Pair{Row: random.Uint64N(100_000), Member: random.Uint64N(20_000_000), Column: 2}
			batch.Touch(pairs[i])
		}
		if err := batch.Read(); err != nil {
			b.Fatal(err)
		}
		for _, p := range pairs {
			batch.Join(p, 0)
		}
		if at, err = batch.Commit(); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		entry()
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/joins, "ns/join")
	if err := s.db.Compact(b.Context(), []byte{0}, []byte{0xff}, false); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(s.db.Metrics().Total().TablesSize)/float64(at.Pairs), "B/pair")
	began, in := time.Now(), make([]bool, 20)
	const pages = 2000
	for range pages {
		var rows [20]uint64
		for i := range rows {
			rows[i] = random.Uint64N(100_000)
		}
		if err := g.Contains(random.Uint64N(20_000_000), 2, rows[:], in); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(time.Since(began))/pages, "ns/page20")
}

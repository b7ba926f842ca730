package load

import (
	"context"
	"errors"
	"math"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/internal/nodetest"
)

func configFor(t *testing.T, s *nodetest.Server) Config {
	t.Helper()
	addr, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Addr: addr, Keyspace: "posts", Column: "like", Op: Incr, Page: 20, Batch: 1, Concurrency: 4,
		Requests: 200, IDs: IDs{Dist: Uniform, N: 100}, Timeout: 5 * time.Second,
	}
}

// total returns the sum of the likes of ids 1 … n.
func total(s *nodetest.Server, n uint64) (sum int64) {
	for id := uint64(1); id <= n; id++ {
		sum += s.Row(id)[2]
	}
	return sum
}

func TestRunDoesWhatItReports(t *testing.T) {
	cases := []struct {
		name   string
		change func(*Config)
		ops    int64 // expected Report.Ops; -1 if random
		likes  int64 // sum of the likes on the server
	}{
		{"single increments", func(*Config) {}, 200, 200},
		{"batches", func(c *Config) { c.Batch = 100 }, 20_000, 20_000},
		{"without results", func(c *Config) { c.Batch, c.NoResults = 10, true }, 2000, 2000},
		{"rows", func(c *Config) { c.Op = Read }, 200, 0},
		{"pages", func(c *Config) { c.Op = Page }, 4000, 0},
		{"mixed, all pages", func(c *Config) { c.Op, c.ReadShare = Mixed, 1 }, 4000, 0},
		{"mixed, no pages", func(c *Config) { c.Op, c.ReadShare = Mixed, 0 }, 200, 200},
		{"one hot id", func(c *Config) { c.IDs.Dist = Hot }, 200, 200},
		{"zipf", func(c *Config) { c.IDs.Dist, c.IDs.ZipfS = Zipf, 1.1 }, 200, 200},
		{"ids from a list", func(c *Config) { c.IDs.List = []uint64{5, 7, 9} }, 200, 200},
		{"open loop", func(c *Config) { c.Rate = 10_000 }, 200, 200},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server := nodetest.New(t)
			cfg := configFor(t, server)
			c.change(&cfg)
			r, err := Run(t.Context(), cfg)
			if err != nil {
				t.Fatal(err)
			}
			if r.Requests != cfg.Requests || r.Failed != 0 || r.Unsent != 0 || r.Ops != c.ops {
				t.Fatalf("the report is %+v, want %d requests of %d ops", r, cfg.Requests, c.ops)
			}
			if got := total(server, 100); got != c.likes {
				t.Fatalf("%d increments are on the server, want %d", got, c.likes)
			}
			l := r.LatencyUS
			if !(0 < l.P50 && l.P50 <= l.P90 && l.P90 <= l.P99 && l.P99 <= l.P999 && l.P999 <= l.Max) {
				t.Fatalf("percentiles are %+v", l)
			}
			if (r.LateUS != nil) != (cfg.Rate > 0) || (r.AnswerUS != nil) != (cfg.Rate > 0) || (r.ReadLatencyUS != nil) != (cfg.Op == Mixed) {
				t.Fatalf("the parts of the report are %+v", r)
			}
		})
	}
}

func TestRunEndsByTime(t *testing.T) {
	server := nodetest.New(t)
	cfg := configFor(t, server)
	cfg.Requests, cfg.Duration = 0, 500*time.Millisecond
	r, err := Run(t.Context(), cfg)
	if err != nil || r.Seconds < 0.5 || r.Requests == 0 || total(server, 100) != r.Ops {
		t.Fatalf("%+v, %v", r, err)
	}
}

func TestRunCountsErrorsByCode(t *testing.T) {
	server := nodetest.New(t)
	var n atomic.Int64
	server.Fail = func(r *http.Request, _ []byte) *nodetest.Fault {
		if r.Method == http.MethodGet {
			return nil
		}
		switch n.Add(1) % 10 {
		case 0:
			return &nodetest.Fault{Status: 429, Code: "overloaded"}
		case 1:
			return &nodetest.Fault{Hang: true}
		}
		return nil
	}
	cfg := configFor(t, server)
	cfg.Requests = 100
	r, err := Run(t.Context(), cfg)
	if err != nil || r.Requests != 80 || r.Failed != 20 || r.Errors["overloaded"] != 10 || r.Errors["no_answer"] != 10 {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := total(server, 100); got != 80 || n.Load() != 100 {
		t.Fatalf("%d increments of %d requests: none is sent twice", got, n.Load())
	}
}

func TestRunRefusesAServerThatRefuses(t *testing.T) {
	server := nodetest.New(t)
	cfg := configFor(t, server)
	cfg.Keyspace = "frob"
	if r, err := Run(t.Context(), cfg); r != nil || err == nil || !strings.Contains(err.Error(), "unknown_keyspace") {
		t.Fatalf("%+v, %v", r, err)
	}
	server.Close()
	if r, err := Run(t.Context(), cfg); r != nil || err == nil || !strings.Contains(err.Error(), "cannot reach") {
		t.Fatalf("%+v, %v", r, err)
	}
}

func TestRunReportsWhatWasDoneWhenItIsInterrupted(t *testing.T) {
	server := nodetest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var n atomic.Int64
	server.Fail = func(*http.Request, []byte) *nodetest.Fault {
		if n.Add(1) == 50 {
			cancel()
		}
		return nil
	}
	cfg := configFor(t, server)
	cfg.Requests = math.MaxInt64
	r, err := Run(ctx, cfg)
	if !errors.Is(err, context.Canceled) || r == nil || r.Requests == 0 || total(server, 100) != r.Ops {
		t.Fatalf("%+v, %v", r, err)
	}
}

// The server pauses for a while. In an open loop, these properties hold:
//
//  1. the report accounts for every request that was due;
//  2. the latency of requests that were due during the pause includes their wait, although only one
//     request was in flight;
//  3. the 90th percentile shows the pause, unlike in a closed loop.
func TestOpenLoopOmitsNothing(t *testing.T) {
	const rate, stall = 1000, 300 * time.Millisecond
	server := nodetest.New(t)
	var n atomic.Int64
	server.Fail = func(r *http.Request, _ []byte) *nodetest.Fault {
		if r.Method == http.MethodPost && n.Add(1) == 100 {
			time.Sleep(stall)
		}
		return nil
	}
	cfg := configFor(t, server)
	cfg.Concurrency, cfg.Rate, cfg.Requests, cfg.Duration = 1, rate, 0, time.Second
	r, err := Run(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Requests + r.Failed + r.Unsent; got != rate {
		t.Errorf("%d requests are accounted for, %d were due", got, rate)
	}
	if r.AnswerUS.P90 > r.LatencyUS.P90 {
		t.Errorf("from sending p90 is %.0f µs, from when they were due %.0f µs", r.AnswerUS.P90, r.LatencyUS.P90)
	}
	if r.LatencyUS.P90 < float64(stall.Microseconds())/10 {
		t.Errorf("p90 is %.0f µs, though a third of the requests came due in a stall of %v", r.LatencyUS.P90, stall)
	}
	cfg.Rate = 0
	n.Store(0)
	closed, err := Run(t.Context(), cfg)
	if err != nil || closed.LatencyUS.P90 > r.LatencyUS.P90 {
		t.Errorf("closed loop: p90 %.0f µs, %v", closed.LatencyUS.P90, err)
	}
}

func TestOpenLoopCountsWhatWasNeverSent(t *testing.T) {
	p := newPacer(&Config{Rate: 100, Duration: time.Second}, time.Now().Add(-time.Second))
	for range 40 {
		if _, ok := p.take(t.Context()); !ok {
			t.Fatal("a request that is due was not handed out")
		}
	}
	var waits []time.Duration
	p.unsent(p.start.Add(time.Second), func(w time.Duration) { waits = append(waits, w) })
	if len(waits) != 60 || waits[0] != 600*time.Millisecond || waits[59] != 10*time.Millisecond {
		t.Fatalf("%d unsent, waits %v", len(waits), waits)
	}
}

func TestPacerKeepsTheRate(t *testing.T) {
	p := newPacer(&Config{Rate: 2000, Requests: 100}, time.Now())
	for n := range int64(100) {
		due, ok := p.take(t.Context())
		if now := time.Now(); !ok || now.Before(due) || !due.Equal(p.due(n)) {
			t.Fatalf("request %d is due at %v and was handed out at %v", n, due, now)
		}
	}
	if _, ok := p.take(t.Context()); ok {
		t.Fatal("a request too many was handed out")
	}
}

func TestValidate(t *testing.T) {
	cases := []struct {
		name   string
		change func(*Config)
	}{
		{"op", func(c *Config) { c.Op = "frob" }},
		{"page", func(c *Config) { c.Page = 1001 }},
		{"batch", func(c *Config) { c.Batch = 10_001 }},
		{"share", func(c *Config) { c.ReadShare = math.NaN() }},
		{"concurrency", func(c *Config) { c.Concurrency = 0 }},
		{"rate", func(c *Config) { c.Rate = -1 }},
		{"no end", func(c *Config) { c.Requests = 0 }},
		{"timeout", func(c *Config) { c.Timeout = 0 }},
		{"deadline", func(c *Config) { c.Deadline = DeadlineMax + 1 }},
		{"no ids", func(c *Config) { c.IDs.N = 0 }},
		{"dist", func(c *Config) { c.IDs.Dist = "" }},
		{"zipf", func(c *Config) { c.IDs.Dist, c.IDs.ZipfS = Zipf, 1 }},
	}
	server := nodetest.New(t)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cfg := configFor(t, server)
			c.change(&cfg)
			if err := cfg.Validate(); err == nil {
				t.Fatal("it passed")
			}
		})
	}
}

func TestPickers(t *testing.T) {
	const n, draws = 1000, 200_000
	cases := []struct {
		name     string
		set      IDs
		distinct int     // minimum number of different ids
		top      float64 // approximate share of the most popular id
	}{
		{"uniform", IDs{Dist: Uniform, N: n}, n, 0.001},
		{"zipf", IDs{Dist: Zipf, N: n, ZipfS: 1.1}, n * 9 / 10, 0.18}, // 1/Σ k^-1.1
		{"hot", IDs{Dist: Hot, N: n}, 1, 1},
		{"each", IDs{Dist: Each, N: n}, n, 0.001},
		{"one id", IDs{Dist: Zipf, N: 1, ZipfS: 2}, 1, 1},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := newPicker(&c.set, new(atomic.Uint64), 1)
			seen := map[uint64]int{}
			for range draws {
				id := p.next()
				if id < 1 || id > c.set.N {
					t.Fatalf("id %d is not among 1 … %d", id, c.set.N)
				}
				seen[id]++
			}
			top := 0
			for _, times := range seen {
				top = max(top, times)
			}
			if share := float64(top) / draws; len(seen) < c.distinct || share < c.top*0.9 || share > c.top*1.3 {
				t.Fatalf("%d ids, the first takes %.4f; want %d and %.4f", len(seen), share, c.distinct, c.top)
			}
		})
	}
}

func TestStepVisitsAll(t *testing.T) {
	for _, n := range []uint64{1, 2, 3, 4, 10, 36, 97, 1000, 1 << 10} {
		step, seen := coprimeStep(n), map[uint64]bool{}
		for rank := range n {
			seen[mulMod(rank, step, n)] = true
		}
		if uint64(len(seen)) != n {
			t.Errorf("of %d places %d are visited", n, len(seen))
		}
	}
	if step := coprimeStep(math.MaxUint64); gcd(step, math.MaxUint64) != 1 {
		t.Error("the step of the largest set has a common divisor")
	}
}

// BenchmarkPrepare measures the client's cost to build a request.
func BenchmarkPrepare(b *testing.B) {
	for _, op := range []Kind{Read, Page, Incr} {
		b.Run(string(op), func(b *testing.B) {
			cfg := Config{Addr: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}, Keyspace: "posts", Column: "like",
				Op: op, Page: 20, Batch: 1, IDs: IDs{Dist: Zipf, N: 1 << 20, ZipfS: 1.1}}
			w := newWorker(&cfg, new(atomic.Uint64), 0)
			b.ReportAllocs()
			for b.Loop() {
				w.prepare()
			}
		})
	}
}

func TestPrepareDoesNotAllocate(t *testing.T) {
	for _, op := range []Kind{Read, Page, Incr, Poll, Polls, Seen} {
		t.Run(string(op), func(t *testing.T) {
			cfg := Config{Addr: &url.URL{Scheme: "http", Host: "127.0.0.1:1"}, Keyspace: "posts", Column: "like",
				Channels: []string{"news"}, Op: op, Page: 20, Batch: 100, IDs: IDs{Dist: Zipf, N: math.MaxInt32, ZipfS: 1.1}}
			w := newWorker(&cfg, new(atomic.Uint64), 0)
			w.prepare() // grows the buffers
			for range 100 {
				w.prepare()
			}
			if n := testing.AllocsPerRun(100, func() { w.prepare() }); n != 0 {
				t.Fatalf("%v allocations a request", n)
			}
		})
	}
}

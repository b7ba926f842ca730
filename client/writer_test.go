package client_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/nodetest"
)

func writerOf(t *testing.T, s *nodetest.Server, cfg client.WriterConfig) *client.Writer {
	t.Helper()
	w, err := dial(t, s.URL).NewWriter(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ended, end := context.WithCancel(context.Background())
		end()
		w.Close(ended) // if rows remain, the test has already failed
	})
	return w
}

func like(n int64) client.Count { return client.Count{Column: "like", Value: n} }

// faulty returns faults at random: refusals, delays, late effects and lost answers.
func faulty(seed uint64) func(*http.Request, []byte) *nodetest.Fault {
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(seed, 1))
	return func(*http.Request, []byte) *nodetest.Fault {
		mu.Lock()
		kind, n, delay := random.IntN(32), random.IntN(3), time.Duration(random.IntN(4))*time.Millisecond
		mu.Unlock()
		time.Sleep(delay) // so that requests overtake each other
		switch kind {
		case 0:
			return &nodetest.Fault{Hang: true}
		case 1:
			return &nodetest.Fault{Hang: true, After: true}
		case 2:
			return &nodetest.Fault{Hang: true, After: true, Late: 2 * delay}
		case 3:
			return &nodetest.Fault{Status: 504, Code: "outcome_unknown"}
		case 4:
			return &nodetest.Fault{Status: 504, Code: "outcome_unknown", After: true, Shards: []int{n, n + 1}}
		case 5:
			return &nodetest.Fault{Status: 503, Code: "no_leader", After: true, Shards: []int{n}}
		case 6:
			return &nodetest.Fault{Status: 429, Code: "overloaded"}
		case 7:
			return &nodetest.Fault{Status: 502, Code: "", After: true}
		}
		return nil
	}
}

// Answers get lost, are late, overtake each other, are partial or are refusals. Even then:
//
//  1. every Add before a Flush that returned nil is counted once;
//  2. nothing else is counted;
//  3. at most WaitingOpsMax rows wait.
func TestWriterCountsOnceUnderFaults(t *testing.T) {
	const goroutines, adds, rows = 8, 400, 300
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	server := nodetest.New(t)
	fail := faulty(seed)
	var producers sync.Map
	server.Fail = func(r *http.Request, body []byte) *nodetest.Fault {
		producers.Store(r.Header.Get("Countd-Producer"), true)
		return fail(r, body)
	}
	w := writerOf(t, server, client.WriterConfig{InFlight: 16, BatchOps: 10, WaitingOpsMax: 50, RetryFor: time.Minute})
	want := make([]map[uint64]int64, goroutines)
	var adding sync.WaitGroup
	for g := range goroutines {
		want[g] = map[uint64]int64{}
		adding.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(g+2)))
			for i := range adds {
				id, n := random.Uint64N(rows), random.Int64N(7)-2
				if err := w.Add(t.Context(), "posts", client.Number(id), like(n)); err != nil {
					t.Error(err)
					return
				}
				want[g][id] += n
				if i%200 == 100 {
					if err := w.Flush(t.Context()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	adding.Wait()
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id := range uint64(rows) {
		sum := int64(0)
		for g := range want {
			sum += want[g][id]
		}
		if got := server.Row(id)[2]; got != sum {
			t.Errorf("row %d is %d, want %d", id, got, sum)
		}
	}
	names := 0
	for range producers.Range {
		names++
	}
	if names != 1 {
		t.Errorf("%d producers, want one", names)
	}
}

// gate blocks every write until it is opened, and counts the writes.
type gate struct {
	came   atomic.Int64
	opened chan struct{}
}

func gated(s *nodetest.Server) *gate {
	g := &gate{opened: make(chan struct{})}
	s.Fail = func(r *http.Request, _ []byte) *nodetest.Fault {
		g.came.Add(1)
		select {
		case <-g.opened:
		case <-r.Context().Done():
		}
		return nil
	}
	return g
}

func (g *gate) await(t *testing.T, n int64) {
	t.Helper()
	must.Become(t, fmt.Sprintf("%d requests come", n), func() bool { return g.came.Load() >= n })
}

func TestWriterMergesWhatWaits(t *testing.T) {
	server := nodetest.New(t)
	g := gated(server)
	w := writerOf(t, server, client.WriterConfig{InFlight: 1, BatchOps: 2, WaitingOpsMax: 3})
	add := func(id client.ID, deltas ...client.Count) {
		t.Helper()
		if err := w.Add(t.Context(), "posts", id, deltas...); err != nil {
			t.Fatal(err)
		}
	}
	add(client.Number(1), like(1))
	g.await(t, 1) // the batch is in flight; the later increments queue
	for range 1000 {
		add(client.Number(1), like(1))
		add(client.Number(2), like(-2), client.Count{Column: "view", Value: 3})
		add(client.Number(3), client.Count{Column: "view", Value: 1})
	}
	close(g.opened)
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	for id, want := range map[uint64][]int64{1: {0, 0, 1001, 0}, 2: {0, 0, -2000, 3000}, 3: {0, 0, 0, 1000}} {
		if got := server.Row(id); !slices.Equal(got, want) {
			t.Errorf("row %d is %v, want %v", id, got, want)
		}
	}
	if g.came.Load() != 3 { // the first increment, then rows 1 and 2, then row 3
		t.Errorf("%d requests", g.came.Load())
	}
}

func TestWriterIsBounded(t *testing.T) {
	for _, fails := range []bool{false, true} {
		t.Run(fmt.Sprintf("fail when full %v", fails), func(t *testing.T) {
			server := nodetest.New(t)
			g := gated(server)
			w := writerOf(t, server, client.WriterConfig{InFlight: 1, BatchOps: 2, WaitingOpsMax: 2, FailWhenFull: fails})
			if err := w.Add(t.Context(), "posts", client.Number(1), like(1)); err != nil {
				t.Fatal(err)
			}
			g.await(t, 1)
			for id := range uint64(2) {
				if err := w.Add(t.Context(), "posts", client.Number(2+id), like(1)); err != nil {
					t.Fatal(err)
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			want := context.DeadlineExceeded
			if fails {
				want = client.ErrFull
			}
			if err := w.Add(ctx, "posts", client.Number(4), like(1)); !errors.Is(err, want) {
				t.Fatalf("the error is %v, want %v", err, want)
			}
			if err := w.Add(t.Context(), "posts", client.Number(3), like(1)); err != nil {
				t.Fatalf("what merges needs no room: %v", err)
			}
			blocked := make(chan error, 1)
			if !fails {
				go func() { blocked <- w.Add(t.Context(), "posts", client.Number(5), like(1)) }()
			} else {
				blocked <- nil
			}
			close(g.opened)
			if err := <-blocked; err != nil {
				t.Fatal(err)
			}
			if err := w.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			if server.Row(3)[2] != 2 || server.Row(4)[2] != 0 {
				t.Fatalf("rows are %v, %v", server.Row(3), server.Row(4))
			}
		})
	}
}

func TestWriterReportsWhatFailed(t *testing.T) {
	busy := &nodetest.Fault{Status: 429, Code: "overloaded"}
	lost := &nodetest.Fault{Hang: true, After: true}
	cases := []struct {
		name    string
		fault   *nodetest.Fault
		add     client.Count
		row     []int64 // counts of row 1 after the write; its likes begin at the highest int64
		unknown bool
	}{
		{"overflow of one row", nil, like(1), []int64{0, 0, math.MaxInt64, 0}, false},
		{"unknown column", nil, client.Count{Column: "frob", Value: 1}, []int64{0, 0, math.MaxInt64, 0}, false},
		{"busy for too long", busy, like(-1), []int64{0, 0, math.MaxInt64, 0}, false},
		{"lost for too long", lost, like(-1), []int64{0, 0, math.MaxInt64 - 1, 0}, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server := nodetest.New(t)
			server.Put(1, 0, 0, math.MaxInt64, 0)
			server.Fail = func(_ *http.Request, body []byte) *nodetest.Fault {
				if strings.Contains(string(body), `"id":"1"`) {
					return c.fault
				}
				return nil
			}
			var failures []client.Failure
			w := writerOf(t, server, client.WriterConfig{InFlight: 1, RetryFor: 20 * time.Millisecond,
				OnFailure: func(f client.Failure) { failures = append(failures, f) }})
			for _, err := range []error{w.Add(t.Context(), "posts", client.Number(1), c.add), w.Add(t.Context(), "users", client.Number(2), client.Count{Column: "posts", Value: 5})} {
				if err != nil {
					t.Fatal(err)
				}
			}
			err := w.Flush(t.Context())
			if err == nil || errors.Is(err, client.ErrUnknown) != c.unknown {
				t.Fatalf("the error is %v", err)
			}
			if len(failures) != 1 || failures[0].Op.ID != client.Number(1) || !slices.Equal(failures[0].Op.Cells, client.Counts{c.add}) ||
				failures[0].Keyspace != "posts" || errors.Is(failures[0].Err, client.ErrUnknown) != c.unknown {
				t.Fatalf("failures are %+v", failures)
			}
			if got := server.Row(1); !slices.Equal(got, c.row) {
				t.Fatalf("row 1 is %v, want %v", got, c.row)
			}
			if err := w.Flush(t.Context()); err != nil {
				t.Fatalf("the failure is told twice: %v", err)
			}
		})
	}
}

// After the server forgets a producer's name, the writer continues under the same name with
// higher numbers.
func TestWriterOutlivesAForgottenName(t *testing.T) {
	server := nodetest.New(t, nodetest.OneProducer)
	producers := inTurn(server, "Countd-Producer")
	w := writerOf(t, server, client.WriterConfig{InFlight: 3, BatchOps: 2})
	for round := range 3 {
		for id := range uint64(20) {
			if err := w.Add(t.Context(), "posts", client.Number(id), like(1)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Flush(t.Context()); err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		server.ForgetProducers()
	}
	if names := slices.Compact(producers()); len(names) != 1 {
		t.Errorf("producers %v, want one", names)
	}
	for id := range uint64(20) {
		if got := server.Row(id)[2]; got != 3 {
			t.Errorf("row %d is %d, want 3", id, got)
		}
	}
}

// The server applies nothing of a batch, counts a later batch, and then forgets the producer's
// name. The writer must send the first batch again under a new name.
func TestWriterRenumbersWhatWasNotCounted(t *testing.T) {
	server := nodetest.New(t, nodetest.OneProducer)
	var mu sync.Mutex
	forgotten := false
	var names []string
	server.Fail = func(r *http.Request, body []byte) *nodetest.Fault {
		mu.Lock()
		defer mu.Unlock()
		names = append(names, r.Header.Get("Countd-Producer"))
		if forgotten || !strings.Contains(string(body), `"id":"4"`) {
			return nil
		}
		if server.Row(8)[2] == 1 { // row 8 is in the same shard, and was sent later
			forgotten = true
			server.ForgetProducers()
			return nil
		}
		return &nodetest.Fault{Status: 429, Code: "overloaded"}
	}
	w := writerOf(t, server, client.WriterConfig{InFlight: 2, BatchOps: 1})
	for _, id := range []client.ID{client.Number(4), client.Number(8)} {
		if err := w.Add(t.Context(), "posts", id, like(1)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if names = slices.Compact(names); !forgotten || len(names) != 2 {
		t.Errorf("producers %v, want two", names)
	}
	if server.Row(4)[2] != 1 || server.Row(8)[2] != 1 {
		t.Errorf("rows are %v and %v", server.Row(4), server.Row(8))
	}
}

// If some ops of a batch overflow and its answer is lost, the answer to the repeat lists the ops
// with unknown outcomes. The writer reports exactly these as unknown.
func TestWriterReportsWhatARepeatDoesNotKnow(t *testing.T) {
	server := nodetest.New(t)
	server.Put(4, 0, 0, math.MaxInt64, 0)
	server.Put(5, 0, 0, math.MaxInt64, 0)
	g := gated(server)
	held := server.Fail
	server.Fail = func(r *http.Request, body []byte) *nodetest.Fault {
		if held(r, body); g.came.Load() == 2 { // the first try of the second batch
			return &nodetest.Fault{Hang: true, After: true}
		}
		return nil
	}
	told := map[client.ID]bool{} // whether as unknown
	w := writerOf(t, server, client.WriterConfig{InFlight: 1,
		OnFailure: func(f client.Failure) { told[f.Op.ID] = errors.Is(f.Err, client.ErrUnknown) }})
	for id := range uint64(10) { // row 0 makes one batch, the others the next
		if err := w.Add(t.Context(), "posts", client.Number(id), like(1)); err != nil {
			t.Fatal(err)
		}
		if id == 0 {
			g.await(t, 1)
		}
	}
	close(g.opened)
	if err := w.Flush(t.Context()); err == nil {
		t.Fatal("a sum that was not counted is not told")
	}
	// Rows 4 and 8 share a shard with an overflow, and so do rows 1, 5 and 9.
	want := map[client.ID]bool{client.Number(1): true, client.Number(4): true, client.Number(5): true, client.Number(8): true, client.Number(9): true}
	if !maps.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

// If the server forgets the name between a lost answer and the next try, the batch may have
// counted: the writer must not send it under another name.
func TestWriterDoesNotRenumberWhatMayHaveCounted(t *testing.T) {
	server := nodetest.New(t, nodetest.OneProducer)
	var tries atomic.Int64
	server.Fail = func(*http.Request, []byte) *nodetest.Fault {
		if tries.Add(1) == 1 {
			return &nodetest.Fault{Hang: true, After: true}
		}
		server.ForgetProducers()
		return nil
	}
	w := writerOf(t, server, client.WriterConfig{})
	if err := w.Add(t.Context(), "posts", client.Number(1), like(1)); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(t.Context()); !errors.Is(err, client.ErrUnknown) {
		t.Fatalf("the error is %v", err)
	}
	if got := server.Row(1)[2]; got != 1 || tries.Load() != 2 {
		t.Fatalf("row 1 is %d after %d tries", got, tries.Load())
	}
}

func TestWriterStaysInTheWindow(t *testing.T) {
	server := nodetest.New(t)
	var first, highest atomic.Uint64
	var stuck = make(chan struct{})
	var once sync.Once
	server.Fail = func(r *http.Request, _ []byte) *nodetest.Fault {
		var seq uint64
		fmt.Sscan(r.Header.Get("Countd-Seq"), &seq)
		for at := highest.Load(); seq > at && !highest.CompareAndSwap(at, seq); at = highest.Load() {
		}
		wait := false
		once.Do(func() { first.Store(seq); wait = true })
		if wait {
			select {
			case <-stuck:
			case <-r.Context().Done():
			}
		}
		return nil
	}
	w := writerOf(t, server, client.WriterConfig{InFlight: 4, BatchOps: 1})
	for id := range uint64(200) {
		if err := w.Add(t.Context(), "posts", client.Number(id), like(1)); err != nil {
			t.Fatal(err)
		}
	}
	must.Become(t, "the highest number is at the end of the window of the stuck one", func() bool { return highest.Load() >= first.Load()+client.Window-1 })
	close(stuck)
	if err := w.Close(t.Context()); err != nil {
		t.Fatal(err) // not nil if the writer sent a number below the window
	}
	if server.Rows() != 200 {
		t.Fatalf("%d rows", server.Rows())
	}
}

func TestWriterClose(t *testing.T) {
	server := nodetest.New(t)
	g := gated(server)
	var failed atomic.Int64
	w := writerOf(t, server, client.WriterConfig{InFlight: 1, BatchOps: 1, OnFailure: func(client.Failure) { failed.Add(1) }})
	for id := range uint64(3) {
		if err := w.Add(t.Context(), "posts", client.Number(id), like(1)); err != nil {
			t.Fatal(err)
		}
	}
	g.await(t, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := w.Close(ctx); !errors.Is(err, context.Canceled) || failed.Load() != 3 {
		t.Fatalf("the error is %v, %d rows failed", err, failed.Load())
	}
	if err := w.Add(t.Context(), "posts", client.Number(1), like(1)); !errors.Is(err, client.ErrClosed) {
		t.Fatalf("Add after Close: %v", err)
	}
	if err := w.Close(t.Context()); err != nil {
		t.Fatalf("Close again: %v", err)
	}
}

func TestWriterRefuses(t *testing.T) {
	server := nodetest.New(t)
	for name, cfg := range map[string]client.WriterConfig{
		"in flight": {InFlight: client.InFlightMax + 1}, "batch": {BatchOps: client.WriteOpsMax + 1},
		"waiting": {WaitingOpsMax: -1}, "patience": {RetryFor: 2 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := dial(t, server.URL).NewWriter(cfg); err == nil {
				t.Fatal("it passed")
			}
		})
	}
	w := writerOf(t, server, client.WriterConfig{})
	for name, deltas := range map[string]client.Counts{"none": nil, "a column twice": {like(1), like(2)}} {
		t.Run(name, func(t *testing.T) {
			if err := w.Add(t.Context(), "posts", client.Number(1), deltas...); !errors.Is(err, client.ErrBadDelta) {
				t.Fatalf("the error is %v", err)
			}
		})
	}
}

// If a sum would exceed int64 or mix deltas of both signs, Sums splits it into several ops, in
// order.
func TestSums(t *testing.T) {
	var s client.Sums
	s.Add(client.Number(1), client.Counts{like(math.MaxInt64)})
	s.Add(client.Number(2), client.Counts{like(1)})
	s.Add(client.Number(1), client.Counts{{Column: "view", Value: 1}, like(1)})
	s.Add(client.Number(1), client.Counts{{Column: "view", Value: 1}})
	s.Add(client.Number(1), client.Counts{like(-5)})
	s.Add(client.Number(1), client.Counts{like(-1)})
	want := []client.Op{
		{ID: client.Number(1), Cells: client.Counts{like(math.MaxInt64)}},
		{ID: client.Number(2), Cells: client.Counts{like(1)}},
		{ID: client.Number(1), Cells: client.Counts{{Column: "view", Value: 2}, like(1)}},
		{ID: client.Number(1), Cells: client.Counts{like(-6)}},
	}
	s.Add(client.Number(3), client.Counts{like(math.MinInt64)})
	s.Add(client.Number(3), client.Counts{like(0)})
	s.Add(client.Number(3), client.Counts{like(-1)})
	s.Add(client.Number(4), client.Counts{like(-1)})
	s.Add(client.Number(4), client.Counts{like(math.MinInt64 + 1)}) // the lowest sum that fits
	want = append(want,
		client.Op{ID: client.Number(3), Cells: client.Counts{like(math.MinInt64)}},
		client.Op{ID: client.Number(3), Cells: client.Counts{like(-1)}},
		client.Op{ID: client.Number(4), Cells: client.Counts{like(math.MinInt64)}},
	)
	if got := s.Ops(); s.Len() != len(want) || fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("ops are %v, want %v", got, want)
	}
}

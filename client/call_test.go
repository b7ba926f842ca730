package client_test

import (
	"context"
	"errors"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/nodetest"
)

// clientOf returns a client of several servers that retries for must.BecomeMax.
func clientOf(t *testing.T, addrs ...string) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{Addrs: addrs, Retry: client.Retry{For: must.BecomeMax}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// inTurn makes the server answer the first requests with the faults, in order, and later requests
// correctly. It records a header of each request.
func inTurn(s *nodetest.Server, header string, faults ...*nodetest.Fault) func() []string {
	var mu sync.Mutex
	var seen []string
	s.Fail = func(r *http.Request, _ []byte) *nodetest.Fault {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, r.Header.Get(header))
		if len(seen) > len(faults) {
			return nil
		}
		return faults[len(seen)-1]
	}
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

var (
	lost    = &nodetest.Fault{Hang: true, After: true}
	unknown = &nodetest.Fault{Status: 504, Code: "outcome_unknown", After: true}
	busy    = &nodetest.Fault{Status: 429, Code: "overloaded"}
	partial = &nodetest.Fault{Status: 503, Code: "no_leader", After: true, Shards: []int{1, 2}}
)

// Each call carries one key over all its tries, and counts once.
func TestWritesAreRepeatedUnderOneKey(t *testing.T) {
	server := nodetest.New(t)
	c := clientOf(t, server.URL)
	ops := []client.Op{{ID: client.Number(1), Cells: client.Counts{like(1)}}, {ID: client.Number(4), Cells: client.Counts{like(1)}}}
	cases := []struct {
		name string
		o    client.WriteOptions
	}{
		{"own key", client.WriteOptions{}},
		{"quiet", client.WriteOptions{Quiet: true}},
		{"given key", client.WriteOptions{Key: "order-17"}},
		{"producer", client.WriteOptions{Producer: "p", Seq: 1}},
	}
	for n, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			header := "Idempotency-Key"
			if tc.o.Producer != "" {
				header = "Countd-Producer"
			}
			seen := inTurn(server, header, lost, unknown, busy, partial)
			result, err := c.IncrMany(t.Context(), "posts", ops, tc.o)
			if err != nil || !result.Duplicate || tc.o.Quiet != (result.Results == nil) {
				t.Fatalf("%+v, %v", result, err)
			}
			keys := seen()
			if len(keys) != 5 || keys[0] == "" || len(slices.Compact(keys)) != 1 {
				t.Fatalf("the tries carried %q", seen())
			}
			for _, id := range []uint64{1, 4} {
				if got := server.Row(id)[2]; got != int64(n+1) {
					t.Errorf("row %d is %d after %d calls", id, got, n+1)
				}
			}
		})
	}
	t.Run("delete and set", func(t *testing.T) {
		seen := inTurn(server, "Idempotency-Key", lost)
		if _, err := c.Delete(t.Context(), "posts", client.Number(1), client.WriteOptions{}); err != nil || server.Row(1)[2] != 0 {
			t.Fatalf("%v, row 1 is %v", err, server.Row(1))
		}
		if _, err := c.Set(t.Context(), "posts", ops, client.WriteOptions{}); err != nil || server.Row(1)[2] != 1 {
			t.Fatalf("%v, row 1 is %v", err, server.Row(1))
		}
		if keys := seen(); len(keys) != 3 || keys[0] != keys[1] || keys[1] == keys[2] {
			t.Fatalf("the tries carried %q", keys)
		}
	})
}

func TestWhatIsNotRepeated(t *testing.T) {
	cases := []struct {
		name  string
		o     client.WriteOptions
		fault *nodetest.Fault
		maybe bool
	}{
		{"bad request", client.WriteOptions{}, &nodetest.Fault{Status: 400, Code: "invalid_argument"}, false},
		{"conflict", client.WriteOptions{}, &nodetest.Fault{Status: 409, Code: "idempotency_conflict"}, false},
		{"expired", client.WriteOptions{}, &nodetest.Fault{Status: 410, Code: "idempotency_expired"}, false},
		{"fault of the server", client.WriteOptions{}, &nodetest.Fault{Status: 500, Code: "internal"}, true},
		{"unkeyed and lost", client.WriteOptions{Unkeyed: true}, lost, true},
		{"unkeyed and busy", client.WriteOptions{Unkeyed: true}, busy, false},
		{"unkeyed and too slow", client.WriteOptions{Unkeyed: true}, &nodetest.Fault{Status: 408, Code: "request_timeout"}, false},
		{"unkeyed and 408 of something in between", client.WriteOptions{Unkeyed: true}, &nodetest.Fault{Status: 408}, true},
		{"unkeyed and 503 of something in between", client.WriteOptions{Unkeyed: true}, &nodetest.Fault{Status: 503}, true},
		{"unkeyed and in part", client.WriteOptions{Unkeyed: true}, partial, true},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			server := nodetest.New(t)
			seen := inTurn(server, "", tc.fault)
			_, err := clientOf(t, server.URL).IncrMany(t.Context(), "posts", []client.Op{{ID: client.Number(1), Cells: client.Counts{like(1)}}}, tc.o)
			if err == nil || errors.Is(err, client.ErrUnknown) != tc.maybe || len(seen()) != 1 {
				t.Fatalf("%d tries, %v", len(seen()), err)
			}
		})
	}
	t.Run("both kinds", func(t *testing.T) {
		server := nodetest.New(t)
		seen := inTurn(server, "")
		for _, o := range []client.WriteOptions{{Key: "k", Producer: "p", Seq: 1}, {Producer: "p"}, {Seq: 1}, {Key: "k", Unkeyed: true}} {
			if _, err := clientOf(t, server.URL).IncrMany(t.Context(), "posts", nil, o); err == nil || len(seen()) != 0 {
				t.Fatalf("%+v passed", o)
			}
		}
	})
}

// The error says that an earlier try may have counted, even if the last one did not.
func TestUnknownOutlivesALaterRefusal(t *testing.T) {
	server := nodetest.New(t)
	inTurn(server, "", lost, &nodetest.Fault{Status: 410, Code: "idempotency_expired"})
	_, err := clientOf(t, server.URL).IncrMany(t.Context(), "posts", []client.Op{{ID: client.Number(1), Cells: client.Counts{like(1)}}}, client.WriteOptions{})
	var refused *client.Error
	if !errors.Is(err, client.ErrUnknown) || !errors.As(err, &refused) || refused.Status != 410 {
		t.Fatalf("the error is %v", err)
	}
}

// If the server refuses a write because its sums overflow, the error is not ErrUnknown, even if an
// earlier try had no answer. The server remembers the refusal, so the earlier try cannot have
// counted.
func TestOverflowIsNotUnknown(t *testing.T) {
	for name, fault := range map[string]*nodetest.Fault{"arrived": lost, "never arrived": {Hang: true}} {
		t.Run(name, func(t *testing.T) {
			server := nodetest.New(t)
			server.Put(1, 0, 0, math.MaxInt64, 0)
			seen := inTurn(server, "", fault)
			_, err := clientOf(t, server.URL).IncrMany(t.Context(), "posts", []client.Op{{ID: client.Number(1), Cells: client.Counts{like(1)}}}, client.WriteOptions{})
			var refused *client.Error
			if errors.Is(err, client.ErrUnknown) || !errors.As(err, &refused) || refused.Code != "overflow" || len(seen()) != 2 {
				t.Fatalf("%d tries, %v", len(seen()), err)
			}
		})
	}
}

func TestNobodyThereIsNotUnknown(t *testing.T) {
	c, err := client.New(client.Config{Addrs: []string{"127.0.0.1:1"}, Retry: client.Retry{For: client.RetryNever}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.IncrMany(t.Context(), "posts", []client.Op{{ID: client.Number(1), Cells: client.Counts{like(1)}}}, client.WriteOptions{})
	if !errors.Is(err, client.ErrNoAnswer) || errors.Is(err, client.ErrUnknown) {
		t.Fatalf("the error is %v: nothing was sent", err)
	}
}

func TestCallsGoToAServerThatAnswers(t *testing.T) {
	draining, good := nodetest.New(t), nodetest.New(t)
	asked := inTurn(draining, "", &nodetest.Fault{Status: 503, Code: "draining", RetryAfter: "60"})
	c := clientOf(t, "127.0.0.1:1", draining.URL, good.URL)
	began := time.Now()
	for range 3 {
		if _, err := c.IncrMany(t.Context(), "posts", []client.Op{{ID: client.Number(1), Cells: client.Counts{like(1)}}}, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if c.Addr() != good.URL || good.Row(1)[2] != 3 || len(asked()) != 1 {
		t.Fatalf("the client is at %s, row 1 is %v, %d requests at the draining server", c.Addr(), good.Row(1), len(asked()))
	}
	if took := time.Since(began); took > 30*time.Second { // half of what the draining server asked for
		t.Fatalf("it waited %v with a good server at hand", took)
	}
}

func TestDeadlines(t *testing.T) {
	// The client reserves between travelMin and travelMax of a context's time for the answer to
	// travel.
	const travelMin, travelMax = 50 * time.Millisecond, 150 * time.Millisecond
	cases := []struct {
		name     string
		deadline time.Duration // deadline of the context; 0 for none
	}{
		{"client's own", 0},
		{"context's", client.TimeoutDefault - time.Second},
		{"context's, later than the client's", time.Minute},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			server := nodetest.New(t)
			seen := inTurn(server, "Countd-Timeout")
			ctx, cancel := t.Context(), context.CancelFunc(func() {})
			if tc.deadline > 0 {
				ctx, cancel = context.WithTimeout(ctx, tc.deadline)
			}
			defer cancel()
			if _, err := clientOf(t, server.URL).Get(ctx, "posts", client.Number(1), client.ReadOptions{}); err != nil {
				t.Fatal(err)
			}
			least, most := client.TimeoutDefault, client.TimeoutDefault
			if end, has := ctx.Deadline(); has { // the client sent the request earlier, when more time was left
				least, most = min(least, time.Until(end)-travelMax), min(most, tc.deadline-travelMin)
			}
			if got, err := time.ParseDuration(strings.Join(seen(), "")); err != nil || got < least || got > most {
				t.Fatalf("the deadline sent is %v, %v; want %v to %v", got, err, least, most)
			}
		})
	}
	t.Run("no wait beyond the context", func(t *testing.T) {
		server := nodetest.New(t)
		inTurn(server, "", &nodetest.Fault{Status: 429, Code: "overloaded", RetryAfter: "60"})
		const deadline = 50 * time.Second // shorter than what the server asks for
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		began := time.Now()
		_, err := clientOf(t, server.URL).Get(ctx, "posts", client.Number(1), client.ReadOptions{})
		var refused *client.Error
		if !errors.As(err, &refused) || time.Since(began) > deadline/2 {
			t.Fatalf("%v after %v", err, time.Since(began))
		}
	})
}

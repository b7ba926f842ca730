package e2e

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

const (
	producerCount = 8
	lifeMin       = 500 * time.Millisecond // least time from a ready node to its kill
	lifeSpread    = 3 * time.Second        // bound of the random time that is added to lifeMin; also at most a third of the storm
	volleysLeast  = 3                      // least number of volleys of a producer: enough that its first number is below the window at the end
)

// TestOnceUnderKills makes producers send each request up to four times, in any order within the
// window. They repeat a request until it has an answer: after a deadline that was too short, after
// they closed the connection, and after a kill of the node. Then
//
//  1. each count is exactly the sum of the requests, each counted once, even after a kill and after
//     a clean stop;
//  2. no answer to a request that was sent only once has duplicate set;
//  3. if a request is sent again after its answer, the new answer has duplicate set. If all ops of
//     a request are on one id, at most one of its answers does not have duplicate set;
//  4. a request whose ops all overflow is refused each time;
//  5. the server refuses a number below the window, and a key with another body.
func TestOnceUnderKills(t *testing.T) {
	long(t)
	t.Parallel()
	span := *onceFor
	n := proctest.NewNode(t, bin, t.TempDir(), "--shards=posts=2", "--shards=users=1")
	n.StartReady()
	s := startStorm(t, n)
	growLog(t, n) // so that later starts read snapshots with idempotency records
	n.Stop()
	n.StartReady()
	hasSnapshots(t, n)
	kills := 0
	for end := time.Now().Add(span); time.Now().Before(end) && s.blows(lifeMin+rand.N(min(lifeSpread, span/3))); {
		n.Kill()
		if kills++; rand.IntN(4) == 0 { // kill it once more while it recovers
			n.Start()
			n.WaitReady(rand.N(300 * time.Millisecond))
			n.Kill()
			kills++
		}
		n.StartReady()
	}
	s.end(t)
	s.check(t, "after the storm")
	s.refusesWhatItCannotJudge(t)
	s.check(t, "after what must be refused")
	n.Kill()
	n.StartReady()
	s.check(t, "after one more kill")
	n.Stop()
	n.StartReady()
	s.check(t, "after a stop")
	t.Logf("%d kills in %v: %v", kills, span, s)
}

// storm is the load of TestOnceUnderKills: a node and the producers that send to it.
type storm struct {
	node      *proctest.Node
	ids       []string // ids that requests increment
	brims     []string // ids of rows in which every increment overflows
	producers []*producer

	running  context.Context // ends with the test
	storming context.Context // ends before running does; after its end, producers begin no volley
	calm     context.CancelCauseFunc
	group    sync.WaitGroup

	sent, answered, duplicates, refused, unknown, cut atomic.Int64 // numbers of sent requests, by outcome
}

// startStorm sets the counts of the rows brims to the maximum and starts a goroutine for each
// producer. The method end stops the producers and waits for them.
func startStorm(t *testing.T, n *proctest.Node) *storm {
	t.Helper()
	s := &storm{node: n, ids: newLedger().ids, brims: []string{"5000000001", "5000000002", "5000000003", "5000000004"}}
	for _, id := range s.brims {
		n.MustCall(http.MethodPut, "/v1/counters/posts/"+id, map[string]any{"set": map[string]int64{"like": math.MaxInt64}}, nil)
	}
	s.running = t.Context()
	s.storming, s.calm = context.WithCancelCause(s.running)
	t.Cleanup(s.group.Wait)
	for range producerCount {
		p := newProducer(s)
		s.producers = append(s.producers, p)
		s.group.Go(func() {
			if err := p.run(); err != nil {
				s.calm(err)
			}
		})
	}
	return s
}

// blows waits for d and returns true. If a producer fails, it returns false at once.
func (s *storm) blows(d time.Duration) bool {
	select {
	case <-s.storming.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// end stops the producers. It waits until each has finished its current volley.
func (s *storm) end(t *testing.T) {
	t.Helper()
	s.calm(nil)
	s.group.Wait()
	if err := context.Cause(s.storming); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	if s.unknown.Load() == 0 || s.duplicates.Load() == 0 || s.refused.Load() == 0 {
		t.Errorf("the storm left something out: %v", s)
	}
}

// check reads every row and compares its counts with the sums of all producers.
func (s *storm) check(t *testing.T, when string) {
	t.Helper()
	want := map[cell]int64{}
	for _, id := range s.brims {
		want[cell{id, "like"}] = math.MaxInt64
	}
	for _, p := range s.producers {
		for c, n := range p.counted {
			want[c] += n
		}
	}
	wrong, rows := 0, uint64(0)
	for _, row := range s.node.Rows("posts", slices.Concat(s.ids, s.brims)) {
		empty := true
		for column, got := range row.Counts {
			empty = empty && got == 0
			if n := want[cell{row.ID, column}]; got != n {
				if wrong++; wrong <= wrongShownMax {
					t.Errorf("%s: id %s, %s: %d, want %d", when, row.ID, column, got, n)
				}
			}
		}
		if !empty {
			rows++
		}
	}
	if wrong > 0 {
		t.Errorf("%s: %d counts are wrong", when, wrong)
	}
	if all := s.node.Cluster().Rows("posts"); all != rows {
		t.Errorf("%s: %d rows, want %d", when, all, rows)
	}
}

// refusesWhatItCannotJudge checks that the server refuses two requests of each producer: one with
// the producer's first number, and one with a recent key and another body.
func (s *storm) refusesWhatItCannotJudge(t *testing.T) {
	t.Helper()
	for _, p := range s.producers {
		old := newRequest([]op{{s.ids[0], map[string]int64{"view": 1}}})
		old.header = p.number(1)
		other := newRequest([]op{{s.ids[1], map[string]int64{"view": 1}}})
		other.header = p.lastKeyed.header
		for code, r := range map[string]*request{"idempotency_expired": old, "idempotency_conflict": other} {
			var got answer
			status, err := s.node.Send(s.running, http.MethodPost, incrPath, r.header, r.body, &got)
			if err != nil || got.Error.Code != code {
				t.Errorf("%v: status %d, %+v, %v; want %s", r.header, status, got, err, code)
			}
		}
	}
}

func (s *storm) String() string {
	return fmt.Sprintf("%d requests sent %d times; %d answered (%d as duplicates, %d refused for overflow), %d of unknown outcome or put off, %d cut off",
		s.requests(), s.sent.Load(), s.answered.Load(), s.duplicates.Load(), s.refused.Load(), s.unknown.Load(), s.cut.Load())
}

func (s *storm) requests() (n int) {
	for _, p := range s.producers {
		n += p.requests
	}
	return n
}

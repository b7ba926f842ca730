package proctest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/client/admin"
)

// TestFatesOfTries checks that a request that may have been applied never has the fate refused.
func TestFatesOfTries(t *testing.T) {
	dial := &net.OpError{Op: "dial", Err: errors.New("refused")}
	for _, tc := range []struct {
		name   string
		status int
		err    error
		answer answer
		want   fate
	}{
		{"answered", 200, nil, answer{}, done},
		{"no connection", 0, fmt.Errorf("post: %w", dial), answer{}, refused},
		{"hung up", 0, errors.New("EOF"), answer{}, unknown},
		{"silent", 0, context.DeadlineExceeded, answer{}, unknown},
		{"no leader", 503, nil, answer{}, refused},
		{"overloaded", 429, nil, answer{}, refused},
		{"applied in part", 503, nil, answer{Applied: []any{"1"}}, unknown},
		{"unknown in part", 503, nil, answer{Unknown: []string{"1"}}, unknown},
		{"unknown", 504, nil, answer{}, unknown},
		{"not understood", 400, nil, answer{}, wrong},
		{"too old to tell", 410, nil, answer{}, wrong},
		{"broken", 500, nil, answer{}, wrong},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, why := fateOf(tc.status, tc.err, &tc.answer); got != tc.want {
				t.Errorf("fate %d (%s), want %d", got, why, tc.want)
			}
		})
	}
}

// TestDigestsAreCompared passes reports of replicas to digests.note, one after the other.
func TestDigestsAreCompared(t *testing.T) {
	type shown struct {
		node, digest string
		index        uint64
	}
	for _, tc := range []struct {
		name    string
		shown   []shown
		matched int
		wrong   int
	}{
		{"alike", []shown{{"n1", "a", 5}, {"n2", "a", 5}}, 1, 0},
		{"one of them twice", []shown{{"n1", "a", 5}, {"n1", "a", 5}}, 0, 0},
		{"at other indexes", []shown{{"n1", "a", 5}, {"n2", "b", 6}}, 0, 0},
		{"different", []shown{{"n1", "a", 5}, {"n2", "b", 5}}, 0, 1},
		{"different from an earlier self", []shown{{"n1", "a", 5}, {"n1", "b", 5}}, 0, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := &digests{}
			d.mu.seen = map[place]sighting{}
			for _, s := range tc.shown {
				d.note(s.node, []admin.Group{{ID: 1, AppliedIndex: s.index, Digest: s.digest}})
			}
			if d.mu.matched != tc.matched || len(d.mu.wrong) != tc.wrong {
				t.Errorf("%d matched, wrong %q; want %d and %d", d.mu.matched, d.mu.wrong, tc.matched, tc.wrong)
			}
		})
	}
}

// TestTallyHoldsAnswersToWhatWasAcknowledged passes answers to increments to a tally, and then the
// answer to a later read.
func TestTallyHoldsAnswersToWhatWasAcknowledged(t *testing.T) {
	type added struct {
		fate          fate
		before, count int64
	}
	for _, tc := range []struct {
		name  string
		added []added
		read  int64
		wrong int
	}{
		{"each counts", []added{{done, 0, 1}, {done, 1, 2}}, 2, 0},
		{"one is lost before a read", []added{{done, 0, 1}, {done, 1, 2}}, 1, 1},
		{"one is lost before the next", []added{{done, 0, 1}, {done, 1, 1}}, 2, 1},
		{"one counts twice", []added{{done, 0, 1}}, 2, 1},
		{"a refused one counts", []added{{done, 0, 1}, {refused, 1, 0}}, 2, 1},
		{"an unknown one counts", []added{{done, 0, 1}, {unknown, 1, 0}}, 2, 0},
		{"an unknown one does not", []added{{done, 0, 1}, {unknown, 1, 0}}, 1, 0},
		{"a good one is not understood", []added{{wrong, 0, 0}}, 0, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, y := &Member{Name: "n1"}, &Tally{}
			y.mu.by = map[*Member]int64{}
			for _, a := range tc.added {
				y.mu.sent++
				y.added(n, a.before, outcome{fate: a.fate}, a.count)
			}
			y.read(n, y.AcknowledgedBy(n), outcome{fate: done}, tc.read)
			if len(y.mu.wrong) != tc.wrong {
				t.Errorf("wrong %q, want %d", y.mu.wrong, tc.wrong)
			}
		})
	}
}

func TestStatsOfAStretchOfTime(t *testing.T) {
	began := time.Now()
	l := &Load{}
	for i := range 100 {
		l.mu.requests = append(l.mu.requests, Request{Begun: began.Add(time.Duration(i) * time.Second), Took: time.Duration(i) * time.Millisecond})
	}
	l.mu.requests[50].Took = RequestDeadline + 1
	l.mu.requests[50].Failed = []FailedTry{{Why: "503"}, {Why: "503"}}
	s := l.Between(began.Add(10*time.Second), began.Add(59*time.Second))
	if s.Requests != 50 || s.Late != 1 || s.Retried != 1 || s.Failed["503"] != 2 || s.Max != RequestDeadline+1 {
		t.Errorf("%+v", s)
	}
	if s.P50 != 35*time.Millisecond || s.P99 != s.Max || len(s.Longest) != 2 {
		t.Errorf("%+v", s)
	}
	if empty := l.Between(began.Add(time.Hour), began.Add(2*time.Hour)); empty.Requests != 0 || empty.Max != 0 {
		t.Errorf("of no requests: %+v", empty)
	}
}

// A request is late if it takes longer than RequestDeadline plus an allowance for the machine's
// stalls during the request. Stalls at other times do not count.
func TestLateRequests(t *testing.T) {
	began := time.Now()
	for _, tc := range []struct {
		name  string
		took  time.Duration
		stall stall
		late  int
	}{
		{"in time", RequestDeadline, stall{}, 0},
		{"late", RequestDeadline + 1, stall{}, 1},
		{"excused", RequestDeadline + stallsInRequest*time.Second, stall{began.Add(2 * time.Second), time.Second}, 0},
		{"later than that", RequestDeadline + stallsInRequest*time.Second + 1, stall{began.Add(2 * time.Second), time.Second}, 1},
		{"a stall before it", RequestDeadline + 1, stall{began, time.Second}, 1},
		{"a stall that began before it", RequestDeadline + stallsInRequest*time.Second, stall{began.Add(time.Second / 2), time.Second}, 1},
		{"a stall after it", RequestDeadline + 1, stall{began.Add(time.Minute), time.Second}, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := &Load{}
			l.mu.requests = []Request{{Begun: began, Took: tc.took}}
			l.stalls.note(tc.stall.end, tc.stall.took)
			if s := l.Between(began, began); s.Late != tc.late {
				t.Errorf("%d late, want %d: %+v", s.Late, tc.late, s)
			}
		})
	}
}

// TestCutsAreSilent makes one node dial others while they are connected, cut off, and connected
// again.
func TestCutsAreSilent(t *testing.T) {
	sites, divide := newNamespaces(t)
	for _, site := range sites[:3] {
		serve(t, site)
	}
	for _, step := range []struct {
		name    string
		parts   [][]int
		reached []int // nodes that node 0 reaches
	}{
		{"together", nil, []int{0, 1, 2}},
		{"alone", [][]int{{0}}, []int{0}},
		{"with one", [][]int{{0, 2}}, []int{0, 2}},
		{"all alone", [][]int{{0}, {1}}, []int{0}},
		{"together again", nil, []int{0, 1, 2}},
	} {
		if err := divide(step.parts); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		var reached []int
		for to := range 3 {
			err := dial(sites[0], sites[to].Gossip)
			var failed net.Error
			switch {
			case err == nil:
				reached = append(reached, to)
			case !errors.As(err, &failed) || !failed.Timeout():
				t.Errorf("%s: dialling %d: %v, want silence", step.name, to, err)
			}
		}
		if !slices.Equal(reached, step.reached) {
			t.Errorf("%s: reached %v, want %v", step.name, reached, step.reached)
		}
	}
	if err := divide([][]int{{0}, {1}, {2}}); err == nil {
		t.Error("more parts than bridges: no error")
	}
}

// serve listens at a site until the test ends.
func serve(t *testing.T, s Site) {
	t.Helper()
	err := s.Enter(func() error {
		l, err := net.Listen("tcp", s.Gossip)
		if err == nil {
			t.Cleanup(func() { l.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// dial connects from a site to an address. A connection is either made at once or not at all.
func dial(from Site, addr string) error {
	return from.Enter(func() error {
		conn, err := net.DialTimeout("tcp", addr, 300*time.Millisecond)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

package source

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/countd/countd/source/sink"
)

// replacement is a naive observer of the queue and the shards. It records which message was at each
// position when a shard passed the position.
type replacement struct {
	q      *fakeQueue
	passed []string
}

// saw records the messages below high, the highest position of the shards. Call it before the queue
// loses anything.
func (r *replacement) saw(high uint64) {
	for at := uint64(len(r.passed)); at < high; at++ {
		r.passed = append(r.passed, r.q.values[at])
	}
}

// replaced compares the queue with the record. some reports whether any message that a shard passed
// was replaced or lost. shown reports the same for only the last such message and the gap after it.
// A message that was removed on purpose does not count as lost.
func (r *replacement) replaced() (some, shown bool) {
	last := len(r.passed) - 1
	for last > 0 && r.passed[last] == "" {
		last--
	}
	for at, was := range r.passed {
		if uint64(at) < r.q.first || r.q.deleted[uint64(at)] {
			continue
		}
		is := at < len(r.q.values) && r.q.values[at] == was
		some, shown = some || !is, shown || !is && at >= last
	}
	return some, shown
}

// TestReplacedModel: a queue gets messages, loses its end and grows again, and counted messages are
// removed. Readers begin and die at any moment, and the broker and the shards fail:
//
//  1. the reader stalls and counts nothing if the last message that a shard passed was replaced. It
//     also does so if a new message follows that message below the shard's position;
//  2. otherwise the reader reaches the end, and each message is counted once.
func TestReplacedModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		q, c := newFakes(rapid.IntRange(1, 4).Draw(t, "shards"), rand.New(rand.NewPCG(rng.Uint64(), 2)))
		q.rng, q.deleted = rand.New(rand.NewPCG(rng.Uint64(), 3)), map[uint64]bool{}
		cfg, oracle, written := testConfig(t, ""), &replacement{q: q}, uint64(1000)
		grow := func() {
			for range 1 + rng.IntN(9) {
				written++
				q.add(like(written, 1))
				q.add(make([]string, max(0, rng.IntN(9)-4))...) // a gap
			}
		}
		span := func() (low, high uint64) {
			all := c.Positions()
			return slices.MinFunc(all, Position.Compare).Lo, slices.MaxFunc(all, Position.Compare).Lo
		}
		var stop func()
		kill := func() {
			if stop != nil {
				stop()
				stop = nil
			}
			_, high := span()
			oracle.saw(high)
		}
		for range rapid.IntRange(1, 25).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "step") {
			case 0, 1:
				grow()
			case 2, 3, 4, 5:
				if stop == nil {
					_, stop = startRunner(cfg, q, c)
				}
				time.Sleep(time.Duration(rng.IntN(4)) * time.Millisecond)
			case 6:
				kill()
			case 7: // end the reader first, because a real loss breaks its connections
				kill()
				if n := uint64(len(q.values)); n > q.first {
					lost := 1 + rng.Uint64N(n-q.first)
					if rng.IntN(2) == 0 {
						lost = min(lost, 1+rng.Uint64N(4)) // in some cases, lose only the gap at the end
					}
					keep := n - lost
					q.values, q.times = q.values[:keep], q.times[:keep]
					for at := range q.deleted {
						if at >= keep {
							delete(q.deleted, at)
						}
					}
				}
				if rng.IntN(3) > 0 { // otherwise, a reader may see the truncated queue before it grows
					grow()
				}
			case 8, 9:
				kill()
				if low, _ := span(); low > q.first && low <= uint64(len(q.values)) {
					if at := q.first + rng.Uint64N(low-q.first); rng.IntN(2) == 0 {
						q.deleted[at] = true
					} else {
						q.first = at + 1
					}
				}
			}
		}
		kill()
		for uint64(len(q.values)) <= uint64(len(oracle.passed)) {
			grow()
		}
		before := c.Sums()
		r, stop := startRunner(cfg, q, c)
		defer stop()
		var status Status // keep this status, because a later one may be about another failure
		eventually(t, "it is at the end or stalls", func() bool {
			status = r.Status()
			return status.State == StateStalled || caughtUp(q, c)
		})
		stalled := status.State == StateStalled
		some, shown := oracle.replaced()
		switch {
		case shown:
			if !stalled || !strings.Contains(status.Reason, "the queue lost messages") {
				t.Fatalf("the last message passed is another one, and it goes on: %+v", status)
			}
			if after := c.Sums(); fmt.Sprint(after) != fmt.Sprint(before) {
				t.Fatalf("it counted before it stalled: %v, then %v", before, after)
			}
		case !some:
			if stalled {
				t.Fatalf("nothing was replaced, and it stalls: %s", status.Reason)
			}
			sums := c.Sums()
			for at, value := range q.values {
				var id uint64
				if uint64(at) < q.first || !q.has(uint64(at)) {
					continue // the removed message may itself have replaced another one
				}
				if _, err := fmt.Sscanf(value, `{"keyspace":"posts","id":%d`, &id); err != nil {
					t.Fatal(err)
				}
				if sums[id] != 1 {
					t.Fatalf("message %d is counted %d times", at, sums[id])
				}
			}
		}
	})
}

// A mark describes the last message below a position. This also holds if a batch is cut at the
// position, or if later batches have no messages.
func TestMarks(t *testing.T) {
	message := func(at uint64) Message { return Message{Position: Position{Lo: at}, Value: []byte{byte(at)}} }
	before := message(1)
	s := &session{last: MarkOf(&before)}
	messages := []Message{message(3), message(5)}
	for below, want := range map[uint64]uint64{3: 1, 4: 3, 5: 3, 6: 5, 9: 5} {
		if got := s.marks(messages)(Position{Lo: below}); got.Position.Lo != want || got != MarkOf(new(message(want))) {
			t.Errorf("below %d: %v, want that of %d", below, got, want)
		}
	}
	if got := s.marks(nil)(Position{Lo: 9}); got != s.last {
		t.Errorf("without messages: %v", got)
	}
	if got := (&session{}).marks(nil)(Position{Lo: 9}); got.Exists() {
		t.Errorf("with nothing read: %v", got)
	}
}

// Messages with another time, key or value have another mark. The value makes no difference if
// Derived is set.
func TestMarkOf(t *testing.T) {
	at := time.UnixMilli(5)
	messages := []Message{
		{}, {Value: []byte("ab")}, {Key: []byte("ab")}, {Key: []byte("a"), Value: []byte("b")}, {Time: at}, {Time: at, Value: []byte("ab")}, {Position: Position{Lo: 1}},
	}
	seen := map[sink.Mark]bool{}
	for i := range messages {
		m := MarkOf(&messages[i])
		if seen[m] || !m.Exists() {
			t.Errorf("message %d: mark %v", i, m)
		}
		seen[m] = true
	}
	row := func(value string) *Message { return &Message{Key: []byte("xid"), Value: []byte(value), Derived: true} }
	if MarkOf(row("a")) != MarkOf(row("b")) {
		t.Error("another spelling of a row is another message")
	}
}

// The comparison has no time limit while the broker makes progress. After a while, the partition
// counts as stalled, and the reason names a seek that makes the comparison unnecessary. The
// comparison also ends when the runner ends.
func TestLongComparison(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q, c := newFakes(1, nil)
		q.add(like(1, 1))
		_, stop := startRunner(testConfig(t, ""), q, c)
		eventually(t, "it is counted", func() bool { return caughtUp(q, c) })
		stop()
		q.add(like(1, 1))
		began, goesOn, ending := make(chan struct{}), make(chan struct{}), make(chan struct{})
		first := sync.OnceFunc(func() { close(began) })
		q.again = func(ctx context.Context, progress func()) error {
			first()
			tick := time.NewTicker(time.Millisecond)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					progress()
				case <-goesOn:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		run := func(silence time.Duration) (*Runner, chan struct{}) {
			r := NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, ""), Broker: q, Sink: c.Node(), Ending: ending})
			r.times.backoffMin, r.times.backoffMax, r.times.tick = time.Millisecond, 4*time.Millisecond, 3*time.Millisecond
			r.times.call, r.times.silence = 100*time.Millisecond, silence
			ended := make(chan struct{})
			go func() { defer close(ended); r.Run(t.Context()) }()
			return r, ended
		}
		r, ended := run(100 * time.Millisecond)
		<-began
		time.Sleep(300 * time.Millisecond) // three times as long as a call may take
		r.status.mu.Lock()
		r.status.mu.ok = time.Now().Add(-time.Hour)
		r.status.mu.Unlock()
		if s := r.Status(); s.State != StateStalled || !strings.Contains(s.Reason, "is being read again") || !strings.Contains(s.Reason, "seek to 1 ") || s.Errors[reasonBroker] > 0 {
			t.Errorf("%+v", s)
		}
		close(goesOn)
		eventually(t, "it goes on", func() bool { return caughtUp(q, c) && r.Status().State == StateRunning && r.Status().Reason == "" })
		close(ending)
		<-ended

		q.again = func(ctx context.Context, _ func()) error { <-ctx.Done(); return ctx.Err() }
		ending = make(chan struct{})
		r, ended = run(10 * time.Millisecond)
		eventually(t, "it says that it does not get on", func() bool {
			return strings.Contains(r.Status().Reason, "does not get on for 10ms: seek to 2 ")
		})
		close(ending)
		<-ended
		ending = make(chan struct{})
		r, ended = run(time.Hour)
		eventually(t, "it compares", func() bool {
			r.status.mu.Lock()
			defer r.status.mu.Unlock()
			return r.status.mu.doing != ""
		})
		close(ending)
		<-ended
	})
}

// TestGapAboveTheMark: after the check, a message is written between the mark of the highest shard
// and that shard's position. That shard would skip the message, so a reader that begins below the
// message must stall.
func TestGapAboveTheMark(t *testing.T) {
	q, shards := newFakes(2, nil)
	q.add(like(1, 1), like(2, 1), "", "")
	_, stop := startRunner(testConfig(t, ""), q, shards)
	eventually(t, "all shards have moved", func() bool { return caughtUp(q, shards) })
	stop()
	shards.Restore(1, Position{})
	q.reads = func() { q.set(func() { q.values[2] = like(2, 1) }) }
	r, stop := startRunner(testConfig(t, ""), q, shards)
	defer stop()
	eventually(t, "it stalls, or passes the message", func() bool { return r.Status().State == StateStalled || shards.At(Position{Lo: 4}) })
	if reason := r.Status().Reason; !strings.Contains(reason, "message at position 1, the last one counted below position 4, is followed by one at position 2, where there was none") ||
		!strings.HasSuffix(reason, "seek to 4 to go on without it") {
		t.Errorf("the reason is %q; rows are %v", reason, shards.Sums())
	}
}

package source

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/source/sink"
	"github.com/countd/countd/source/sink/sinktest"
)

// pause waits before a test checks again.
func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Millisecond):
		return nil
	}
}

func testConfig(t interface{ Fatal(...any) }, more string) *Config {
	c, err := ParseConfig([]byte("name: likes\ntype: redis-stream\naddr: x\nkey: k\nbatch: {messages: 7, linger: 1ms}\n" + more))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func newFakes(shards int, rng *rand.Rand) (*fakeQueue, *sinktest.Cluster) {
	return &fakeQueue{identity: "one", letters: map[string]Letter{}}, sinktest.New(shards, rng)
}

// startRunner runs a runner until stop is called.
func startRunner(cfg *Config, q *fakeQueue, c *sinktest.Cluster) (r *Runner, stop func()) {
	return startRunnerOn(cfg, q, c.Node())
}

func startRunnerOn(cfg *Config, q *fakeQueue, s sink.Sink) (r *Runner, stop func()) {
	r = NewRunner(RunnerConfig{Number: 1, Source: cfg, Broker: q, Sink: s})
	r.times.backoffMin, r.times.backoffMax, r.times.tick = time.Millisecond, 4*time.Millisecond, 3*time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx)
	}()
	return r, func() { cancel(); <-ended }
}

// eventually waits until a condition holds.
func eventually(t interface {
	Helper()
	Fatalf(string, ...any)
}, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(must.BecomeMax); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("it never came to be that %s", what)
		}
	}
}

func like(id uint64, n int64) string {
	return fmt.Sprintf(`{"keyspace":"posts","id":%d,"add":{"like":%d}}`, id, n)
}

// caughtUp reports whether every shard has handled the whole queue.
func caughtUp(q *fakeQueue, c *sinktest.Cluster) bool {
	_, end, _ := q.Bounds(context.Background(), 0)
	return c.At(end)
}

// TestModel: two readers of a partition end and begin at any moment. The broker and the shards may
// fail at any call, and batches may end after any message:
//
//  1. the sums are those of the queue's good messages, each counted once;
//  2. every bad message, and no other, is a dead letter;
//  3. every shard comes to the end of the queue.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Uint64().Draw(t, "seed")
		rng := rand.New(rand.NewPCG(seed, 1))
		q, c := newFakes(rapid.IntRange(1, 4).Draw(t, "shards"), rand.New(rand.NewPCG(seed, 2)))
		q.rng = rand.New(rand.NewPCG(seed, 3))
		cfg := testConfig(t, "")
		want, bad := map[uint64]int64{}, map[string]bool{}
		total := rapid.IntRange(1, 300).Draw(t, "messages")
		fill := func(n int) {
			for range n {
				at := len(q.values)
				switch rng.IntN(12) {
				case 0:
					q.add(`{"keyspace":"gone","id":1,"add":{"like":1}}`)
					bad[fmt.Sprintf("likes/0/%d", at)] = true
				case 1:
					q.add("[" + like(1, 1) + `,{"keyspace":"gone","id":1,"add":{"like":1}}]`)
					bad[fmt.Sprintf("likes/0/%d", at)] = true
				case 2:
					q.add("poison")
					bad[fmt.Sprintf("likes/0/%d", at)] = true
				case 3:
					q.add("[" + like(2, 5) + "," + like(3, -5) + "," + like(2, 1) + "]")
					want[2] += 6
					want[3] -= 5
				default:
					id, n := rng.Uint64N(9), rng.Int64N(9)-3
					q.add(like(id, n))
					want[id] += n
				}
			}
		}
		fill(total / 2)
		var stops [2]func()
		for range rapid.IntRange(2, 12).Draw(t, "crashes") {
			i := rng.IntN(2)
			if stops[i] != nil {
				stops[i]()
				stops[i] = nil
			} else {
				_, stops[i] = startRunner(cfg, q, c)
			}
			time.Sleep(time.Duration(rng.IntN(3)) * time.Millisecond)
		}
		for i := range stops {
			if stops[i] == nil {
				_, stops[i] = startRunner(cfg, q, c)
			}
			defer stops[i]()
		}
		fill(total - total/2)
		eventually(t, "all shards are at the end", func() bool { return caughtUp(q, c) })
		got := c.Sums()
		for id := range uint64(9) {
			if got[id] != want[id] {
				t.Fatalf("row %d is %d, want %d", id, got[id], want[id])
			}
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		for id := range q.letters {
			if !bad[id] {
				t.Fatalf("%s is a dead letter: %s", id, q.letters[id].Reason)
			}
		}
		if len(q.letters) != len(bad) {
			t.Fatalf("%d dead letters, want %d", len(q.letters), len(bad))
		}
	})
}

func TestDeadLettersFirst(t *testing.T) {
	q, c := newFakes(2, nil)
	q.deadDown = true
	q.add(like(1, 1), "poison", like(1, 1))
	r, stop := startRunner(testConfig(t, ""), q, c)
	defer stop()
	eventually(t, "the dead letters are refused", func() bool { return strings.Contains(r.Status().Reason, "dead letters") })
	if got := c.Sums()[1]; got > 1 {
		t.Errorf("the position passed a message without a dead letter: %d", got)
	}
	q.set(func() { q.deadDown = false })
	eventually(t, "all is applied", func() bool { return caughtUp(q, c) && c.Sums()[1] == 2 })
	letter := q.letters["likes/0/1"]
	if string(letter.Value) != "poison" || letter.Reason == "" || r.Status().Rejected == 0 {
		t.Errorf("letter %+v, status %+v", letter, r.Status())
	}
}

func TestLateRejection(t *testing.T) {
	q, c := newFakes(2, nil)
	q.add("["+like(1, 1)+","+like(sinktest.FullRow, 1)+"]", like(1, 1))
	r, stop := startRunner(testConfig(t, ""), q, c)
	defer stop()
	eventually(t, "all is applied", func() bool { return caughtUp(q, c) && r.Status().Rejected == 1 })
	if c.Sums()[1] != 2 || len(q.letters) != 1 {
		t.Errorf("sums %v, letters %v", c.Sums(), q.letters)
	}
	for _, l := range q.letters {
		if l.Reason != "overflow" || !strings.Contains(l.Op, `"999"`) {
			t.Errorf("letter %+v", l)
		}
	}
}

// rejectingSink applies all batches. Its Apply returns an error for the first batch with ops, but
// also that batch's rejected ops.
type rejectingSink struct {
	sink.Sink
	failed bool
}

func (s *rejectingSink) Apply(ctx context.Context, b *sink.Batch) (sink.Applied, error) {
	done, err := s.Sink.Apply(ctx, b)
	if err == nil && len(b.Ops) > 0 && !s.failed {
		s.failed, err = true, errBroken
	}
	return done, err
}

func TestLateRejectionWithError(t *testing.T) {
	q, c := newFakes(2, nil)
	q.add(like(sinktest.FullRow, 1), like(1, 1))
	r := NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, ""), Broker: q, Sink: &rejectingSink{Sink: c.Node()}})
	r.times.backoffMin = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	eventually(t, "all is applied", func() bool { return caughtUp(q, c) && r.Status().Rejected == 1 })
	cancel()
	<-ended
	if len(q.letters) != 1 || c.Sums()[1] != 1 {
		t.Errorf("letters %v, sums %v", q.letters, c.Sums())
	}
}

func TestStopOnError(t *testing.T) {
	q, c := newFakes(2, nil)
	q.add(like(1, 1), like(2, 1), "poison", like(3, 1))
	r, stop := startRunner(testConfig(t, "on-error: stop"), q, c)
	defer stop()
	eventually(t, "it stalls", func() bool {
		s := r.Status()
		return s.State == StateStalled && strings.Contains(s.Reason, "position 2: op: not an object")
	})
	eventually(t, "what is before the message is applied", func() bool { return c.Sums()[1] == 1 && c.Sums()[2] == 1 })
	if c.Sums()[3] != 0 || len(q.letters) > 0 {
		t.Errorf("it went on: %v, %v", c.Sums(), q.letters)
	}
	q.set(func() { q.values[2] = like(3, 1) }) // the bad message is good now
	eventually(t, "it goes on", func() bool { return caughtUp(q, c) && r.Status().State == StateRunning })
	if c.Sums()[3] != 2 {
		t.Errorf("sums %v", c.Sums())
	}
}

func TestSkip(t *testing.T) {
	q, c := newFakes(1, nil)
	q.add("poison", like(1, 1))
	r, stop := startRunner(testConfig(t, "on-error: skip"), q, c)
	defer stop()
	eventually(t, "it skips", func() bool { return caughtUp(q, c) && r.Status().Rejected == 1 })
	if len(q.letters) > 0 || c.Sums()[1] != 1 {
		t.Errorf("letters %v, sums %v", q.letters, c.Sums())
	}
}

func TestTruncateStalls(t *testing.T) {
	q, c := newFakes(1, nil)
	q.add(`{"op":"c","after":{"id":4,"n":1}}`, `{"op":"t"}`, `{"op":"c","after":{"id":4,"n":1}}`)
	r, stop := startRunner(testConfig(t, "on-error: skip\nformat: debezium\nmap: {keyspace: posts, id: $.id, column: like, add: $.n}"), q, c)
	defer stop()
	eventually(t, "it stalls", func() bool { return strings.Contains(r.Status().Reason, "position 1: the table was truncated") })
	if c.Sums()[4] != 1 {
		t.Errorf("sums %v", c.Sums())
	}
}

// TestTruncateIsNotConfirmed: a session that ends because the queue was truncated does not confirm
// its position, because the truncated queue never had this position.
func TestTruncateIsNotConfirmed(t *testing.T) {
	q, shards := newFakes(2, nil)
	q.add(like(1, 1), like(2, 1), like(3, 1))
	var told atomic.Uint64
	q.commits = func(p Position) { told.Store(p.Lo) }
	r, stop := startRunner(testConfig(t, ""), q, shards)
	eventually(t, "the position is confirmed", func() bool { return told.Load() == 3 })
	q.set(func() { q.values, q.bounds = q.values[:1], func() { told.Store(0) } }) // forget the confirmed position once Bounds has shown the new end
	eventually(t, "it stalls", func() bool { return r.Status().State == StateStalled })
	stop()
	if at := told.Load(); at != 0 {
		t.Errorf("the broker was told of %d, and the queue ends at 1", at)
	}
}

// TestUnseenLossIsNotConfirmed: the broker fails after the queue has lost its end. The session that
// ends does not confirm its position. The partition stays stalled when the queue has grown again,
// because the runner has seen the lower end.
func TestUnseenLossIsNotConfirmed(t *testing.T) {
	q, shards := newFakes(2, nil)
	q.add(like(1, 1), like(2, 1), like(3, 1))
	r := NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, ""), Broker: q, Sink: shards.Node()})
	r.times.tick, r.times.backoffMin = time.Hour, time.Millisecond // without ticks, only a new session reads the end of the queue
	var told atomic.Uint64
	q.commits = func(p Position) { told.Store(p.Lo) }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	eventually(t, "it is counted", func() bool { return r.Status().Applied == 3 })
	q.set(func() {
		q.values = q.values[:1]
		q.next = func(context.Context) error { return errBroken }
		q.bounds = func() { q.set(func() { q.values = append(q.values[:1], like(4, 1), like(4, 1), like(4, 1)) }) }
	})
	eventually(t, "it stalls", func() bool { return r.Status().State == StateStalled })
	if at := told.Load(); at != 0 {
		t.Errorf("the broker was told of %d, and the queue ended at 1", at)
	}
	if reason := r.Status().Reason; !strings.Contains(reason, "is another one now") {
		t.Error(reason)
	}
	cancel()
	<-ended
	if r.truncated.end.Lo != 1 {
		t.Errorf("the runner remembers the end %v: %v", r.truncated.end, r.truncated.why)
	}
}

// TestLostData: a source whose queue lost messages stalls, and applies nothing more.
func TestLostData(t *testing.T) {
	for name, harm := range map[string]struct {
		do   func(q *fakeQueue)
		want string
	}{
		"expired":   {func(q *fakeQueue) { q.first = 5; q.values = append(q.values, "", "", "", like(1, 1)) }, "below the first retained"},
		"truncated": {func(q *fakeQueue) { q.values = q.values[:1] }, "beyond the end"},
		"made anew": {func(q *fakeQueue) { q.identity = "two" }, "it was one and is two"},
	} {
		t.Run(name, func(t *testing.T) {
			q, c := newFakes(2, nil)
			q.add(like(1, 1), like(2, 1), like(3, 1))
			cfg := testConfig(t, "")
			_, stop := startRunner(cfg, q, c)
			eventually(t, "all is applied", func() bool { return caughtUp(q, c) })
			stop()
			harm.do(q)
			q.add(like(1, 1))
			r, stop := startRunner(cfg, q, c)
			defer stop()
			eventually(t, "it stalls", func() bool {
				s := r.Status()
				return s.State == StateStalled && strings.Contains(s.Reason, harm.want)
			})
			if got := c.Sums(); got[1] != 1 {
				t.Errorf("it went on: %v", got)
			}
		})
	}
}

func TestStart(t *testing.T) {
	for start, want := range map[string]uint64{"earliest": 2, "latest": 4, "{0: 0-3}": 3, "{1: 3}": 2} {
		if got := testConfig(t, "start: "+start).startAt(0, Position{Lo: 2}, Position{Lo: 4}); got.Lo != want {
			t.Errorf("%s: got %v", start, got)
		}
	}
}

func TestStopped(t *testing.T) {
	q, c := newFakes(1, nil)
	r := NewRunner(RunnerConfig{Source: testConfig(t, ""), Broker: q, Sink: stoppedSink{c.Node()}})
	r.Run(t.Context()) // must return, because the source is stopped
}

type stoppedSink struct{ sink.Sink }

func (stoppedSink) Start(context.Context, uint64, uint32, sink.Start) (sink.Start, error) {
	return sink.Start{}, sink.ErrStopped
}

// When a runner ends because Ending is closed, or because its source was paused, it leaves all
// shards at one position. It confirms that position to the broker.
func TestEnding(t *testing.T) {
	for name, end := range map[string]func(s *pausedSink, ending chan struct{}){
		"it is to end":         func(_ *pausedSink, ending chan struct{}) { close(ending) },
		"its source is paused": func(s *pausedSink, _ chan struct{}) { s.set(true) },
	} {
		t.Run(name, func(t *testing.T) {
			q, shards := newFakes(4, nil)
			s, ending, ended := &pausedSink{Sink: shards.Node()}, make(chan struct{}), make(chan struct{})
			r := NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, ""), Broker: q, Sink: s, Ending: ending})
			r.times.tick = time.Hour // without ticks, only the end of the runner moves idle shards and confirms
			var told atomic.Uint64
			q.commits = func(p Position) { told.Store(p.Lo) }
			q.add(like(1, 1))
			go func() {
				defer close(ended)
				r.Run(t.Context())
			}()
			eventually(t, "it is counted", func() bool { return shards.Sums()[1] == 1 })
			eventually(t, "the runner knows", func() bool { return r.Status().Applied == 1 })
			if s.evened(1) {
				t.Fatal("the shards were brought to one position before the end")
			}
			end(s, ending)
			q.add(like(2, 1)) // the runner may or may not count this message
			<-ended
			if at := r.Status().Applied; !s.evened(at) {
				t.Errorf("the shards were not brought to %d", at)
			}
			if at, got := r.Status().Applied, told.Load(); got != at {
				t.Errorf("the broker was told of %d, and the shards are at %d", got, at)
			}
		})
	}
}

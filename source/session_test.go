package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/source/sink"
	"github.com/countd/countd/source/sink/sinktest"
)

// A session confirms to the broker only a position that every shard has passed, even if one shard
// never has an op.
func TestCommitBelowIdleShards(t *testing.T) {
	q, c := newFakes(2, nil)
	ahead, told := make(chan string, 1), make(chan struct{})
	q.commits = func(p Position) {
		for _, at := range c.Positions() {
			if at.Less(p) {
				select {
				case ahead <- fmt.Sprintf("the broker is told of %v, and a shard is at %v", p, at):
				default:
				}
			}
		}
		if p.Lo >= 500 {
			select {
			case <-told:
			default:
				close(told)
			}
		}
	}
	_, stop := startRunner(testConfig(t, ""), q, c)
	defer stop()
	for end := time.Now().Add(must.BecomeMax); time.Now().Before(end); {
		q.add(like(2, 1)) // for shard 0
		select {
		case why := <-ahead:
			t.Fatal(why)
		case <-told: // the confirmed position rises, although new messages arrive all the time
			return
		case <-time.After(time.Millisecond / 4):
		}
	}
	t.Fatal("the broker is told of nothing")
}

// lateSink is a Sink with one shard that does not answer while late is set.
type lateSink struct {
	sink.Sink
	late  *atomic.Bool
	last  bool          // the late shard is the last shard of Sink; otherwise it is a shard that Sink does not have
	asked atomic.Uint64 // calls of Positions
	lacks atomic.Bool   // the shard did not answer the last call
}

func (s *lateSink) Positions(ctx context.Context, source uint64, partition uint32) ([]sink.ShardPosition, error) {
	all, err := s.Sink.Positions(ctx, source, partition)
	s.asked.Add(1)
	late := s.late.Load()
	s.lacks.Store(late)
	if err == nil && late {
		if s.last {
			all = all[:len(all)-1]
		}
		all = append(all, sink.ShardPosition{Keyspace: "late", Late: true})
	}
	return all, err
}

func (s *lateSink) Apply(ctx context.Context, b *sink.Batch) (sink.Applied, error) {
	done, err := s.Sink.Apply(ctx, b)
	if len(b.Ops) == 0 && (s.late.Load() || s.lacks.Load()) { // a real Sink does not ask a shard that did not answer Positions
		done.Behind = "shard 0 of keyspace late does not answer"
	}
	return done, err
}

// While a shard does not answer, the others continue. The session confirms nothing to the broker
// meanwhile, because that shard may be at any position. From time to time the session asks that
// shard for its position. Once the shard answers, the reader starts a new session.
func TestCommitBelowLateShards(t *testing.T) {
	q, c := newFakes(2, nil)
	var late atomic.Bool
	var told atomic.Uint64
	late.Store(true)
	q.commits = func(p Position) { told.Store(p.Lo) }
	q.add(like(1, 1), like(2, 1))
	shards := &lateSink{Sink: c.Node(), late: &late}
	r := NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, ""), Broker: q, Sink: shards})
	r.times.tick, r.times.meet, r.times.late, r.times.backoffMin = time.Millisecond, time.Millisecond, 20*time.Millisecond, time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	eventually(t, "it goes on, and says so", func() bool {
		s := r.Status()
		return caughtUp(q, c) && s.State == StateRunning && strings.Contains(s.Reason, "keyspace late does not answer") && shards.asked.Load() > 4
	})
	if got := told.Load(); got != 0 {
		t.Errorf("the broker is told of %d", got)
	}
	if s := r.Status(); s.Errors[reasonMoved] != 0 {
		t.Errorf("it began anew before the shard answered: %+v", s)
	}
	late.Store(false)
	eventually(t, "the broker is told", func() bool { return told.Load() == 2 && r.Status().Reason == "" })
	if s := r.Status(); s.Errors[reasonMoved] != 1 {
		t.Errorf("it did not begin anew once the shard answered: %+v", s)
	}
	late.Store(true)
	eventually(t, "it says so if a shard stops answering while the queue is idle", func() bool {
		s := r.Status()
		return s.State == StateRunning && strings.Contains(s.Reason, "keyspace late does not answer")
	})
	told.Store(0)
	q.add(like(1, 1))
	eventually(t, "it goes on", func() bool { return caughtUp(q, c) })
	if got := told.Load(); got != 0 {
		t.Errorf("the broker is told of %d", got)
	}
}

// behindSink is a Sink that reports a shard as behind after a batch without ops, although the shard
// has moved.
type behindSink struct {
	sink.Sink
	behind string
}

func (s *behindSink) Apply(ctx context.Context, b *sink.Batch) (sink.Applied, error) {
	done, err := s.Sink.Apply(ctx, b)
	if len(b.Ops) == 0 {
		done.Behind = s.behind
	}
	return done, err
}

// A shard has moved, but its answer to the batch was lost. The session still confirms the position.
func TestCommitAfterALostAnswer(t *testing.T) {
	q, c := newFakes(2, nil)
	q.add(like(1, 1), like(2, 1))
	shards := &behindSink{c.Node(), "shard 1 does not answer"}
	s := &session{Runner: NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, ""), Broker: q, Sink: shards})}
	s.times.late = 0
	must.Do(t, s.begin(t.Context()))
	s.next = Position{Lo: 2}
	must.Do(t, s.settle(t.Context()))
	shards.behind = ""
	must.Do(t, s.settle(t.Context()))
	if s.low.Lo != 2 || !s.even || s.behind != "" {
		t.Errorf("it confirms %v; even: %t, behind: %q", s.low, s.even, s.behind)
	}
}

// shardAhead returns a queue of five messages, and two shards. Shard 0 has passed all messages.
// Shard 1, which fails, has passed none.
func shardAhead(t *testing.T) (*fakeQueue, *sinktest.Cluster) {
	t.Helper()
	q, c := newFakes(2, nil)
	q.add(like(2, 1), like(1, 1), like(2, 1), like(2, 1), like(2, 1))
	c.Fail(1)
	_, stop := startRunner(testConfig(t, ""), q, c)
	eventually(t, "a shard is ahead", func() bool { return c.Positions()[0].Lo == 5 })
	stop()
	return q, c
}

// A stall names no seek position below the highest shard, because that shard would then count
// messages twice.
func TestSeekThatIsNamed(t *testing.T) {
	q, c := shardAhead(t)
	q.first = 3
	r, stop := startRunner(testConfig(t, ""), q, c)
	defer stop()
	eventually(t, "it stalls", func() bool { return r.Status().State == StateStalled })
	if reason := r.Status().Reason; !strings.HasSuffix(reason, "first retained, 3; seek to 5 to go on without them") {
		t.Error(reason)
	}
}

// A stall names no position to seek to while a shard is late. That shard may be the highest one,
// and would count messages twice after the seek.
func TestNoSeekWhileLate(t *testing.T) {
	q, c := newFakes(2, nil)
	q.add(like(1, 1), like(2, 1))
	c.Restore(0, Position{})
	c.Restore(1, Position{})
	q.first = 1
	var late atomic.Bool
	late.Store(true)
	r := NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, ""), Broker: q, Sink: &lateSink{Sink: c.Node(), late: &late}})
	r.times.backoffMin = time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	eventually(t, "it says which shard is late", func() bool {
		reason := r.Status().Reason
		if strings.Contains(reason, "seek to") {
			t.Fatal(reason)
		}
		return strings.Contains(reason, "keyspace late does not answer")
	})
	late.Store(false)
	eventually(t, "it names the seek", func() bool {
		return r.Status().State == StateStalled && strings.Contains(r.Status().Reason, "seek to 1")
	})
}

// A shard may also become late while a session reads. The session notices this by the positions, or
// by a batch that did not move the shard.
func TestNoSeekIsAdvisedOnceLate(t *testing.T) {
	for name, learn := range map[string]func(*session) error{
		"positions": func(s *session) error { s.times.meet, s.times.late = 0, 0; return s.settle(t.Context()) },
		"batch":     func(s *session) error { return s.apply(t.Context(), sink.Batch{Next: s.at}, nil) },
	} {
		q, c := newFakes(2, nil)
		q.add(like(1, 1), like(2, 1))
		var late atomic.Bool
		r := NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, ""), Broker: q, Sink: &lateSink{Sink: c.Node(), late: &late}})
		s := &session{Runner: r}
		must.Do(t, s.begin(t.Context()))
		must.Do(t, s.apply(t.Context(), sink.Batch{Next: Position{Lo: 2}}, nil))
		lost := Lost(Position{Lo: 3}, "messages are gone")
		if got := s.advise(lost).Error(); !strings.Contains(got, "seek to 3") {
			t.Fatal(got)
		}
		late.Store(true)
		must.Do(t, learn(s))
		if got := s.advise(lost).Error(); strings.Contains(got, "seek to 3") {
			t.Errorf("%s: a seek is named while a shard is late: %s", name, got)
		}
		late.Store(false)
		_ = learn(s) // may return an error, because the session must end
		if got := s.advise(lost).Error(); !strings.Contains(got, "seek to 3") {
			t.Errorf("%s: no seek is named once the shard answers: %s", name, got)
		}
	}
}

// While a shard is late, a session that begins names no seek either. That holds if messages are
// lost, if a message differs from its mark, and if the marked message does not arrive.
func TestNoSeekIsAdvisedWhileLate(t *testing.T) {
	q, c := newFakes(2, nil)
	q.add(like(1, 1), like(2, 1))
	_, stop := startRunner(testConfig(t, ""), q, c)
	eventually(t, "it is counted", func() bool { return caughtUp(q, c) })
	stop()
	q.values[1] = like(2, 9)
	shards, err := c.Node().Positions(t.Context(), 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	for behind, late := range map[string]bool{"a shard does not answer": true, "": false} {
		open := func() *session { // a new session each time, because verify may leave a goroutine behind that reads times
			return &session{Runner: NewRunner(RunnerConfig{Source: testConfig(t, ""), Broker: q, Sink: c.Node()}), high: Position{Lo: 5}, behind: behind}
		}
		_, differs := open().verify(t.Context(), shards)
		q.again = func(ctx context.Context, _ func()) error { <-ctx.Done(); return ctx.Err() }
		s := open()
		s.times.silence = time.Millisecond
		_, silent := s.verify(t.Context(), shards)
		q.again = nil
		for _, err := range []error{s.advise(Lost(Position{Lo: 3}, "messages are gone")), s.advise(differs), silent} {
			if err == nil || strings.Contains(err.Error(), "seek to 5") == late || strings.Contains(err.Error(), "this says where to seek") != late {
				t.Errorf("late %t: %v", late, err)
			}
		}
	}
}

// A source stalls if its queue now ends before the highest position of a shard, even if another
// shard's position is still within the queue. Otherwise the higher shard would skip the next
// messages.
func TestTruncatedBetweenShards(t *testing.T) {
	q, c := shardAhead(t)
	c.Fail(-1)
	q.values = q.values[:3]
	r, stop := startRunner(testConfig(t, ""), q, c)
	defer stop()
	eventually(t, "it stalls", func() bool {
		q.set(func() {
			if len(q.values) == 3 && c.Positions()[1].Lo == 3 { // the reader did not stall: shard 0 skips this message
				q.values = append(q.values, like(2, 1))
			}
		})
		return strings.Contains(r.Status().Reason, "position 5 is beyond the end of the queue, 3")
	})
}

// If a shard is restored while the queue is idle, the reader reads again the messages that the
// restored shard has not counted.
func TestRestoredShard(t *testing.T) {
	q, c := newFakes(2, nil)
	q.add(like(1, 1), like(2, 1))
	idle := make(chan struct{})
	even := sync.OnceFunc(func() { close(idle) })
	q.commits = func(p Position) {
		if p.Lo == 2 {
			even()
		}
	}
	r := NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, ""), Broker: q, Sink: c.Node()})
	r.times.tick, r.times.meet = time.Millisecond, 10*time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	<-idle
	c.Restore(1, Position{Lo: 0})
	eventually(t, "all is counted again", func() bool { return caughtUp(q, c) })
	if sums := c.Sums(); sums[1] != 1 || sums[2] != 1 {
		t.Errorf("sums %v", sums)
	}
}

// The shards of a stalled partition are at one position. The waits between its sessions grow.
func TestStallWaits(t *testing.T) {
	q, c := newFakes(2, nil)
	q.add(like(2, 1), like(2, 1), "poison")
	r := NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, "on-error: stop"), Broker: q, Sink: c.Node()})
	r.times.backoffMin, r.times.backoffMax, r.times.tick = time.Millisecond, time.Hour, time.Hour
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	eventually(t, "it stalls", func() bool { return r.Status().State == StateStalled })
	if !c.At(Position{Lo: 2}) {
		t.Errorf("the shards are at %v", c.Positions())
	}
	// The waits double from about 1 ms on, so far fewer than 25 attempts fit into a second.
	began := time.Now()
	eventually(t, "the waits grow", func() bool {
		tries := r.Status().Errors[reasonStalled]
		if limit := uint64(25); tries > limit {
			t.Fatalf("%d tries in %v", tries, time.Since(began))
		}
		return time.Since(began) > time.Second
	})
}

// One reader moves the shards while another one begins. The other one must not take the queue for
// truncated.
func TestHandOver(t *testing.T) {
	q, c := newFakes(2, nil)
	q.add(like(1, 1))
	other := c.Node()
	_, stop := startRunner(testConfig(t, ""), q, c)
	eventually(t, "all is counted", func() bool { return caughtUp(q, c) })
	stop()
	moved := false
	q.bounds = func() { // the first reader counts a message between two calls of the reader that begins
		if moved {
			return
		}
		moved = true
		q.add(like(2, 1))
		if _, err := other.Positions(t.Context(), 1, 0); err != nil {
			t.Error(err)
		}
		if _, err := other.Apply(t.Context(), &sink.Batch{Source: 1, From: Position{Lo: 1}, Next: Position{Lo: 2}, Mark: func(Position) sink.Mark { return MarkOf(new(q.message(1))) }}); err != nil {
			t.Error(err)
		}
	}
	s := &session{Runner: NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, ""), Broker: q, Sink: c.Node()})}
	if err := s.begin(t.Context()); err != nil || s.at.Lo != 2 {
		t.Errorf("it begins at %v: %v", s.at, err)
	}
}

// If a queue is created again while a reader begins, the reader does not read it.
func TestMadeAnewWhileItBegins(t *testing.T) {
	q, c := newFakes(2, nil)
	q.add(like(1, 1), like(1, 1))
	q.reads = func() { q.set(func() { q.identity = "two" }) }
	r, stop := startRunner(testConfig(t, ""), q, c)
	defer stop()
	eventually(t, "it stalls", func() bool { return strings.Contains(r.Status().Reason, "it was one and is two") })
	if sums := c.Sums(); sums[1] != 0 {
		t.Errorf("sums %v", sums)
	}
}

// A batch is repeated after a column was dropped or created. Each op is counted once, or has one
// dead letter.
func TestColumnsBetweenTries(t *testing.T) {
	both := `[{"keyspace":"posts","id":0,"add":{"like":1}},{"keyspace":"posts","id":1,"add":{"share":1}}]`
	mirrored := `[{"keyspace":"posts","id":0,"add":{"share":1}},{"keyspace":"posts","id":1,"add":{"like":1}}]`
	for name, test := range map[string]struct {
		message       string
		before, after bool // whether column share is dropped
		sums          [2]int64
		letter        string // the op of the dead letter; "-" for the whole message; empty for none
	}{
		"dropped, before its op is applied": {both, false, true, [2]int64{1, 0}, `{"add":{"share":1},"id":"1","keyspace":"posts"}`},
		"dropped, after its op is applied":  {mirrored, false, true, [2]int64{1, 1}, ""},
		"made":                              {both, true, false, [2]int64{0, 0}, "-"},
	} {
		t.Run(name, func(t *testing.T) {
			q, c := newFakes(2, nil)
			q.add(`[`+like(0, 0)+`,`+like(1, 0)+`]`, test.message)
			c.Drop("share", test.before)
			c.Fail(1)
			r := NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, ""), Broker: q, Sink: c.Node()})
			r.times.backoffMin, r.times.backoffMax, r.times.tick = time.Millisecond, time.Millisecond, time.Hour
			s, err := r.session(t.Context())
			if err == nil || c.Positions()[0].Lo != 2 || c.Positions()[1].Lo != 0 {
				t.Fatalf("%v, %v: shards at %v", s, err, c.Positions())
			}
			c.Drop("share", test.after)
			c.Fail(-1)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); r.Run(ctx) }()
			eventually(t, "all is handled", func() bool { return c.Positions()[1].Lo == 2 })
			cancel()
			<-ended
			if got := c.Sums(); got[0] != test.sums[0] || got[1] != test.sums[1] {
				t.Errorf("sums %v, want %v", got, test.sums)
			}
			var letters []string
			for _, l := range q.letters {
				if l.Op == "" {
					l.Op = "-"
				}
				letters = append(letters, l.Op)
			}
			if got := strings.Join(letters, ","); got != test.letter {
				t.Errorf("dead letters %s, want %s", got, test.letter)
			}
		})
	}
}

// A reader may read a message a second time: for a late or restored shard, or because the dead
// letters failed. Its first decision to accept or refuse the message stays.
func TestDecidedOnce(t *testing.T) {
	whole := `[{"keyspace":"posts","id":0,"add":{"like":1}},{"keyspace":"posts","id":1,"add":{"share":1}}]`
	for name, test := range map[string]struct {
		first  bool // whether the column is dropped at the first try, or only at the second
		again  func(q *fakeQueue, c *sinktest.Cluster)
		counts [2]int64
		letter string
	}{
		"taken, late":       {false, func(*fakeQueue, *sinktest.Cluster) {}, [2]int64{1, 0}, `{"add":{"share":1},"id":"1","keyspace":"posts"}`},
		"refused, late":     {true, func(*fakeQueue, *sinktest.Cluster) {}, [2]int64{0, 0}, "-"},
		"taken, restored":   {false, func(_ *fakeQueue, c *sinktest.Cluster) { c.Restore(2, Position{}) }, [2]int64{1, 0}, `{"add":{"share":1},"id":"1","keyspace":"posts"}`},
		"refused, restored": {true, func(_ *fakeQueue, c *sinktest.Cluster) { c.Restore(2, Position{}) }, [2]int64{0, 0}, "-"},
		// After a seek, the reader makes a new decision about a refused message.
		"refused, sought": {true, func(q *fakeQueue, c *sinktest.Cluster) { c.Seek(Position{}); clear(q.letters) }, [2]int64{1, 1}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			q, c := newFakes(3, nil)
			q.add(like(2, 1), whole)
			var late atomic.Bool
			late.Store(strings.HasSuffix(name, "late"))
			for shard := range 3 {
				at := uint64(1)
				if late.Load() && shard == 2 {
					at = 0
				}
				c.Restore(shard, Position{Lo: at})
			}
			c.Drop("share", test.first)
			c.Fail(1)
			r := NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, ""), Broker: q, Sink: &lateSink{Sink: c.Node(), late: &late, last: true}})
			r.times.backoffMin, r.times.backoffMax, r.times.tick = time.Millisecond, time.Millisecond, 5*time.Millisecond
			must.Become(t, "shard 0 has the batch", func() bool { // shard 1 may fail before shard 0 gets the batch
				if _, err := r.session(t.Context()); err == nil || c.Positions()[1].Lo != 1 {
					t.Fatalf("%v: shards at %v", err, c.Positions())
				}
				return c.Positions()[0].Lo == 2
			})
			c.Drop("share", !test.first)
			c.Fail(-1)
			late.Store(false)
			test.again(q, c)
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { defer close(ended); r.Run(ctx) }()
			eventually(t, "all is handled", func() bool { return c.At(Position{Lo: 2}) })
			cancel()
			<-ended
			if got := c.Sums(); got[0] != test.counts[0] || got[1] != test.counts[1] || got[2] != 1 {
				t.Errorf("sums %v, want %v", got, test.counts)
			}
			letter := ""
			for _, l := range q.letters {
				letter += cmp.Or(l.Op, "-")
			}
			if letter != test.letter {
				t.Errorf("dead letters %s, want %s", letter, test.letter)
			}
		})
	}
}

// While a shard does not answer, a reader remembers refused messages up to a bound, and then waits for the shard.
func TestRefusedWhileLate(t *testing.T) {
	q, c := newFakes(2, nil)
	var late atomic.Bool
	late.Store(true)
	q.add(like(1, 1))
	q.add(slices.Repeat([]string{"poison"}, refusedMax+1)...)
	r := NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, "on-error: skip"), Broker: q, Sink: &lateSink{Sink: c.Node(), late: &late}})
	r.times.tick, r.times.backoffMin, r.times.backoffMax = time.Millisecond, time.Millisecond, time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	run := func() { defer close(ended); r.Run(ctx) }
	go run()
	bounded := func() bool { return strings.Contains(r.Status().Reason, "cannot refuse more than 100000 messages") }
	eventually(t, "it waits or is at the end", func() bool { return bounded() || caughtUp(q, c) })
	cancel()
	<-ended
	if !bounded() || len(r.decided.refused) != refusedMax {
		t.Fatalf("%d are remembered: %+v", len(r.decided.refused), r.Status())
	}
	late.Store(false)
	ctx, cancel = context.WithCancel(t.Context())
	ended = make(chan struct{})
	go run()
	eventually(t, "it goes on", func() bool { return caughtUp(q, c) && r.Status().Rejected == refusedMax+1 })
	cancel()
	<-ended
	if got := len(r.decided.refused); got > 0 {
		t.Errorf("%d are still remembered", got)
	}
}

// A message stays refused if the acknowledgment of its dead letter was lost.
func TestRefusedWithoutAnAnswer(t *testing.T) {
	q, c := newFakes(1, nil)
	q.add(`{"keyspace":"posts","id":0,"add":{"share":1}}`)
	c.Drop("share", true)
	q.lostAnswers = true
	r := NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, ""), Broker: q, Sink: c.Node()})
	if _, err := r.session(t.Context()); !errors.Is(err, errBroken) {
		t.Fatal(err)
	}
	c.Drop("share", false)
	q.lostAnswers = false
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	eventually(t, "it is handled", func() bool { return c.At(Position{Lo: 1}) })
	cancel()
	<-ended
	if sums := c.Sums(); sums[0] != 0 || len(q.letters) != 1 {
		t.Errorf("sums %v, %d dead letters", sums, len(q.letters))
	}
}

// After a restore of a shard, the reader reads a refused message again, and again refuses the whole
// message.
func TestRestoredShardRefusesAgain(t *testing.T) {
	q, c := newFakes(2, nil)
	q.add("["+like(1, 1)+`,{"keyspace":"gone","id":1,"add":{"like":1}}]`, like(2, 1))
	r := NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, ""), Broker: q, Sink: c.Node()})
	r.times.tick, r.times.meet = time.Millisecond, 10*time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	eventually(t, "all is counted", func() bool { return caughtUp(q, c) })
	c.Restore(1, Position{Lo: 0})
	eventually(t, "all is counted again", func() bool { return caughtUp(q, c) })
	if sums := c.Sums(); sums[1] != 0 || sums[2] != 1 {
		t.Errorf("sums %v", sums)
	}
}

// The positions of this queue do not show how many messages wait. The lag is 0 if the position has
// reached the previously read end, and otherwise unknown.
func TestLagThatNothingCounts(t *testing.T) {
	at := func(n uint64) Position { return Position{Hi: n} }
	s := status{counts: &Counts{}}
	s.mu.left = -1
	s.mu.lastTime = time.Now().Add(-time.Minute)
	for i, step := range []struct {
		end, at uint64
		lag     bool // whether the lag is known
	}{{10, 5, false}, {12, 5, false}, {14, 12, true}, {16, 14, true}, {18, 15, false}} {
		s.setEnd(at(step.end), time.Now())
		s.setPosition(at(step.at), time.Time{})
		got := s.get()
		if lag, known := got.Lag(); lag != 0 || known != step.lag || got.LagSeconds > 0 == step.lag {
			t.Errorf("step %d: %d, %v, %v s", i, lag, known, got.LagSeconds)
		}
	}
}

// The lag includes fetched messages that wait behind a message that stops the partition.
func TestLagBehindStop(t *testing.T) {
	q, c := newFakes(1, nil)
	q.add(like(1, 1), "poison", like(1, 1))
	r := NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, "on-error: stop"), Broker: wide{q}, Sink: c.Node()})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	eventually(t, "it stalls", func() bool { return r.Status().State == StateStalled })
	s := r.Status()
	if lag, known := s.Lag(); lag != 2 || !known {
		t.Errorf("%d messages wait, %v", lag, known)
	}
}

// wide is a queue whose positions do not show the number of messages.
type wide struct{ *fakeQueue }

func (w wide) Bounds(ctx context.Context, partition uint32) (first, end Position, err error) {
	first, end, err = w.fakeQueue.Bounds(ctx, partition)
	return Position{Hi: 1, Lo: first.Lo}, Position{Hi: 1, Lo: end.Lo}, err
}

func (w wide) Read(ctx context.Context, partition uint32, from Position, found Mark) (Reader, error) {
	r, err := w.fakeQueue.Read(ctx, partition, from, found)
	return wideReader{r, w.fakeQueue}, err
}

type wideReader struct {
	Reader
	q *fakeQueue
}

func (r wideReader) Next(ctx context.Context, limit int) (Fetched, error) {
	f, err := r.Reader.Next(ctx, limit)
	for i := range f.Messages {
		f.Messages[i].Position.Hi = 1
	}
	r.q.mu.Lock()
	defer r.q.mu.Unlock()
	f.Next.Hi, f.Left = 1, int64(len(r.q.values))-int64(f.Next.Lo)
	return f, err
}

// A source whose queue was truncated below a shard stays stalled when the queue grows past the
// shard, because some of the new messages have positions that the shard has passed. The source
// continues only if a counted message shows that the broker was just behind.
func TestTruncatedAndGrown(t *testing.T) {
	truncate := func(q *fakeQueue) { q.values, q.times = q.values[:3], q.times[:3] }
	lag := func(q *fakeQueue) { q.behind = 2 }
	for name, test := range map[string]struct {
		dated    bool
		harm     func(q *fakeQueue)
		recovers bool
	}{
		"truncated":             {false, truncate, false},
		"truncated, with times": {true, truncate, false},
		"behind":                {false, lag, false}, // nothing distinguishes this case from a truncation
		"behind, with times":    {true, lag, true},
	} {
		t.Run(name, func(t *testing.T) {
			q, c := newFakes(2, nil)
			q.dated = test.dated
			message := like(1, 1) // all messages are equal except for their times
			q.add(message, message, message, message, message)
			r, stop := startRunner(testConfig(t, ""), q, c)
			defer stop()
			eventually(t, "all is counted", func() bool { return caughtUp(q, c) && r.Status().Applied == 5 })
			q.set(func() { test.harm(q) })
			const reason = "position 5 is beyond the end of the queue, 3"
			eventually(t, "it stalls", func() bool { return strings.Contains(r.Status().Reason, reason) })
			q.add(message, message, message, message) // if the queue was truncated, two of these messages are below position 5
			q.set(func() { q.behind = 0 })
			if test.recovers {
				eventually(t, "it goes on", func() bool { return caughtUp(q, c) && r.Status().State == StateRunning })
				if got := c.Sums()[1]; got != 9 {
					t.Errorf("row 1 is %d", got)
				}
				return
			}
			tries := r.Status().Errors[reasonStalled]
			eventually(t, "it tries again", func() bool { return r.Status().Errors[reasonStalled] > tries+2 || caughtUp(q, c) })
			if got := c.Sums()[1]; got != 5 {
				t.Errorf("it went on: row 1 is %d", got)
			}
			const replaced = "message at position 4, the last one counted below position 5, is another one now"
			if s := r.Status(); s.State != StateStalled || !strings.Contains(s.Reason, reason) && (!test.dated || !strings.Contains(s.Reason, replaced)) {
				t.Errorf("it is %s: %s", s.State, s.Reason)
			}
		})
	}
}

// A counted message below the end that was seen does not prove that the queue was not truncated.
func TestTruncatedBehindAnotherReader(t *testing.T) {
	q, c := newFakes(2, nil)
	q.dated = true
	q.add(like(1, 1), like(1, 1))
	other := c.Node()
	r, stop := startRunner(testConfig(t, ""), q, c)
	defer stop()
	eventually(t, "all is counted", func() bool { return caughtUp(q, c) && r.Status().Applied == 2 })
	if _, err := other.Positions(t.Context(), 1, 0); err != nil {
		t.Error(err)
	}
	lost := func(below Position) sink.Mark { return sink.Mark{Position: Position{Lo: below.Lo - 1}, Sum: 9} }
	if _, err := other.Apply(t.Context(), &sink.Batch{Source: 1, From: Position{Lo: 2}, Next: Position{Lo: 5}, Mark: lost}); err != nil {
		t.Error(err)
	}
	q.add(like(1, 1), like(1, 1)) // these are at the positions of messages that the other reader counted
	eventually(t, "it stalls", func() bool {
		return strings.Contains(r.Status().Reason, "position 5 is beyond the end of the queue, 4")
	})
	q.add(like(1, 1), like(1, 1))
	tries := r.Status().Errors[reasonStalled]
	eventually(t, "it tries again", func() bool { return r.Status().Errors[reasonStalled] > tries+2 || caughtUp(q, c) })
	// A batch of the other reader, whose call timed out, is applied late.
	if _, err := other.Apply(t.Context(), &sink.Batch{Source: 1, From: Position{Lo: 5}, Next: Position{Lo: 6}, Mark: lost}); err != nil {
		t.Error(err)
	}
	q.add(like(1, 1))
	tries = r.Status().Errors[reasonStalled]
	eventually(t, "it tries again", func() bool { return r.Status().Errors[reasonStalled] > tries+2 || caughtUp(q, c) })
	if got := c.Sums()[1]; got != 2 {
		t.Errorf("it went on: row 1 is %d", got)
	}
	const advice = "is another one now: the queue lost messages and has others in their place; seek to where it lost them, or below, to count what stands there; or seek to 6 to go on"
	if s := r.Status(); s.State != StateStalled || !strings.Contains(s.Reason, advice) {
		t.Errorf("it is %s: %s", s.State, s.Reason)
	}
	c.Seek(Position{Lo: 3})
	eventually(t, "it goes on after a seek", func() bool { return caughtUp(q, c) && r.Status().State == StateRunning })
}

// Of several ends below the highest shard, the runner remembers the highest, so that a message
// below it does not end the stall.
func TestTruncatedTwice(t *testing.T) {
	s := session{Runner: &Runner{}, high: Position{Lo: 5}}
	for _, end := range []uint64{3, 4, 2} {
		s.remember(Truncated(Position{Lo: end}, "truncated"))
	}
	if got := s.truncated.end.Lo; got != 4 {
		t.Errorf("it remembers end %d", got)
	}
	s.remember(Truncated(Position{Lo: 5}, "what was fetched, and not applied, is gone"))
	if got := s.truncated.end.Lo; got != 4 {
		t.Errorf("it remembers end %d", got)
	}
}

// A partition that neither reads nor applies messages does not report the state running for long.
// It then reports a reason.
func TestNeverRunningWithoutSuccess(t *testing.T) {
	q, c := newFakes(1, nil)
	r := NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, ""), Broker: q, Sink: c.Node()})
	if s := r.Status(); s.State != StateRunning {
		t.Errorf("a new one is %s", s.State)
	}
	late := func() {
		r.status.mu.Lock()
		defer r.status.mu.Unlock()
		r.status.mu.ok = time.Now().Add(-silentMax - time.Second)
	}
	for _, err := range []error{errBroken, sink.ErrMoved, nil} { // nil means that a call hangs
		late()
		if err != nil {
			r.report(err)
		}
		if s := r.Status(); s.State != StateStalled || s.Reason == "" || errors.Is(err, errBroken) && s.Reason != err.Error() {
			t.Errorf("after %v it is %s: %q", err, s.State, s.Reason)
		}
		r.status.running()
		if s := r.Status(); s.State != StateRunning || s.Reason != "" {
			t.Errorf("once it reads it is %s: %q", s.State, s.Reason)
		}
	}
}

// A partition does not report the state running while a call of Next hangs or its broker is silent,
// even if Bounds and the shards answer.
func TestReaderThatHangs(t *testing.T) {
	for name, hang := range map[string]func(q *fakeQueue){
		"does not return": func(q *fakeQueue) { q.next = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() } },
		"hears nothing":   func(q *fakeQueue) { q.silent = true },
	} {
		q, c := newFakes(1, nil)
		hang(q)
		var ticks atomic.Uint64
		q.commits = func(Position) { ticks.Add(1) }
		r, stop := startRunner(testConfig(t, ""), q, c)
		ticked := func() {
			n := ticks.Load()
			eventually(t, "the session ticks", func() bool { return ticks.Load() > n+5 })
		}
		ticked()
		r.status.set(func() { r.status.mu.ok = time.Now().Add(-silentMax - time.Second) })
		ticked()
		if s := r.Status(); s.State != StateStalled || s.Reason == "" {
			t.Errorf("the reader %s: it is %s: %q", name, s.State, s.Reason)
		}
		stop()
	}
}

// While a shard is late, the reader asks it at an interval. If the check of the queue and the first
// messages take longer than that interval, the source still reaches the end of the queue.
func TestLateShardAndSlowQueue(t *testing.T) {
	q, c := newFakes(2, nil)
	q.add(like(1, 1), like(2, 1))
	_, stop := startRunner(testConfig(t, ""), q, c)
	eventually(t, "it is counted", func() bool { return caughtUp(q, c) })
	stop()
	q.add(like(1, 1), like(2, 1))
	var late atomic.Bool
	late.Store(true)
	slow := func(d time.Duration) func(context.Context) error {
		return func(ctx context.Context) error {
			select {
			case <-time.After(d):
			case <-ctx.Done():
			}
			return ctx.Err()
		}
	}
	q.again = func(ctx context.Context, _ func()) error { return slow(150 * time.Millisecond)(ctx) }
	q.next = slow(150 * time.Millisecond)
	r := NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, ""), Broker: q, Sink: &lateSink{Sink: c.Node(), late: &late}})
	r.times.tick, r.times.late, r.times.backoffMin = time.Millisecond, 20*time.Millisecond, time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	eventually(t, "it comes to the end", func() bool { return caughtUp(q, c) })
}

// The lag in seconds is never 0 while messages wait. It is unknown while the messages' times are
// unknown.
func TestLagSeconds(t *testing.T) {
	s := status{counts: &Counts{}}
	is := func(what string, want func(float64) bool) {
		t.Helper()
		if got := s.get().LagSeconds; !want(got) {
			t.Errorf("%s: %v s", what, got)
		}
	}
	unknown := func(s float64) bool { return s == -1 }
	s.setEnd(Position{Lo: 5}, time.Now())
	is("none was applied", func(s float64) bool { return s > 0 && s < 60 })
	for _, at := range []time.Time{{}, time.UnixMilli(1), time.UnixMilli(-1), time.Now().AddDate(80, 0, 0)} {
		s.set(func() { s.mu.timeless = !isTime(at) })
		s.setPosition(Position{Lo: 1}, at)
		is(at.String(), unknown)
	}
	s.set(func() { s.mu.timeless = !isTime(time.Now().Add(time.Hour)) })
	s.setPosition(Position{Lo: 2}, time.Now().Add(time.Hour))
	is("a clock that is ahead", func(s float64) bool { return s > 0 && s < 60 })
	s.set(func() { s.mu.timeless = !isTime(time.Now().Add(-time.Hour)) })
	s.setPosition(Position{Lo: 3}, time.Now().Add(-time.Hour))
	is("an hour", func(s float64) bool { return s >= 3600 && s < 3660 })
	s.setPosition(Position{Lo: 5}, time.Time{})
	is("none waits", func(s float64) bool { return s == 0 })
}

// If a shard refuses an op after Check has accepted it, the session ends after the batch. When the
// session then moves the shards to one position, it sends the mark of that batch. With an older
// mark, the next check would consider the batch's last message a new one.
func TestMarkAfterLateRejection(t *testing.T) {
	q, c := newFakes(2, nil)
	q.add(like(2, 1))
	r, stop := startRunner(testConfig(t, "on-error: stop"), q, c)
	eventually(t, "the first is applied", func() bool { return caughtUp(q, c) })
	q.add(like(sinktest.FullRow, 1)) // for shard 1
	eventually(t, "the second is refused", func() bool { return caughtUp(q, c) && r.Status().Rejected == 1 })
	stop()
	all, err := c.Node().Positions(t.Context(), 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.Position.Lo != 2 || p.Mark.Position.Lo != 1 {
			t.Errorf("shard %d is at %v, its mark is of the message at %v", p.Shard, p.Position, p.Mark.Position)
		}
	}
	c.Restore(1, Position{Lo: 1})
	r, stop = startRunner(testConfig(t, ""), q, c)
	defer stop()
	eventually(t, "it reads again or stalls", func() bool { return caughtUp(q, c) || r.Status().State == StateStalled })
	if s := r.Status(); s.State == StateStalled {
		t.Error(s.Reason)
	}
}

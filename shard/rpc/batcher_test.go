package rpc

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/countd/countd/shard/errs"
)

// laneSends is the other side of a batcher under test: for each token in let, it answers one batch
// with its numbers doubled.
type laneSends struct {
	began chan []int    // a batch was sent
	let   chan struct{} // a token lets one batch be answered
}

func newLaneSends() *laneSends {
	return &laneSends{began: make(chan []int, 100), let: make(chan struct{}, 100)}
}

func (s *laneSends) send(ctx context.Context, batch []int) ([]int, error) {
	s.began <- batch
	select {
	case <-s.let:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	answers := make([]int, len(batch))
	for i, q := range batch {
		answers[i] = 2 * q
	}
	return answers, nil
}

func (s *laneSends) config() BatcherConfig[int, int] {
	return BatcherConfig[int, int]{
		Send: s.send, Size: func(q int) int { return q }, InFlight: 1,
		Items: 10, Bytes: 1000, CallItems: 4, CallBytes: 100,
	}
}

func testLane(t *testing.T, cfg BatcherConfig[int, int]) *Batcher[int, int] {
	t.Helper()
	mustLeaveNothing(t)
	l := NewBatcher(cfg)
	t.Cleanup(l.Close)
	return l
}

// laneAnswer is the result of one Do.
type laneAnswer struct {
	answer int
	err    error
}

// ask calls Do in a goroutine, and returns once the question is in the batcher.
func ask(t *testing.T, l *Batcher[int, int], ctx context.Context, q int) <-chan laneAnswer {
	t.Helper()
	count := func() int { l.mu.Lock(); defer l.mu.Unlock(); return l.mu.items }
	before := count()
	answer := make(chan laneAnswer, 1)
	go func() {
		a, err := l.Do(ctx, q)
		answer <- laneAnswer{a, err}
	}()
	eventually(t, "it is asked", func() bool { return count() > before })
	return answer
}

func TestBatcherGathersWhatWaits(t *testing.T) {
	s := newLaneSends()
	l := testLane(t, s.config())
	ctx := testContext(t)
	answers := []<-chan laneAnswer{ask(t, l, ctx, 1)}
	if got := <-s.began; len(got) != 1 {
		t.Errorf("first batch %v", got)
	}
	for q := 2; q <= 7; q++ {
		answers = append(answers, ask(t, l, ctx, q))
	}
	for _, want := range []int{4, 2} {
		s.let <- struct{}{}
		if got := <-s.began; len(got) != want {
			t.Errorf("batch %v, want %d", got, want)
		}
	}
	s.let <- struct{}{}
	for i, answer := range answers {
		if got := <-answer; got.err != nil || got.answer != 2*(i+1) {
			t.Errorf("answer to %d: %+v", i+1, got)
		}
	}
	eventually(t, "it runs nothing", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.mu.running == 0 && l.mu.items == 0 && l.mu.bytes == 0
	})
}

func TestBatcherBounds(t *testing.T) {
	t.Run("bytes of a batch", func(t *testing.T) {
		s := newLaneSends()
		l := testLane(t, s.config())
		ask(t, l, testContext(t), 1)
		<-s.began
		for _, q := range []int{60, 40, 1, 500, 2} {
			ask(t, l, testContext(t), q)
		}
		for _, want := range []int{2, 1, 1, 1} { // [60 40], [1], [500] although it is larger than a batch, [2]
			s.let <- struct{}{}
			if got := <-s.began; len(got) != want {
				t.Errorf("batch %v, want %d", got, want)
			}
		}
	})
	t.Run("items of the queue", func(t *testing.T) {
		s := newLaneSends()
		l := testLane(t, s.config())
		for range s.config().Items {
			ask(t, l, testContext(t), 1)
		}
		if _, err := l.Do(testContext(t), 1); !errors.Is(err, errs.ErrOverloaded) {
			t.Errorf("error %v", err)
		}
		<-s.began
		s.let <- struct{}{}
		<-s.began
		ask(t, l, testContext(t), 1)
	})
	t.Run("bytes of the queue", func(t *testing.T) {
		s := newLaneSends()
		l := testLane(t, s.config())
		ask(t, l, testContext(t), 5000) // more than the bound, but accepted because the batcher is empty
		if _, err := l.Do(testContext(t), 1); !errors.Is(err, errs.ErrOverloaded) {
			t.Errorf("error %v", err)
		}
	})
	t.Run("sends", func(t *testing.T) {
		s := newLaneSends()
		cfg := s.config()
		cfg.InFlight = 3
		l := testLane(t, cfg)
		for range 3 {
			ask(t, l, testContext(t), 1)
			<-s.began
		}
		ask(t, l, testContext(t), 1)
		l.mu.Lock()
		if l.mu.running != 3 || len(l.mu.queue) != 1 {
			t.Errorf("%d run, %d wait", l.mu.running, len(l.mu.queue))
		}
		l.mu.Unlock()
	})
}

// In synctest, the clock stops while a goroutine can run, so that even a slow machine sends in
// time.
func TestBatcherDeadlines(t *testing.T) {
	mustLeaveNothing(t)
	run := func(name string, test func(t *testing.T, s *laneSends, l *Batcher[int, int])) {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newLaneSends()
				l := NewBatcher(s.config())
				t.Cleanup(l.Close)
				test(t, s, l)
			})
		})
	}
	run("while it waits", func(t *testing.T, s *laneSends, l *Batcher[int, int]) {
		ask(t, l, testContext(t), 1)
		<-s.began
		short, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
		defer cancel()
		_, err := l.Do(short, 2)
		if !errors.Is(err, errs.ErrOverloaded) || !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrCallLost) {
			t.Errorf("error %v", err)
		}
		third := ask(t, l, testContext(t), 3)
		s.let <- struct{}{}
		if got := <-s.began; len(got) != 1 || got[0] != 3 {
			t.Errorf("batch %v", got)
		}
		s.let <- struct{}{}
		if got := <-third; got.err != nil {
			t.Error(got.err)
		}
	})
	run("over before it is taken", func(t *testing.T, s *laneSends, l *Batcher[int, int]) {
		ask(t, l, testContext(t), 1)
		<-s.began
		// Nobody waits for this question, as if its asker had no processor time.
		it := &batchItem[int, int]{question: 2, deadline: time.Now().Add(-time.Second), done: make(chan struct{})}
		mustDo(t, l.submit(it))
		s.let <- struct{}{}
		if <-it.done; !errors.Is(it.err, errs.ErrOverloaded) {
			t.Errorf("error %v", it.err)
		}
		eventually(t, "it runs nothing", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.mu.running == 0 && l.mu.items == 0 })
		if len(s.began) != 0 {
			t.Error("it was sent")
		}
	})
	run("once it is sent", func(t *testing.T, s *laneSends, l *Batcher[int, int]) {
		short, cancel := context.WithTimeout(context.Background(), 5*time.Millisecond)
		defer cancel()
		_, err := l.Do(short, 1)
		// The send ends with the last deadline, so the error of the send may come first.
		if errors.Is(err, errs.ErrOverloaded) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
	run("sent with a later one", func(t *testing.T, s *laneSends, l *Batcher[int, int]) {
		within := func(d time.Duration) context.Context {
			ctx, cancel := context.WithTimeout(context.Background(), d)
			t.Cleanup(cancel)
			return ctx
		}
		ask(t, l, within(2*time.Minute), 1)
		<-s.began
		asked := time.Now()
		earlier := ask(t, l, within(CallTimeoutMax), 2)
		time.Sleep(CallTimeoutMax - time.Second)
		ask(t, l, within(CallTimeoutMax), 3)
		s.let <- struct{}{}
		if got := <-s.began; len(got) != 2 {
			t.Fatalf("batch %v", got)
		}
		if got := <-earlier; !errors.Is(got.err, ErrCallLost) || time.Since(asked) != CallTimeoutMax {
			t.Errorf("the earlier one ends after %v: %v", time.Since(asked), got.err)
		}
		// shard.KeyHorizonMin relies on this: the question stays counted until the call ends,
		// because the other side may still have it.
		eventually(t, "the call ends", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.mu.items == 0 })
		if took := time.Since(asked); took < 2*CallTimeoutMax-time.Second || took > 2*CallTimeoutMax {
			t.Errorf("the call of both ends after %v", took)
		}
	})
	run("given up by all", func(t *testing.T, s *laneSends, l *Batcher[int, int]) {
		ctx, cancel := context.WithCancel(context.Background())
		answer := ask(t, l, ctx, 1)
		<-s.began
		cancel()
		if got := <-answer; !errors.Is(got.err, context.Canceled) || errors.Is(got.err, errs.ErrOverloaded) {
			t.Errorf("error %v", got.err)
		}
		eventually(t, "the send is ended", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.mu.running == 0 })
	})
}

// If the only asker gives up while Send still waits for a connection, Send ends. The asker gets the
// error of Send, which shows that nothing was sent.
func TestBatcherGivenUpBeforeItIsSent(t *testing.T) {
	began := make(chan struct{})
	cfg := newLaneSends().config()
	cfg.Send = func(ctx context.Context, _ []int) ([]int, error) {
		close(began)
		<-ctx.Done()
		return nil, ErrNotSent
	}
	ctx, cancel := context.WithCancel(context.Background())
	answer := ask(t, testLane(t, cfg), ctx, 1)
	<-began
	cancel()
	if got := <-answer; !errors.Is(got.err, ErrNotSent) {
		t.Errorf("error %v", got.err)
	}
}

func TestBatcherClose(t *testing.T) {
	s := newLaneSends()
	l := testLane(t, s.config())
	sent := ask(t, l, testContext(t), 1)
	<-s.began
	waiting := ask(t, l, testContext(t), 2)
	l.Close()
	if got := <-sent; !errors.Is(got.err, context.Canceled) {
		t.Errorf("what was sent: %v", got.err)
	}
	if got := <-waiting; !errors.Is(got.err, errs.ErrDraining) {
		t.Errorf("what waited: %v", got.err)
	}
	if _, err := l.Do(testContext(t), 3); !errors.Is(err, errs.ErrDraining) {
		t.Errorf("after close: %v", err)
	}
	l.Close()
}

func TestBatcherWithTheWrongAnswers(t *testing.T) {
	cfg := newLaneSends().config()
	cfg.Send = func(context.Context, []int) ([]int, error) { return []int{1, 2}, nil }
	if _, err := testLane(t, cfg).Do(testContext(t), 1); !errors.Is(err, ErrCallLost) {
		t.Errorf("two answers: %v", err)
	}
	cfg.Send = func(context.Context, []int) ([]int, error) { return nil, ErrNotSent }
	if _, err := testLane(t, cfg).Do(testContext(t), 1); !errors.Is(err, ErrNotSent) {
		t.Errorf("an error: %v", err)
	}
}

// Many askers with deadlines about as long as a send:
//
//  1. each has the answer to its own question or an error;
//  2. a question that was refused was never sent;
//  3. nothing is sent twice;
//  4. the batcher is empty at the end.
func TestBatcherUnderLoad(t *testing.T) {
	var mu sync.Mutex
	sent := make(map[int]int)
	cfg := newLaneSends().config()
	cfg.InFlight, cfg.Size = 2, nil
	cfg.Send = func(_ context.Context, batch []int) ([]int, error) {
		time.Sleep(time.Duration(rand.IntN(1000)) * time.Microsecond)
		mu.Lock()
		defer mu.Unlock()
		answers := make([]int, len(batch))
		for i, q := range batch {
			sent[q]++
			answers[i] = 2 * q
		}
		return answers, nil
	}
	l := testLane(t, cfg)
	var next, answered, refused, lost atomic.Int64
	refusals := sync.Map{}
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 200 {
				q := int(next.Add(1))
				ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rand.IntN(2500))*time.Microsecond)
				got, err := l.Do(ctx, q)
				cancel()
				switch {
				case err == nil && got == 2*q:
					answered.Add(1)
				case err == nil:
					t.Errorf("%d was answered %d", q, got)
				case errors.Is(err, errs.ErrOverloaded):
					refused.Add(1)
					refusals.Store(q, true)
				case errors.Is(err, ErrCallLost):
					lost.Add(1)
				default:
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	l.Close()
	for q, n := range sent {
		if _, was := refusals.Load(q); was || n > 1 {
			t.Errorf("%d was sent %d times, refused %v", q, n, was)
		}
	}
	if l.mu.items != 0 || l.mu.bytes != 0 || len(l.mu.queue) != 0 || l.mu.running != 0 || l.mu.withdrawn != 0 {
		t.Errorf("left: %+v", &l.mu)
	}
	if answered.Load() == 0 || refused.Load() == 0 {
		t.Errorf("%d answered, %d refused, %d lost", answered.Load(), refused.Load(), lost.Load())
	}
}

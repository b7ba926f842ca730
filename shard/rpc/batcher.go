package rpc

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/shard/errs"
)

// BatcherConfig configures NewBatcher. All but Size must be set, the bounds above 0.
type BatcherConfig[Q, A any] struct {
	// Send sends a batch of questions and returns the answer of each, in their
	// order; an error is the answer of all. ctx ends with the last deadline of
	// the batch, when nobody waits for it any more, and when the batcher closes.
	// Send returns then: the last asker waits for it.
	Send func(ctx context.Context, batch []Q) ([]A, error)
	Size func(Q) int // bytes of a question; nil for questions that all are small

	InFlight  int // sends at once
	Items     int // questions without an answer: those that wait and those that were sent
	Bytes     int // of them
	CallItems int // questions of one send
	CallBytes int // of one send; a larger question is sent by itself
}

// Batcher gathers questions into batches: what waits is sent at once while fewer
// than InFlight batches have no answer, and otherwise waits and grows. There is
// no timer: one question alone waits for nobody.
//
// Its goroutines, at most InFlight of them, run while there is something to
// send. The batcher starts them, close stops and waits for them.
type Batcher[Q, A any] struct {
	cfg    BatcherConfig[Q, A]
	ctx    context.Context
	cancel context.CancelFunc // by close
	wg     sync.WaitGroup     // run

	mu struct { // never held while sending
		sync.Mutex
		queue     []*batchItem[Q, A] // in order of arrival
		withdrawn int                // of the queue; never more than half of it
		items     int                // without an answer: in the queue, not withdrawn, or sent
		bytes     int                // of them
		running   int                // goroutines
		closed    bool
	}
}

// batchItem is one question.
type batchItem[Q, A any] struct {
	question Q
	bytes    int
	deadline time.Time // zero for none

	batch *itemBatch[Q, A] // nil while it is in the queue; guarded by Batcher.mu
	gone  bool             // it was withdrawn or refused there; guarded by Batcher.mu

	done   chan struct{} // closed when the rest is set
	answer A
	err    error
}

// itemBatch is what one call of Send takes.
type itemBatch[Q, A any] struct {
	items   []*batchItem[Q, A]
	bytes   int
	waiting atomic.Int32 // items whose askers have not given up
	ctx     context.Context
	cancel  context.CancelFunc
}

// NewBatcher returns a batcher without goroutines. Close ends it.
func NewBatcher[Q, A any](cfg BatcherConfig[Q, A]) *Batcher[Q, A] {
	if cfg.Size == nil {
		cfg.Size = func(Q) int { return 0 }
	}
	l := &Batcher[Q, A]{cfg: cfg}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Do asks q and waits for the answer. q is the batcher's until its batch is
// answered, which may be after do has returned. At the end of ctx a question
// that still waits is withdrawn, never sent and refused with ErrOverloaded; one
// that was sent is given up: with ErrCallLost or, by the last asker of its batch, with
// what Send returns, which knows whether anything was sent. All hold the context's error.
func (l *Batcher[Q, A]) Do(ctx context.Context, q Q) (A, error) {
	it := &batchItem[Q, A]{question: q, bytes: l.cfg.Size(q), done: make(chan struct{})}
	it.deadline, _ = ctx.Deadline()
	if err := l.submit(it); err != nil {
		return it.answer, err
	}
	select {
	case <-it.done:
		return it.answer, it.err
	case <-ctx.Done():
	}
	var none A
	if l.withdraw(it) {
		return none, fmt.Errorf("%w: it was not sent in time: %w", errs.ErrOverloaded, ctx.Err())
	}
	select {
	case <-it.done: // just then, or refused
		return it.answer, it.err
	default:
		if it.batch.waiting.Add(-1) == 0 { // the last asker ends the send
			it.batch.cancel()
			if <-it.done; it.err == nil {
				return it.answer, nil
			}
			return none, fmt.Errorf("%w: %w", it.err, ctx.Err())
		}
		return none, fmt.Errorf("%w: %w", ErrCallLost, ctx.Err())
	}
}

// submit queues a question. It returns ErrOverloaded if the batcher is full and
// ErrDraining if it is closed.
func (l *Batcher[Q, A]) submit(it *batchItem[Q, A]) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return errs.ErrDraining
	}
	// A batcher that is empty takes anything: no question is larger than its bounds
	// for ever.
	if l.mu.items > 0 && (l.mu.items >= l.cfg.Items || l.mu.bytes+it.bytes > l.cfg.Bytes) {
		return errs.ErrOverloaded
	}
	l.mu.queue = append(l.mu.queue, it)
	l.mu.items++
	l.mu.bytes += it.bytes
	if l.mu.running < l.cfg.InFlight {
		l.mu.running++
		l.wg.Go(l.run)
	}
	return nil
}

// withdraw takes a question back, unless it was sent or refused. The queue is closed up
// when half of it is withdrawn: while a peer hangs nothing takes from it, and
// askers with short deadlines come and go.
func (l *Batcher[Q, A]) withdraw(it *batchItem[Q, A]) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if it.batch != nil || it.gone {
		return false
	}
	it.gone = true
	l.mu.items--
	l.mu.bytes -= it.bytes
	l.mu.withdrawn++
	if l.mu.withdrawn > len(l.mu.queue)/2 {
		l.mu.queue = slices.DeleteFunc(l.mu.queue, func(it *batchItem[Q, A]) bool { return it.gone })
		l.mu.withdrawn = 0
	}
	return true
}

// run sends what waits until nothing does.
func (l *Batcher[Q, A]) run() {
	for {
		// Who was answered or woken by the same thing as the first of the queue asks
		// in this turn of the scheduler too, and is sent with it.
		runtime.Gosched()
		b := l.take()
		if b == nil {
			return
		}
		questions := make([]Q, len(b.items))
		for i, it := range b.items {
			questions[i] = it.question
		}
		answers, err := l.cfg.Send(b.ctx, questions)
		b.cancel()
		if err == nil && len(answers) != len(questions) {
			err = fmt.Errorf("%w: %d answers to %d questions", ErrCallLost, len(answers), len(questions))
		}
		l.settle(b, answers, err)
	}
}

// take removes the next batch from the queue. It returns nil, and counts its
// goroutine as ended, when nothing waits.
func (l *Batcher[Q, A]) take() *itemBatch[Q, A] {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := &itemBatch[Q, A]{}
	now, n := time.Now(), 0
	for _, it := range l.mu.queue {
		switch {
		case it.gone:
			l.mu.withdrawn--
		case !it.deadline.IsZero() && !now.Before(it.deadline):
			l.refuseLocked(it, fmt.Errorf("%w: it was not sent in time: %w", errs.ErrOverloaded, context.DeadlineExceeded))
		case len(b.items) == l.cfg.CallItems || len(b.items) > 0 && b.bytes+it.bytes > l.cfg.CallBytes:
			return l.launchLocked(b, n)
		default:
			it.batch = b
			b.items = append(b.items, it)
			b.bytes += it.bytes
		}
		n++
	}
	return l.launchLocked(b, n)
}

// launchLocked removes the n questions that were looked at from the queue, and
// gives the batch its context.
func (l *Batcher[Q, A]) launchLocked(b *itemBatch[Q, A], n int) *itemBatch[Q, A] {
	l.mu.queue = slices.Delete(l.mu.queue, 0, n)
	if len(b.items) == 0 {
		l.mu.running--
		return nil
	}
	b.waiting.Store(int32(len(b.items)))
	last, bounded := time.Time{}, true
	for _, it := range b.items {
		bounded = bounded && !it.deadline.IsZero()
		if it.deadline.After(last) {
			last = it.deadline
		}
	}
	if bounded {
		b.ctx, b.cancel = context.WithDeadline(l.ctx, last)
	} else {
		b.ctx, b.cancel = context.WithCancel(l.ctx)
	}
	return b
}

// settle answers the questions of a batch.
func (l *Batcher[Q, A]) settle(b *itemBatch[Q, A], answers []A, err error) {
	l.mu.Lock() // first: who has an answer finds the room that it took free again
	l.mu.items -= len(b.items)
	l.mu.bytes -= b.bytes
	l.mu.Unlock()
	for i, it := range b.items {
		if it.err = err; err == nil {
			it.answer = answers[i]
		}
		close(it.done)
	}
}

// refuseLocked answers a question that is in the queue and will leave it.
func (l *Batcher[Q, A]) refuseLocked(it *batchItem[Q, A], err error) {
	it.gone = true
	l.mu.items--
	l.mu.bytes -= it.bytes
	it.err = err
	close(it.done)
}

// Close refuses what waits with ErrDraining, cancels what was sent, and waits
// for it to end.
func (l *Batcher[Q, A]) Close() {
	l.mu.Lock()
	l.mu.closed = true
	for _, it := range l.mu.queue {
		if !it.gone {
			l.refuseLocked(it, errs.ErrDraining)
		}
	}
	l.mu.queue, l.mu.withdrawn = nil, 0
	l.mu.Unlock()
	l.cancel()
	l.wg.Wait()
}

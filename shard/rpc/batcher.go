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

// BatcherConfig configures NewBatcher. All fields but Size must be set, and the bounds must be
// above 0.
type BatcherConfig[Q, A any] struct {
	// Send sends a batch of questions and returns their answers in the same order. If Send fails,
	// every asker gets the error. ctx ends at the last deadline of the batch, when all askers have
	// given up, or when the batcher closes. Send must then return, because the last asker waits for
	// that.
	Send func(ctx context.Context, batch []Q) ([]A, error)
	Size func(Q) int // returns the bytes of a question; nil if all questions are small

	InFlight  int // maximal number of concurrent calls of Send
	Items     int // maximal number of unanswered questions, waiting and sent
	Bytes     int // maximal bytes of the unanswered questions
	CallItems int // maximal number of questions in one batch
	CallBytes int // maximal bytes in one batch; a larger question is sent alone
}

// Batcher combines questions into batches. It sends waiting questions at once while fewer than
// InFlight batches are unanswered; otherwise they wait and the next batch grows. It has no timer:
// a single question waits for nobody.
//
// It has at most InFlight goroutines, which run while there are questions to send. Close stops
// them and waits.
type Batcher[Q, A any] struct {
	cfg    BatcherConfig[Q, A]
	ctx    context.Context
	cancel context.CancelFunc // called by Close
	wg     sync.WaitGroup     // counts the goroutines of run

	mu struct { // never held while sending
		sync.Mutex
		queue     []*batchItem[Q, A] // in order of arrival
		withdrawn int                // number of withdrawn questions in queue; at most half of them
		items     int                // unanswered questions: queued and not withdrawn, or sent
		bytes     int                // bytes of the unanswered questions
		running   int                // number of running goroutines
		closed    bool
	}
}

type batchItem[Q, A any] struct {
	question Q
	bytes    int
	deadline time.Time // zero for none

	batch *itemBatch[Q, A] // nil while the question is queued; guarded by Batcher.mu
	gone  bool             // withdrawn or refused while queued; guarded by Batcher.mu

	done   chan struct{} // closed once the fields below are set
	answer A
	err    error
}

// itemBatch is the batch of one call of Send.
type itemBatch[Q, A any] struct {
	items   []*batchItem[Q, A]
	bytes   int
	waiting atomic.Int32 // number of items whose askers have not given up
	ctx     context.Context
	cancel  context.CancelFunc
}

// NewBatcher returns a batcher. Close stops it.
func NewBatcher[Q, A any](cfg BatcherConfig[Q, A]) *Batcher[Q, A] {
	if cfg.Size == nil {
		cfg.Size = func(Q) int { return 0 }
	}
	l := &Batcher[Q, A]{cfg: cfg}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// Do asks q and waits for the answer. The batcher owns q until its batch is answered, which may be
// after Do returns. If ctx ends while the question is queued, Do withdraws the question, which is
// then never sent, and returns ErrOverloaded. If ctx ends after the question was sent, Do returns
// ErrCallLost. But the last asker of the batch to give up waits for Send to return, and gets its
// result: an error of Send shows whether anything was sent. Each of these errors wraps ctx's error.
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
	case <-it.done: // answered or refused just now
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

func (l *Batcher[Q, A]) submit(it *batchItem[Q, A]) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.closed {
		return errs.ErrDraining
	}
	// An empty batcher accepts a question of any size; otherwise a large question could never be
	// sent.
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

// withdraw removes a question, unless it was sent or refused. When more than half of the questions
// in the queue are withdrawn, withdraw compacts the queue: while a peer hangs, nothing else removes
// questions whose deadlines have passed.
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

// run sends the waiting questions until none is left.
func (l *Batcher[Q, A]) run() {
	for {
		// Yield once, so that callers woken by the same event join this batch.
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

// take removes the next batch from the queue. If nothing waits, it returns nil and counts the
// calling goroutine as ended.
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

// launchLocked removes the first n questions from the queue, and sets the context of the batch.
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

func (l *Batcher[Q, A]) settle(b *itemBatch[Q, A], answers []A, err error) {
	l.mu.Lock() // free the space before an asker gets its answer, so that the asker's next question fits
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

func (l *Batcher[Q, A]) refuseLocked(it *batchItem[Q, A], err error) {
	it.gone = true
	l.mu.items--
	l.mu.bytes -= it.bytes
	it.err = err
	close(it.done)
}

// Close refuses the queued questions with ErrDraining, cancels the sends, and waits for them.
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

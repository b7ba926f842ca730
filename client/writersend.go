package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// run sends batches until the writer is closed and its queue is empty.
func (w *Writer) run(ctx context.Context) {
	for b := w.next(); b != nil; b = w.next() {
		w.send(ctx, b)
		w.settle(b)
	}
}

// next removes the oldest batch from the queue and numbers the batch. It returns nil after the last
// batch.
func (w *Writer) next() *batch {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		if len(w.mu.queue) == 0 && w.mu.closed {
			return nil
		}
		if s := w.mu.session; s.next > 1 && time.Since(s.born) > sessionAgeMax {
			w.mu.session = newSession()
		}
		if len(w.mu.queue) > 0 && w.mu.session.hasRoom() && !w.waitsLocked(w.mu.queue[0]) {
			break
		}
		w.mu.work.Wait()
	}
	b := w.mu.queue[0]
	w.mu.queue[0] = nil
	w.mu.queue = w.mu.queue[1:]
	if w.mu.filling[b.keyspace] == b {
		delete(w.mu.filling, b.keyspace)
	}
	for _, op := range b.sums.Ops() {
		if row := (rowAt{b.keyspace, op.ID}); w.mu.waiting[row] == b {
			delete(w.mu.waiting, row)
		}
	}
	w.mu.rows -= b.sums.Len()
	w.mu.flying = append(w.mu.flying, b)
	w.makeRoomLocked()
	b.session, b.seq = w.mu.session, w.mu.session.take()
	return b
}

// waitsLocked reports whether a batch must wait for an earlier batch in flight.
func (w *Writer) waitsLocked(b *batch) bool {
	return slices.ContainsFunc(w.mu.flying, func(f *batch) bool { return f.keyspace == b.keyspace && f.sums.InOrder(&b.sums) })
}

// settle ends a batch. The writer does not send its number again.
func (w *Writer) settle(b *batch) {
	w.mu.Lock()
	b.session.settle(b.seq)
	delete(w.mu.unsettled, b)
	w.mu.flying = slices.DeleteFunc(w.mu.flying, func(f *batch) bool { return f == b })
	w.mu.work.Broadcast() // wake all waiting goroutines, because the window may have moved
	w.mu.Unlock()
	close(b.settled)
}

// send sends a batch, repeatedly if necessary, until each of its ops is counted or has failed.
func (w *Writer) send(ctx context.Context, b *batch) {
	ops, renewed := b.sums.Ops(), false
	for len(ops) > 0 {
		result, err := w.sendOnce(ctx, b, ops)
		if err == nil {
			w.failRefused(b, ops, result)
			return
		}
		var refused *Error
		known := errors.As(err, &refused) && !errors.Is(err, ErrUnknown)
		column, isColumn := "", false
		if known && refused.Status == http.StatusBadRequest {
			column, isColumn = columnOf(refused.Field)
		}
		switch {
		case isColumn:
			// The server applied no op. Only the ops that name this column fail; the others are
			// sent again.
			left := w.failColumn(b, ops, column, err)
			if len(left) == len(ops) {
				w.failAll(b, ops, err)
				return
			}
			ops = left
		case refused != nil && refused.Status == http.StatusGone:
			w.renew(b.session)
			if !known || renewed {
				w.failAll(b, ops, err)
				return
			}
			renewed = true
			w.renumber(b)
		default:
			w.failAll(b, ops, err)
			return
		}
	}
}

func (w *Writer) sendOnce(ctx context.Context, b *batch, ops []Op) (WriteResult, error) {
	retry := w.client.retry
	retry.For = w.cfg.RetryFor
	o := WriteOptions{Quiet: true, Producer: b.session.producer, Seq: b.seq}
	body := AppendOps(nil, "add", ops, false)
	return w.client.write(ctx, retry, keyspacePath(b.keyspace)+"/incr", body, o)
}

// renew replaces an ended session by a new one, so that later batches use the name of the new
// session. If another goroutine has replaced it already, renew does nothing.
func (w *Writer) renew(ended *session) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.session == ended {
		w.mu.session = newSession()
	}
}

// renumber moves a batch to the current session. The caller must know that the server has applied
// no op of the batch.
func (w *Writer) renumber(b *batch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for !w.mu.session.hasRoom() {
		w.mu.work.Wait()
	}
	b.session.settle(b.seq)
	b.session, b.seq = w.mu.session, w.mu.session.take()
}

// failRefused reports the ops that the server refused individually. It also reports the ops that an
// unanswered try may have applied or refused.
func (w *Writer) failRefused(b *batch, ops []Op, result WriteResult) {
	for _, r := range result.Refused {
		if r.Error == nil {
			continue
		}
		err := fmt.Errorf("%s: %s", r.Error.Code, r.Error.Message)
		if i, _, ok := cutOp(r.Error.Field); ok && i < len(ops) && ops[i].ID == r.ID {
			w.fail(b, ops[i], err)
			continue
		}
		w.fail(b, Op{ID: r.ID}, err)
	}
	unknown := result.Unknown
	for _, op := range ops {
		if len(unknown) > 0 && unknown[0] == op.ID {
			unknown = unknown[1:]
			w.fail(b, op, fmt.Errorf("%w: the sums of some rows of its shard did not fit", ErrUnknown))
		}
	}
}

// failColumn reports the ops that name a column, and returns the other ops.
func (w *Writer) failColumn(b *batch, ops []Op, column string, err error) []Op {
	var left []Op
	for _, op := range ops {
		if _, has := op.Cells.Get(column); has {
			w.fail(b, op, err)
			continue
		}
		left = append(left, op)
	}
	return left
}

func (w *Writer) failAll(b *batch, ops []Op, err error) {
	for _, op := range ops {
		w.fail(b, op, err)
	}
}

func (w *Writer) fail(b *batch, op Op, err error) {
	w.mu.Lock()
	if w.mu.failed == nil {
		w.mu.failed = fmt.Errorf("cannot count row %s of %s: %w", op.ID, b.keyspace, err)
	}
	w.mu.Unlock()
	if w.cfg.OnFailure != nil {
		w.cfg.OnFailure(Failure{b.keyspace, op, err})
	}
}

package csvimport

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/countd/countd/client"
)

// laneQueueMax is how many full batches are queued in a lane: one, so that the next request
// is sent as soon as the last one was answered.
const laneQueueMax = 1

// batch holds the rows of one request.
type batch struct {
	ops   []client.Op
	lines []int64 // of the file, one an op
}

// lane sends the rows of its ids in order, one request at a time. Each request has a number
// of the lane's producer: a late copy of it must not overwrite counts that were set after
// it.
type lane struct {
	im       *Import
	number   int
	producer string
	seq      uint64      // of the request that was sent last
	filling  *batch      // owned by the reader
	queue    chan *batch // closed by finish
}

func (im *Import) newBatch() *batch {
	return &batch{
		ops:   make([]client.Op, 0, im.cfg.BatchRows),
		lines: make([]int64, 0, im.cfg.BatchRows),
	}
}

// laneOf returns an id's lane by a hash of all its bits, because no field of real ids is
// evenly distributed.
func laneOf(id client.ID, lanes int) int {
	const golden = 0x9e3779b97f4a7c15
	lane, _ := bits.Mul64(uint64(id)*golden, uint64(lanes))
	return int(lane)
}

// add adds a row to the batch and queues the batch when it is full. It waits while the lane
// is busy, until ctx ends.
func (l *lane) add(ctx context.Context, op client.Op, line int64) {
	l.im.mark.taken(l.number, len(l.filling.ops) == 0, line)
	l.filling.ops = append(l.filling.ops, op)
	l.filling.lines = append(l.filling.lines, line)
	if len(l.filling.ops) == cap(l.filling.ops) {
		l.hand(ctx)
	}
}

func (l *lane) hand(ctx context.Context) {
	select {
	case l.queue <- l.filling:
		l.filling = l.im.newBatch()
	case <-ctx.Done():
	}
}

// finish queues the last rows, unless ctx is done, and closes the queue.
func (l *lane) finish(ctx context.Context) {
	if len(l.filling.ops) > 0 && ctx.Err() == nil {
		l.hand(ctx)
	}
	close(l.queue)
}

// run sends batches until the queue is closed. Once ctx is done it sends nothing more, but
// it waits for the answer of a request in flight: if it were cut off, the request might
// reach the server after the rows of the next run.
func (l *lane) run(ctx context.Context, fail context.CancelCauseFunc) {
	for b := range l.queue {
		if ctx.Err() != nil {
			continue
		}
		if err := l.send(ctx, b); err != nil {
			fail(err)
			continue
		}
		l.im.acked.Add(int64(len(b.ops)))
		l.im.mark.acked(l.number)
	}
}

func (l *lane) send(ctx context.Context, b *batch) error {
	cfg := &l.im.cfg
	l.seq++
	o := client.WriteOptions{Quiet: true, Producer: l.producer, Seq: l.seq, Once: true}
	err := cfg.Retry.Do(ctx, func() error {
		result, err := cfg.Client.Set(context.WithoutCancel(ctx), cfg.Keyspace, b.ops, o)
		if err == nil && result.Applied != len(b.ops) {
			return fmt.Errorf("the server applied %d of %d rows and did not say why", result.Applied, len(b.ops))
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot set the rows of %s: %w", l.im.place(b, err), err)
	}
	return nil
}

// place returns the file and the line of an error, or the lines of the batch.
func (im *Import) place(b *batch, err error) string {
	var refused *client.Error
	if errors.As(err, &refused) {
		if op, ok := refused.Op(); ok && op < len(b.lines) {
			return fmt.Sprintf("%s:%d", im.rows.in.Name(), b.lines[op])
		}
	}
	return fmt.Sprintf("%s:%d–%d", im.rows.in.Name(), b.lines[0], slices.Max(b.lines))
}

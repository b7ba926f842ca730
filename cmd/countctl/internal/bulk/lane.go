package bulk

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"slices"
	"sync"

	"github.com/countd/countd/client"
)

// laneQueueMax bounds the full batches that wait in a lane. With one, the lane can send the next
// request as soon as the previous one is answered.
const laneQueueMax = 1

// batch holds the rows of one request.
type batch struct {
	ops     []client.Op
	members []client.MemberOp // used instead of ops for an import of members
	lines   []int64           // line of each row in the file
}

type row struct {
	client.Op
	member client.ID // a member to add to a set, if the row has no cells
}

// lane sends the rows of its ids in order, one request at a time. Each request has a number that
// follows from the run's Fence. So a late copy of the request cannot overwrite counts that were set
// later.
type lane struct {
	im      *FileImport
	number  int
	filling *batch      // owned by the reader
	queue   chan *batch // closed by finish
}

func (im *FileImport) newBatch() *batch {
	b := &batch{lines: make([]int64, 0, im.cfg.Rows)}
	if im.cfg.From.OfMembers() {
		b.members = make([]client.MemberOp, 0, im.cfg.Rows)
	} else {
		b.ops = make([]client.Op, 0, im.cfg.Rows)
	}
	return b
}

// laneOf returns the lane of an id. It hashes all bits of a number, because no part of the bits is
// evenly distributed in real ids.
func laneOf(id client.ID, lanes int) int {
	const golden = 0x9e3779b97f4a7c15
	number, is := id.Number()
	if !is {
		for _, b := range []byte(id.String()) {
			number = (number ^ uint64(b)) * golden
		}
	}
	lane, _ := bits.Mul64(number*golden, uint64(lanes))
	return int(lane)
}

// add adds a row to the batch and queues the batch when it is full. While the queue is full, it
// waits; it stops waiting when ctx ends.
func (l *lane) add(ctx context.Context, one row, line int64) {
	l.im.mark.taken(l.number, len(l.filling.lines) == 0, line)
	if l.im.cfg.From.OfMembers() {
		l.filling.members = append(l.filling.members, client.MemberOp{ID: one.ID, Member: one.member})
	} else {
		l.filling.ops = append(l.filling.ops, one.Op)
	}
	l.filling.lines = append(l.filling.lines, line)
	if len(l.filling.lines) == cap(l.filling.lines) {
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
	if len(l.filling.lines) > 0 && ctx.Err() == nil {
		l.hand(ctx)
	}
	close(l.queue)
}

// run sends batches until the queue is closed. Once ctx is done, it sends no further batch, but
// waits for the answer to the request in flight. Otherwise that request could reach the server
// after the rows of the next run.
func (l *lane) run(ctx context.Context, fail context.CancelCauseFunc) {
	for b := range l.queue {
		if ctx.Err() != nil {
			continue
		}
		if err := l.send(ctx, b); err != nil {
			fail(err)
			continue
		}
		l.im.acked.Add(int64(len(b.lines)))
		l.im.mark.acked(l.number)
	}
}

func (l *lane) send(ctx context.Context, b *batch) error {
	cfg := &l.im.cfg
	_, err := l.im.writer.Write(ctx, func(ctx context.Context, o client.WriteOptions) (client.WriteResult, error) {
		result, err := b.write(ctx, cfg, o)
		if err == nil && len(result.Refused) > 0 && result.Refused[0].Error != nil { // the server refused an op because the count would overflow
			err = errors.New(result.Refused[0].Error.Message)
		}
		if err == nil && result.Applied != len(b.lines) {
			err = fmt.Errorf("the server applied %d of %d rows and did not say why", result.Applied, len(b.lines))
		}
		return result, err
	})
	if err != nil {
		return fmt.Errorf("cannot set the rows of %s: %w", l.im.place(b, err), err)
	}
	return nil
}

// write sends the rows as values, as members, or as members that do not change the counts.
func (b *batch) write(ctx context.Context, cfg *FileConfig, o client.WriteOptions) (client.WriteResult, error) {
	from := &cfg.From
	switch {
	case !from.OfMembers():
		return cfg.Client.Set(ctx, from.Keyspace, b.ops, o)
	case from.Kind == KindCopied:
		return cfg.Client.Members(from.Keyspace, from.Columns[0].Counter).Copy(ctx, b.members, o)
	}
	return cfg.Client.Members(from.Keyspace, from.Columns[0].Counter).Change(ctx, b.members, o)
}

// place returns the file and the line to which err belongs. If err names no row, it returns the
// lines of the batch.
func (im *FileImport) place(b *batch, err error) string {
	var refused *client.Error
	if errors.As(err, &refused) {
		if op, ok := refused.Op(); ok && op < len(b.lines) {
			return fmt.Sprintf("%s:%d", im.rows.in.Name(), b.lines[op])
		}
	}
	return fmt.Sprintf("%s:%d–%d", im.rows.in.Name(), b.lines[0], slices.Max(b.lines))
}

// Position is a position in a file: every record that starts on Line or before is handled. Rows
// counts the records that the server acknowledged, and Rejected the records that the import rejected.
type Position struct {
	Line     int64 `json:"line"`
	Rows     int64 `json:"rows"`
	Rejected int64 `json:"rejected,omitempty"`
}

// watermark tracks the position up to which all rows are handled. Rows of different lanes may
// complete in any order.
type watermark struct {
	mu struct {
		sync.Mutex
		end Position // position after the last record that was read
		// open has a list for each lane: for each unacknowledged batch, oldest first, the position
		// before its first row. The watermark is the lowest position in open, or end if open has no
		// position.
		open [][]Position
	}
}

func newWatermark(lanes int, from Position) *watermark {
	w := &watermark{}
	w.mu.end = from
	w.mu.open = make([][]Position, lanes)
	return w
}

// taken records that the row on line was passed to a lane. newBatch must be set if the row is the
// first of a batch.
func (w *watermark) taken(lane int, newBatch bool, line int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if newBatch {
		w.mu.open[lane] = append(w.mu.open[lane], w.mu.end)
	}
	w.mu.end.Line = line
	w.mu.end.Rows++
}

// passed records that the record on line was rejected.
func (w *watermark) passed(line int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.end.Line = line
	w.mu.end.Rejected++
}

// acked records that the lane's oldest batch was acknowledged.
func (w *watermark) acked(lane int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.open[lane] = w.mu.open[lane][1:]
}

// position returns the watermark. It never falls.
func (w *watermark) position() Position {
	w.mu.Lock()
	defer w.mu.Unlock()
	lowest := w.mu.end
	for _, batches := range w.mu.open {
		if len(batches) > 0 && batches[0].Line < lowest.Line {
			lowest = batches[0]
		}
	}
	return lowest
}

package client

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	writerInFlightDefault   = 4
	writerBatchOpsDefault   = 1000
	writerWaitingOpsDefault = 100_000
	// writerRetryForMax bounds the retries of a batch, so that servers still know its producer
	// at the last try.
	writerRetryForMax = time.Hour
)

var (
	// ErrFull is returned by Add if the queue is full and FailWhenFull is set. Nothing was
	// queued.
	ErrFull = errors.New("the writer is full")
	// ErrClosed is returned by a Writer that was closed.
	ErrClosed = errors.New("the writer is closed")
	// ErrBadDelta is returned by Add if there is no delta, or if two deltas have the same
	// column.
	ErrBadDelta = errors.New("not one delta for each of some columns")
)

// WriterConfig configures a Writer. Zero fields have defaults.
type WriterConfig struct {
	InFlight      int           // concurrent requests, at most InFlightMax; default 4
	BatchOps      int           // rows of one request, at most WriteOpsMax; default 1,000
	WaitingOpsMax int           // rows in the queue, not counting those in flight; default 100,000
	FailWhenFull  bool          // Add returns ErrFull instead of waiting
	RetryFor      time.Duration // like Retry.For, for each batch; at most an hour
	// OnFailure, if not nil, is called for each row whose sum was not counted or may not have been
	// counted. The goroutines that send batches call OnFailure, so it must not call the Writer.
	OnFailure func(Failure)
}

// Failure is a row of a batch whose sum was not counted or may not have been counted.
type Failure struct {
	Keyspace string
	Op       Op // the sum of one or more Adds
	// Err wraps ErrUnknown if Op may have been counted. Otherwise Op was not counted.
	Err error
}

// Writer counts streams of increments, each exactly once. It sums the queued increments by row
// and sends them in batches, without a timer, as fast as the server answers earlier batches. If
// an answer is lost, the writer sends the batch again under its first number. Queued increments
// are lost if the process dies.
//
// The counts of a row become the same as if its increments were applied one by one in the order of
// Add, even at a floor. So if two batches have deltas of both signs for a row, the later batch
// waits for the earlier one. A failed batch blocks no other batch.
//
// Goroutines: NewWriter starts one for each request in flight; Close stops them and waits for
// them.
type Writer struct {
	client *Client
	cfg    WriterConfig
	cancel context.CancelFunc // ends the requests in flight
	ended  sync.WaitGroup

	mu struct {
		sync.Mutex                     // not locked during a request or OnFailure
		work       sync.Cond           // signals that a batch was queued, the window moved or closed was set
		room       chan struct{}       // closed and replaced when a batch leaves the queue
		queue      []*batch            // oldest first
		filling    map[string]*batch   // the newest batch in queue, by keyspace
		waiting    map[rowAt]*batch    // row → the batch in queue that has the row's newest op
		rows       int                 // number of ops in queue
		unsettled  map[*batch]struct{} // the batches in queue or in flight
		flying     []*batch            // in flight
		session    *session            // session that numbers the next batch
		failed     error               // first failure since the last Flush
		closed     bool
	}
}

type rowAt struct {
	keyspace string
	id       ID
}

type batch struct {
	keyspace string
	sums     Sums          // guarded by the writer's lock while the batch is queued
	settled  chan struct{} // closed when every op was counted or has failed
	session  *session      // set together with seq when the batch leaves the queue
	seq      uint64
}

// NewWriter returns a Writer, or an error if the config is invalid. The caller must call
// Close.
func (c *Client) NewWriter(cfg WriterConfig) (*Writer, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &Writer{client: c, cfg: cfg, cancel: cancel}
	w.mu.work.L = &w.mu.Mutex
	w.mu.room = make(chan struct{})
	w.mu.filling, w.mu.waiting = map[string]*batch{}, map[rowAt]*batch{}
	w.mu.unsettled = map[*batch]struct{}{}
	w.mu.session = newSession()
	for range cfg.InFlight {
		w.ended.Go(func() { w.run(ctx) })
	}
	return w, nil
}

func (cfg *WriterConfig) complete() error {
	for _, bound := range []struct {
		name     string
		value    *int
		max, def int
	}{
		{name: "InFlight", value: &cfg.InFlight, max: InFlightMax, def: writerInFlightDefault},
		{name: "BatchOps", value: &cfg.BatchOps, max: WriteOpsMax, def: writerBatchOpsDefault},
		{name: "WaitingOpsMax", value: &cfg.WaitingOpsMax, max: 1 << 30, def: writerWaitingOpsDefault},
	} {
		if *bound.value == 0 {
			*bound.value = bound.def
		}
		if *bound.value < 1 || *bound.value > bound.max {
			return fmt.Errorf("%s must lie in 1 to %d, not %d", bound.name, bound.max, *bound.value)
		}
	}
	if cfg.RetryFor > writerRetryForMax {
		return fmt.Errorf("RetryFor must be at most %v, not %v", writerRetryForMax, cfg.RetryFor)
	}
	return nil
}

// Add queues deltas of a row, at most one for each column. Add copies the deltas, and returns nil
// once they are queued. Flush reports whether they were counted. While the writer is full, Add
// waits until ctx ends, unless FailWhenFull is set.
func (w *Writer) Add(ctx context.Context, keyspace string, id ID, deltas ...Count) error {
	if err := checkDeltas(deltas); err != nil {
		return err
	}
	for {
		queued, room, err := w.queueDeltas(rowAt{keyspace, id}, deltas)
		if queued || err != nil {
			return err
		}
		if w.cfg.FailWhenFull {
			return ErrFull
		}
		select {
		case <-room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func checkDeltas(deltas Counts) error {
	for i, d := range deltas {
		if _, twice := deltas[:i].Get(d.Column); twice {
			return fmt.Errorf("%w: %s comes twice", ErrBadDelta, d.Column)
		}
	}
	if len(deltas) == 0 {
		return ErrBadDelta
	}
	return nil
}

// queueDeltas queues deltas if there is room. Otherwise the caller may try again once the channel
// room is closed.
func (w *Writer) queueDeltas(row rowAt, deltas Counts) (queued bool, room <-chan struct{}, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.closed {
		return false, nil, ErrClosed
	}
	if b := w.mu.waiting[row]; b != nil && b.sums.merge(row.id, deltas) {
		return true, nil, nil
	}
	if w.mu.rows >= w.cfg.WaitingOpsMax {
		return false, w.mu.room, nil
	}
	b := w.mu.filling[row.keyspace]
	if b == nil || b.sums.Len() >= w.cfg.BatchOps {
		b = &batch{keyspace: row.keyspace, settled: make(chan struct{})}
		w.mu.filling[row.keyspace] = b
		w.mu.queue = append(w.mu.queue, b)
		w.mu.unsettled[b] = struct{}{}
		w.mu.work.Broadcast() // not Signal, which might wake only a goroutine that waits for the window
	}
	b.sums.append(row.id, deltas)
	w.mu.waiting[row] = b
	w.mu.rows++
	return true, nil, nil
}

// Flush waits until every earlier Add is counted or has failed, or ctx ends. It returns the
// first failure since the previous Flush; OnFailure is called for every failure.
func (w *Writer) Flush(ctx context.Context) error {
	w.mu.Lock()
	batches := make([]*batch, 0, len(w.mu.unsettled))
	for b := range w.mu.unsettled {
		batches = append(batches, b)
	}
	w.mu.Unlock()
	for _, b := range batches {
		select {
		case <-b.settled:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return w.takeFailure()
}

func (w *Writer) takeFailure() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.mu.failed
	w.mu.failed = nil
	return err
}

// Close refuses new increments, sends the queued ones and stops the writer. Increments that are not
// counted when ctx ends fail. Close returns what Flush returns. A second call only waits.
func (w *Writer) Close(ctx context.Context) error {
	w.mu.Lock()
	w.mu.closed = true
	w.mu.work.Broadcast()
	w.makeRoomLocked()
	w.mu.Unlock()
	stop := context.AfterFunc(ctx, w.cancel)
	w.ended.Wait()
	stop()
	w.cancel()
	return w.takeFailure()
}

func (w *Writer) makeRoomLocked() {
	close(w.mu.room)
	w.mu.room = make(chan struct{})
}

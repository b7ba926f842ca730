package source

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/countd/countd/source/sink"
)

// Begin records where each partition of a source begins, before any is read. A partition
// that is found later begins at its first message, whatever the configuration says. All are
// recorded, or none is.
func Begin(ctx context.Context, number uint64, cfg *Config, b Broker, s sink.Sink) error {
	partitions, err := b.Partitions(ctx)
	if err != nil {
		return wrap("list the partitions", err)
	}
	identity, err := b.Identity(ctx)
	if err != nil {
		return wrap("find the queue", err)
	}
	starts := make(map[uint32]Position, len(partitions))
	for _, p := range partitions {
		first, end, err := b.Bounds(ctx, p)
		if err != nil {
			return wrap(fmt.Sprintf("begin partition %d", p), err)
		}
		starts[p] = cfg.startAt(p, first, end)
	}
	return wrap("begin", s.Begin(ctx, number, starts, identity))
}

// startAt returns where a partition begins that was never read.
func (c *Config) startAt(partition uint32, first, end Position) Position {
	if p, ok := c.Start.At[partition]; ok {
		return p
	}
	if c.Start.Latest {
		return end
	}
	return first
}

// ConsumerConfig configures a consumer. Logger, Rejected, Counts and Ending are optional.
type ConsumerConfig struct {
	Number uint64 // of the source
	Source *Config
	Broker Broker
	Sink   sink.Sink
	// Owns reports whether this node reads a partition. Nodes that disagree for a while are
	// harmless.
	Owns   func(partition uint32) bool
	Logger *slog.Logger
	// Rejected records what the runner of a partition refused, as RunnerConfig.Rejected; nil for nowhere.
	Rejected func(ctx context.Context, partition uint32, all []sink.Refusal) error
	// Counts returns what the runners of a partition count into; nil if each has its own.
	Counts func(partition uint32) *Counts
	// Ending, once closed, ends the consumer when its runners have applied their batches and
	// brought the shards to one position, or could not for a while.
	Ending <-chan struct{}
}

// Consumer reads the partitions of a source that this node owns. Run's goroutine starts a
// goroutine for each, and ends and waits for all.
type Consumer struct {
	cfg   ConsumerConfig
	times consumerTimes

	mu struct {
		sync.Mutex
		partitions map[uint32]time.Time // of the queue, and since when each is listed
		failed     error                // of the last attempt to list them
		runners    map[uint32]*running
	}
}

// ListEvery is how often a consumer lists the partitions of its queue.
const ListEvery = 30 * time.Second

// consumerTimes are how often a consumer looks. Tests shorten them.
type consumerTimes struct {
	owners     time.Duration // at what the node owns
	partitions time.Duration // at the queue's partitions
	ending     time.Duration // that a runner has to apply its batch when it is to end
}

// running is a runner, and how to end it.
type running struct {
	*Runner
	cancel context.CancelFunc
	ending chan struct{} // closed once
	ended  chan struct{}
}

func (r *running) hasEnded() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// NewConsumer returns a consumer. Run starts it. Begin was called for the source.
func NewConsumer(cfg ConsumerConfig) *Consumer {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Consumer{cfg: cfg, times: consumerTimes{owners: time.Second, partitions: ListEvery, ending: 10 * time.Second}}
	c.mu.runners, c.mu.partitions = map[uint32]*running{}, map[uint32]time.Time{}
	return c
}

// Run reads until Ending is closed, or ctx ends, which is abrupt.
func (c *Consumer) Run(ctx context.Context) {
	defer c.stopAll()
	listing, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { // ends with Run
		select {
		case <-c.cfg.Ending:
			cancel()
		case <-listing.Done():
		}
	}()
	var listed time.Time
	for {
		if listed.IsZero() || time.Since(listed) >= c.times.partitions {
			if c.list(listing) == nil {
				listed = time.Now()
			}
		}
		c.assign(ctx)
		select {
		case <-ctx.Done():
			return
		case <-c.cfg.Ending:
			return
		case <-time.After(c.times.owners):
		}
	}
}

// list asks the broker for the partitions. A partition that is gone keeps its runner, which
// says why it does not go on. Until the broker has answered once, partition 0, which every queue
// has, stands for all: its runner says why nothing is read.
func (c *Consumer) list(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, defaultTimes.call)
	defer cancel()
	partitions, err := c.cfg.Broker.Partitions(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.failed = err
	if len(partitions)+len(c.mu.partitions) == 0 {
		partitions = []uint32{0}
	}
	for _, p := range partitions {
		if c.mu.partitions[p].IsZero() {
			c.mu.partitions[p] = time.Now()
		}
	}
	return err
}

// assign starts runners for the partitions that the node owns now, and ends the others.
func (c *Consumer) assign(ctx context.Context) {
	c.mu.Lock()
	var ending []*running
	for p := range c.mu.partitions {
		r, owns := c.mu.runners[p], c.cfg.Owns(p)
		switch {
		case owns && (r == nil || r.hasEnded()): // it ends while the source is paused
			c.mu.runners[p] = c.start(ctx, p)
		case !owns && r != nil:
			delete(c.mu.runners, p)
			ending = append(ending, r)
		}
	}
	c.mu.Unlock()
	c.stop(ending)
}

func (c *Consumer) start(ctx context.Context, partition uint32) *running {
	ctx, cancel := context.WithCancel(ctx)
	ending := make(chan struct{})
	var counts *Counts
	if c.cfg.Counts != nil {
		counts = c.cfg.Counts(partition)
	}
	var rejected func(context.Context, []sink.Refusal) error
	if c.cfg.Rejected != nil {
		rejected = func(ctx context.Context, all []sink.Refusal) error { return c.cfg.Rejected(ctx, partition, all) }
	}
	r := &running{
		Runner: NewRunner(RunnerConfig{
			Number: c.cfg.Number, Source: c.cfg.Source, Partition: partition, Late: true,
			Broker: c.cfg.Broker, Sink: c.cfg.Sink, Logger: c.cfg.Logger, Counts: counts, Rejected: rejected, Ending: ending,
		}),
		cancel: cancel,
		ending: ending,
		ended:  make(chan struct{}),
	}
	go func() {
		defer close(r.ended)
		r.Run(ctx)
	}()
	return r
}

// stop ends runners and waits for them. They have a while to apply what they read.
func (c *Consumer) stop(all []*running) {
	for _, r := range all {
		close(r.ending)
	}
	late := time.After(c.times.ending)
	for _, r := range all {
		select {
		case <-r.ended:
		case <-late:
			for _, r := range all {
				r.cancel()
			}
			<-r.ended
			late = nil
		}
		r.cancel()
	}
}

func (c *Consumer) stopAll() {
	c.mu.Lock()
	var all []*running
	for _, r := range c.mu.runners {
		all = append(all, r)
	}
	clear(c.mu.runners)
	c.mu.Unlock()
	c.stop(all)
}

// Listed returns the partitions of the queue, and since when each is listed.
func (c *Consumer) Listed() map[uint32]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.mu.partitions)
}

// Status returns the states of the partitions that this node reads, and why the partitions
// cannot be listed, if they cannot.
func (c *Consumer) Status() (map[uint32]Status, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[uint32]Status, len(c.mu.runners))
	for p, r := range c.mu.runners {
		all[p] = r.Status()
	}
	return all, c.mu.failed
}

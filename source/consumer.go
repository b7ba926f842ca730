package source

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/countd/countd/source/sink"
)

// Begin records the start position of each partition of a source. It records all of them or none.
// Call it before any reader begins. A partition that is added to the queue later begins at its first
// message, even if Config.Start differs.
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

// startAt returns the configured start position of a partition whose messages are between first
// and end.
func (c *Config) startAt(partition uint32, first, end Position) Position {
	if p, ok := c.Start.At[partition]; ok {
		return p
	}
	if c.Start.Latest {
		return end
	}
	return first
}

// ConsumerConfig configures a consumer.
type ConsumerConfig struct {
	// RunnerConfig applies to all runners; the consumer sets its Partition and Late. Closing Ending
	// ends all runners. The consumer ends when all runners have ended, or after times.ending.
	RunnerConfig
	// Owns reports whether this node reads a partition. While owners change, two nodes may read a
	// partition, or no node may read it.
	Owns func(partition uint32) bool
}

// Consumer reads the partitions of a source that this node owns. The goroutine of Run starts a
// runner for each partition, ends the runners and waits for them.
type Consumer struct {
	cfg   ConsumerConfig
	times consumerTimes

	mu struct {
		sync.Mutex
		partitions map[uint32]time.Time // partition of the queue → time when it was first listed
		failed     error                // error of the last attempt to list the partitions, or nil
		runners    map[uint32]*running
	}
}

// ListEvery is the interval at which a consumer lists the partitions of its queue.
const ListEvery = 30 * time.Second

// consumerTimes holds times that tests shorten.
type consumerTimes struct {
	owners     time.Duration // between calls of Owns
	partitions time.Duration // between lists of the queue's partitions
	ending     time.Duration // time for the last batch of ending runners
}

// running is a runner that was started.
type running struct {
	*Runner
	cancel context.CancelFunc
	ending chan struct{} // closed once, by stop
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

// NewConsumer returns a Consumer. Call Begin first, unless all partitions begin at their first
// messages.
func NewConsumer(cfg ConsumerConfig) *Consumer {
	c := &Consumer{cfg: cfg, times: consumerTimes{owners: time.Second, partitions: ListEvery, ending: 10 * time.Second}}
	c.mu.runners, c.mu.partitions = map[uint32]*running{}, map[uint32]time.Time{}
	return c
}

// Run reads until Ending is closed. If ctx ends, Run returns without finishing the current batches.
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

// list updates the partitions from the broker. A removed partition keeps its runner, whose status
// shows why it does not continue. Until the broker's first answer, list assumes partition 0, which
// every queue has, so that a runner can report why it reads nothing.
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

// assign starts runners for the partitions that the node owns, and ends the other runners.
func (c *Consumer) assign(ctx context.Context) {
	c.mu.Lock()
	var ending []*running
	for p := range c.mu.partitions {
		r, owns := c.mu.runners[p], c.cfg.Owns(p)
		switch {
		case owns && (r == nil || r.hasEnded()): // a runner has ended by itself if the source was paused
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
	ending, cfg := make(chan struct{}), c.cfg.RunnerConfig
	cfg.Partition, cfg.Late, cfg.Ending = partition, true, ending
	r := &running{Runner: NewRunner(cfg), cancel: cancel, ending: ending, ended: make(chan struct{})}
	go func() {
		defer close(r.ended)
		r.Run(ctx)
	}()
	return r
}

// stop ends runners and waits for them. They get times.ending for their last batches.
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

// Listed returns the partitions of the queue, and the time when each was first listed.
func (c *Consumer) Listed() map[uint32]time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.mu.partitions)
}

// Status returns the states of the partitions that this node reads, and the error of the last attempt to list
// the partitions.
func (c *Consumer) Status() (map[uint32]Status, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make(map[uint32]Status, len(c.mu.runners))
	for p, r := range c.mu.runners {
		all[p] = r.Status()
	}
	return all, c.mu.failed
}

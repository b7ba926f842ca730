package sources

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/sink"
)

// reader reads the partitions of a source that this node owns. One goroutine reads the queue.
// Another reads files, so that a hanging file system does not stop other sources.
type reader struct {
	of     catalog.Source
	opened time.Time
	ending chan struct{}         // closed by end
	ended  chan struct{}         // closed by read
	state  atomic.Pointer[state] // nil until the first attempt to open the broker ends or takes long
	stale  atomic.Bool           // a file that the configuration names has changed
}

// state is the result of an attempt to open a reader: a consumer, or why there is none.
type state struct {
	consumer *source.Consumer
	failed   error
	tries    uint64   // failed attempts
	owned    []uint32 // partitions that this node owns and does not read, because of failed
}

// open starts a reader. Its goroutine ends after end, or if it cannot open the reader. previous is
// the last attempt or nil; its state remains valid until this attempt has ended.
func (s *Sources) open(n *shard.Node, of catalog.Source, previous *reader) *reader {
	r := &reader{of: of, opened: time.Now(), ending: make(chan struct{}), ended: make(chan struct{})}
	if previous != nil {
		r.state.Store(previous.state.Load())
	}
	go s.read(n, r)
	return r
}

// read opens a reader and reads until its end.
func (s *Sources) read(n *shard.Node, r *reader) {
	defer close(r.ended)
	owns := func(partition uint32) bool { return s.owner(n.Catalog(), r.of.Number, partition) == s.cfg.Self }
	cfg, err := source.ParseConfig(r.of.Config)
	var broker source.Broker
	if err == nil {
		broker, err = s.connect(n, cfg, r)
	}
	if errors.Is(err, errEnding) {
		return
	}
	if err != nil {
		s.fail(n, r, err)
		return
	}
	consumer := source.NewConsumer(source.ConsumerConfig{Owns: owns, RunnerConfig: source.RunnerConfig{
		Number: r.of.Number, Source: cfg, Broker: broker, Sink: n.Sink(), Logger: s.cfg.Logger, Ending: r.ending,
		Rejected: func(ctx context.Context, partition uint32, all []sink.Refusal) error {
			return n.RecordRejected(ctx, r.of.Number, partition, all)
		},
		Counts: func(partition uint32) *source.Counts { return s.counts.partition(r.of.Number, partition) },
	}})
	r.state.Store(&state{consumer: consumer})
	consumer.Run(s.running)
	_ = broker.Close() // after an error the applied messages still count
}

// fail sets the state of a reader that could not be opened, or that is still opening.
func (s *Sources) fail(n *shard.Node, r *reader, err error) {
	next, before := &state{failed: err}, r.state.Load()
	known := slices.Sorted(maps.Keys(r.of.Partitions))
	if len(known) == 0 {
		known = []uint32{0} // every queue has partition 0
	}
	next.owned = slices.DeleteFunc(known, func(partition uint32) bool {
		return s.owner(n.Catalog(), r.of.Number, partition) != s.cfg.Self
	})
	if before != nil {
		next.tries = before.tries
	}
	if !errors.Is(err, errOpening) {
		next.tries++
	}
	if before == nil || before.failed.Error() != err.Error() {
		s.cfg.Logger.Warn("a source cannot be opened", "source", r.of.Name, "err", err)
	}
	r.state.Store(next)
}

// errEnding is returned by connect if the reader is to end.
var errEnding = errors.New("the reader is to end")

// connect opens a broker and watches the files that it was opened with. Its goroutine ends with the reader. If a
// file system hangs, the source is stalled until the file system answers.
func (s *Sources) connect(n *shard.Node, cfg *source.Config, r *reader) (source.Broker, error) {
	done := make(chan connected)
	go func() {
		files := s.filesState(cfg) // read the state before Open reads the files
		broker, err := s.cfg.Open(cfg, s.secrets)
		connected{broker, err}.handOver(done, r.ended)
		if err == nil { // otherwise match opens the source again soon
			r.watch(files, s.every, func() string { return s.filesState(cfg) })
		}
	}()
	late := time.NewTicker(s.every)
	defer late.Stop()
	for !r.isEnding() {
		select {
		case of := <-done:
			return of.broker, of.err
		case <-late.C: // again and again, because the node may own other partitions by then
			s.fail(n, r, errOpening)
		case <-r.ending:
		}
	}
	select { // most brokers open quickly: close this one here
	case of := <-done:
		of.close()
	case <-time.After(openEnding):
	}
	return nil, errEnding
}

// connected is the result of opening a broker.
type connected struct {
	broker source.Broker
	err    error
}

// handOver sends the broker to the goroutine that waits for it. If abandoned is closed first, handOver
// closes the broker.
func (c connected) handOver(to chan<- connected, abandoned <-chan struct{}) {
	select {
	case to <- c:
	case <-abandoned:
		c.close()
	}
}

// close closes an unused broker.
func (c connected) close() {
	if c.err == nil {
		_ = c.broker.Close()
	}
}

// connectCall opens a broker for a call. It waits only until ctx ends, because a file system may
// hang. It closes a broker that opens later.
func (s *Sources) connectCall(ctx context.Context, cfg *source.Config) (source.Broker, error) {
	key := string(cfg.JSON()) // another configuration may name readable files
	s.mu.Lock()
	if s.mu.connecting[key] >= connectCallsMax {
		s.mu.Unlock()
		return nil, errOpening
	}
	s.mu.connecting[key]++
	s.mu.Unlock()
	done := make(chan connected)
	go func() { // ends when the files are read
		broker, err := s.cfg.Open(cfg, s.secrets)
		s.mu.Lock()
		if s.mu.connecting[key]--; s.mu.connecting[key] == 0 {
			delete(s.mu.connecting, key)
		}
		s.mu.Unlock()
		connected{broker, err}.handOver(done, ctx.Done())
	}()
	select {
	case of := <-done:
		return of.broker, of.err
	case <-ctx.Done():
		return nil, errOpening
	}
}

// watch sets stale and returns when a watched file has changed.
func (r *reader) watch(files string, every time.Duration, state func() string) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for !r.stale.Load() {
		select {
		case <-r.ended:
			return
		case <-tick.C:
			r.stale.Store(state() != files)
		}
	}
}

// end makes a reader move the shards to one position and end. It does not wait. The caller holds the lock of
// Sources.
func (r *reader) end() {
	if !r.isEnding() {
		close(r.ending)
	}
}

func (r *reader) isEnding() bool { return isClosed(r.ending) }
func (r *reader) hasEnded() bool { return isClosed(r.ended) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// hasFailed reports whether the reader could not be opened.
func (r *reader) hasFailed() bool {
	of := r.state.Load()
	return r.hasEnded() && of != nil && of.failed != nil
}

var errOpening = errors.New("the files that its configuration names are not read yet")

// status returns the states of the partitions that this node reads. The error is why other
// partitions may be missing.
func (r *reader) status() (map[uint32]source.Status, error) {
	of := r.state.Load()
	switch {
	case of == nil:
		return nil, errOpening
	case of.failed == nil:
		return of.consumer.Status()
	}
	all := map[uint32]source.Status{}
	for _, partition := range of.owned {
		all[partition] = source.Status{State: source.StateStalled, Reason: of.failed.Error(), Errors: map[string]uint64{"stalled": of.tries}}
	}
	return all, nil
}

// listed returns, in ms, how long the consumer has listed each partition of the queue.
func (r *reader) listed() map[uint32]int64 {
	all := map[uint32]int64{}
	if of := r.state.Load(); of != nil && of.failed == nil {
		for partition, since := range of.consumer.Listed() {
			all[partition] = time.Since(since).Milliseconds()
		}
	}
	return all
}

// begin records where the configuration lets the partitions of a source begin.
func (s *Sources) begin(ctx context.Context, n *shard.Node, of catalog.Source) error {
	cfg, err := source.ParseConfig(of.Config)
	if err != nil {
		return err
	}
	broker, err := s.connectCall(ctx, cfg)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	defer broker.Close()
	if err := source.Begin(ctx, of.Number, cfg, broker, n.Sink()); err != nil {
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return nil
}

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
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/sink"
)

// reader reads the partitions of a source that this node owns. One goroutine reads the queue.
// Another one reads the source's files, so that a hanging file system does not stop other sources.
type reader struct {
	src    catalog.Source
	opened time.Time
	ending chan struct{}         // closed by end
	ended  chan struct{}         // closed by read
	state  atomic.Pointer[state] // nil until the first attempt to open the broker has ended or takes long
	stale  atomic.Bool           // a file that the configuration names has changed, so the source must be opened again
}

// state is the result of an attempt to open a source: a consumer, or the error why there is none.
type state struct {
	consumer *source.Consumer
	failed   error
	tries    uint64   // number of failed attempts
	owned    []uint32 // partitions that this node owns but does not read, because the open failed
}

// open starts a reader. Its goroutine ends after a call of end, or if it cannot open the broker.
// previous is the reader of the last attempt, or nil. Until this attempt has ended, the new reader
// reports the state of previous.
func (s *Sources) open(n *node, src catalog.Source, previous *reader) *reader {
	r := &reader{src: src, opened: time.Now(), ending: make(chan struct{}), ended: make(chan struct{})}
	if previous != nil {
		r.state.Store(previous.state.Load())
	}
	go s.read(n, r)
	return r
}

// read opens the broker and reads until the reader must end.
func (s *Sources) read(n *node, r *reader) {
	defer close(r.ended)
	owns := func(partition uint32) bool { return s.owner(n.Catalog(), r.src.Number, partition) == s.cfg.Self }
	cfg, err := source.ParseConfig(r.src.Config)
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
		Number: r.src.Number, Source: cfg, Broker: broker, Sink: n.sink, Logger: s.cfg.Logger, Ending: r.ending,
		Rejected: func(ctx context.Context, partition uint32, all []sink.Refusal) error {
			return n.RecordRejected(ctx, r.src.Number, partition, all)
		},
		Counts: func(partition uint32) *source.Counts { return s.counts.partition(r.src.Number, partition) },
	}})
	r.state.Store(&state{consumer: consumer})
	consumer.Run(s.running)
	_ = broker.Close() // ignore the error: applied messages stay counted
}

// fail sets the state of a reader whose broker could not be opened, or is not open yet.
func (s *Sources) fail(n *node, r *reader, err error) {
	next, before := &state{failed: err}, r.state.Load()
	known := slices.Sorted(maps.Keys(r.src.Partitions))
	if len(known) == 0 {
		known = []uint32{0} // every queue has partition 0
	}
	next.owned = slices.DeleteFunc(known, func(partition uint32) bool {
		return s.owner(n.Catalog(), r.src.Number, partition) != s.cfg.Self
	})
	if before != nil {
		next.tries = before.tries
	}
	if !errors.Is(err, errOpening) {
		next.tries++
	}
	if before == nil || before.failed.Error() != err.Error() {
		s.cfg.Logger.Warn("a source cannot be opened", "source", r.src.Name, "err", err)
	}
	r.state.Store(next)
}

// errEnding is returned by connect if the reader must end.
var errEnding = errors.New("the reader is to end")

// connect opens a broker in a goroutine. That goroutine then watches the files that the
// configuration names, until the reader ends. If a file system hangs, the source is stalled until
// the file system answers.
func (s *Sources) connect(n *node, cfg *source.Config, r *reader) (source.Broker, error) {
	done := make(chan connected)
	go func() {
		files := s.filesState(cfg) // read the state before Open reads the files, so that watch misses no change
		broker, err := s.cfg.Open(cfg, s.secrets)
		connected{broker, err}.handOver(done, r.ended)
		if err == nil { // after an error, match opens the source again soon
			r.watch(files, s.every, func() string { return s.filesState(cfg) })
		}
	}()
	late := time.NewTicker(s.every)
	defer late.Stop()
	for !r.isEnding() {
		select {
		case opened := <-done:
			return opened.broker, opened.err
		case <-late.C: // call fail repeatedly, because the node may get other partitions meanwhile
			s.fail(n, r, errOpening)
		case <-r.ending:
		}
	}
	select { // the broker usually opens soon, so wait briefly to close it here
	case opened := <-done:
		opened.close()
	case <-time.After(openEnding):
	}
	return nil, errEnding
}

// connected is the result of opening a broker.
type connected struct {
	broker source.Broker
	err    error
}

// handOver sends the broker to the goroutine that waits for it. If the channel abandoned is closed
// before that, handOver closes the broker.
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

// connectCall opens a broker for a request. It waits only until ctx ends, because a file system
// may hang, and closes a broker that opens later.
func (s *Sources) connectCall(ctx context.Context, cfg *source.Config) (source.Broker, error) {
	key := string(cfg.JSON()) // the limit is per configuration, because other configurations may name files that can be read
	s.mu.Lock()
	if s.mu.connecting[key] >= connectCallsMax {
		s.mu.Unlock()
		return nil, errOpening
	}
	s.mu.connecting[key]++
	s.mu.Unlock()
	done := make(chan connected)
	go func() { // ends when Open has read the files
		broker, err := s.cfg.Open(cfg, s.secrets)
		s.mu.Lock()
		if s.mu.connecting[key]--; s.mu.connecting[key] == 0 {
			delete(s.mu.connecting, key)
		}
		s.mu.Unlock()
		connected{broker, err}.handOver(done, ctx.Done())
	}()
	select {
	case opened := <-done:
		return opened.broker, opened.err
	case <-ctx.Done():
		return nil, errOpening
	}
}

// watch waits until a watched file has changed, and then sets stale.
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

// hasFailed reports whether the reader's broker could not be opened.
func (r *reader) hasFailed() bool {
	src := r.state.Load()
	return r.hasEnded() && src != nil && src.failed != nil
}

var errOpening = errors.New("the files that its configuration names are not read yet")

// status returns the states of the partitions that this node reads. An error says why partitions
// may be missing from the result.
func (r *reader) status() (map[uint32]source.Status, error) {
	src := r.state.Load()
	switch {
	case src == nil:
		return nil, errOpening
	case src.failed == nil:
		return src.consumer.Status()
	}
	all := map[uint32]source.Status{}
	for _, partition := range src.owned {
		all[partition] = source.Status{State: source.StateStalled, Reason: src.failed.Error(), Errors: map[string]uint64{"stalled": src.tries}}
	}
	return all, nil
}

// listed returns, for each partition of the queue, the time in ms since the consumer first listed
// it.
func (r *reader) listed() map[uint32]int64 {
	all := map[uint32]int64{}
	if src := r.state.Load(); src != nil && src.failed == nil {
		for partition, since := range src.consumer.Listed() {
			all[partition] = time.Since(since).Milliseconds()
		}
	}
	return all
}

// begin records the start positions that the configuration of a source sets.
func (s *Sources) begin(ctx context.Context, n *node, src catalog.Source) error {
	cfg, err := source.ParseConfig(src.Config)
	if err != nil {
		return err
	}
	broker, err := s.connectCall(ctx, cfg)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	defer broker.Close()
	if err := source.Begin(ctx, src.Number, cfg, broker, n.sink); err != nil {
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return nil
}

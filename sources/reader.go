package sources

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/countd/countd/shard"
	"github.com/countd/countd/source"
)

// reader reads the partitions of one source that this node owns.
type reader struct {
	of       shard.Source
	opened   time.Time
	ending   chan struct{} // closed by end
	ended    chan struct{}
	failed   error // why it could not be opened; then the last two fields are nil
	tries    uint64
	owned    []uint32 // partitions that are not read because of failed
	config   *source.Config
	files    string    // their state before they were read
	looked   time.Time // at the files
	consumer *source.Consumer
	broker   source.Broker
}

// open starts a reader. Its goroutine ends after end. before is the last attempt, if any.
func (s *Sources) open(n *shard.Node, of shard.Source, before *reader) *reader {
	now := time.Now()
	r := &reader{of: of, opened: now, looked: now, ending: make(chan struct{}), ended: make(chan struct{}), tries: 1}
	owns := func(partition uint32) bool { return s.owner(n.Catalog(), of.Number, partition) == s.cfg.Self }
	cfg, err := source.ParseConfig(of.Config)
	if err == nil {
		r.config, r.files = cfg, cfg.FilesState()
		r.broker, err = s.cfg.Open(cfg)
	}
	if err != nil {
		r.failed = err
		close(r.ended)
		known := slices.Sorted(maps.Keys(of.Partitions))
		if len(known) == 0 {
			known = []uint32{0} // every queue has it
		}
		r.owned = slices.DeleteFunc(known, func(partition uint32) bool { return !owns(partition) })
		if before != nil {
			r.tries += before.tries
		}
		if before == nil || before.failed.Error() != err.Error() {
			s.cfg.Logger.Warn("a source cannot be opened", "source", of.Name, "err", err)
		}
		return r
	}
	r.consumer = source.NewConsumer(source.ConsumerConfig{
		Number: of.Number, Source: cfg, Broker: r.broker, Sink: n.Sink(), Logger: s.cfg.Logger, Ending: r.ending,
		Owns:   owns,
		Counts: func(partition uint32) *source.Counts { return s.counts.partition(of.Number, partition) },
	})
	go func() {
		defer close(r.ended)
		r.consumer.Run(s.running)
		_ = r.broker.Close() // what was applied does not depend on it
	}()
	return r
}

// end lets a reader bring the shards to one position, and does not wait for that. The lock of
// the Sources is held.
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

// status returns the states of the partitions that are read here, and why others may be
// missing.
func (r *reader) status() (map[uint32]source.Status, error) {
	if r.failed == nil {
		return r.consumer.Status()
	}
	all := map[uint32]source.Status{}
	for _, partition := range r.owned {
		all[partition] = source.Status{State: source.StateStalled, Reason: r.failed.Error(), Errors: map[string]uint64{"stalled": r.tries}}
	}
	return all, nil
}

// stale reports whether a file changed that the configuration names, such as that of a password.
// It looks seldom. The lock of the Sources is held.
func (r *reader) stale(every time.Duration) bool {
	if r.config == nil || time.Since(r.looked) < every {
		return false
	}
	r.looked = time.Now()
	return r.config.FilesState() != r.files
}

// begin records where the partitions of a source begin, as its configuration says.
func (s *Sources) begin(ctx context.Context, n *shard.Node, of shard.Source) error {
	cfg, err := source.ParseConfig(of.Config)
	if err != nil {
		return err
	}
	broker, err := s.cfg.Open(cfg)
	if err != nil {
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	defer broker.Close()
	if err := source.Begin(ctx, of.Number, cfg, broker, n.Sink()); err != nil {
		return fmt.Errorf("%w: %w", errUnreadable, err)
	}
	return nil
}

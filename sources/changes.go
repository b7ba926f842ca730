package sources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/source/sink"
)

var (
	ErrUnknownSource = errors.New("no such source")
	// ErrSourceExists is returned by a creation if a source of the same name exists.
	ErrSourceExists = errors.New("there is a source of this name")
	// ErrSourceChanged is returned when the source was changed, or was deleted and created again,
	// since the caller read it.
	ErrSourceChanged = errors.New("the source was changed at the same time")
)

// triesMax bounds the tries of RecordRejected. A try fails only if another reader recorded first.
const triesMax = 10

// Changes reads and changes the sources in the catalog. Each change is one command, which is valid
// only for the version of the source that the caller read; see sources/DESIGN.md.
type Changes struct {
	world World
	sink  *Sink
	node  *shard.Node
}

// NewChanges returns the Changes of node n with the sink s.
func NewChanges(s *Sink, n *shard.Node) *Changes {
	return &Changes{world: s.world, sink: s, node: n}
}

// Sources returns all sources by name, ascending.
func (c *Changes) Sources() []catalog.Source {
	sources := c.world.Catalog().Sources
	all := make([]catalog.Source, 0, len(sources))
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		all = append(all, sources[name])
	}
	return all
}

// Source returns the source with the given name, or ErrUnknownSource.
func (c *Changes) Source(name string) (catalog.Source, error) {
	s, there := c.world.Catalog().Sources[name]
	if !there {
		return catalog.Source{}, fmt.Errorf("%w: %q", ErrUnknownSource, name)
	}
	return s, nil
}

// CreateSource creates a source. config is a JSON object. A source that is created paused has
// Changing set, and no node reads it before it is resumed.
func (c *Changes) CreateSource(ctx context.Context, name string, config json.RawMessage, paused bool) (catalog.Source, error) {
	return c.putSource(ctx, &catalog.PutSourceEntry{Name: name, Config: config, Cluster: c.node.ClusterHash(), Paused: paused})
}

// RestoreSource creates a paused source from the backup of another cluster. origin is the number
// that the source had there. A repeated call returns the existing source.
func (c *Changes) RestoreSource(ctx context.Context, name string, config json.RawMessage, origin uint64, partitions map[uint32]catalog.Partition) (catalog.Source, error) {
	s, err := c.putSource(ctx, &catalog.PutSourceEntry{Name: name, Config: config, Cluster: c.node.ClusterHash(), Paused: true, Origin: origin, Partitions: partitions})
	if errors.Is(err, ErrSourceExists) && s.Origin == origin {
		err = nil
	}
	return s, err
}

// SetSource replaces the configuration of a source, but not the meaning of its messages. If paused
// is set, the source must be paused, and stays paused. Otherwise it runs after the call.
func (c *Changes) SetSource(ctx context.Context, s catalog.Source, config json.RawMessage, paused bool) (catalog.Source, error) {
	return c.putSource(ctx, &catalog.PutSourceEntry{Name: s.Name, Config: config, Version: s.Version, Paused: paused})
}

// SetMeaning replaces the configuration of a source and the meaning of its messages. settled is
// the result of SettleSource. The source gets a new number.
func (c *Changes) SetMeaning(ctx context.Context, s catalog.Source, config json.RawMessage, settled map[uint32]sink.Position, paused bool) (catalog.Source, error) {
	return c.putSource(ctx, &catalog.PutSourceEntry{
		Name: s.Name, Config: config, Version: s.Version, Cluster: c.node.ClusterHash(), Paused: paused, NewMeaning: true, Positions: settled,
	})
}

// SettleSource makes sure that no section from before the pause moves the shards of a paused
// source. It returns the common position of all shards, by partition. If shards are at different
// positions, it returns ErrNotPaused, because a message in between would count by both
// configurations or by none.
func (c *Changes) SettleSource(ctx context.Context, s catalog.Source) (map[uint32]sink.Position, error) {
	var mu sync.Mutex
	settled := make(map[uint32]sink.Position, len(s.Partitions))
	settling, ctx := errgroup.WithContext(ctx)
	settling.SetLimit(settleAtOnce)
	for number := range s.Partitions {
		settling.Go(func() error {
			at, err := c.sink.Settle(ctx, s, number)
			mu.Lock()
			defer mu.Unlock()
			settled[number] = at
			return err
		})
	}
	return settled, settling.Wait()
}

// settleAtOnce bounds the partitions that are settled concurrently.
const settleAtOnce = 64

func (c *Changes) putSource(ctx context.Context, put *catalog.PutSourceEntry) (catalog.Source, error) {
	r, err := c.world.Change(ctx, &catalog.Command{PutSource: put})
	switch {
	case err != nil:
		return catalog.Source{}, err
	case r.Exists && put.Version == 0:
		return r.Source, fmt.Errorf("%w: %q", ErrSourceExists, put.Name)
	case r.Exists:
		return r.Source, ErrSourceChanged
	case r.Missing:
		return catalog.Source{}, fmt.Errorf("%w: %q", ErrUnknownSource, put.Name)
	case r.Refused != "" && put.NewMeaning && r.Bound == "":
		return catalog.Source{}, fmt.Errorf("%w: %s", ErrNotPaused, r.Refused)
	case r.Bound == catalog.BoundSources:
		return catalog.Source{}, &errs.ArgumentError{Field: "name", Problem: r.Refused}
	case r.Refused != "":
		return catalog.Source{}, &errs.ArgumentError{Field: "config", Problem: r.Refused}
	}
	return r.Source, nil
}

// SetPaused pauses or resumes a source. A caller that sets changing must resume the source later.
func (c *Changes) SetPaused(ctx context.Context, s catalog.Source, paused, changing bool) (catalog.Source, error) {
	s, err := c.changeSource(ctx, s.Name, &catalog.Command{PauseSource: &catalog.PauseSourceEntry{Name: s.Name, Version: s.Version, Paused: paused, Changing: changing}})
	if err == nil {
		c.node.Tell(ctx) // tell the other nodes at once, so that their readers react soon
	}
	return s, err
}

// SeekSource sets the positions from which partitions of a paused source continue. All shards must
// answer. Otherwise a reader that does not know of the pause yet could still apply messages above
// the new position in a shard that did not answer. These messages would count twice.
func (c *Changes) SeekSource(ctx context.Context, s catalog.Source, to map[uint32]sink.Position) (catalog.Source, error) {
	if len(to) == 0 || len(to) > catalog.PartitionsMax {
		return catalog.Source{}, &errs.ArgumentError{Field: "positions", Problem: fmt.Sprintf("%d partitions are not 1…%d", len(to), catalog.PartitionsMax)}
	}
	if s.Paused { // if the source runs, the catalog refuses the seek
		if err := c.fence(ctx, s, to); err != nil {
			return catalog.Source{}, err
		}
	}
	return c.changeSource(ctx, s.Name, &catalog.Command{SeekSource: &catalog.SeekSourceEntry{Name: s.Name, Version: s.Version, Positions: to}})
}

// fence calls Sink.Fence for the partitions of a seek that have begun.
func (c *Changes) fence(ctx context.Context, s catalog.Source, to map[uint32]sink.Position) error {
	fencing, ctx := errgroup.WithContext(ctx)
	fencing.SetLimit(settleAtOnce)
	for number := range to {
		if _, begun := s.Partitions[number]; begun {
			fencing.Go(func() error { return c.sink.Fence(ctx, s, number) })
		}
	}
	if err := fencing.Wait(); !errors.Is(err, sink.ErrStopped) { // if the source is deleted, the seek itself fails
		return err
	}
	return nil
}

// DeleteSource deletes a source. After that, shards apply no section of the deleted source. A shard
// without a leader drops the source's positions soon after it gets a leader. A later source of the
// same name begins with new positions.
func (c *Changes) DeleteSource(ctx context.Context, s catalog.Source) error {
	_, err := c.changeSource(ctx, s.Name, &catalog.Command{DeleteSource: &catalog.DeleteSourceEntry{Name: s.Name, Version: s.Version}})
	if err == nil {
		c.sink.Forget(ctx, s.Number)
	}
	return err
}

// changeSource applies a command and returns the changed source.
func (c *Changes) changeSource(ctx context.Context, name string, command *catalog.Command) (catalog.Source, error) {
	r, err := c.world.Change(ctx, command)
	switch {
	case err != nil:
	case r.Missing:
		err = fmt.Errorf("%w: %q", ErrUnknownSource, name)
	case r.Exists:
		err = ErrSourceChanged
	case r.Bound == catalog.BoundPartitions:
		err = &errs.ArgumentError{Field: "positions", Problem: r.Refused}
	case r.Refused != "":
		err = fmt.Errorf("%w: %s", ErrNotPaused, r.Refused)
	}
	if err != nil {
		return catalog.Source{}, err
	}
	return r.Source, nil
}

// SourcePositions returns the position of a partition in each shard, or only in the shards of
// keyspaces if any are named. It does not disturb the partition's reader.
func (c *Changes) SourcePositions(ctx context.Context, source uint64, partition uint32, keyspaces ...string) ([]sink.ShardPosition, error) {
	return c.sink.ReadPositions(ctx, source, partition, keyspaces...)
}

// RecordRejected adds a reader's refusals, which must ascend by position, to the catalog. It omits
// refusals that the catalog has counted already.
func (c *Changes) RecordRejected(ctx context.Context, source uint64, partition uint32, all []sink.Refusal) error {
	for range triesMax {
		s, _ := c.world.Catalog().Source(source)
		was := s.Partitions[partition].RejectedTo
		first, _ := slices.BinarySearchFunc(all, was, func(r sink.Refusal, to sink.Position) int { return r.Position.Compare(to) })
		if all = all[first:]; len(all) == 0 {
			return nil
		}
		last := all[len(all)-1]
		to := last.Position
		if to.Lo++; to.Lo == 0 {
			to.Hi++
		}
		reason := last.Reason
		if len(reason) > catalog.ReasonBytesMax {
			reason = strings.ToValidUTF8(reason[:catalog.ReasonBytesMax-len("…")], "") + "…"
		}
		r, err := c.world.Change(ctx, &catalog.Command{RejectSource: &catalog.RejectSourceEntry{
			Number: source, Was: was, To: to, Rejected: uint64(len(all)),
			Last: catalog.Rejection{Partition: partition, Position: last.Position, Reason: reason},
		}})
		switch {
		case err != nil:
			return err
		case r.Missing: // the source was deleted, or its meaning was changed
			return nil
		case r.Refused != "":
			return fmt.Errorf("%w: %s", errs.ErrRefused, r.Refused)
		case !r.Exists:
			return nil
		}
	}
	return ErrSourceChanged
}

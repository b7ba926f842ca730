package shard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/sourcesink"
	"github.com/countd/countd/source/sink"
)

// The errors of changes of sources.
var (
	// ErrUnknownSource is returned when there is no source of a name.
	ErrUnknownSource = errors.New("no such source")
	// ErrSourceExists is returned when a source is made with a name that is taken.
	ErrSourceExists = errors.New("there is a source of this name")
	// ErrNotPaused is sourcesink's.
	ErrNotPaused = sourcesink.ErrNotPaused
)

// Source is a queue that the nodes read, as the catalog has it.
type Source = catalog.Source

// Sink returns what the readers of queues write to.
func (n *Node) Sink() sink.Sink { return n.sources }

// Sources returns all sources by name, ascending.
func (n *Node) Sources() []Source {
	sources := n.catalog.View().Sources
	all := make([]Source, 0, len(sources))
	for _, name := range slices.Sorted(maps.Keys(sources)) {
		all = append(all, sources[name])
	}
	return all
}

// Source returns the source of a name.
func (n *Node) Source(name string) (Source, error) {
	s, there := n.catalog.View().Sources[name]
	if !there {
		return Source{}, fmt.Errorf("%w: %q", ErrUnknownSource, name)
	}
	return s, nil
}

// CreateSource makes a source. config is its configuration as a JSON object. No node reads a
// source that is made paused before it is resumed.
func (n *Node) CreateSource(ctx context.Context, name string, config json.RawMessage, paused bool) (Source, error) {
	return n.putSource(ctx, &catalog.PutSourceEntry{Name: name, Config: config, Cluster: n.router.clusterHash, Paused: paused})
}

// SetSource replaces the configuration of a source. If that changes what a message means,
// the source must be paused and all shards of each partition at one position: a message
// between two positions would count by both configurations, or by none. Then the source gets
// a new number, and is paused or running as paused says.
func (n *Node) SetSource(ctx context.Context, s Source, config json.RawMessage, sameMeaning, paused bool) (Source, error) {
	put := &catalog.PutSourceEntry{Name: s.Name, Config: config, Number: s.Number}
	if !sameMeaning {
		if !s.Paused {
			return Source{}, fmt.Errorf("%w: it is running", ErrNotPaused)
		}
		partitions, err := n.SettleSource(ctx, s)
		if err != nil {
			return Source{}, err
		}
		put.NewMeaning, put.Partitions, put.Cluster, put.Paused = true, partitions, n.router.clusterHash, paused
	}
	return n.putSource(ctx, put)
}

// SettleSource sees to it that no section from before its pause moves the shards of a paused
// source any more, and returns its partitions with the position of all shards as their start.
func (n *Node) SettleSource(ctx context.Context, s Source) (map[uint32]catalog.Partition, error) {
	var mu sync.Mutex
	settled := make(map[uint32]catalog.Partition, len(s.Partitions))
	settling, ctx := errgroup.WithContext(ctx)
	settling.SetLimit(settleAtOnce)
	for number, partition := range s.Partitions {
		settling.Go(func() error {
			at, err := n.sources.Settle(ctx, s, number)
			mu.Lock()
			defer mu.Unlock()
			settled[number] = catalog.Partition{Epoch: partition.Epoch, Start: at}
			return err
		})
	}
	return settled, settling.Wait()
}

// settleAtOnce bounds the partitions that are settled at once.
const settleAtOnce = 64

func (n *Node) putSource(ctx context.Context, put *catalog.PutSourceEntry) (Source, error) {
	if v := n.catalog.View(); !v.TakesSources() {
		return Source{}, &ArgumentError{Field: "name", Problem: fmt.Sprintf("the cluster version, %d, is too low for sources", v.ClusterVersion)}
	}
	switch {
	case !catalog.ValidSourceName(put.Name):
		return Source{}, &ArgumentError{Field: "name", Problem: "must be 1 to 64 of a-z, 0-9, - and _, a letter or digit first"}
	case len(put.Config) > catalog.SourceConfigBytesMax:
		return Source{}, &ArgumentError{Field: "config", Problem: fmt.Sprintf("%d bytes, the bound is %d", len(put.Config), catalog.SourceConfigBytesMax)}
	case !json.Valid(put.Config):
		return Source{}, &ArgumentError{Field: "config", Problem: "is no JSON object"}
	}
	r, err := n.Change(ctx, &catalog.Command{PutSource: put})
	switch {
	case err != nil:
		return Source{}, err
	case r.Exists:
		return r.Source, fmt.Errorf("%w: %q", ErrSourceExists, put.Name)
	case r.Missing:
		return Source{}, fmt.Errorf("%w: %q", ErrUnknownSource, put.Name)
	case r.Refused != "" && put.NewMeaning && r.Bound == "":
		return Source{}, fmt.Errorf("%w: %s", ErrNotPaused, r.Refused)
	case r.Bound == catalog.BoundSources:
		return Source{}, &ArgumentError{Field: "name", Problem: r.Refused}
	case r.Refused != "":
		return Source{}, &ArgumentError{Field: "config", Problem: r.Refused}
	}
	return r.Source, nil
}

// PauseSource pauses a source or resumes it.
func (n *Node) PauseSource(ctx context.Context, name string, paused bool) (Source, error) {
	s, index, err := n.changeSource(ctx, name, &catalog.Command{PauseSource: &catalog.PauseSourceEntry{Name: name, Paused: paused}})
	if err == nil {
		n.catalogClient.Tell(ctx, index) // readers on other nodes, before what comes next
	}
	return s, err
}

// SeekSource sets where partitions of a paused source continue, in all shards.
func (n *Node) SeekSource(ctx context.Context, name string, to map[uint32]sink.Position) (Source, error) {
	if len(to) == 0 || len(to) > catalog.PartitionsMax {
		return Source{}, &ArgumentError{Field: "positions", Problem: fmt.Sprintf("%d partitions are not 1…%d", len(to), catalog.PartitionsMax)}
	}
	s, _, err := n.changeSource(ctx, name, &catalog.Command{SeekSource: &catalog.SeekSourceEntry{Name: name, Positions: to}})
	return s, err
}

// DeleteSource deletes a source. No section of it is applied after that, and its positions are
// dropped, by shards without a leader soon after they have one; a source that is made under its
// name later begins anew.
func (n *Node) DeleteSource(ctx context.Context, name string) error {
	s, err := n.knownSource(ctx, name)
	if err != nil {
		return err
	}
	_, _, err = n.changeSource(ctx, name, &catalog.Command{DeleteSource: &catalog.DeleteSourceEntry{Name: name, Number: s.Number}})
	if err == nil {
		n.sources.Forget(ctx, s.Number)
	}
	return err
}

// knownSource returns the source of a name, if need be after every change acknowledged before
// the call.
func (n *Node) knownSource(ctx context.Context, name string) (Source, error) {
	if s, err := n.Source(name); err == nil {
		return s, nil
	}
	if err := n.CatchUp(ctx); err != nil {
		return Source{}, err
	}
	return n.Source(name)
}

// changeSource changes a source that exists, and returns it with the index of the change. A
// cluster whose version is too low for sources has none, so that no older program meets the
// command.
func (n *Node) changeSource(ctx context.Context, name string, command *catalog.Command) (Source, uint64, error) {
	if _, err := n.knownSource(ctx, name); err != nil {
		return Source{}, 0, err
	}
	r, index, err := n.catalogClient.Change(ctx, command)
	switch {
	case err != nil:
	case r.Missing:
		err = fmt.Errorf("%w: %q", ErrUnknownSource, name)
	case r.Bound == catalog.BoundPartitions:
		err = &ArgumentError{Field: "positions", Problem: r.Refused}
	case r.Refused != "":
		err = fmt.Errorf("%w: %s", ErrNotPaused, r.Refused)
	}
	if err != nil {
		return Source{}, 0, err
	}
	return r.Source, index, nil
}

// SourcePositions returns the position of a partition in each shard, as Sink.Positions
// does, without disturbing its reader; in the shards of the named keyspaces alone if there are
// any.
func (n *Node) SourcePositions(ctx context.Context, source uint64, partition uint32, keyspaces ...string) ([]sink.ShardPosition, error) {
	return n.sources.ReadPositions(ctx, source, partition, keyspaces...)
}

// sourceWriteTimeout bounds one write of a source if its caller does not.
const sourceWriteTimeout = 10 * time.Second

// nodeSources is the sourcesink.World of a node.
type nodeSources struct{ node *Node }

func (n nodeSources) View() *catalog.View { return n.node.catalog.View() }

func (n nodeSources) Keyspaces() []*Keyspace { return n.node.Keyspaces() }

func (n nodeSources) CatchUp(ctx context.Context) error { return n.node.CatchUp(ctx) }

func (n nodeSources) Change(ctx context.Context, command *catalog.Command) (*catalog.Result, error) {
	return n.node.Change(ctx, command)
}

func (n nodeSources) Send(ctx context.Context, s *sourcesink.Write) {
	w := &Write{Ops: s.Ops, Spaces: s.Spaces, In: s.In, sections: make([]*RequestID, len(s.Sections))}
	for slot, section := range s.Sections {
		if section != nil {
			id := dedup.BySource(*section)
			w.sections[slot], w.ID = &id, id
		}
	}
	w.Deadline = time.Now().Add(sourceWriteTimeout)
	if until, ok := ctx.Deadline(); ok {
		w.Deadline = until
	}
	var err error
	if err = ctx.Err(); err == nil {
		err = n.node.Write(s.Spaces[0], w)
	}
	if s.Answers = w.answers; s.Answers == nil { // nothing was proposed
		s.Answers = make([]sourcesink.Answer, len(s.Sections))
		for i := range s.Answers {
			s.Answers[i].Err = errors.Join(err, errNothingProposed)
		}
	}
	for _, o := range w.Overflows {
		s.Overflows = append(s.Overflows, o.Op)
	}
}

// errNothingProposed stands beside the error of a write that was refused as a whole.
var errNothingProposed = errors.New("nothing was written")

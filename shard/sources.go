package shard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/source/sink"
)

// The errors of changes of sources.
var (
	// ErrUnknownSource is returned when there is no source of a name.
	ErrUnknownSource = errors.New("no such source")
	// ErrSourceExists is returned when a source is made with a name that is taken.
	ErrSourceExists = errors.New("there is a source of this name")
	// ErrNotPaused is returned for a change that takes a paused source whose shards have
	// all got to the same position.
	ErrNotPaused = errors.New("the source must be paused, at one position in all shards")
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
// between two positions would count by both configurations, or by none.
func (n *Node) SetSource(ctx context.Context, s Source, config json.RawMessage, sameMeaning bool) (Source, error) {
	for _, partition := range slices.Sorted(maps.Keys(s.Partitions)) {
		if sameMeaning {
			break
		}
		all, err := n.SourcePositions(ctx, s.Number, partition)
		if err != nil {
			return Source{}, err
		}
		if slices.ContainsFunc(all, func(p sink.ShardPosition) bool { return p.Known != all[0].Known || p.Position != all[0].Position }) {
			return Source{}, fmt.Errorf("%w: partition %d", ErrNotPaused, partition)
		}
	}
	return n.putSource(ctx, &catalog.PutSourceEntry{Name: s.Name, Config: config, Number: s.Number, OnlyPaused: !sameMeaning})
}

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
	case r.Refused != "" && put.OnlyPaused:
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

// DeleteSource deletes a source. Its positions are dropped soon after; a source that is made
// under its name later begins anew.
func (n *Node) DeleteSource(ctx context.Context, name string) error {
	s, err := n.Source(name)
	if err != nil {
		return err
	}
	_, _, err = n.changeSource(ctx, name, &catalog.Command{DeleteSource: &catalog.DeleteSourceEntry{Name: name, Number: s.Number}})
	return err
}

// changeSource changes a source that exists, and returns it with the index of the change.
func (n *Node) changeSource(ctx context.Context, name string, command *catalog.Command) (Source, uint64, error) {
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
// does, without disturbing its reader.
func (n *Node) SourcePositions(ctx context.Context, source uint64, partition uint32) ([]sink.ShardPosition, error) {
	all, _, _, err := n.sources.readPositions(ctx, dedup.PositionKey{Source: source, Partition: partition})
	return all, err
}

// sectionOf writes a section of a source without ops.
func sectionOf(s dedup.SourceSection) []byte {
	id := dedup.BySource(s)
	var w raftfsm.RequestWriter
	w.Reset(nil, &id)
	return w.Section()
}

// Package sourcesink applies the messages of sources to shards. It decides which ops go into which section and
// which ops are refused, and it caches the shards' checkpoints.
//
// It never reads a queue, and writes only through its World.
//
// Invariant: a section moves a checkpoint from the position that it names to a later one, and contains all
// ops of the messages between them. So a shard applies each message once, whatever the cache holds.
package sourcesink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/catalogclient"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/keyspace"
	"github.com/countd/countd/source/sink"
)

// Sink implements sink.Sink. DESIGN.md proves that each message is applied once. The cache only saves time: a
// section that does not fit its shard is not applied.
type Sink struct {
	world World
	mu    struct {
		sync.Mutex
		readers map[dedup.PositionKey]*reader
	}
}

// World is what the sink needs of its node.
type World interface {
	// View returns the catalog, which is never older than what Keyspaces has returned.
	View() *catalog.View
	// Keyspaces returns all keyspaces, by name.
	Keyspaces() []*keyspace.Keyspace
	// CatchUp waits until View and Keyspaces include all changes acknowledged before the call.
	CatchUp(ctx context.Context) error
	Change(ctx context.Context, command *catalog.Command) (*catalog.Result, error)
	// Send writes the sections of w, and sets its answers.
	Send(ctx context.Context, w *Write)
}

// Write has sections for shards of several keyspaces, and the shards' answers.
type Write struct {
	Spaces   []*keyspace.Keyspace
	Sections []*dedup.SourceSection // by shard of all Spaces, in order; nil for none
	Ops      []engine.Op            // ids as in the messages
	In       []uint8                // for each op, the index of its keyspace in Spaces

	Answers   []Answer // by shard; only set for shards with a section
	Overflows []int    // indexes of refused ops, ascending
}

type Answer struct {
	Err     error
	Outcome dedup.Outcome
	At      dedup.PositionAnswer // unless Err is set
}

// reader caches the checkpoints of one partition. mu guards the other fields, and is held during an Apply.
type reader struct {
	mu     sync.Mutex
	epoch  uint32               // the epoch at which Positions read the checkpoints; 0 before that
	shards map[uint32]*progress // by Raft group
	evened time.Time            // when Apply last moved all shards
}

// progress caches one shard's checkpoint.
type progress struct {
	known    bool          // the shard has had a checkpoint of the reader's epoch
	late     bool          // the shard did not answer; Apply asks it again only for an op
	sure     bool          // false if a section without an answer may have moved the checkpoint
	position sink.Position // the checkpoint
	mark     sink.Mark     // the checkpoint's mark
	// through is not below the checkpoint. The reader has seen all messages between them, and none
	// has an op for the shard.
	through sink.Position
}

// New returns a Sink with an empty cache.
func New(world World) *Sink {
	s := &Sink{world: world}
	s.mu.readers = map[dedup.PositionKey]*reader{}
	return s
}

// reader returns the cache of a partition. If the partition is new, it also drops the caches of
// deleted sources.
func (s *Sink) reader(key dedup.PositionKey) *reader {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.mu.readers[key]
	if r == nil {
		for other := range s.mu.readers {
			if _, there := s.world.View().Source(other.Source); !there {
				delete(s.mu.readers, other)
			}
		}
		r = &reader{}
		s.mu.readers[key] = r
	}
	return r
}

// Begin implements sink.Sink.
func (s *Sink) Begin(ctx context.Context, source uint64, starts map[uint32]sink.Position, identity string) error {
	_, err := s.begin(ctx, source, starts, identity)
	return err
}

// Start implements sink.Sink.
func (s *Sink) Start(ctx context.Context, source uint64, partition uint32, start sink.Start) (sink.Start, error) {
	found, _ := s.world.View().Source(source)
	p := found.Partitions[partition]
	if p.Identity == "" {
		of, err := s.begin(ctx, source, map[uint32]sink.Position{partition: start.Position}, start.Identity)
		if err != nil {
			return sink.Start{}, err
		}
		p = of.Partitions[partition]
	}
	return sink.Start{Position: p.Start, Identity: p.Identity, Seek: p.Since()}, nil
}

// begin records the starts of the partitions that have not begun yet, and returns the changed
// source.
func (s *Sink) begin(ctx context.Context, source uint64, starts map[uint32]sink.Position, identity string) (catalog.Source, error) {
	if _, there := s.world.View().Source(source); !there {
		if err := s.world.CatchUp(ctx); err != nil {
			return catalog.Source{}, err
		}
		if _, there = s.world.View().Source(source); !there {
			return catalog.Source{}, sink.ErrStopped
		}
	}
	r, err := s.world.Change(ctx, &catalog.Command{StartSource: &catalog.StartSourceEntry{Number: source, Starts: starts, Identity: identity}})
	switch {
	case err != nil:
		return catalog.Source{}, err
	case r.Missing:
		return catalog.Source{}, sink.ErrStopped
	case r.Refused != "":
		return catalog.Source{}, fmt.Errorf("%w: %s", catalogclient.ErrRefused, r.Refused)
	}
	return r.Source, nil
}

// Check implements sink.Sink.
func (s *Sink) Check(ctx context.Context, b *sink.Batch) ([]sink.Rejection, error) {
	if len(rejectedOps(s.world.Keyspaces(), b.Ops)) == 0 {
		return nil, nil
	}
	// This node may not know a keyspace yet that another node created before the message was sent.
	if err := s.world.CatchUp(ctx); err != nil {
		return nil, err
	}
	keyspaces := s.world.Keyspaces()
	rejected := rejectedOps(keyspaces, b.Ops)
	s.reader(dedup.PositionKey{Source: b.Source, Partition: b.Partition}).markPassed(keyspaces, b.Ops, rejected)
	return rejected, nil
}

// markPassed sets Passed of the rejected ops whose shards have passed them.
func (r *reader) markPassed(keyspaces []*keyspace.Keyspace, ops []sink.Op, rejected []sink.Rejection) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range rejected {
		op := &ops[rejected[i].Op]
		for _, k := range keyspaces {
			if k.Name != op.Keyspace || !takesMessages(k) {
				continue
			}
			shard, _ := k.Route().KeyOf(op.ID)
			if p := r.shards[k.FirstGroup+uint32(shard)]; p != nil && p.known {
				rejected[i].Passed = op.Position.Less(p.position)
			}
		}
	}
}

// target is a shard that can have ops of messages.
type target struct {
	keyspace *keyspace.Keyspace
	number   int
	group    uint32
}

// targetsOf returns the keyspaces that take ops of messages, and their shards in order.
func targetsOf(keyspaces []*keyspace.Keyspace) (spaces []*keyspace.Keyspace, shards []target) {
	for _, k := range keyspaces {
		if !takesMessages(k) {
			continue
		}
		spaces = append(spaces, k)
		for shard := range k.Shards {
			shards = append(shards, target{k, shard, k.FirstGroup + uint32(shard)})
		}
	}
	return spaces, shards
}

// errStaleCatalog is returned when a shard has met a later epoch than this node's catalog.
var errStaleCatalog = fmt.Errorf("%w: this node's catalog is behind", sink.ErrMoved)

// Positions implements sink.Sink.
func (s *Sink) Positions(ctx context.Context, source uint64, partition uint32) ([]sink.ShardPosition, error) {
	return s.positions(ctx, s.reader(dedup.PositionKey{Source: source, Partition: partition}), source, partition, false)
}

// positions implements Positions with a cache. If strict is set, all shards must answer.
func (s *Sink) positions(ctx context.Context, r *reader, source uint64, partition uint32, strict bool) ([]sink.ShardPosition, error) {
	key := dedup.PositionKey{Source: source, Partition: partition}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.epoch = 0
	timeout := time.Duration(0)
	if !strict {
		timeout = answerMax
	}
	all, epoch, shards, err := s.readPositions(ctx, key, true, timeout)
	if errors.Is(err, errStaleCatalog) {
		if err := s.world.CatchUp(ctx); err != nil {
			return nil, err
		}
		all, epoch, shards, err = s.readPositions(ctx, key, true, timeout)
	}
	if err != nil {
		return nil, err
	}
	r.shards = map[uint32]*progress{}
	for i, p := range all {
		if p.Late {
			r.shards[shards[i].group] = &progress{late: true}
		}
		if p.Known {
			r.shards[shards[i].group] = &progress{known: true, sure: true, position: p.Position, mark: p.Mark, through: p.Position}
		}
	}
	r.epoch, r.evened = epoch, time.Now()
	return all, nil
}

// ReadPositions returns the position of a partition in each shard, as Positions does, without
// disturbing its reader. If keyspaces are named, it reads the shards of those alone.
func (s *Sink) ReadPositions(ctx context.Context, source uint64, partition uint32, keyspaces ...string) ([]sink.ShardPosition, error) {
	all, _, _, err := s.readPositions(ctx, dedup.PositionKey{Source: source, Partition: partition}, false, 0, keyspaces...)
	return all, err
}

// readPositions reads the checkpoints of a partition in all shards, or in those of the named
// keyspaces, through their logs. If raise is set, sections of epochs before the catalog's no longer
// move the shards. If timeout is not 0, readPositions marks as Late the shards that do not answer
// in time. It returns an error instead if no shard has a checkpoint.
func (s *Sink) readPositions(ctx context.Context, key dedup.PositionKey, raise bool, timeout time.Duration, only ...string) (all []sink.ShardPosition, epoch uint32, shards []target, err error) {
	w := &Write{}
	spaces := s.world.Keyspaces()
	if len(only) > 0 {
		spaces = slices.DeleteFunc(slices.Clone(spaces), func(k *keyspace.Keyspace) bool { return !slices.Contains(only, k.Name) })
	}
	w.Spaces, shards = targetsOf(spaces)
	found, there := s.world.View().Source(key.Source)
	if !there {
		return nil, 0, nil, sink.ErrStopped
	}
	if len(shards) == 0 {
		return nil, 0, nil, fmt.Errorf("%w: this node has yet to learn of the keyspaces", errs.ErrNoLeader)
	}
	partition := found.Partitions[key.Partition]
	epoch = max(partition.Epoch, 1) // before Start, no shard has an epoch
	read := &dedup.SourceSection{PositionKey: key, Mode: dedup.SectionRead}
	if raise {
		read.Epoch, read.Since = epoch, partition.Since()
	}
	w.Sections = slices.Repeat([]*dedup.SourceSection{read}, len(shards))
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	s.world.Send(ctx, w)
	var failed error
	known := false
	for i, shard := range shards {
		a := &w.Answers[i]
		switch {
		case a.Err != nil:
			err := fmt.Errorf("cannot read the position in shard %d of keyspace %s: %w", shard.number, shard.keyspace.Name, movedOr(a.Err))
			if timeout == 0 || errors.Is(err, sink.ErrMoved) {
				return nil, 0, nil, err
			}
			failed = err
			all = append(all, sink.ShardPosition{Keyspace: shard.keyspace.Name, Shard: shard.number, Late: true})
			continue
		case a.At.Deleted:
			return nil, 0, nil, sink.ErrStopped
		case a.At.Closed:
			return nil, 0, nil, busy(shard)
		case a.At.Known && a.At.Epoch > epoch:
			return nil, 0, nil, errStaleCatalog
		}
		p := sink.ShardPosition{Keyspace: shard.keyspace.Name, Shard: shard.number}
		if p.Known = a.At.Known && a.At.Epoch >= partition.Since(); p.Known {
			p.Position, p.Mark = a.At.At, a.At.Mark
			known = true
		}
		all = append(all, p)
	}
	if !known && failed != nil {
		return nil, 0, nil, failed
	}
	return all, epoch, shards, nil
}

func busy(s target) error {
	return fmt.Errorf("%w: shard %d of keyspace %s", sink.ErrBusy, s.number, s.keyspace.Name)
}

// movedOr wraps an error for an unknown keyspace or column in ErrMoved, so that the reader checks
// its ops again.
func movedOr(err error) error {
	if errors.Is(err, errs.ErrUnknownKeyspace) || errors.Is(err, errs.ErrUnknownColumn) {
		return fmt.Errorf("%w: %w", sink.ErrMoved, err)
	}
	return err
}

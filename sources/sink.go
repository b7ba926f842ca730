package sources

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/names"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/source/sink"
)

// Sink implements sink.Sink. SINK.md explains why each message is applied once. A wrong cache costs
// only time, because a shard ignores a section that does not begin at its checkpoint.
type Sink struct {
	world World
	names *names.Names
	mu    struct {
		sync.Mutex
		readers map[dedup.PositionKey]*sinkReader
	}
}

// World is the part of a node that the sink needs. *shard.Node implements it.
type World interface {
	// Catalog returns the catalog. It is never older than an earlier result of Keyspaces.
	Catalog() *catalog.View
	// Keyspaces returns all keyspaces, by name.
	Keyspaces() []*shard.Keyspace
	// Layout returns the present route of a keyspace, and the group of each shard. See shard/GROWTH.md, R15.
	Layout(ks *shard.Keyspace) (raftfsm.Route, []uint32)
	// CatchUp waits until Catalog and Keyspaces include all changes acknowledged before the call.
	CatchUp(ctx context.Context) error
	Change(ctx context.Context, command *catalog.Command) (*catalog.Result, error)
	// Write writes the sections of w, and sets w.Answers. Package names also calls Write, Read and
	// Keyspace.
	names.Node
}

// write has sections for shards of several keyspaces, and the shards' answers.
type write struct {
	*layout
	sections []*dedup.SourceSection // one for each shard of the layout, in order; nil for none
	ops      counters.Ops           // with the ids that the messages have
	in       []uint8                // index in spaces of each op's keyspace

	answers   []shard.Answer    // one for each shard; set only for shards with a section
	overflows []engine.Overflow // refused ops, ascending
}

// writeTimeout bounds a write whose caller has no deadline.
const writeTimeout = 10 * time.Second

// errNothingProposed is joined to the error of a write if the write proposed nothing.
var errNothingProposed = errors.New("nothing was written")

// send writes the sections of w, and sets its answers.
func (s *Sink) send(ctx context.Context, w *write) {
	out := &shard.Write{Ops: w.ops, Spaces: w.spaces, In: w.in, Routes: w.routes, Sections: make([]*dedup.RequestID, w.slots)}
	for i, section := range w.sections {
		if section != nil {
			id := dedup.BySource(*section)
			out.Sections[w.shards[i].slot], out.ID = &id, id
		}
	}
	out.Deadline = deadlineOf(ctx)
	err := ctx.Err()
	if err == nil {
		err = s.world.Write(w.spaces[0], out)
	}
	w.answers = make([]shard.Answer, len(w.sections))
	for i := range w.answers {
		if out.Answers == nil { // the whole write was refused
			w.answers[i].Err = errors.Join(err, errNothingProposed)
		} else {
			w.answers[i] = out.Answers[w.shards[i].slot]
		}
	}
	w.overflows = append(w.overflows, out.Overflows...)
}

// sinkReader caches the checkpoints of one partition. mu guards the other fields. Apply holds mu
// until it returns.
type sinkReader struct {
	mu     sync.Mutex
	epoch  uint32                   // epoch at which Positions read the checkpoints; 0 before that
	shards map[uint32]*progress     // by Raft group
	routes map[uint32]raftfsm.Route // by which shards were chosen, by the keyspace's first group
	evened time.Time                // when Apply last moved all shards
}

// progress caches one shard's checkpoint.
type progress struct {
	known    bool          // the shard has answered with a checkpoint in the reader's epoch
	late     bool          // the shard did not answer; Apply asks it again only if the batch has an op for it
	sure     bool          // position is certain: no section whose answer was lost can have moved the checkpoint
	position sink.Position // the checkpoint
	mark     sink.Mark     // mark of the checkpoint
	// through is at or above position. The reader has read all messages between these two
	// positions, and none of them has an op for the shard.
	through sink.Position
}

// NewSink returns a Sink with an empty cache.
func NewSink(world World) *Sink {
	s := &Sink{world: world, names: names.New(world)}
	s.mu.readers = map[dedup.PositionKey]*sinkReader{}
	return s
}

// reader returns the cache of a partition, and creates it if necessary. When it creates a cache, it
// also drops the caches of deleted sources.
func (s *Sink) reader(key dedup.PositionKey) *sinkReader {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.mu.readers[key]
	if r == nil {
		for other := range s.mu.readers {
			if _, there := s.world.Catalog().Source(other.Source); !there {
				delete(s.mu.readers, other)
			}
		}
		r = &sinkReader{}
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
	found, _ := s.world.Catalog().Source(source)
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

// begin records the starts of partitions that have not begun yet, and returns the changed source.
func (s *Sink) begin(ctx context.Context, source uint64, starts map[uint32]sink.Position, identity string) (catalog.Source, error) {
	if _, there := s.world.Catalog().Source(source); !there {
		if err := s.world.CatchUp(ctx); err != nil {
			return catalog.Source{}, err
		}
		if _, there = s.world.Catalog().Source(source); !there {
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
		return catalog.Source{}, fmt.Errorf("%w: %s", errs.ErrRefused, r.Refused)
	}
	return r.Source, nil
}

// Check implements sink.Sink.
func (s *Sink) Check(ctx context.Context, b *sink.Batch) ([]sink.Rejection, error) {
	if len(rejectedOps(s.world.Keyspaces(), b.Ops)) == 0 {
		return nil, nil
	}
	// Before the message was sent, another node may have created a keyspace that this node does
	// not know yet.
	if err := s.world.CatchUp(ctx); err != nil {
		return nil, err
	}
	keyspaces := s.world.Keyspaces()
	rejected := rejectedOps(keyspaces, b.Ops)
	if err := s.numberRejected(ctx, textIDsOf(keyspaces), b.Ops, rejected); err != nil {
		return nil, err
	}
	r := s.reader(dedup.PositionKey{Source: b.Source, Partition: b.Partition})
	return rejected, r.markPassed(s.layoutOf(keyspaces), b.Ops, rejected)
}

// numberRejected puts the numbers of texts into the rejected ops whose ids are good, so that markPassed knows
// their shards.
func (s *Sink) numberRejected(ctx context.Context, t textIDs, ops []sink.Op, rejected []sink.Rejection) error {
	var good []*sink.Op
	for _, r := range rejected {
		if op := &ops[r.Op]; len(t) > 0 && t.whyBad(op) == "" && (!op.Kind.OfMember() || len(op.Cells) == 1) {
			good = append(good, op)
		}
	}
	return s.number(ctx, t, good, false)
}

// markPassed sets Passed in the rejections of ops that their shards have passed. It returns ErrMoved if the
// reader has read the positions by another layout.
func (r *sinkReader) markPassed(l *layout, ops []sink.Op, rejected []sink.Rejection) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.follows(l); err != nil {
		return err
	}
	for i := range rejected {
		op := &ops[rejected[i].Op]
		for space, k := range l.spaces {
			if k.Name != op.Keyspace || k.Names != "" && (op.Texts == nil || op.Texts.IDNumber || op.ID == 0) {
				continue // no shard has passed an op whose text has no number
			}
			if p := r.shards[l.shards[l.shardOf(space, op.ID)].group]; p != nil && p.known {
				rejected[i].Passed = op.Position.Less(p.position)
			}
		}
	}
	return nil
}

// follows returns ErrMoved unless a layout agrees with the routes by which the reader's positions were read.
func (r *sinkReader) follows(l *layout) error {
	for i, k := range l.spaces {
		if route, known := r.routes[k.FirstGroup]; known && !route.Equal(l.routes[i]) {
			r.epoch = 0
			return fmt.Errorf("%w: %w: keyspace %s", sink.ErrMoved, errs.ErrOtherLayout, k.Name)
		}
	}
	return nil
}

// errStaleCatalog is returned when a shard has a later epoch than this node's catalog.
var errStaleCatalog = fmt.Errorf("%w: this node's catalog is behind", sink.ErrMoved)

// Positions implements sink.Sink.
func (s *Sink) Positions(ctx context.Context, source uint64, partition uint32) ([]sink.ShardPosition, error) {
	return s.positions(ctx, s.reader(dedup.PositionKey{Source: source, Partition: partition}), source, partition, false)
}

// positions implements Positions with the cache r. If strict is set, all shards must answer.
func (s *Sink) positions(ctx context.Context, r *sinkReader, source uint64, partition uint32, strict bool) ([]sink.ShardPosition, error) {
	key := dedup.PositionKey{Source: source, Partition: partition}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.epoch = 0
	timeout := time.Duration(0)
	if !strict {
		timeout = answerMax
	}
	all, epoch, l, err := s.readPositions(ctx, key, true, timeout)
	if errors.Is(err, errStaleCatalog) || errors.Is(err, errs.ErrOtherLayout) {
		if err := s.world.CatchUp(ctx); err != nil {
			return nil, err
		}
		all, epoch, l, err = s.readPositions(ctx, key, true, timeout)
	}
	if err != nil {
		return nil, err
	}
	r.shards = map[uint32]*progress{}
	for i, p := range all {
		if p.Late {
			r.shards[l.shards[i].group] = &progress{late: true}
		}
		if p.Known {
			r.shards[l.shards[i].group] = &progress{known: true, sure: true, position: p.Position, mark: p.Mark, through: p.Position}
		}
	}
	r.epoch, r.routes, r.evened = epoch, l.byFirst(), time.Now()
	return all, nil
}

// ReadPositions returns the same as Positions, but does not change the cache of the partition's
// reader. If keyspaces are given, it reads only their shards.
func (s *Sink) ReadPositions(ctx context.Context, source uint64, partition uint32, keyspaces ...string) (all []sink.ShardPosition, err error) {
	err = byOneLayout(ctx, s.world, func() error {
		all, _, _, err = s.readPositions(ctx, dedup.PositionKey{Source: source, Partition: partition}, false, 0, keyspaces...)
		return err
	})
	return all, err
}

// readPositions reads the checkpoints of a partition through the logs of the shards. If the
// argument only names keyspaces, readPositions reads only their shards. If raise is set, it raises
// the epoch of each shard to the catalog's, so that sections of earlier epochs no longer move the
// shard. If timeout is not 0, shards that do not answer in time are Late. But if no shard that
// answers has a checkpoint, readPositions returns the error of a late shard.
func (s *Sink) readPositions(ctx context.Context, key dedup.PositionKey, raise bool, timeout time.Duration, only ...string) (all []sink.ShardPosition, epoch uint32, l *layout, err error) {
	spaces := s.world.Keyspaces()
	if len(only) > 0 {
		spaces = slices.DeleteFunc(slices.Clone(spaces), func(k *shard.Keyspace) bool { return !slices.Contains(only, k.Name) })
	}
	l = s.layoutOf(spaces)
	found, there := s.world.Catalog().Source(key.Source)
	if !there {
		return nil, 0, nil, sink.ErrStopped
	}
	if len(l.shards) == 0 {
		return nil, 0, nil, fmt.Errorf("%w: this node has yet to learn of the keyspaces", errs.ErrNoLeader)
	}
	partition := found.Partitions[key.Partition]
	epoch = max(partition.Epoch, 1) // 0 before Start
	read := &dedup.SourceSection{PositionKey: key, Mode: dedup.SectionRead}
	if raise {
		read.Epoch, read.Since = epoch, partition.Since()
	}
	w := &write{layout: l, sections: slices.Repeat([]*dedup.SourceSection{read}, len(l.shards))}
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	s.send(ctx, w)
	var failed error
	known := false
	for i, to := range l.shards {
		a := &w.answers[i]
		switch {
		case a.Err != nil:
			err := fmt.Errorf("cannot read the position in shard %d of keyspace %s: %w", to.number, to.keyspace.Name, movedOr(a.Err))
			if timeout == 0 || errors.Is(err, sink.ErrMoved) {
				return nil, 0, nil, err
			}
			failed = err
			all = append(all, sink.ShardPosition{Keyspace: to.keyspace.Name, Shard: to.number, Late: true})
			continue
		case a.At.Deleted:
			return nil, 0, nil, sink.ErrStopped
		case a.At.Closed:
			return nil, 0, nil, busy(to)
		case a.At.Known && a.At.Epoch > epoch:
			return nil, 0, nil, errStaleCatalog
		}
		p := sink.ShardPosition{Keyspace: to.keyspace.Name, Shard: to.number}
		if p.Known = a.At.Known && a.At.Epoch >= partition.Since(); p.Known {
			p.Position, p.Mark = a.At.At, a.At.Mark
			known = true
		}
		all = append(all, p)
	}
	if !known && failed != nil {
		return nil, 0, nil, failed
	}
	return all, epoch, l, nil
}

func busy(s target) error {
	return fmt.Errorf("%w: shard %d of keyspace %s", sink.ErrBusy, s.number, s.keyspace.Name)
}

// movedOr wraps an error for an unknown keyspace or column, or for another layout, in ErrMoved, so that the
// reader checks its ops again.
func movedOr(err error) error {
	if ofCatalog(err) {
		return fmt.Errorf("%w: %w", sink.ErrMoved, err)
	}
	return err
}

// ofCatalog reports whether a newer catalog may help against an error.
func ofCatalog(err error) bool {
	return errors.Is(err, errs.ErrUnknownKeyspace) || errors.Is(err, errs.ErrUnknownColumn) || errors.Is(err, errs.ErrOtherLayout)
}

package shard

import (
	"cmp"
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
	"github.com/countd/countd/source/sink"
)

const (
	// sourceEvenEvery is how often shards without ops are moved too, so that a reader that
	// begins anew has little to read again.
	sourceEvenEvery = time.Second
	// sourceOpsMax bounds the ops of one write of a source, as of a client's. A message has
	// at most as many.
	sourceOpsMax = 10_000
	// sourceWriteTimeout bounds one write of a source if its caller does not.
	sourceWriteTimeout = 10 * time.Second
)

// sourceSink applies the messages of sources: docs/ARCHITECTURE.md, Sources, says why each
// is applied once. It only remembers what would cost a reader time to find out again, so
// nothing rests on its memory: what it sends applies only where it fits.
type sourceSink struct {
	world sourceWorld
	mu    struct {
		sync.Mutex
		readers map[dedup.PositionKey]*sourceReader
	}
}

// sourceWorld is what the sink needs of its node.
type sourceWorld interface {
	// view returns the catalog. It is never older than the keyspaces of an earlier call.
	view() *catalog.View
	// keyspaces returns all keyspaces, by name.
	keyspaces() []*Keyspace
	// catchUp returns once view and keyspaces have every change acknowledged before the call.
	catchUp(ctx context.Context) error
	change(ctx context.Context, command *catalog.Command) (*catalog.Result, error)
	// send writes one section to each shard that has one.
	send(ctx context.Context, w *sourceWrite)
}

// sourceWrite is sections for shards of several keyspaces, and what became of them.
type sourceWrite struct {
	spaces   []*Keyspace
	sections []*dedup.SourceSection // by shard, over all spaces in their order; nil for none
	ops      []engine.Op            // their ids as the message has them
	in       []uint8                // by op, its keyspace in spaces

	answers   []sourceAnswer // by shard; set for those with a section
	overflows []int          // ops that were refused, ascending
}

// sourceAnswer is a shard's answer to a section.
type sourceAnswer struct {
	err     error
	outcome dedup.Outcome
	at      dedup.PositionAnswer // unless err is set
}

// sourceReader is what this node knows of the checkpoints of one partition.
type sourceReader struct {
	mu     sync.Mutex
	epoch  uint32                     // 0 before Positions was called
	shards map[uint32]*sourceProgress // by group
	evened time.Time
}

// sourceProgress is what is known of one shard's checkpoint.
type sourceProgress struct {
	known bool          // the shard had a checkpoint of the reader's epoch
	sure  bool          // and no section without an answer may have moved it since
	at    sink.Position // the checkpoint
	// through is at, or a later position up to which the partition has no ops for the shard
	// from at on, because it was seen whole.
	through sink.Position
}

func newSourceSink(world sourceWorld) *sourceSink {
	s := &sourceSink{world: world}
	s.mu.readers = map[dedup.PositionKey]*sourceReader{}
	return s
}

// reader returns the memory of a partition.
func (s *sourceSink) reader(key dedup.PositionKey) *sourceReader {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.mu.readers[key]
	if r == nil {
		for other := range s.mu.readers {
			if _, there := s.world.view().Source(other.Source); !there {
				delete(s.mu.readers, other)
			}
		}
		r = &sourceReader{}
		s.mu.readers[key] = r
	}
	return r
}

// Begin implements sink.Sink.
func (s *sourceSink) Begin(ctx context.Context, source uint64, starts map[uint32]sink.Position, identity string) error {
	_, err := s.begin(ctx, source, starts, identity)
	return err
}

// Start implements sink.Sink.
func (s *sourceSink) Start(ctx context.Context, source uint64, partition uint32, start sink.Start) (sink.Start, error) {
	found, _ := s.world.view().Source(source)
	p := found.Partitions[partition]
	if p.Identity == "" {
		of, err := s.begin(ctx, source, map[uint32]sink.Position{partition: start.Position}, start.Identity)
		if err != nil {
			return sink.Start{}, err
		}
		p = of.Partitions[partition]
	}
	return sink.Start{Position: p.Start, Identity: p.Identity}, nil
}

// begin records the beginnings of partitions that have none, and returns the source then.
func (s *sourceSink) begin(ctx context.Context, source uint64, starts map[uint32]sink.Position, identity string) (Source, error) {
	if _, there := s.world.view().Source(source); !there {
		if err := s.world.catchUp(ctx); err != nil {
			return Source{}, err
		}
		if _, there = s.world.view().Source(source); !there { // older programs do not know the command
			return Source{}, sink.ErrStopped
		}
	}
	r, err := s.world.change(ctx, &catalog.Command{StartSource: &catalog.StartSourceEntry{Number: source, Starts: starts, Identity: identity}})
	switch {
	case err != nil:
		return Source{}, err
	case r.Missing:
		return Source{}, sink.ErrStopped
	case r.Refused != "":
		return Source{}, fmt.Errorf("%w: %s", catalogclient.ErrRefused, r.Refused)
	}
	return r.Source, nil
}

// Check implements sink.Sink.
func (s *sourceSink) Check(ctx context.Context, b *sink.Batch) ([]sink.Rejection, error) {
	if len(rejectedOps(s.world.keyspaces(), b.Ops)) == 0 {
		return nil, nil
	}
	// What this node does not know, another may have made before the message was sent.
	if err := s.world.catchUp(ctx); err != nil {
		return nil, err
	}
	keyspaces := s.world.keyspaces()
	rejected := rejectedOps(keyspaces, b.Ops)
	s.reader(dedup.PositionKey{Source: b.Source, Partition: b.Partition}).markPassed(keyspaces, b.Ops, rejected)
	return rejected, nil
}

// markPassed sets Passed of the rejected ops whose shards have passed them.
func (r *sourceReader) markPassed(keyspaces []*Keyspace, ops []sink.Op, rejected []sink.Rejection) {
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
				rejected[i].Passed = op.Position.Less(p.at)
			}
		}
	}
}

// sourceShard is a shard that can have ops of messages.
type sourceShard struct {
	keyspace *Keyspace
	shard    int
	group    uint32
}

// sourceSpaces returns the keyspaces that take ops of messages, and their shards in order.
func sourceSpaces(keyspaces []*Keyspace) (spaces []*Keyspace, shards []sourceShard) {
	for _, k := range keyspaces {
		if !takesMessages(k) {
			continue
		}
		spaces = append(spaces, k)
		for shard := range k.Shards {
			shards = append(shards, sourceShard{k, shard, k.FirstGroup + uint32(shard)})
		}
	}
	return spaces, shards
}

// errStaleCatalog is returned when a shard has met a later epoch than this node's catalog.
var errStaleCatalog = fmt.Errorf("%w: this node's catalog is behind", sink.ErrMoved)

// Positions implements sink.Sink.
func (s *sourceSink) Positions(ctx context.Context, source uint64, partition uint32) ([]sink.ShardPosition, error) {
	key := dedup.PositionKey{Source: source, Partition: partition}
	r := s.reader(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.epoch = 0
	all, epoch, shards, err := s.readPositions(ctx, key, true)
	if errors.Is(err, errStaleCatalog) {
		if err := s.world.catchUp(ctx); err != nil {
			return nil, err
		}
		all, epoch, shards, err = s.readPositions(ctx, key, true)
	}
	if err != nil {
		return nil, err
	}
	r.shards = map[uint32]*sourceProgress{}
	for i, p := range all {
		if p.Known {
			r.shards[shards[i].group] = &sourceProgress{known: true, sure: true, at: p.Position, through: p.Position}
		}
	}
	r.epoch, r.evened = epoch, time.Now()
	return all, nil
}

// readPositions reads the checkpoints of a partition in all shards, through their logs. With
// raise, no section of an earlier epoch than the catalog's moves them after that.
func (s *sourceSink) readPositions(ctx context.Context, key dedup.PositionKey, raise bool) (all []sink.ShardPosition, epoch uint32, shards []sourceShard, err error) {
	w := &sourceWrite{}
	w.spaces, shards = sourceSpaces(s.world.keyspaces())
	found, there := s.world.view().Source(key.Source)
	if !there {
		return nil, 0, nil, sink.ErrStopped
	}
	if len(shards) == 0 {
		return nil, 0, nil, fmt.Errorf("%w: this node has yet to learn of the keyspaces", ErrNoLeader)
	}
	partition := found.Partitions[key.Partition]
	epoch = max(partition.Epoch, 1) // before Start no shard has any
	read := &dedup.SourceSection{PositionKey: key, Mode: dedup.SectionRead}
	if raise {
		read.Epoch, read.Since = epoch, partition.Since()
	}
	w.sections = slices.Repeat([]*dedup.SourceSection{read}, len(shards))
	s.world.send(ctx, w)
	for i, shard := range shards {
		a := &w.answers[i]
		switch {
		case a.err != nil:
			return nil, 0, nil, fmt.Errorf("cannot read the position in shard %d of keyspace %s: %w", shard.shard, shard.keyspace.Name, movedOr(a.err))
		case a.at.Deleted:
			return nil, 0, nil, sink.ErrStopped
		case a.at.Closed:
			return nil, 0, nil, busy(shard)
		case a.at.Known && a.at.Epoch > epoch:
			return nil, 0, nil, errStaleCatalog
		}
		p := sink.ShardPosition{Keyspace: shard.keyspace.Name, Shard: shard.shard}
		if p.Known = a.at.Known && a.at.Epoch >= partition.Since(); p.Known {
			p.Position = a.at.At
		}
		all = append(all, p)
	}
	return all, epoch, shards, nil
}

func busy(s sourceShard) error {
	return fmt.Errorf("%w: shard %d of keyspace %s", sink.ErrBusy, s.shard, s.keyspace.Name)
}

// movedOr returns ErrMoved for an error that says that the catalog has changed: the reader
// checks its ops again.
func movedOr(err error) error {
	if errors.Is(err, ErrUnknownKeyspace) || errors.Is(err, ErrUnknownColumn) {
		return fmt.Errorf("%w: %w", sink.ErrMoved, err)
	}
	return err
}

// Apply implements sink.Sink.
func (s *sourceSink) Apply(ctx context.Context, b *sink.Batch) (sink.Applied, error) {
	key := dedup.PositionKey{Source: b.Source, Partition: b.Partition}
	r := s.reader(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	a := &sourceApply{sink: s, reader: r, batch: b, key: key}
	err := a.run(ctx)
	if errors.Is(err, sink.ErrMoved) {
		r.epoch = 0 // Positions comes next
		if errors.Is(err, ErrUnknownKeyspace) || errors.Is(err, ErrUnknownColumn) {
			err = errors.Join(err, s.world.catchUp(ctx))
		}
	}
	slices.SortFunc(a.rejected, func(x, y sink.Rejection) int { return cmp.Compare(x.Op, y.Op) })
	return sink.Applied{Rejected: a.rejected}, err
}

// sourceApply is one call of Apply.
type sourceApply struct {
	sink   *sourceSink
	reader *sourceReader
	batch  *sink.Batch
	key    dedup.PositionKey

	partition catalog.Partition

	spaces   []*Keyspace
	shards   []sourceShard
	progress []*sourceProgress // by shard
	rejected []sink.Rejection
}

func (a *sourceApply) run(ctx context.Context) error {
	// The keyspaces first: a keyspace made after the source was deleted is not seen without
	// the deletion, so no late message is counted there.
	a.spaces, a.shards = sourceSpaces(a.sink.world.keyspaces())
	found, there := a.sink.world.view().Source(a.key.Source)
	if !there || found.Paused && len(a.batch.Ops) > 0 { // without ops it makes checkpoints equal
		return sink.ErrStopped
	}
	if err := checkBatch(a.batch); err != nil {
		return err
	}
	var begun bool
	if a.partition, begun = found.Partitions[a.key.Partition]; !begun {
		return sink.ErrMoved
	}
	// A reader from before the pause may make checkpoints equal, at shards that the pause has
	// not reached.
	ends := found.Paused && a.reader.epoch >= a.partition.Since()
	if a.reader.epoch == 0 || a.reader.epoch != a.partition.Epoch && !ends {
		return sink.ErrMoved
	}
	if err := a.meetShards(ctx); err != nil {
		return err
	}
	even := len(a.batch.Ops) == 0 || time.Since(a.reader.evened) >= sourceEvenEvery
	for ops := a.batch.Ops; ; {
		n := chunkOf(ops)
		next := a.batch.Next
		if n < len(ops) {
			next = ops[n].Position
		}
		if err := a.chunk(ctx, ops[:n], len(a.batch.Ops)-len(ops), next, even && n == len(ops)); err != nil {
			return err
		}
		if ops = ops[n:]; len(ops) == 0 {
			break
		}
	}
	if even {
		a.reader.evened = time.Now()
	}
	return nil
}

// checkBatch refuses a batch that no reader may send.
func checkBatch(b *sink.Batch) error {
	last := b.From
	for i := range b.Ops {
		if at := b.Ops[i].Position; at.Less(last) || !at.Less(b.Next) {
			return fmt.Errorf("op %d at %v is not in order, or not in %v…%v", i, at, b.From, b.Next)
		}
		last = b.Ops[i].Position
	}
	if b.Next.Less(last) {
		return fmt.Errorf("a batch from %v to %v", b.From, b.Next)
	}
	return nil
}

// chunkOf returns how many of the next ops one write takes: whole messages.
func chunkOf(ops []sink.Op) int {
	if len(ops) <= sourceOpsMax {
		return len(ops)
	}
	n := sourceOpsMax
	for n > 0 && ops[n].Position == ops[n-1].Position {
		n--
	}
	if n > 0 {
		return n
	}
	for n = 1; n < len(ops) && ops[n].Position == ops[0].Position; n++ {
	}
	return n
}

// meetShards makes sure that the checkpoint of every shard is known and not below the batch:
// it reads those that a lost answer left in doubt, and begins those of new shards where the
// batch begins. It does both before any shard is moved, so that a shard without a checkpoint
// has no message in this batch or after it that another shard has passed.
func (a *sourceApply) meetShards(ctx context.Context) error {
	all := make(map[uint32]*sourceProgress, len(a.shards))
	w := &sourceWrite{spaces: a.spaces, sections: make([]*dedup.SourceSection, len(a.shards))}
	asked := false
	for i, shard := range a.shards {
		p := a.reader.shards[shard.group]
		if p == nil {
			p = &sourceProgress{}
		}
		all[shard.group] = p
		a.progress = append(a.progress, p)
		switch {
		case !p.known:
			w.sections[i] = &dedup.SourceSection{
				PositionKey: a.key, Mode: dedup.SectionBegin, Epoch: a.reader.epoch, Since: a.partition.Since(), Next: a.batch.From,
			}
		case !p.sure:
			w.sections[i] = &dedup.SourceSection{PositionKey: a.key, Mode: dedup.SectionRead}
		}
		asked = asked || w.sections[i] != nil
	}
	a.reader.shards = all
	if err := a.checkFrom(); err != nil || !asked {
		return err
	}
	a.sink.world.send(ctx, w)
	if err := a.learn(w); err != nil {
		return err
	}
	return a.checkFrom()
}

// checkFrom refuses a batch that begins where no reader is. A reader that has missed a seek
// may find no checkpoint: new ones begin at the recorded start alone.
func (a *sourceApply) checkFrom() error {
	known := false
	for _, p := range a.progress {
		if p.known && p.through.Less(a.batch.From) {
			return fmt.Errorf("%w: a shard is at %v, the batch begins at %v", sink.ErrMoved, p.through, a.batch.From)
		}
		known = known || p.known
	}
	if !known && a.batch.From != a.partition.Start {
		return fmt.Errorf("%w: it begins at %v, the batch at %v", sink.ErrMoved, a.partition.Start, a.batch.From)
	}
	return nil
}

// learn takes the answers of shards into account. It returns the error of the worst: that
// the reader must end, that it must begin anew, or that it may repeat the batch.
func (a *sourceApply) learn(w *sourceWrite) error {
	var stopped, moved, closed, failed error
	for i, section := range w.sections {
		if section == nil {
			continue
		}
		p, answer, shard := a.progress[i], &w.answers[i], a.shards[i]
		switch at := &answer.at; {
		case answer.err != nil:
			p.sure = false
			if err := movedOr(answer.err); errors.Is(err, sink.ErrMoved) {
				moved = err
			} else {
				failed = fmt.Errorf("shard %d of keyspace %s: %w", shard.shard, shard.keyspace.Name, err)
			}
		case at.Deleted:
			stopped = sink.ErrStopped
		case at.Closed:
			p.sure = false
			closed = busy(shard)
		case at.Full && !at.Known:
			failed = fmt.Errorf("shard %d of keyspace %s has positions of %d partitions, the most that it takes", shard.shard, shard.keyspace.Name, dedup.PositionsMax)
		case !at.Known || at.Epoch != a.reader.epoch:
			moved = sink.ErrMoved
		default:
			if !p.known || p.at != at.At {
				p.through = at.At
			}
			if section.Mode == dedup.SectionAdvance && at.At != section.Next {
				moved = sink.ErrMoved
			}
			p.known, p.sure, p.at = true, true, at.At
		}
	}
	for _, err := range []error{stopped, moved, closed, failed} {
		if err != nil {
			return err
		}
	}
	return nil
}

// chunk applies ops of whole messages below next, the first of which is op number first
// of the batch, and moves the shards that have some, or all of them.
func (a *sourceApply) chunk(ctx context.Context, ops []sink.Op, first int, next sink.Position, all bool) error {
	w := &sourceWrite{spaces: a.spaces, sections: make([]*dedup.SourceSection, len(a.shards))}
	m := newSourceMerge(w)
	for i := range ops {
		slot, err := m.resolve(&ops[i])
		if err != nil {
			return fmt.Errorf("%w: %w", sink.ErrMoved, err)
		}
		if p := a.progress[slot]; ops[i].Position.Less(p.through) {
			continue // the shard has it
		}
		m.add(&ops[i], first+i)
		a.advance(w, slot, next)
	}
	for slot, p := range a.progress {
		if all && p.at.Less(next) {
			a.advance(w, slot, next)
		}
		if w.sections[slot] == nil && p.through.Less(next) {
			p.through = next // it has no ops up to there
		}
	}
	if !m.used(w) {
		return nil
	}
	a.sink.world.send(ctx, w)
	for _, op := range w.overflows {
		for _, from := range m.from[op] {
			a.rejected = append(a.rejected, sink.Rejection{Op: from, Reason: "the sum overflows"})
		}
	}
	return a.learn(w)
}

// advance gives a shard a section up to next, if it has none.
func (a *sourceApply) advance(w *sourceWrite, slot int, next sink.Position) {
	if w.sections[slot] == nil {
		w.sections[slot] = &dedup.SourceSection{
			PositionKey: a.key, Mode: dedup.SectionAdvance, Epoch: a.reader.epoch, Prev: a.progress[slot].at, Next: next,
		}
	}
}

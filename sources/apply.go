package sources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/source/sink"
)

const (
	// evenEvery is the interval at which Apply also moves shards without ops in the batch. So a new
	// reader repeats only the messages of about the last second.
	evenEvery = time.Second
	// answerMax bounds the wait for a shard without ops in the batch. After that time, Apply marks
	// the shard late and continues, so that a shard without a leader delays only its own messages.
	// Positions has the same bound.
	answerMax = 2 * time.Second
	// opsMax bounds the ops of one write. A client's request has the same bound. A message never
	// has more ops.
	opsMax = 10_000
)

// Apply implements sink.Sink.
func (s *Sink) Apply(ctx context.Context, b *sink.Batch) (sink.Applied, error) {
	return s.apply(ctx, s.reader(dedup.PositionKey{Source: b.Source, Partition: b.Partition}), b, false)
}

// apply implements Apply with the cache r. If strict is set, all shards must answer.
func (s *Sink) apply(ctx context.Context, r *sinkReader, b *sink.Batch, strict bool) (sink.Applied, error) {
	key := dedup.PositionKey{Source: b.Source, Partition: b.Partition}
	r.mu.Lock()
	defer r.mu.Unlock()
	a := &applyCall{sink: s, reader: r, batch: b, key: key, strict: strict}
	err := a.run(ctx)
	if errors.Is(err, sink.ErrMoved) {
		r.epoch = 0 // until the reader calls Positions again, Apply returns ErrMoved
		if ofCatalog(err) {
			err = errors.Join(err, s.world.CatchUp(ctx))
		}
	}
	slices.SortFunc(a.rejected, func(x, y sink.Rejection) int { return cmp.Compare(x.Op, y.Op) })
	return sink.Applied{Rejected: a.rejected, Behind: a.behind()}, err
}

type applyCall struct {
	sink   *Sink
	reader *sinkReader
	batch  *sink.Batch
	key    dedup.PositionKey
	strict bool // all shards must answer, even shards without ops in the batch

	partition catalog.Partition

	*layout
	progress []*progress // by shard
	rejected []sink.Rejection
}

func (a *applyCall) run(ctx context.Context) error {
	// Read the keyspaces before the source. Otherwise a late message could count in a keyspace
	// that was created after the deletion of the source.
	a.layout = a.sink.layoutOf(a.sink.world.Keyspaces())
	found, there := a.sink.world.Catalog().Source(a.key.Source)
	if !there || found.Paused && len(a.batch.Ops) > 0 { // a batch without ops only moves the shards to one position, even while the source is paused
		return sink.ErrStopped
	}
	if err := checkBatch(a.batch); err != nil {
		return err
	}
	var begun bool
	if a.partition, begun = found.Partitions[a.key.Partition]; !begun {
		return sink.ErrMoved
	}
	// Apply nothing while no identity of the queue is recorded, as after a seek. Otherwise messages
	// of a replaced queue could count.
	if a.partition.Identity == "" && !a.strict {
		return sink.ErrMoved
	}
	// A reader from before the pause may still move the shards to one position, until a node raises
	// the epochs of the shards.
	ends := found.Paused && a.reader.epoch >= a.partition.Since()
	if a.reader.epoch == 0 || a.reader.epoch != a.partition.Epoch && !ends {
		return sink.ErrMoved
	}
	if err := a.reader.follows(a.layout); err != nil {
		return err
	}
	if err := a.numberOps(ctx); err != nil {
		return err
	}
	if err := a.meetShards(ctx); err != nil {
		return err
	}
	even := len(a.batch.Ops) == 0 || time.Since(a.reader.evened) >= evenEvery
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

// numberOps puts the numbers of text ids into the ops of the batch, before sections are built. Every try of a
// batch, on any node, gets the same numbers.
func (a *applyCall) numberOps(ctx context.Context) error {
	t := textIDsOf(a.spaces)
	var ops []*sink.Op
	for i := range a.batch.Ops {
		if op := &a.batch.Ops[i]; op.Texts != nil || len(t) > 0 {
			ops = append(ops, op)
		}
	}
	return a.sink.number(ctx, t, ops, true)
}

// checkBatch returns an error for a batch whose positions are out of order.
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

// chunkOf returns how many of the first ops fit into one write. It never splits a message.
func chunkOf(ops []sink.Op) int {
	if len(ops) <= opsMax {
		return len(ops)
	}
	n := opsMax
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

// behind returns sink.Applied.Behind.
func (a *applyCall) behind() string {
	for i, p := range a.progress {
		if len(a.batch.Ops) == 0 && (!p.known || !p.sure || p.position.Less(a.batch.Next)) {
			return sink.Silent(a.shards[i].keyspace.Name, a.shards[i].number)
		}
	}
	return ""
}

// meetShards makes sure that the checkpoint of each shard is known and not below the beginning of
// the batch. After a lost answer it reads the checkpoint again. It sets the checkpoint of a new
// shard to the beginning of the batch. All this happens before any shard moves. So when a new shard
// gets its checkpoint, no shard has passed a message of this batch yet.
//
// The checkpoint of a shard without ops in the batch may stay unknown, because the batch contains
// no message for that shard. If a shard with ops was late, the method joins must accept its
// checkpoint; otherwise the reader must start again.
func (a *applyCall) meetShards(ctx context.Context) error {
	all := make(map[uint32]*progress, len(a.shards))
	unmet := false
	for _, to := range a.shards {
		p := a.reader.shards[to.group]
		if p == nil {
			p = &progress{}
		}
		all[to.group] = p
		a.progress = append(a.progress, p)
		unmet = unmet || !p.known || !p.sure
	}
	a.reader.shards, a.reader.routes = all, a.byFirst()
	if err := a.checkFrom(); err != nil || !unmet {
		return err
	}
	needed, err := a.needed()
	if err != nil {
		return err
	}
	for _, must := range []bool{true, false} {
		if err := a.meet(ctx, needed, must); err != nil {
			return err
		}
	}
	return a.checkFrom()
}

// needed returns, for each shard, whether it must answer: because it has ops in the batch, or
// because the call is strict.
func (a *applyCall) needed() ([]bool, error) {
	needed := slices.Repeat([]bool{a.strict}, len(a.shards))
	m := newMerge(&write{layout: a.layout}, 0)
	for i := range a.batch.Ops {
		slot, err := m.resolve(&a.batch.Ops[i])
		if err != nil {
			return nil, fmt.Errorf("%w: %w", sink.ErrMoved, err)
		}
		needed[slot] = true
	}
	return needed, nil
}

// meet reads the checkpoints that are unknown, or uncertain after a lost answer. If must is set, it
// asks only the needed shards. Otherwise it asks the other shards, except late ones.
func (a *applyCall) meet(ctx context.Context, needed []bool, must bool) error {
	w := &write{layout: a.layout, sections: make([]*dedup.SourceSection, len(a.shards))}
	asked := false
	for i, p := range a.progress {
		switch {
		case p.known && p.sure || needed[i] != must || p.late && !must:
			continue
		case !p.known:
			w.sections[i] = &dedup.SourceSection{
				PositionKey: a.key, Mode: dedup.SectionBegin, Epoch: a.reader.epoch, Since: a.partition.Since(), Next: a.batch.From,
			}
		default:
			w.sections[i] = &dedup.SourceSection{PositionKey: a.key, Mode: dedup.SectionRead}
		}
		asked = true
	}
	if !asked {
		return nil
	}
	return a.send(ctx, w, must)
}

// send writes sections. If must is false, shards that do not answer within answerMax become late.
func (a *applyCall) send(ctx context.Context, w *write, must bool) error {
	if !must {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, answerMax)
		defer cancel()
	}
	a.sink.send(ctx, w)
	return a.learn(w, must)
}

// checkFrom returns ErrMoved for a batch that begins above the position progress.through of a
// shard. If no shard has a checkpoint, the batch must begin at the recorded start; otherwise the
// reader may have missed a seek.
func (a *applyCall) checkFrom() error {
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

// learn records the answers of the shards, and returns the most serious error. The order is:
// sink.ErrStopped, which ends the reader; sink.ErrMoved, which restarts it; and other errors, after
// which the reader may repeat the batch. If must is false, a shard that failed to answer becomes
// late, without an error.
func (a *applyCall) learn(w *write, must bool) error {
	var stopped, moved, closed, failed error
	for i, section := range w.sections {
		if section == nil {
			continue
		}
		p, answer, to := a.progress[i], &w.answers[i], a.shards[i]
		switch at := &answer.At; {
		case answer.Err != nil:
			p.sure = false
			if err := movedOr(answer.Err); errors.Is(err, sink.ErrMoved) {
				moved = err
			} else if !must {
				p.late = true
			} else {
				failed = fmt.Errorf("shard %d of keyspace %s: %w", to.number, to.keyspace.Name, err)
			}
		case at.Deleted:
			stopped = sink.ErrStopped
		case at.Closed:
			p.sure = false
			closed = busy(to)
		case at.Full && !at.Known:
			failed = fmt.Errorf("shard %d of keyspace %s has positions of %d partitions, the most that it takes", to.number, to.keyspace.Name, dedup.PositionsMax)
		case !at.Known || at.Epoch != a.reader.epoch:
			moved = sink.ErrMoved
		default:
			if !p.known || at.At.Less(p.position) || p.through.Less(at.At) { // otherwise p.through stays valid: the messages up to it have no ops for the shard
				p.through = at.At
			}
			if section.Mode == dedup.SectionAdvance && at.At != section.Next || p.late && !p.known && !a.joins(at) {
				moved = sink.ErrMoved
			}
			p.known, p.sure, p.late, p.position, p.mark = true, true, false, at.At, at.Mark
		}
	}
	for _, err := range []error{stopped, moved, closed, failed} {
		if err != nil {
			return err
		}
	}
	return nil
}

// joins reports whether a late shard may continue from its checkpoint. The batch must begin at the
// checkpoint. If the checkpoint has a mark, another shard must have the same mark at that
// position, because the reader has compared only that shard's mark with the queue.
func (a *applyCall) joins(at *dedup.PositionAnswer) bool {
	return at.At == a.batch.From && (!at.Mark.Exists() || slices.ContainsFunc(a.progress, func(p *progress) bool {
		return p.known && p.sure && p.position == at.At && p.mark == at.Mark
	}))
}

// chunk applies ops, which belong to whole messages below the position end. It moves the shards of
// these ops to that position. If all is set, it moves the other shards too. offset is the index of
// ops[0] in the batch.
func (a *applyCall) chunk(ctx context.Context, ops []sink.Op, offset int, end sink.Position, all bool) error {
	w := &write{layout: a.layout, sections: make([]*dedup.SourceSection, len(a.shards))}
	m := newMerge(w, len(ops))
	var mark sink.Mark
	if a.batch.Mark != nil {
		mark = a.batch.Mark(end)
	}
	for i := range ops {
		slot, err := m.resolve(&ops[i])
		if err != nil {
			return fmt.Errorf("%w: %w", sink.ErrMoved, err)
		}
		if p := a.progress[slot]; ops[i].Position.Less(p.through) {
			continue // the shard has applied this op
		}
		m.add(&ops[i], offset+i)
		a.advance(w, slot, end, mark)
	}
	rest := &write{layout: a.layout, sections: make([]*dedup.SourceSection, len(a.shards))}
	for slot, p := range a.progress {
		if w.sections[slot] != nil {
			continue
		}
		if all && p.known && p.sure && p.position.Less(end) {
			a.advance(rest, slot, end, mark)
		}
		if p.known && p.through.Less(end) {
			p.through = end // the messages up to end have no ops for the shard
		}
	}
	if m.used(w) {
		if err := a.sendOps(ctx, w, m); err != nil {
			return err
		}
	}
	if !m.used(rest) {
		return nil
	}
	return a.send(ctx, rest, a.strict)
}

// sendOps writes sections with ops, and records the refused ops.
func (a *applyCall) sendOps(ctx context.Context, w *write, m *merge) error {
	a.sink.send(ctx, w)
	for _, p := range m.from {
		at, refused := slices.BinarySearchFunc(w.overflows, p.in, func(o engine.Overflow, op int) int { return cmp.Compare(o.Op, op) })
		if refused {
			a.rejected = append(a.rejected, sink.Rejection{Op: p.op, Reason: w.overflows[at].Why.Reason().Short})
		}
	}
	return a.learn(w, true)
}

// advance adds a section that moves a shard to the position end, unless the write already has a
// section for the shard.
func (a *applyCall) advance(w *write, slot int, end sink.Position, mark sink.Mark) {
	if w.sections[slot] == nil {
		w.sections[slot] = &dedup.SourceSection{
			PositionKey: a.key, Mode: dedup.SectionAdvance, Epoch: a.reader.epoch, Prev: a.progress[slot].position, Next: end, Mark: mark,
		}
	}
}

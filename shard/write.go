package shard

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/stream"
	"github.com/countd/countd/shard/tiering"
)

// writer splits writes by shard, proposes each part through the leader of its shard, and joins the
// answers. It may read present counts to admit a write, but never computes new counts from them.
//
// Invariant: a part of unknown outcome is proposed again only if the write has an identity.
type writer struct {
	*router
	headroom *tiering.Headroom
	streams  *stream.Streams
	asking   *rpc.Questions // counts running calls to leaders, which end at the deadline of their write
	prover   *leadership.Prover
}

// part is the part of a write for one shard.
type part struct {
	group    *shardReplica
	space    int         // index in parts.spaces
	route    codec.Route // of its section
	writer   raftfsm.RequestWriter
	used     bool              // the part has a section to propose
	judges   bool              // the part's shard judges the write's idempotency key
	ops      []int             // indexes of the write's ops for this shard, ascending
	proposal *propose.Proposal // reserved in this node's proposer; nil if another node leads the shard
	proposed bool              // the current try was passed to the proposer or the leader
	settled  bool              // there will be no further try
	unknown  bool              // a try of unknown outcome may have been proposed
	modulus  uint32            // if the shard has split, the modulus that its refusal named
	err      error             // error of the last try
	// abandoned means that the attempt that made the part's shard was abandoned, so the ops need another shard.
	abandoned bool
}

// len returns the number of ops. A write that only stores positions has none.
func (w *Write) len() int {
	if w.Ops == nil {
		return 0
	}
	return w.Ops.Len()
}

// slot returns the index of an op's shard among the present shards.
func (ps *parts) slot(w *Write, op int) int {
	space := &ps.spaces[0]
	if len(w.Spaces) > 0 {
		space = &ps.spaces[w.In[op]]
	}
	s, _ := space.route.KeyOf(w.Ops.ID(op))
	return space.slot + s
}

// key returns the key of an op in its shard.
func (ps *parts) key(p *part, id uint64) uint64 {
	_, key := ps.spaces[p.space].route.KeyOf(id)
	return key
}

// layOut finds the present shards of all keyspaces of the write, and appends an unused part for each.
// The shards of the write's first layout have the same order as Write.Sections.
func (wr *writer) layOut(ps *parts, w *Write) error {
	ps.base = len(ps.byShard)
	for k := range ps.spaces {
		space := &ps.spaces[k]
		shards, err := wr.shardsOf(space.ks)
		if err != nil {
			return err
		}
		space.route, space.slot = shards.route, len(ps.byShard)-ps.base
		ps.byShard = slices.Grow(ps.byShard, len(shards.all))
		for s, g := range shards.all {
			ps.byShard = ps.byShard[:len(ps.byShard)+1]
			p := &ps.byShard[len(ps.byShard)-1]
			*p = part{group: g, space: k, route: shards.route.Of(s), ops: p.ops[:0]}
		}
	}
	return nil
}

// parts is reusable memory for a write.
type parts struct {
	// byShard has a part for each shard of the write's keyspaces and, if a shard has split, after these
	// another part for each present shard, and so on. The ops that cannot be applied together are in a
	// part without a group.
	byShard []part
	base    int               // index of the part of the first present shard
	judge   int               // index of the part that judges the key
	moved   bool              // the judging part was routed anew
	check   tiering.Admission // reused for one part after the other
	judged  dedup.RequestID   // identity of all parts except that of the judging shard
	spaces  []partSpace
	timer   *time.Timer
}

// partSpace is a keyspace of a write.
type partSpace struct {
	ks    *Keyspace
	route raftfsm.Route
	slot  int // of its first shard
}

var partsPool = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &parts{timer: t}
}}

// partsPooledMax bounds the memory of a write for reuse, to about 150 kB. A write that meets many splits
// has many layouts.
const partsPooledMax = 16 * ShardsMax

// sectionSizeHint estimates the size of a section with one op of one cell. Each further op adds
// about a quarter of that.
const sectionSizeHint = 64

// apply implements Node.Write, except for dropped keyspaces.
func (wr *writer) apply(ks *Keyspace, w *Write) error {
	w.Changed = w.Changed[:0]
	w.Overflows, w.Cuts, w.Unknown, w.Duplicate = w.Overflows[:0], w.Cuts[:0], w.Unknown[:0], false
	w.Token = Token{Cluster: wr.clusterHash, At: w.Token.At[:0]}
	ps := partsPool.Get().(*parts)
	defer ps.release()
	if len(w.Spaces) == 0 {
		ps.spaces = append(ps.spaces, partSpace{ks: ks})
	}
	for _, space := range w.Spaces {
		ps.spaces = append(ps.spaces, partSpace{ks: space})
	}
	if err := wr.layOut(ps, w); err != nil {
		return err
	}
	if err := ps.fits(w); err != nil {
		return err
	}
	if err := ps.split(w); err != nil {
		return err
	}
	if err := wr.admit(ps, w); err != nil {
		return err
	}
	ps.encode(w)
	ps.timer.Reset(time.Until(w.Deadline))
	defer ps.timer.Stop()
	if err := ps.reserve(w); err != nil {
		return err
	}
	if w.ID.Keyed() {
		if err := wr.ask(ps, w); err != nil {
			return explained(err, w)
		}
	}
	wr.settle(ps, w, false)
	return ps.gather(w)
}

// explained adds ErrKeyAhead to the refusal of a key whose time is ahead. ErrExpired alone would
// mislead the client.
func explained(err error, w *Write) error {
	if born, ok := w.ID.Born(); ok && errors.Is(err, errs.ErrExpired) && born.After(time.Now()) {
		return fmt.Errorf("%w: %w", err, errs.ErrKeyAhead)
	}
	return err
}

// reserve reserves space in the queue of every group that this node leads. It runs before any part
// is proposed, so that a full queue refuses the whole write.
func (ps *parts) reserve(w *Write) error {
	for s := range ps.byShard {
		if p := &ps.byShard[s]; p.used {
			if err := p.reserve(w); err != nil {
				ps.cancel()
				return err
			}
		}
	}
	return nil
}

// reserve reserves space for the part if this node leads its group. Its only error is
// ErrOverloaded.
func (p *part) reserve(w *Write) error {
	p.proposal, p.proposed = nil, false
	r, err := p.group.led()
	if err != nil {
		return nil // propose forwards the part
	}
	p.proposal, err = r.proposer.Load().Reserve(p.writer.Section(), p.writer.Ops(), p.writer.Clocked(), w.Width)
	if errors.Is(err, errs.ErrOverloaded) {
		return err
	}
	return nil
}

// cancel releases the space of parts that were not proposed.
func (ps *parts) cancel() {
	for s := range ps.byShard {
		ps.byShard[s].cancel()
	}
}

// cancel releases the space of the part, if it was not proposed.
func (p *part) cancel() {
	if p.proposal != nil && !p.proposed {
		p.proposal.Cancel()
		p.proposal = nil
	}
}

// ask proposes only the part for the shard that judges the key. That shard detects whether the key
// was used with another body. Which shard judges depends only on the key, because another body may
// have ops in other shards. The write proposes its other parts only after the judging shard has
// accepted the key.
func (wr *writer) ask(ps *parts, w *Write) error {
	wr.settle(ps, w, true)
	p := &ps.byShard[ps.judge]
	if p.err != nil {
		ps.cancel()
		return p.err
	}
	if w.ID.IsJudged() {
		ps.carry(w, p.proposal.Use())
	}
	return nil
}

// carry copies the use of the key that the judging shard accepted into the parts for the other
// shards. If that shard has split, carry writes these parts anew: their judge may have another name
// than before, and more names make them longer than what was reserved. Then a full queue refuses a
// part, and a repeat of the write completes it.
func (ps *parts) carry(w *Write, use dedup.Use) {
	ps.judged = w.ID.JudgedBy(ps.byShard[ps.judge].group.number, use)
	for s := range ps.byShard {
		switch p := &ps.byShard[s]; {
		case !p.open(false):
		case use.Names[0] == 0 && !ps.moved: // only the use is missing
			p.writer.SetUse(use)
		default:
			p.cancel()
			ps.write(w, s)
			p.reserveAgain(w)
		}
	}
}

// open reports whether the part waits for an answer. If judging is set, only the judging part does.
func (p *part) open(judging bool) bool { return p.used && !p.settled && (p.judges || !judging) }

// lastTryMin is the shortest time for another try of a part. In less time a try would rarely get an
// answer, and a known outcome would become unknown.
const lastTryMin = 50 * time.Millisecond

// settle proposes the unsettled parts concurrently and waits for them. If judging is set, it settles
// only the judging part. Until the deadline it repeats a part that found no leader, or whose shard has
// split. If the write has an identity, settle also repeats a part of unknown outcome.
func (wr *writer) settle(ps *parts, w *Write, judging bool) {
	for pause := errs.RetryPauseMin; ; pause = min(2*pause, errs.RetryPauseMax) {
		if err := w.Permitted(); err != nil {
			ps.forbid(err, judging)
			return
		}
		alone := ps.waiting(judging) == 1
		for s := range ps.byShard {
			if p := &ps.byShard[s]; p.open(judging) {
				wr.propose(p, w, alone)
			}
		}
		again, split := false, false
		for s := range ps.byShard {
			p := &ps.byShard[s]
			if !p.open(judging) {
				continue
			}
			err := p.proposal.Wait(ps.timer)
			if err = orDropped(wr.catalog.View(), ps.spaces[p.space].ks.FirstGroup, err); errors.Is(err, errs.ErrUnknownKeyspace) {
				p.settled, p.err = true, err
				continue
			}
			p.settled = wr.draining.Load() || !mayTryAgain(err, w.ID.Exists())
			if err != nil {
				wr.noteSplit(ps, s, err, w.divisible(s))
			}
			p.err = p.fate(err)
			again, split = again || !p.settled, split || p.modulus > 0 || p.abandoned
		}
		if !again || time.Until(w.Deadline) < pause+lastTryMin {
			return
		}
		if !split || !wr.reroute(ps, w, judging) {
			time.Sleep(pause)
		}
		for s := range ps.byShard {
			if p := &ps.byShard[s]; p.open(judging) && p.proposed {
				p.reserveAgain(w)
			}
		}
	}
}

// reserveAgain reserves space for another try of the part. If the queue is full, it settles the part.
func (p *part) reserveAgain(w *Write) {
	if err := p.reserve(w); err != nil {
		p.err, p.settled = p.fate(err), true
	}
}

// forbid settles the unsettled parts with err and proposes none of them.
func (ps *parts) forbid(err error, judging bool) {
	for s := range ps.byShard {
		if p := &ps.byShard[s]; p.open(judging) {
			p.cancel()
			p.proposal, p.settled, p.err = nil, true, p.fate(err)
		}
	}
}

// fate returns the part's error after a try that ended with err. If the outcome of an earlier try
// is unknown, the part's outcome is unknown, even if this try was not proposed. If this try was too
// late, fate returns the error of the previous try, which names the cause.
func (p *part) fate(err error) error {
	if errors.Is(err, errs.ErrTooLate) && p.err != nil {
		return p.err
	}
	if err != nil && p.unknown && !errors.Is(err, errs.ErrOutcomeUnknown) {
		return fmt.Errorf("%w: %v", errs.ErrOutcomeUnknown, err.Error())
	}
	p.unknown = p.unknown || errors.Is(err, errs.ErrOutcomeUnknown)
	return err
}

// waiting returns the number of parts that wait for an answer.
func (ps *parts) waiting(judging bool) (n int) {
	for s := range ps.byShard {
		if ps.byShard[s].open(judging) {
			n++
		}
	}
	return n
}

// propose enqueues the part in this node's proposer if it has reserved space there. Otherwise it
// forwards the part to the group's leader.
func (wr *writer) propose(p *part, w *Write, alone bool) {
	p.proposed = true
	if p.proposal == nil {
		p.proposal = wr.forward(p, w, alone)
	} else if q := wr.ofDeleted(p.writer.Section(), p.writer.Ops()); q != nil {
		p.proposal.Cancel()
		p.proposal = q
	} else if err := p.proposal.Enqueue(); err != nil {
		p.proposal = propose.Settled(err)
	}
}

// release returns the memory to the pool. It drops sections and results, because a proposer may
// still use the section of a write whose caller has stopped waiting.
func (ps *parts) release() {
	for s := range ps.byShard {
		ps.byShard[s] = part{ops: ps.byShard[s].ops[:0]}
	}
	clear(ps.spaces)
	ps.byShard, ps.spaces = ps.byShard[:0], ps.spaces[:0]
	ps.judged, ps.moved = dedup.RequestID{}, false
	ps.check.End()
	if cap(ps.byShard) <= partsPooledMax {
		partsPool.Put(ps)
	}
}

// split puts each op into the part of its shard, and finds the judging part. It returns the error of
// an op that does not fit its keyspace.
func (ps *parts) split(w *Write) error {
	for i := range w.len() {
		p := &ps.byShard[ps.slot(w, i)]
		if err := w.Ops.Fits(p.group.kind, i); err != nil {
			return err
		}
		p.ops = append(p.ops, i)
	}
	if w.ID.Keyed() {
		ps.findJudge(w)
	}
	ps.separate(w)
	return nil
}

// findJudge marks and returns the part of the present shard that judges the key.
func (ps *parts) findJudge(w *Write) *part {
	ps.judge = ps.base + ps.spaces[0].route.JudgeOf(&w.ID)
	p := &ps.byShard[ps.judge]
	if p.judges = true; w.ID.IsJudged() {
		ps.judged = w.ID.JudgedBy(p.group.number, dedup.Use{})
	}
	return p
}

// encode writes the section of each part of a present shard that has ops, judges the key, or is of a
// source.
func (ps *parts) encode(w *Write) {
	for s := ps.base; s < len(ps.byShard); s++ {
		if p := &ps.byShard[s]; !p.settled && (len(p.ops) > 0 || p.judges || w.sectionOf(s) != nil) {
			ps.write(w, s)
		}
	}
}

// write writes the section of a part. Each section has its own memory, because its proposer owns it.
func (ps *parts) write(w *Write, s int) {
	p, id, hint := &ps.byShard[s], &w.ID, sectionSizeHint
	if w.ID.IsJudged() && !p.judges {
		id = &ps.judged
	}
	if section := w.sectionOf(s); section != nil {
		id, hint = section, 2*sectionSizeHint
	}
	p.writer.Reset(make([]byte, 0, hint+len(p.ops)*sectionSizeHint/4), p.route, id)
	p.writer.SetSettings(ps.spaces[p.space].ks.ByNumber)
	for _, i := range p.ops {
		w.Ops.AppendTo(&p.writer, ps.key(p, w.Ops.ID(i)), i)
	}
	p.used = true
}

package shard

import (
	"errors"
	"fmt"
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
	writer   raftfsm.RequestWriter
	used     bool              // the part has a section to propose
	judges   bool              // the part's shard judges the write's idempotency key
	ops      []int             // indexes of the write's ops for this shard, ascending
	proposal *propose.Proposal // reserved in this node's proposer; nil if another node leads the shard
	proposed bool              // the current try was passed to the proposer or the leader
	settled  bool              // there will be no further try
	unknown  bool              // a try of unknown outcome may have been proposed
	err      error             // error of the last try
	from     int               // position in the entry's overflows; see propose.Proposal.Overflow
}

// len returns the number of ops. A write that only stores positions has none.
func (w *Write) len() int {
	if w.Ops == nil {
		return 0
	}
	return w.Ops.Len()
}

// slot returns the index of an op's shard among the write's groups, and the op's key in that
// shard.
func (ps *parts) slot(w *Write, op int) (slot int, key uint64) {
	space := &ps.spaces[0]
	if len(w.Spaces) > 0 {
		space = &ps.spaces[w.In[op]]
	}
	s, key := space.route.KeyOf(w.Ops.ID(op))
	return space.slot + s, key
}

// routeOf returns the route of the shard in a slot.
func (ps *parts) routeOf(slot int) codec.Route {
	k := len(ps.spaces) - 1
	for ps.spaces[k].slot > slot {
		k--
	}
	return ps.spaces[k].route.Of(slot - ps.spaces[k].slot)
}

// judgeSlot returns the index of the shard that judges the write's idempotency key.
func (ps *parts) judgeSlot(w *Write) int { return w.ID.Shard(int(ps.spaces[0].route.Shards)) }

// findGroups returns the groups of all keyspaces of the write, and sets ps.spaces.
func (wr *writer) findGroups(ps *parts, ks *Keyspace, w *Write) ([]*shardReplica, error) {
	spaces := w.Spaces
	if len(spaces) == 0 {
		spaces = []*Keyspace{ks}
	}
	var all []*shardReplica
	ps.spaces = ps.spaces[:0]
	for _, space := range spaces {
		shards, err := wr.shardsOf(space)
		if err != nil {
			return nil, err
		}
		ps.spaces = append(ps.spaces, partSpace{route: shards.route, slot: len(all)})
		if len(spaces) == 1 {
			return shards.all, nil
		}
		all = append(all, shards.all...)
	}
	return all, nil
}

// parts is reusable memory for a write.
type parts struct {
	byShard []part
	check   partCheck       // reused for one part after the other
	judged  dedup.RequestID // identity of all parts except that of the judging shard, see judgeSlot
	spaces  []partSpace
	one     [1]partSpace // memory of spaces, for a write to one keyspace
	timer   *time.Timer
}

// partSpace is a keyspace of a write.
type partSpace struct {
	route raftfsm.Route
	slot  int // of its first shard
}

var partsPool = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	ps := &parts{timer: t}
	ps.spaces = ps.one[:0]
	return ps
}}

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
	groups, err := wr.findGroups(ps, ks, w)
	if err != nil {
		return err
	}
	if err := ps.split(w, ks, groups); err != nil {
		return err
	}
	if err := wr.admit(ps, w, groups); err != nil {
		return err
	}
	ps.addSections(w)
	ps.timer.Reset(time.Until(w.Deadline))
	defer ps.timer.Stop()
	if w.ID.Keyed() {
		ps.judge(w)
	}
	if err := ps.reserve(w, groups); err != nil {
		return err
	}
	if w.ID.Keyed() {
		if err := wr.ask(ps, w, groups); err != nil {
			return explained(err, w)
		}
	}
	wr.settle(ps.byShard, groups, w, ps.timer)
	return ps.gather(w, ks, groups)
}

// explained adds ErrKeyAhead to the refusal of a key whose time is ahead. ErrExpired alone would
// mislead the client.
func explained(err error, w *Write) error {
	if born, ok := w.ID.Born(); ok && errors.Is(err, errs.ErrExpired) && born.After(time.Now()) {
		return fmt.Errorf("%w: %w", err, ErrKeyAhead)
	}
	return err
}

// judge marks the part of the shard that judges the key. If the write has no op for that shard, it
// adds the part.
func (ps *parts) judge(w *Write) {
	s := ps.judgeSlot(w)
	p := &ps.byShard[s]
	p.judges = true
	if !p.used {
		p.writer.Reset(make([]byte, 0, sectionSizeHint), ps.routeOf(s), &w.ID)
		p.used = true
	}
}

// reserve reserves space in the queue of every group that this node leads. It runs before any part
// is proposed, so that a full queue refuses the whole write.
func (ps *parts) reserve(w *Write, groups []*shardReplica) error {
	for s := range ps.byShard {
		if p := &ps.byShard[s]; p.used {
			if err := p.reserve(groups[s], w); err != nil {
				ps.cancel()
				return err
			}
		}
	}
	return nil
}

// reserve reserves space for the part if this node leads its group. Its only error is
// ErrOverloaded.
func (p *part) reserve(g *shardReplica, w *Write) error {
	p.proposal, p.proposed = nil, false
	r, err := g.led()
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
		if p := &ps.byShard[s]; p.proposal != nil && !p.proposed {
			p.proposal.Cancel()
		}
	}
}

// ask proposes only the part for the shard that judges the key. That shard detects whether the key
// was used with another body. Which shard judges depends only on the key, because another body may
// have ops in other shards. The write proposes its other parts only after the judging shard has
// accepted the key.
func (wr *writer) ask(ps *parts, w *Write, groups []*shardReplica) error {
	s := ps.judgeSlot(w)
	wr.settle(ps.byShard[s:s+1], groups[s:s+1], w, ps.timer)
	if ps.byShard[s].err != nil {
		ps.cancel()
		return ps.byShard[s].err
	}
	if w.ID.IsJudged() {
		ps.carry(ps.byShard[s].proposal.Use())
	}
	return nil
}

// carry copies the use of the key that the judging shard accepted into the parts for the other
// shards.
func (ps *parts) carry(use dedup.Use) {
	for s := range ps.byShard {
		if p := &ps.byShard[s]; p.used && !p.judges {
			p.writer.SetUse(use)
		}
	}
}

// lastTryMin is the shortest time for another try of a part. In less time a try would rarely get an
// answer, and a known outcome would become unknown.
const lastTryMin = 50 * time.Millisecond

// settle proposes the unsettled parts concurrently and waits for them. Until the deadline it
// repeats a part that found no leader. If the write has an identity, settle also repeats a part of
// unknown outcome.
func (wr *writer) settle(ps []part, groups []*shardReplica, w *Write, deadline *time.Timer) {
	for pause := errs.RetryPauseMin; ; pause = min(2*pause, errs.RetryPauseMax) {
		if err := w.Permitted(); err != nil {
			forbid(ps, err)
			return
		}
		for s := range ps {
			if p := &ps[s]; p.used && !p.settled {
				wr.propose(p, groups[s], w)
			}
		}
		again := false
		for s := range ps {
			if p := &ps[s]; p.used && !p.settled {
				err := p.proposal.Wait(deadline)
				if err = orDropped(wr.catalog.View(), groups[s].number, err); errors.Is(err, errs.ErrUnknownKeyspace) {
					p.settled, p.err = true, err
					continue
				}
				p.settled = wr.draining.Load() || !mayTryAgain(err, w.ID.Exists())
				p.err = p.fate(err)
				again = again || !p.settled
			}
		}
		if !again || time.Until(w.Deadline) < pause+lastTryMin {
			return
		}
		time.Sleep(pause)
		for s := range ps {
			if p := &ps[s]; p.used && !p.settled {
				if err := p.reserve(groups[s], w); err != nil {
					p.err, p.settled = p.fate(err), true
				}
			}
		}
	}
}

// forbid settles the unsettled parts with err and proposes none of them.
func forbid(ps []part, err error) {
	for s := range ps {
		if p := &ps[s]; p.used && !p.settled {
			if p.proposal != nil && !p.proposed {
				p.proposal.Cancel()
			}
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

// propose enqueues the part in this node's proposer if it has reserved space there. Otherwise it
// forwards the part to the group's leader.
func (wr *writer) propose(p *part, g *shardReplica, w *Write) {
	p.proposed = true
	if p.proposal == nil {
		p.proposal = wr.forward(g, p, w)
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
	ps.judged, ps.check.r = dedup.RequestID{}, nil
	partsPool.Put(ps)
}

// split encodes the section of each part. Each section has its own memory, because its proposer
// owns it. split returns the error of an op that does not fit its keyspace.
func (ps *parts) split(w *Write, ks *Keyspace, groups []*shardReplica) error {
	shards := len(groups)
	if cap(ps.byShard) < shards {
		ps.byShard = make([]part, shards)
	}
	ps.byShard = ps.byShard[:shards]
	for s := range ps.byShard {
		ps.byShard[s] = part{ops: ps.byShard[s].ops[:0]}
	}
	judge := -1
	if w.ID.IsJudged() && shards > 1 {
		judge = ps.judgeSlot(w)
		ps.judged = w.ID.JudgedBy(groups[judge].number, dedup.Use{})
	}
	ops := w.len()
	for i := range ops {
		s, key := ps.slot(w, i)
		if err := w.Ops.Fits(groups[s].kind, i); err != nil {
			return err
		}
		p := &ps.byShard[s]
		if len(p.ops) == 0 {
			id := w.idOf(s)
			if judge >= 0 && s != judge {
				id = &ps.judged
			}
			p.writer.Reset(make([]byte, 0, sectionSizeHint+ops/shards*sectionSizeHint/4), ps.routeOf(s), id)
			p.writer.SetSettings(w.space(ks, i).ByNumber)
			p.used = true
		}
		w.Ops.AppendTo(&p.writer, key, i)
		p.ops = append(p.ops, i)
	}
	return nil
}

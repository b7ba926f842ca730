package shard

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/board"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/headroom"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/prover"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/stream"
)

// writer splits writes by shard, proposes each shard's part on the node that leads the shard, and
// joins the answers. It reads present counts only to admit a write, never to compute one.
//
// Invariant: a part of unknown outcome is proposed again only if the write has an identity.
type writer struct {
	*router
	headroom *headroom.Headroom
	streams  *stream.Streams
	outboxes outbox.Limits
	asking   *rpc.Questions // counts the calls to leaders, which end at the deadline of their write
	prover   *prover.Prover
}

// part is a write's part for one shard.
type part struct {
	writer   raftfsm.RequestWriter
	used     bool              // the part has a section to propose
	judges   bool              // the part's shard judges the write's key
	ops      []int             // the numbers of the write's ops for this shard, ascending
	proposal *propose.Proposal // has space in this node's proposer; nil if another node leads the shard
	proposed bool              // the proposer or the leader has the current try
	settled  bool              // no further try follows
	unknown  bool              // a try may have been proposed, and this node did not learn its outcome
	err      error             // of the last try
	from     int               // the place in the entry's overflows; see Proposal.Overflow
}

// slot returns the index of an op's shard among the write's groups, and the op's key there. r is the
// route of the keyspace, for a write to one keyspace.
func (w *Write) slot(op int, r raftfsm.Route) (slot int, key uint64) {
	id := w.Ops[op].ID
	if len(w.Spaces) == 0 {
		return r.KeyOf(id)
	}
	k := w.In[op]
	s, key := w.Spaces[k].Route().KeyOf(id)
	return w.first[k] + s, key
}

// judgeSlot returns the index of the shard that judges the write's key.
func (w *Write) judgeSlot(groups int) int {
	if len(w.Spaces) > 0 {
		groups = w.Spaces[0].Shards
	}
	return w.ID.Shard(groups)
}

// groupsOfWrite returns the groups of the write's keyspace, or of all its keyspaces. For several, it
// sets w.first.
func (wr *writer) groupsOfWrite(ks *Keyspace, w *Write) ([]*shardReplica, error) {
	if len(w.Spaces) == 0 {
		return wr.groupsOf(ks)
	}
	var all []*shardReplica
	w.first = w.first[:0]
	for _, space := range w.Spaces {
		groups, err := wr.groupsOf(space)
		if err != nil {
			return nil, err
		}
		w.first = append(w.first, len(all))
		all = append(all, groups...)
	}
	return all, nil
}

// parts is the scratch memory of a write.
type parts struct {
	byShard []part
	judged  RequestID // identity of every part except that of the judge, see judgeSlot
	route   raftfsm.Route
	timer   *time.Timer
}

var partsPool = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &parts{timer: t}
}}

// sectionSizeHint is the size of a section with one op of one cell, rounded up. Each further op
// takes a quarter of it.
const sectionSizeHint = 64

// apply is Node.Write for a keyspace that is not dropped.
func (wr *writer) apply(ks *Keyspace, w *Write) error {
	w.Changed = w.Changed[:0]
	w.Overflows, w.Cuts, w.Unknown, w.Duplicate = w.Overflows[:0], w.Cuts[:0], w.Unknown[:0], false
	w.Token = Token{Cluster: wr.clusterHash, At: w.Token.At[:0]}
	groups, err := wr.groupsOfWrite(ks, w)
	if err != nil {
		return err
	}
	if err := takesMembers(w, groups); err != nil {
		return err
	}
	for i := range w.Outbox {
		w.Outbox[i].Limits = wr.outboxes
	}
	ps := partsPool.Get().(*parts)
	defer ps.release()
	ps.split(w, ks, groups)
	if err := wr.admit(ps, w, groups); err != nil {
		return err
	}
	ps.addSections(w, groups)
	ps.timer.Reset(time.Until(w.Deadline))
	defer ps.timer.Stop()
	if w.ID.Keyed() {
		ps.judge(w, groups)
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
	return ps.gather(w, groups)
}

// explained adds ErrKeyAhead to the refusal of a key whose time is ahead. Its client would not
// expect ErrExpired alone.
func explained(err error, w *Write) error {
	if born, ok := w.ID.Born(); ok && errors.Is(err, ErrExpired) && born.After(time.Now()) {
		return fmt.Errorf("%w: %w", err, ErrKeyAhead)
	}
	return err
}

// judge marks the part of the shard that judges the key. It adds that part if the write has no op for
// the shard.
func (ps *parts) judge(w *Write, groups []*shardReplica) {
	s := w.judgeSlot(len(groups))
	p := &ps.byShard[s]
	p.judges = true
	if !p.used {
		p.writer.Reset(make([]byte, 0, sectionSizeHint), groups[s].of(), &w.ID)
		p.used = true
	}
}

// reserve reserves space in the queue of every group that this node leads, before it proposes
// anything, so that a full queue refuses the whole write.
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
	if errors.Is(err, ErrOverloaded) {
		return err
	}
	return nil
}

// cancel releases the space of the parts that were not proposed.
func (ps *parts) cancel() {
	for s := range ps.byShard {
		if p := &ps.byShard[s]; p.proposal != nil && !p.proposed {
			p.proposal.Cancel()
		}
	}
}

// ask proposes only the part for the shard that judges the key. That shard finds whether the key
// was used for another body. The key alone chooses that shard, because a different body may have
// its ops on entirely different shards. The write proposes its other parts once the judging shard
// has accepted the key.
func (wr *writer) ask(ps *parts, w *Write, groups []*shardReplica) error {
	s := w.judgeSlot(len(groups))
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

// carry writes the use of the key, which the judge accepted, into the parts for the other shards.
func (ps *parts) carry(use dedup.Use) {
	for s := range ps.byShard {
		if p := &ps.byShard[s]; p.used && !p.judges {
			p.writer.SetUse(use)
		}
	}
}

// lastTryMin is the least time for a further try of a part. With less, the try would rarely be
// answered, and a known outcome would become unknown.
const lastTryMin = 50 * time.Millisecond

// settle proposes the unsettled parts concurrently and waits for them. Until the deadline it proposes
// a part again if the part found no leader or, for a write with an identity, if its outcome is
// unknown.
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
				if err = orDropped(wr.catalog.View(), groups[s].number, err); errors.Is(err, ErrUnknownKeyspace) {
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

// fate returns the part's error after a try that ended with err. If an earlier try has an unknown
// outcome, so has the part, even if this try was not proposed. If this try was too late, fate
// returns the error of the previous try, which names the cause.
func (p *part) fate(err error) error {
	if errors.Is(err, ErrTooLate) && p.err != nil {
		return p.err
	}
	if err != nil && p.unknown && !errors.Is(err, ErrOutcomeUnknown) {
		return fmt.Errorf("%w: %v", ErrOutcomeUnknown, err.Error())
	}
	p.unknown = p.unknown || errors.Is(err, ErrOutcomeUnknown)
	return err
}

// propose enqueues the part in the proposer where it has space, or forwards it to the node that leads
// its group.
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

// release returns the scratch memory to the pool. It drops sections and results, because they are not
// scratch: a proposer may still use the section of a write that was given up.
func (ps *parts) release() {
	for s := range ps.byShard {
		ps.byShard[s] = part{ops: ps.byShard[s].ops[:0]}
	}
	ps.judged = RequestID{}
	partsPool.Put(ps)
}

// split writes each shard's section of the write. Each section has memory of its own, because its
// proposer owns it.
func (ps *parts) split(w *Write, ks *Keyspace, groups []*shardReplica) {
	ps.route = groups[0].route
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
		judge = w.judgeSlot(shards)
		ps.judged = w.ID.JudgedBy(groups[judge].number, dedup.Use{})
	}
	for i := range w.Ops {
		s, key := w.slot(i, ps.route)
		p := &ps.byShard[s]
		if len(p.ops) == 0 {
			id := w.idOf(s)
			if judge >= 0 && s != judge {
				id = &ps.judged
			}
			p.writer.Reset(make([]byte, 0, sectionSizeHint+len(w.Ops)/shards*sectionSizeHint/4), groups[s].of(), id)
			if len(w.Spaces) == 0 {
				p.writer.SetFloors(ks.FloorsByNumber)
			} else {
				p.writer.SetFloors(w.Spaces[w.In[i]].FloorsByNumber)
			}
			p.used = true
		}
		p.op(key, i, w, groups[s].kind)
		p.ops = append(p.ops, i)
	}
}

// takesMembers returns ErrNotCounters for an op with a member on a keyspace of another kind.
func takesMembers(w *Write, groups []*shardReplica) error {
	for i := range w.Ops {
		if !w.Ops[i].OfSets() {
			continue
		}
		if s, _ := w.slot(i, groups[0].route); groups[s].kind != codec.KindCounters {
			return ErrNotCounters
		}
	}
	return nil
}

// op writes an op in the form of its keyspace's kind.
func (p *part) op(key uint64, i int, w *Write, kind codec.Kind) {
	switch kind {
	case codec.KindUnread:
		unread.AppendOp(&p.writer, w.Table, key, &w.Ops[i])
	case codec.KindFeed:
		feed.AppendOp(&p.writer, key, &w.Feeds[i])
	case codec.KindBoard:
		board.AppendOp(&p.writer, w.Board)
	default:
		if w.Outbox != nil {
			counters.AppendOutbox(&p.writer, key, &w.Outbox[i])
			return
		}
		counters.AppendOp(&p.writer, key, &w.Ops[i])
	}
}

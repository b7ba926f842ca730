package shard

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/shard/headroom"
	"github.com/countd/countd/shard/keyspace"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/prover"
	"github.com/countd/countd/shard/retry"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/stream"
)

// writer splits writes by shard, has each shard's part proposed where the shard is led,
// and joins the answers. It never reads what a write would find.
//
// Invariant: a part whose outcome is unknown is proposed again only if the write has an
// identity.
type writer struct {
	*router
	headroom *headroom.Headroom
	streams  *stream.Streams
	outboxes outbox.Limits
	asking   *rpc.Questions // calls to leaders, which end at the deadline of their write
	prover   *prover.Prover
}

// part is what one write has for one shard.
type part struct {
	writer   raftfsm.RequestWriter
	used     bool              // there is something to propose
	judges   bool              // it is of the shard that judges the request's key
	ops      []int             // the request's ops for this shard, by number, rising
	proposal *propose.Proposal // room is taken for it here; nil if another node leads the shard
	proposed bool
	settled  bool
	unknown  bool // a try may have been proposed, and its outcome was not learned
	err      error
	from     int // overflows of the entry seen so far
}

// slot returns the place of an op's shard among those of the write's groups, and its
// key there. r is of the keyspace of a write to one.
func (w *Write) slot(op int, r keyspace.Route) (slot int, key uint64) {
	id := w.Ops[op].ID
	if len(w.Spaces) == 0 {
		return r.KeyOf(id)
	}
	k := w.In[op]
	s, key := w.Spaces[k].Route().KeyOf(id)
	return w.first[k] + s, key
}

// judgeSlot returns the place of the shard that judges the write's key.
func (w *Write) judgeSlot(groups int) int {
	if len(w.Spaces) > 0 {
		groups = w.Spaces[0].Shards
	}
	return w.ID.Shard(groups)
}

// groupsOfWrite returns the groups that a write may touch: those of its keyspace, or of
// each of its keyspaces.
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
	judged  RequestID // of the parts for shards that do not judge the write's key
	route   keyspace.Route
	timer   *time.Timer
}

var partsPool = sync.Pool{New: func() any {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &parts{timer: t}
}}

// sectionSizeHint is what a section of one op of one cell takes, rounded up;
// a second op takes a quarter.
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

// explained adds to the refusal of a key that its time is ahead: its client would not expect
// ErrExpired for that.
func explained(err error, w *Write) error {
	if born, ok := w.ID.Born(); ok && errors.Is(err, ErrExpired) && born.After(time.Now()) {
		return fmt.Errorf("%w: %w", err, ErrKeyAhead)
	}
	return err
}

// judge makes sure that the shard that judges the key has a part, with ops or without.
func (ps *parts) judge(w *Write, groups []*shardReplica) {
	s := w.judgeSlot(len(groups))
	p := &ps.byShard[s]
	p.judges = true
	if !p.used {
		p.writer.Reset(make([]byte, 0, sectionSizeHint), groups[s].of(), &w.ID)
		p.used = true
	}
}

// reserve takes room in every group that is led here before anything is
// proposed, so that a full queue refuses the request as a whole.
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

// reserve takes room for the part if its group is led here. It fails only with
// ErrOverloaded.
func (p *part) reserve(g *shardReplica, w *Write) error {
	p.proposal, p.proposed = nil, false
	r, err := g.led()
	if err != nil {
		return nil // it is forwarded
	}
	p.proposal, err = r.proposer.Load().Reserve(p.writer.Section(), p.writer.Ops(), w.clocked() || p.writer.OfMembers(), w.Width)
	if errors.Is(err, ErrOverloaded) {
		return err
	}
	return nil
}

// cancel releases the room of the parts that were not proposed.
func (ps *parts) cancel() {
	for s := range ps.byShard {
		if p := &ps.byShard[s]; p.proposal != nil && !p.proposed {
			p.proposal.Cancel()
		}
	}
}

// ask has one shard, which the key alone chooses, judge whether the key was
// used for another body: other bodies have their ops on other shards, which
// would know nothing of each other. Nothing else is proposed before it agrees.
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

// carry writes the use that the judge has accepted into the parts for the other shards.
func (ps *parts) carry(use dedup.Use) {
	for s := range ps.byShard {
		if p := &ps.byShard[s]; p.used && !p.judges {
			p.writer.SetUse(use)
		}
	}
}

// lastTryMin is the time that a further try of a part has at least. With less it would
// hardly be answered, and an outcome that is known would become unknown.
const lastTryMin = 50 * time.Millisecond

// settle proposes the parts that are not settled, all at once, and waits for them. Until the
// deadline it proposes a part again that found no leader or, if the write has an identity,
// has an unknown outcome.
func (wr *writer) settle(ps []part, groups []*shardReplica, w *Write, deadline *time.Timer) {
	for pause := retry.PauseMin; ; pause = min(2*pause, retry.PauseMax) {
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

// forbid settles the parts that are not settled with err, without proposing them.
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

// fate returns what is known of the part after a try that ended with err. If an earlier try
// has an unknown outcome, so has the part, also if this one was not proposed. A last try that
// had no time left returns the error of the try before it, which says more.
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

// propose gives the part to the proposer that it has room in, or to the node
// that leads its group.
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

// release returns the scratch memory to the pool. It drops sections and results, which are
// not scratch: the proposer of a write that was given up may still use its section.
func (ps *parts) release() {
	for s := range ps.byShard {
		ps.byShard[s] = part{ops: ps.byShard[s].ops[:0]}
	}
	ps.judged = RequestID{}
	partsPool.Put(ps)
}

// split writes each shard's section of the request. The memory of the sections is new,
// because their proposers own it.
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

// takesMembers returns an error for an op with a member that its keyspace does not take.
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

// op writes one op in the form of its keyspace's kind.
func (p *part) op(key uint64, i int, w *Write, kind codec.Kind) {
	switch kind {
	case codec.KindUnread:
		p.writer.TableOp(w.Table, key, &w.Ops[i])
	case codec.KindFeed:
		p.writer.Feed(key, &w.Feeds[i])
	case codec.KindBoard:
		p.writer.Board(w.Board)
	default:
		if w.Outbox != nil {
			p.writer.Outbox(key, &w.Outbox[i])
			return
		}
		p.writer.Op(key, &w.Ops[i])
	}
}

// clocked reports whether the entry must have the leader's time before the write: for its
// identity, for the day of a cursor, or for the age of posts.
func (w *Write) clocked() bool {
	return w.ID.Exists() || w.Table == raftfsm.TableCursors || len(w.Outbox) > 0
}

package shard

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
)

// An id's shard is id mod shards, and inside of it the row stands under the key
// id div shards: what all ids of a shard share is not stored, and ids in order
// stay in order.

func keyOf(id uint64, shards int) (shard int, key uint64) {
	n := uint64(shards)
	return int(id % n), id / n
}

func idOf(shard int, key uint64, shards int) uint64 { return key*uint64(shards) + uint64(shard) }

// counterGroup is one shard of a counter keyspace on this node.
type counterGroup struct {
	number   uint32
	shard    int
	keyspace string
	group    *group
	fsm      *raftfsm.Counters
	proposer *proposer
}

// part is what one write has for one shard.
type part struct {
	writer   raftfsm.RequestWriter
	used     bool      // there is something to propose
	ops      []int     // the request's ops for this shard, by number, rising
	proposal *proposal // room is taken for it
	proposed bool
	answered bool
	err      error
	from     int // overflows of the entry seen so far
}

// parts is the scratch memory of a write.
type parts struct {
	byShard []part
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

// Write applies a request, each shard's part of it whole or not at all, and
// fills the answer in w. See the errors of this package; a PartialError tells
// the shards apart when they did not fare alike.
func (n *Node) Write(ks *Keyspace, w *Write) error {
	w.Overflows, w.Token, w.Duplicate = w.Overflows[:0], w.Token[:0], false
	groups, err := n.groupsOf(ks)
	if err != nil {
		return err
	}
	if err := n.headroom.admit(w, groups); err != nil {
		return err
	}
	ps := partsPool.Get().(*parts)
	defer ps.release()
	ps.split(w, len(groups))
	ps.timer.Reset(time.Until(w.Deadline))
	defer ps.timer.Stop()
	if w.ID.Keyed() {
		ps.judge(w, len(groups))
	}
	if err := ps.reserve(w, groups); err != nil {
		return err
	}
	if w.ID.Keyed() {
		if err := ps.ask(w, groups); err != nil {
			return explained(err, w)
		}
	}
	for s := range ps.byShard {
		ps.byShard[s].propose(groups[s])
	}
	for s := range ps.byShard {
		ps.byShard[s].wait(groups[s], ps.timer)
	}
	return ps.gather(w, groups)
}

// explained adds to the refusal of a key that its time is ahead, which to its
// client is no age at all.
func explained(err error, w *Write) error {
	if born, ok := w.ID.Born(); ok && errors.Is(err, ErrExpired) && born.After(time.Now()) {
		return fmt.Errorf("%w: %w", err, ErrKeyAhead)
	}
	return err
}

// judge gives the shard that judges the key something to propose, with ops or
// without.
func (ps *parts) judge(w *Write, shards int) {
	p := &ps.byShard[w.ID.Shard(shards)]
	if !p.used {
		p.writer.Reset(make([]byte, 0, sectionSizeHint), &w.ID)
		p.used = true
	}
}

// reserve takes room in every group before anything is proposed, so that a full
// queue refuses the request as a whole.
func (ps *parts) reserve(w *Write, groups []*counterGroup) error {
	for s := range ps.byShard {
		p := &ps.byShard[s]
		if !p.used {
			continue
		}
		if p.err = groups[s].group.ready(); p.err != nil {
			continue // gather tells which shards it was
		}
		p.proposal, p.err = groups[s].proposer.reserve(&p.writer, w.ID.Exists(), w.Width)
		if errors.Is(p.err, ErrOverloaded) {
			ps.cancel(groups)
			return p.err
		}
	}
	return nil
}

// cancel gives the room of what was not proposed back.
func (ps *parts) cancel(groups []*counterGroup) {
	for s := range ps.byShard {
		if p := &ps.byShard[s]; p.proposal != nil && !p.proposed {
			groups[s].proposer.cancel(p.proposal)
		}
	}
}

// ask has one shard, which the key alone chooses, judge whether the key was
// used for another body: other bodies have their ops on other shards, which
// would know nothing of each other. Nothing else is proposed before it agrees.
func (ps *parts) ask(w *Write, groups []*counterGroup) error {
	s := w.ID.Shard(len(groups))
	p := &ps.byShard[s]
	p.propose(groups[s])
	p.wait(groups[s], ps.timer)
	if p.err != nil {
		ps.cancel(groups)
	}
	return p.err
}

// propose proposes the part, unless it has nothing to propose or was.
func (p *part) propose(g *counterGroup) {
	if p.proposal != nil && !p.proposed {
		p.proposed = true
		if p.err = g.proposer.enqueue(p.proposal); p.err != nil {
			p.proposal = nil
		}
	}
}

// wait waits for the part's answer, unless it is there.
func (p *part) wait(g *counterGroup, deadline *time.Timer) {
	if p.proposal != nil && !p.answered {
		p.err = g.proposer.wait(p.proposal, deadline)
		p.answered = true
	}
}

// release gives the scratch memory back. It lets go of sections and results,
// which are not scratch: a section whose write was given up is still its
// proposer's.
func (ps *parts) release() {
	for s := range ps.byShard {
		ps.byShard[s] = part{ops: ps.byShard[s].ops[:0]}
	}
	partsPool.Put(ps)
}

// split writes each shard's section of the request. The sections are given to
// the proposers, so their memory is new; the rest is used again.
func (ps *parts) split(w *Write, shards int) {
	if cap(ps.byShard) < shards {
		ps.byShard = make([]part, shards)
	}
	ps.byShard = ps.byShard[:shards]
	for s := range ps.byShard {
		ps.byShard[s] = part{ops: ps.byShard[s].ops[:0]}
	}
	for i := range w.Ops {
		s, key := keyOf(w.Ops[i].ID, shards)
		p := &ps.byShard[s]
		if len(p.ops) == 0 {
			p.writer.Reset(make([]byte, 0, sectionSizeHint+len(w.Ops)/shards*sectionSizeHint/4), &w.ID)
			p.used = true
		}
		p.writer.Op(key, &w.Ops[i])
		p.ops = append(p.ops, i)
	}
}

// gather fills the request's answer from the shards' results, or makes the
// error.
func (ps *parts) gather(w *Write, groups []*counterGroup) error {
	if err := ps.failure(w); err != nil {
		return err
	}
	w.Duplicate = true
	for s := range ps.byShard {
		p := &ps.byShard[s]
		if len(p.ops) == 0 {
			continue
		}
		w.Duplicate = w.Duplicate && p.proposal.outcome() != raftfsm.Applied
		w.Token = append(w.Token, GroupIndex{groups[s].number, p.proposal.result.Index})
		for i, op := range p.ops {
			if w.Width > 0 {
				copy(w.Rows[op*w.Width:(op+1)*w.Width], p.proposal.row(i, w.Width))
			}
		}
	}
	ps.overflows(w)
	return nil
}

// wasRefused reports whether the part repeats one of which every op overflowed.
// The group remembers that, and not the columns.
func (p *part) wasRefused() bool { return p.proposal.outcome() == raftfsm.Refused }

// overflows appends the refused ops in the request's order.
func (ps *parts) overflows(w *Write) {
	refusals := false
	for s := range ps.byShard {
		p := &ps.byShard[s]
		refusals = refusals || len(p.ops) > 0 && (p.wasRefused() || len(p.proposal.result.Overflows) > 0)
	}
	if !refusals {
		return
	}
	at := make([]int, len(ps.byShard))
	for i := range w.Ops {
		s, _ := keyOf(w.Ops[i].ID, len(ps.byShard))
		p := &ps.byShard[s]
		if p.wasRefused() {
			w.Overflows = append(w.Overflows, engine.Overflow{Op: i, Column: w.Ops[i].Cells[0].Column})
		} else if o, refused := p.proposal.overflow(at[s], &p.from); refused {
			w.Overflows = append(w.Overflows, engine.Overflow{Op: i, Column: o.Column})
		}
		at[s]++
	}
}

// failure returns nil if every shard applied its part, the shards' error if all
// have the same, and a PartialError otherwise.
func (ps *parts) failure(w *Write) error {
	var worst error
	touched, failed := 0, 0
	for s := range ps.byShard {
		p := &ps.byShard[s]
		if len(p.ops) == 0 {
			continue
		}
		touched++
		if p.err != nil {
			failed++
			if worst == nil || errors.Is(p.err, ErrOutcomeUnknown) {
				worst = p.err
			}
		}
	}
	if failed == 0 {
		return nil
	}
	partial := &PartialError{Err: worst}
	for i := range w.Ops {
		s, _ := keyOf(w.Ops[i].ID, len(ps.byShard))
		switch err := ps.byShard[s].err; {
		case err == nil:
			partial.Applied = append(partial.Applied, w.Ops[i].ID)
		case errors.Is(err, ErrOutcomeUnknown):
			partial.Unknown = append(partial.Unknown, w.Ops[i].ID)
		}
	}
	if len(partial.Applied) == 0 && (len(partial.Unknown) == 0 || touched == 1) {
		return worst
	}
	return partial
}

// groupsOf returns the keyspace's groups on this node, by shard.
func (n *Node) groupsOf(ks *Keyspace) ([]*counterGroup, error) {
	if n.draining.Load() {
		return nil, ErrDraining
	}
	groups := n.groups.Load().byFirst[ks.firstGroup]
	if groups == nil {
		return nil, fmt.Errorf("%w: keyspace %s is being created", ErrNoLeader, ks.Name)
	}
	return groups, nil
}

package shard

import (
	"errors"
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
)

// setReads is what the ops of a shard's part of a write read of its sets.
type setReads struct {
	pairs []members.Pair // that join or leave
	rows  []uint64       // that are deleted
}

func (s *setReads) add(key uint64, op *engine.Op) {
	switch {
	case op.OfMember():
		s.pairs = append(s.pairs, members.Pair{Row: key, Column: op.Cells[0].Column, Member: uint64(op.Cells[0].Value)})
	case op.Kind == engine.OpDelete:
		s.rows = append(s.rows, key)
	}
}

// visitor returns a visitor that adds the ops of a section, and does what another does.
func (s *setReads) visitor(other raftfsm.SectionVisitor) raftfsm.SectionVisitor {
	then := other.Member
	other.Member = func(p members.Pair) error {
		s.pairs = append(s.pairs, p)
		if then != nil {
			return then(p)
		}
		return nil
	}
	return other.WithOp(func(_ raftfsm.Table, key uint64, op *engine.Op) error {
		s.add(key, op)
		return nil
	})
}

// readSets reads the sets that a write needs, before it is proposed. A write that needs sets
// which cannot be read is not proposed: this node could not apply it, nor any entry behind it.
func (wr *writer) readSets(w *Write, groups []*shardReplica) error {
	var byShard []setReads
	for i := range w.Ops {
		op := &w.Ops[i]
		if !op.OfMember() && op.Kind != engine.OpDelete {
			continue
		}
		if byShard == nil {
			byShard = make([]setReads, len(groups))
		}
		s, key := w.slot(i, groups[0].route)
		byShard[s].add(key, op)
	}
	for s := range byShard {
		r, err := groups[s].led()
		if err != nil {
			continue // the leader reads them
		}
		if err = r.readSets(&byShard[s]); err == nil {
			continue
		}
		if wr.alone() && errors.Is(err, members.ErrDamaged) {
			return groups[s].failedAlone(err)
		}
		return err
	}
	return nil
}

func (r *localReplica) readSets(s *setReads) error {
	if r.counters == nil || len(s.pairs)+len(s.rows) == 0 {
		return nil
	}
	err := r.counters.Members().Readable(s.pairs, s.rows)
	if err == nil {
		return nil
	}
	if errors.Is(err, members.ErrDamaged) {
		r.damage.Note(err)
	}
	return fmt.Errorf("%w: its members cannot be read: %w", ErrNoLeader, err)
}

package counters

import (
	"errors"
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
)

// sets is the sets of members of a shard of counters. They are only on disk. While a restart
// replays the log, they may be ahead of the counts.
//
// Invariant: the field at is the state of the sets after the applied entries. The sets on disk have
// that state, or the state after a later entry of the same log. In the second case, the disk also
// has the outcome of each entry in between that changed a set. So a replay changes the counts
// exactly as before.
type sets struct {
	group *members.Group // nil for a shard without a disk
	at    members.State
	load  *members.Load // set while a stream with sets is loaded
	found members.State // the state of the sets in the stream
	named bool          // whether the stream has or names sets

	batch   *members.Batch // the batch of the entry that is being applied
	changed []int          // indexes of the ops that changed a set, ascending
}

// errNoSets is returned for ops on sets in a shard without a disk.
var errNoSets = errors.New("this replica has no store of members")

// begin reads the pairs that the ops of an entry need. touched is false if the entry cannot change
// a set.
func (s *sets) begin(b *batch, index uint64, now int64) (touched bool, err error) {
	s.batch, s.changed = nil, nil
	deletes := s.at.Pairs > 0 && b.deletes()
	if len(b.members) == 0 && !deletes {
		return false, nil
	}
	if s.group == nil {
		return false, errNoSets
	}
	if s.batch, err = s.group.Begin(s.at, index, now); err != nil {
		return false, err
	}
	for i := range b.members {
		switch o := &b.members[i]; {
		case o.ofPair():
			s.batch.Touch(o.pair)
		case o.kind == opPurge:
			err = s.batch.TouchDead(o.pairs)
		}
		if err != nil {
			return false, err
		}
	}
	for i := range b.Ops {
		if b.Ops[i].Kind == engine.OpDelete {
			if err := s.batch.TouchRow(b.Ops[i].ID); err != nil {
				return false, err
			}
		}
	}
	return true, s.batch.Read()
}

func (b *batch) deletes() bool {
	for i := range b.Ops {
		if b.Ops[i].Kind == engine.OpDelete {
			return true
		}
	}
	return false
}

// apply applies one op on sets. If the op does not change the set, apply sets the delta of its
// count to 0.
func (s *sets) apply(b *batch, o *memberOp) {
	changes := false
	switch o.kind {
	case opJoin, opCopy:
		changes = s.batch.Join(o.pair, o.stamp)
	case opLeave:
		changes = s.batch.Leave(o.pair)
	case opPurge:
		s.batch.Purge()
		return
	case opClearMembers:
		s.batch.Clear()
		return
	}
	if changes {
		s.changed = append(s.changed, o.op)
	} else if cells := b.Ops[o.op].Cells; len(cells) > 0 {
		cells[len(cells)-1].Value = 0
	}
}

// undo reverts the last op on sets if that is the given op, which the table has refused.
func (s *sets) undo(op int) {
	if n := len(s.changed); n > 0 && s.changed[n-1] == op {
		s.batch.Undo()
		s.changed = s.changed[:n-1]
	}
}

// commit writes the entry's changes of sets.
func (s *sets) commit() (err error) {
	if s.at, err = s.batch.Commit(); err != nil {
		return fmt.Errorf("the counts are ahead of the members: %w", err)
	}
	return nil
}

// Besides implements Machine.
func (c *Machine) Besides() (bodies, pairs uint64) {
	c.Between(func(held raftfsm.Contents) { pairs = held.(*contents).sets.at.Pairs })
	return c.outboxes.Stats().Keys, pairs
}

// Members returns the sets of the shard. It returns nil if the shard has no disk.
func (c *Machine) Members() *members.Group { return c.places.Members }

package counters

import (
	"errors"
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
)

// sets holds the sets of members of a shard of counters. The sets on disk are always the newest.
// While a restart replays the log, they may be ahead of the counts.
//
// Invariant: the field at has the state of the sets after the applied entries. The sets on disk
// have that state, or the state after a later entry of the same log. In the second case, the disk
// has the outcome of each entry in between. So a replayed entry changes the counts exactly as it
// did the first time.
type sets struct {
	group *members.Group // nil for a shard without a disk
	at    members.State
	load  *members.Load // set while a snapshot that carries sets is loaded
	found members.State // the state of the sets that the snapshot carries
	named bool          // the snapshot has a section of sets

	splitter setSplitter // nil for none

	batch   *members.Batch // the batch of the entry that is being applied
	changed []int          // ops of the entry that changed their set, ascending
}

// setSplitter splits sets of members on disk, which are ahead of snapshots (R7 of shard/GROWTH.md). Package
// engine/members has none yet.
type setSplitter interface {
	// Split keeps only the pairs of part 0 in the group, whose state is the argument at. It stores
	// the pairs of the other parts until their first entries adopt them. It returns the state of
	// each part; the index in the first state is s.Index. A replay after a restart returns the same
	// states.
	Split(s *raftfsm.Split, at members.State) ([]members.State, error)
}

// errSetsStay is returned for sets without a setSplitter.
var errSetsStay = errors.New("the members on disk cannot be split")

// errNoSets is returned for ops on sets in a shard without a disk.
var errNoSets = errors.New("this replica has no store of members")

// begin reads the pairs that the ops of an entry need. It returns false if the entry does not change
// the sets.
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

// apply judges one op on sets, and corrects the change of its count.
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

// undo undoes the last judged op, because the table refused it.
func (s *sets) undo(op int) {
	if n := len(s.changed); n > 0 && s.changed[n-1] == op {
		s.batch.Undo()
		s.changed = s.changed[:n-1]
	}
}

// commit writes the changes of the entry.
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

// Members returns the sets of the shard, nil for a shard without a disk.
func (c *Machine) Members() *members.Group { return c.places.Members }

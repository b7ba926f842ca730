package replica

import (
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/scarce"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/storage"
)

// watchedFSM wraps the state machine for raft. It records what is applied, and stops the group
// after a failed Restore or Snapshot. raft itself would continue after a restore that failed half
// way: at start with an older snapshot, later with the next entry. watchedFSM does not catch a
// panic of ApplyBatch, because a committed entry that cannot be applied must end the process.
type watchedFSM struct {
	raft.BatchingFSM
	group   uint32
	stop    *storage.FailStop
	entries *entryWindow
	members *committedMembers
	applies *storage.StallGauge
	// damaged receives the error of a snapshot whose data cannot be read from disk. Such damage
	// does not stop the replica: its older snapshot and its log still have all data, and the node
	// repairs the damage.
	damaged func(error)
	// refused receives the error of a snapshot that the state machine does not take now. raft's own error
	// contains only its text.
	refused func(error)
	turns   *SnapshotTurns // Config.Turns
	closing func() bool    // Replica.Closing
}

// ApplyBatch implements raft.BatchingFSM.
func (f watchedFSM) ApplyBatch(entries []*raft.Log) []any {
	f.entries.note(entries)
	f.members.note(entries)
	f.applies.Begin()
	defer f.applies.End()
	return f.BatchingFSM.ApplyBatch(entries)
}

// Restore implements raft.FSM. It clears the entry window, because the snapshot replaces the state
// that those entries produced.
func (f watchedFSM) Restore(state io.ReadCloser) error {
	if err := f.stop.Failure(); err != nil {
		return err
	}
	f.entries.reset()
	if err := f.BatchingFSM.Restore(state); err != nil {
		return f.fail("restore the state from its snapshot", err)
	}
	return nil
}

// Snapshot implements raft.FSM.
func (f watchedFSM) Snapshot() (raft.FSMSnapshot, error) {
	if err := f.stop.Failure(); err != nil {
		return nil, err
	}
	snapshot, err := f.BatchingFSM.Snapshot()
	if errors.Is(err, raftfsm.ErrStuck) || errors.Is(err, raftfsm.ErrNotNow) {
		f.refused(err)
		return nil, err
	}
	if err != nil {
		return nil, f.fail("take a snapshot of the state", err)
	}
	return watchedSnapshot{snapshot, f}, nil
}

func (f watchedFSM) fail(verb string, err error) error {
	return f.stop.Fail(fmt.Errorf("group %d: cannot %s: %w", f.group, verb, err))
}

type watchedSnapshot struct {
	raft.FSMSnapshot
	of watchedFSM
}

// Persist implements raft.FSMSnapshot.
func (s watchedSnapshot) Persist(sink raft.SnapshotSink) error {
	paced := &pacedSink{SnapshotSink: sink, turns: s.of.turns, closing: s.of.closing}
	paced.begin()
	defer paced.end()
	err := s.FSMSnapshot.Persist(paced)
	switch {
	case isDamage(err):
		s.of.damaged(err)
	case err != nil && !scarce.Is(err) && !errors.Is(err, errs.ErrGroupClosed):
		return s.of.fail("write a snapshot of the state", err)
	}
	return err
}

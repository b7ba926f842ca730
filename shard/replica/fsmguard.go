package replica

import (
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/scarce"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/storage"

	"github.com/countd/countd/shard/errs"
)

// guardFSM returns fsm with its Restore and Snapshot watched. raft goes on
// after a restore that failed half way: at start with an older snapshot, later
// with the next entry. Here such a failure stops the group. Apply is handed
// through, panics included: an entry that is committed and cannot be applied
// must end the process. If a snapshot needs data that cannot be read from disk, damaged,
// unless nil, receives the error; that stops nothing.
//
// The result is a raft.BatchingFSM if fsm is one; other optional interfaces
// are not kept.
func guardFSM(fsm raft.FSM, group uint32, stop *storage.FailStop, damaged func(error)) raft.FSM {
	guarded := guardedFSM{FSM: fsm, group: group, stop: stop, damaged: damaged}
	if batching, ok := fsm.(raft.BatchingFSM); ok {
		return guardedBatchingFSM{guardedFSM: guarded, batching: batching}
	}
	return guarded
}

type guardedFSM struct {
	raft.FSM
	group   uint32
	stop    *storage.FailStop
	damaged func(error)
}

func (f guardedFSM) Restore(state io.ReadCloser) error {
	if err := f.stop.Failure(); err != nil {
		return err
	}
	if err := f.FSM.Restore(state); err != nil {
		return f.stop.Fail(fmt.Errorf("group %d: cannot restore the state from its snapshot: %w", f.group, err))
	}
	return nil
}

func (f guardedFSM) Snapshot() (raft.FSMSnapshot, error) {
	if err := f.stop.Failure(); err != nil {
		return nil, err
	}
	snapshot, err := f.FSM.Snapshot()
	if errors.Is(err, raftfsm.ErrStuck) {
		return nil, err
	}
	if err != nil {
		return nil, f.stop.Fail(fmt.Errorf("group %d: cannot take a snapshot of the state: %w", f.group, err))
	}
	return guardedSnapshot{FSMSnapshot: snapshot, guardedFSM: f}, nil
}

type guardedBatchingFSM struct {
	guardedFSM
	batching raft.BatchingFSM
}

func (f guardedBatchingFSM) ApplyBatch(entries []*raft.Log) []any {
	return f.batching.ApplyBatch(entries)
}

type guardedSnapshot struct {
	raft.FSMSnapshot
	guardedFSM
}

func (s guardedSnapshot) Persist(sink raft.SnapshotSink) error {
	err := s.FSMSnapshot.Persist(sink)
	if isDamage(err) && s.damaged != nil {
		s.damaged(err) // the replica is repaired, and its snapshot and log have all
		return err
	}
	if err != nil && !scarce.Is(err) && !errors.Is(err, errs.ErrGroupClosed) {
		return s.stop.Fail(fmt.Errorf("group %d: cannot write a snapshot of the state: %w", s.group, err))
	}
	return err
}

// isDamage reports whether err means that rows or members on disk cannot be read. Another
// replica has them.
func isDamage(err error) bool {
	return errors.Is(err, cold.ErrDamaged) || errors.Is(err, members.ErrDamaged)
}

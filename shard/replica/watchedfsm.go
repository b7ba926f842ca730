package replica

import (
	"io"

	"github.com/hashicorp/raft"
)

// watchFSM returns fsm with what is applied to it noted in entries and members. A restore
// begins the entries anew: what was applied before is no part of the state any more. The
// result is a raft.BatchingFSM if fsm is one; others are not watched.
func watchFSM(fsm raft.FSM, entries *entryWindow, members *committedMembers) raft.FSM {
	if batching, ok := fsm.(raft.BatchingFSM); ok {
		return watchedFSM{batching, entries, members}
	}
	return fsm
}

type watchedFSM struct {
	raft.BatchingFSM
	entries *entryWindow
	members *committedMembers
}

func (f watchedFSM) ApplyBatch(entries []*raft.Log) []any {
	f.entries.note(entries)
	f.members.note(entries)
	return f.BatchingFSM.ApplyBatch(entries)
}

func (f watchedFSM) Restore(state io.ReadCloser) error {
	f.entries.reset()
	return f.BatchingFSM.Restore(state)
}

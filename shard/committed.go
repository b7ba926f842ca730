package shard

import (
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// committedMembers remembers the newest configuration that was applied here, which
// is committed. raft tells its latest one only, and a leader that is cut off may
// have begun a change that never will be.
type committedMembers struct {
	applied atomic.Pointer[configurationAt]
}

type configurationAt struct {
	index   uint64
	servers []raft.Server
}

// watch returns fsm with its entries of configurations looked at. The result is a
// raft.BatchingFSM if fsm is one; only such get them.
func (c *committedMembers) watch(fsm raft.FSM) raft.FSM {
	if batching, ok := fsm.(raft.BatchingFSM); ok {
		return watchedFSM{batching, c}
	}
	return fsm
}

type watchedFSM struct {
	raft.BatchingFSM
	members *committedMembers
}

func (f watchedFSM) ApplyBatch(entries []*raft.Log) []any {
	for _, entry := range entries {
		if entry.Type == raft.LogConfiguration {
			f.members.applied.Store(&configurationAt{entry.Index, raft.DecodeConfiguration(entry.Data).Servers})
		}
	}
	return f.BatchingFSM.ApplyBatch(entries)
}

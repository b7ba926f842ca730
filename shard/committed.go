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

// note looks for configurations in what is about to be applied.
func (c *committedMembers) note(entries []*raft.Log) {
	for _, entry := range entries {
		if entry.Type == raft.LogConfiguration {
			c.applied.Store(&configurationAt{entry.Index, raft.DecodeConfiguration(entry.Data).Servers})
		}
	}
}

package replica

import (
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/storage"
)

// committedMembers records the newest configuration that was applied here, and so is committed.
// raft returns only its latest configuration, which may never be committed: a leader that was cut
// off may have sent it.
type committedMembers struct {
	stored  *storage.Snapshots
	applied atomic.Pointer[ConfigurationAt]
}

type ConfigurationAt struct {
	Index   uint64
	Servers []raft.Server
}

// note records the configurations among entries that are about to be applied.
func (c *committedMembers) note(entries []*raft.Log) {
	for _, entry := range entries {
		if entry.Type == raft.LogConfiguration {
			c.applied.Store(&ConfigurationAt{entry.Index, raft.DecodeConfiguration(entry.Data).Servers})
		}
	}
}

// newest returns the newest configuration that this replica knows to be committed, from the log or
// the newest snapshot; nil if there is none.
func (c *committedMembers) newest() *ConfigurationAt {
	at := c.applied.Load()
	metas, err := c.stored.List()
	if err == nil && len(metas) > 0 && (at == nil || metas[0].ConfigurationIndex > at.Index) {
		return &ConfigurationAt{metas[0].ConfigurationIndex, metas[0].Configuration.Servers}
	}
	return at
}

const (
	// barrierPause is how often CommittedIndex looks whether a barrier has been applied.
	barrierPause = 200 * time.Microsecond
	// barrierWaitMax bounds that wait. After it, reads wait for the barrier's index, and fail at their deadlines
	// unless somebody writes.
	barrierWaitMax = time.Second
)

// CommittedIndex returns the commit index of a group that this node leads. The applied index would
// be too low for reads: a client may have read newer entries from a follower whose state machine is
// ahead.
func (g *Replica) CommittedIndex(applied func() uint64) uint64 {
	committed := g.raft.CommitIndex()
	for waited := time.Duration(0); waited < barrierWaitMax && g.Growth.mayBeBarrier(committed, applied); waited += barrierPause {
		time.Sleep(barrierPause)
	}
	if committed > g.barrierIndex.Load() {
		return committed
	}
	return applied() // nothing after the barrier is committed, everything before it is applied here, and the barrier itself never reaches a state machine
}

// ConfigurationInForce returns the committed configuration. It returns nil if this replica knows
// none, or while a change is in progress.
func (g *Replica) ConfigurationInForce() *ConfigurationAt {
	at := g.members.newest()
	if at == nil || !slices.Equal(at.Servers, g.Configuration().Servers) {
		return nil
	}
	return at
}

// CommittedServers returns the servers of the committed configuration, or nil.
func (g *Replica) CommittedServers() []raft.Server {
	if at := g.members.newest(); at != nil {
		return at.Servers
	}
	return nil
}

// IndexWith returns CommittedIndex if this node and the asker are a majority of the voters, and
// this node leads askersTerm or a later term. askersTerm is the term of the asker when it asked.
// Otherwise, or if CommittedIndex would wait, IndexWith returns 0.
func (g *Replica) IndexWith(applied func() uint64, asker raft.ServerID, askersTerm uint64) uint64 {
	term := g.readyTerm.Load()
	if askersTerm > term || g.Ready() != nil {
		return 0
	}
	if !TwoSuffice(g.Voters(), asker, g.ID()) || g.Growth.mayBeBarrier(g.raft.CommitIndex(), applied) {
		return 0
	}
	index := g.CommittedIndex(applied)
	if g.readyTerm.Load() != term || g.Ready() != nil {
		return 0
	}
	return index
}

// TwoSuffice reports whether a and b are a majority of the voters.
func TwoSuffice(voters []raft.ServerID, a, b raft.ServerID) bool {
	return len(voters)/2+1 <= 2 && a != b && slices.Contains(voters, a) && slices.Contains(voters, b)
}

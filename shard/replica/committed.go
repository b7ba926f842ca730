package replica

import (
	"slices"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// committedMembers records the newest configuration that was applied here, which is therefore
// committed. raft returns only its latest configuration, and a leader that is cut off may have
// begun a change that never commits.
type committedMembers struct {
	applied atomic.Pointer[ConfigurationAt]
}

type ConfigurationAt struct {
	Index   uint64
	Servers []raft.Server
}

// note records configurations among the entries that are about to be applied.
func (c *committedMembers) note(entries []*raft.Log) {
	for _, entry := range entries {
		if entry.Type == raft.LogConfiguration {
			c.applied.Store(&ConfigurationAt{entry.Index, raft.DecodeConfiguration(entry.Data).Servers})
		}
	}
}

// CommittedIndex returns the group's commit index as known to its leader, which this node must be.
// The applied index is not enough. A follower's state machine may be ahead of this node's. If a
// client has read from that follower, later reads must see the same entries.
func (g *Replica) CommittedIndex(applied func() uint64) uint64 {
	if committed := g.raft.CommitIndex(); committed > g.barrierIndex.Load() {
		return committed
	}
	return applied() // the barrier never reaches a state machine, but everything before it is applied here
}

// committedConfiguration returns the newest configuration that this replica knows to be committed,
// from the log or the newest snapshot; nil if it knows none.
func (g *Replica) committedConfiguration() *ConfigurationAt {
	at := g.members.applied.Load()
	metas, err := g.snaps.List()
	if err == nil && len(metas) > 0 && (at == nil || metas[0].ConfigurationIndex > at.Index) {
		return &ConfigurationAt{metas[0].ConfigurationIndex, metas[0].Configuration.Servers}
	}
	return at
}

// ConfigurationInForce returns the committed configuration. It returns nil while none is known
// here, or while a change is in progress.
func (g *Replica) ConfigurationInForce() *ConfigurationAt {
	at := g.committedConfiguration()
	if at == nil || !slices.Equal(at.Servers, g.Configuration().Servers) {
		return nil
	}
	return at
}

// CommittedServers returns the servers of committedConfiguration, or nil.
func (g *Replica) CommittedServers() []raft.Server {
	if at := g.committedConfiguration(); at != nil {
		return at.Servers
	}
	return nil
}

// IndexWith returns the group's index if this node leads the group and forms a majority of its
// voters with the asker. The asker was in askersTerm when it asked, and this node must still lead
// askersTerm or a later term. Otherwise IndexWith returns 0.
func (g *Replica) IndexWith(applied func() uint64, asker raft.ServerID, askersTerm uint64) uint64 {
	term := g.readyTerm.Load()
	if askersTerm > term || g.Ready() != nil {
		return 0
	}
	if !TwoSuffice(g.Voters(), asker, g.ID()) {
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

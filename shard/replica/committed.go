package replica

import (
	"slices"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

// committedMembers remembers the newest configuration that was applied here, which
// is committed. raft tells its latest one only, and a leader that is cut off may
// have begun a change that never will be.
type committedMembers struct {
	applied atomic.Pointer[ConfigurationAt]
}

type ConfigurationAt struct {
	Index   uint64
	Servers []raft.Server
}

// note looks for configurations in what is about to be applied.
func (c *committedMembers) note(entries []*raft.Log) {
	for _, entry := range entries {
		if entry.Type == raft.LogConfiguration {
			c.applied.Store(&ConfigurationAt{entry.Index, raft.DecodeConfiguration(entry.Data).Servers})
		}
	}
}

// CommittedIndex returns how far the group is as its leader, which this node is,
// knows. Not what is applied here: a follower may be ahead of this node's state
// machine, and somebody have read there what is to be seen from then on.
func (g *Replica) CommittedIndex(applied func() uint64) uint64 {
	if committed := g.raft.CommitIndex(); committed > g.barrierIndex.Load() {
		return committed
	}
	return applied() // the barrier never reaches a state machine, all before it has here
}

// committedConfiguration returns the newest configuration that is known here to be
// committed, from the log or from the newest snapshot; nil if none is.
func (g *Replica) committedConfiguration() *ConfigurationAt {
	at := g.members.applied.Load()
	metas, err := g.snaps.List()
	if err == nil && len(metas) > 0 && (at == nil || metas[0].ConfigurationIndex > at.Index) {
		return &ConfigurationAt{metas[0].ConfigurationIndex, metas[0].Configuration.Servers}
	}
	return at
}

// ConfigurationInForce returns the committed configuration, nil while none is known here
// or a change of it is under way.
func (g *Replica) ConfigurationInForce() *ConfigurationAt {
	at := g.committedConfiguration()
	if at == nil || !slices.Equal(at.Servers, g.Configuration().Servers) {
		return nil
	}
	return at
}

// CommittedServers returns the members of committedConfiguration.
func (g *Replica) CommittedServers() []raft.Server {
	if at := g.committedConfiguration(); at != nil {
		return at.Servers
	}
	return nil
}

// IndexWith returns how far the group is, if this node leads it and is with the asker
// a majority of its voters: the asker was in that term, and then this node was. It
// returns 0 otherwise.
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

// TwoSuffice reports whether two replicas are a majority of the voters.
func TwoSuffice(voters []raft.ServerID, a, b raft.ServerID) bool {
	return len(voters)/2+1 <= 2 && a != b && slices.Contains(voters, a) && slices.Contains(voters, b)
}

package replica

import (
	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/shard/storage"
)

// Group returns the number of the Raft group.
func (g *Replica) Group() uint32 { return g.cfg.Group }

// Number returns the number of the replica: Config.Replica.
func (g *Replica) Number() uint64 { return g.cfg.Replica }

// Cold returns the store of the replica's cold rows, or nil.
func (g *Replica) Cold() *cold.Group { return g.cfg.Cold }

// Began reports whether the replica was opened with a list of the group's first voters
// (Config.Initial).
func (g *Replica) Began() bool { return g.first || len(g.cfg.Initial) > 0 }

// Log returns the replica's log. raft owns it: the caller may only read.
func (g *Replica) Log() *storage.Log { return g.log }

// Snapshots returns the replica's stored snapshots. raft owns them: the caller may only read.
func (g *Replica) Snapshots() *storage.Snapshots { return g.snaps }

// Done returns a channel that closes when raft has stopped.
func (g *Replica) Done() <-chan struct{} { return g.done }

// Leads reports whether this node is the group's Raft leader. Such a leader may not serve yet: see
// Ready.
func (g *Replica) Leads() bool { return g.raft.State() == raft.Leader }

// LeaderID returns the Raft id of the group's leader as known here, or "".
func (g *Replica) LeaderID() raft.ServerID {
	_, id := g.raft.LeaderWithID()
	return id
}

// Term returns raft's current term.
func (g *Replica) Term() uint64 { return g.raft.CurrentTerm() }

// ReadyTerm returns the term in which this node leads and has applied its barrier (see confirm),
// or 0.
func (g *Replica) ReadyTerm() uint64 { return g.readyTerm.Load() }

// LastIndex returns the index of the last entry in the log.
func (g *Replica) LastIndex() uint64 { return g.raft.LastIndex() }

// AppliedIndex returns raft's own applied index. The FSM may be slightly behind or ahead of it.
func (g *Replica) AppliedIndex() uint64 { return g.raft.AppliedIndex() }

// Snapshotter returns the part that takes, opens and receives the replica's snapshots.
func (g *Replica) Snapshotter() *Snapshotter { return &g.snapshotter }

// RisingMarks returns the marks of the newest applied entries, in the order of their indexes.
func (g *Replica) RisingMarks() []EntryMark { return g.entries.rising() }

// AnnounceCommit proposes a barrier and does not wait for it. The barrier tells followers that the
// entries before it are committed. Otherwise the followers of an idle leader learn this only after
// Timing.Commit.
func (g *Replica) AnnounceCommit() { g.raft.Barrier(EnqueueTimeoutMax) }

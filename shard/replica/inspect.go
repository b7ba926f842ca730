package replica

import (
	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/shard/storage"
)

// Group returns the number of the Raft group.
func (g *Replica) Group() uint32 { return g.cfg.Group }

// Number returns the number of the replica among those of its node.
func (g *Replica) Number() uint64 { return g.cfg.Replica }

// Cold returns where the cold rows of the replica are, nil for nowhere.
func (g *Replica) Cold() *cold.Group { return g.cfg.Cold }

// Began reports whether the replica was opened with the first voters of its group.
func (g *Replica) Began() bool { return g.first || len(g.cfg.Initial) > 0 }

// Log returns the replica's log, and Snapshots its stored snapshots. Both are raft's: the
// caller only reads.
func (g *Replica) Log() *storage.Log { return g.log }

// Snapshots returns the stored snapshots of the replica.
func (g *Replica) Snapshots() *storage.Snapshots { return g.snaps }

// Done is closed when raft has stopped.
func (g *Replica) Done() <-chan struct{} { return g.done }

// Leads reports whether raft leads the group here. It may not serve yet: see Ready.
func (g *Replica) Leads() bool { return g.raft.State() == raft.Leader }

// LeaderID returns the Raft id of the group's leader as raft knows it here, or "".
func (g *Replica) LeaderID() raft.ServerID {
	_, id := g.raft.LeaderWithID()
	return id
}

// Term returns raft's current term.
func (g *Replica) Term() uint64 { return g.raft.CurrentTerm() }

// ReadyTerm returns the term whose barrier was applied here while this node led it, 0 for
// none.
func (g *Replica) ReadyTerm() uint64 { return g.readyTerm.Load() }

// LastIndex returns the index of the last entry in the log.
func (g *Replica) LastIndex() uint64 { return g.raft.LastIndex() }

// AppliedIndex returns raft's own index of what is applied. The FSM may be a moment behind
// it or ahead.
func (g *Replica) AppliedIndex() uint64 { return g.raft.AppliedIndex() }

// WithoutRoom reports whether a snapshot is due and the disk has no room for it.
func (g *Replica) WithoutRoom() bool { return g.withoutRoom.Load() }

// RisingMarks returns the marks of the newest entries that were applied here, by index.
func (g *Replica) RisingMarks() []EntryMark { return g.entries.rising() }

// AnnounceCommit proposes a barrier and does not wait for it: with it, followers hear that
// the entries before it are committed, and of an idle leader only after Timing.Commit.
func (g *Replica) AnnounceCommit() { g.raft.Barrier(EnqueueTimeoutMax) }

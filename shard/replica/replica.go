// Package replica owns this node's replica of one Raft group: raft itself, and the layers
// between raft and the network (rpcFilter, raftTransport), between raft and its state machine
// (watchedFSM) and between raft and the disk (logCache over package storage). It also
// decides when the replica takes snapshots and campaigns.
//
// It never chooses the members, proves that a leader still leads, or interprets an entry; the
// node that owns the replica does.
//
// Invariant: whatever peers send, raft never acknowledges an entry that is not on disk here,
// never votes twice in a term, and never reverts an applied entry. A replica that can no
// longer guarantee this fails for good, or is opened again.
package replica

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/storage"
)

// EnqueueTimeoutMax bounds the wait for room in raft's queue, and with it how
// long close waits for calls of apply that are under way.
const EnqueueTimeoutMax = 5 * time.Second

// Replica is this node's replica of one Raft group, from open to close.
//
// Its goroutines: the filter of calls, watchLeadership, runSnapshots and WatchStalls,
// which startGroup starts and close stops and waits for; confirm, which
// watchLeadership starts for each term that this node leads.
type Replica struct {
	cfg    Config
	raft   *raft.Raft
	trans  raftTransport
	stores storage.Stores // closed with the group; nil for those of a caller of startGroup
	log    *storage.Log
	snaps  *storage.Snapshots
	stop   *storage.FailStop
	// openStored is snaps.Open, but in tests.
	openStored func(id string) (*raft.SnapshotMeta, io.ReadCloser, error)

	members committedMembers
	entries entryWindow
	first   bool // of the voters of a group that was made just now
	// Heirless is set while no other voter would lead the group in this node's
	// place, as far as its last shed has seen.
	Heirless atomic.Bool

	leadership chan bool // raft's NotifyCh: raft waits until it is read
	// readyTerm is the term whose barrier was applied here while this node
	// led it, 0 for none. Set by confirm, cleared by watchLeadership.
	readyTerm atomic.Uint64
	// barrierIndex is that of this term's barrier, set before readyTerm. What is
	// committed behind it reaches the FSM.
	barrierIndex atomic.Uint64
	// hangs is set while the log takes entries no more: see noteHang.
	hangs atomic.Bool
	// muted is set while no appends are sent for that reason.
	muted atomic.Bool
	// AskFirst is the index, among the other voters, of the one that a term proof asks first.
	AskFirst atomic.Uint32

	// gate is held for reading while something is handed to raft's queue and
	// for writing to set closing: behind it the queue only empties.
	gate    sync.RWMutex
	closing bool

	settings     sync.Mutex            // held by reload
	confirming   sync.Mutex            // held by confirm
	snapshotting sync.Mutex            // held by snapshot, until one to send is open, while raft installs a leader's, and by a repair; at the end by shutdown
	withoutRoom  atomic.Bool           // a snapshot is due and the disk has no room for it
	unreadable   atomic.Pointer[error] // why the last snapshot could not read what it needs; nil for none

	done       chan struct{} // closed when raft has stopped
	wg         sync.WaitGroup
	closeBegan atomic.Bool
	closed     chan struct{} // closed when the first close has returned
}

// refusedFuture answers a proposal that raft was never given.
type refusedFuture struct{ err error }

func (f refusedFuture) Error() error { return f.err }
func (refusedFuture) Index() uint64  { return 0 }
func (refusedFuture) Response() any  { return nil }

// Apply proposes an entry. It returns at once unless raft's queue is full; then it
// waits for room until EnqueueTimeoutMax. raft owns the entry from here on: the caller
// must not change it.
//
// The future's Error waits until the entry is applied here, or can never be
// told: errs.NeverProposed reports which. It may wait for
// ever if the group fails or is closed meanwhile; wait for failed as well.
func (g *Replica) Apply(entry []byte) raft.ApplyFuture {
	g.gate.RLock()
	defer g.gate.RUnlock()
	if err := g.refusal(); err != nil {
		return refusedFuture{err}
	}
	return g.raft.Apply(entry, EnqueueTimeoutMax)
}

// barrier returns its own index once every entry proposed here before it is
// applied. It waits for room in raft's queue until EnqueueTimeoutMax, then for its
// own turn.
func (g *Replica) barrier() (index uint64, err error) {
	g.gate.RLock()
	if err := g.refusal(); err != nil {
		g.gate.RUnlock()
		return 0, err
	}
	future := g.raft.Barrier(EnqueueTimeoutMax)
	g.gate.RUnlock()
	if err := g.await(future); err != nil {
		return 0, err
	}
	return future.(raft.IndexFuture).Index(), nil // every future of a log entry is one
}

// await waits for a future, which raft leaves without an answer if the group
// fails: then the goroutine that asks it stays behind until the process ends.
func (g *Replica) await(future raft.Future) error {
	answer := make(chan error, 1)
	go func() { answer <- future.Error() }()
	select {
	case err := <-answer:
		return err
	case <-g.stop.Failed():
		return g.stop.Failure()
	}
}

// refusal says why nothing may be proposed. The caller holds gate.
func (g *Replica) refusal() error {
	if g.closing {
		return errs.ErrGroupClosed
	}
	return g.stop.Failure()
}

// Failed is closed when the group has stopped for good.
func (g *Replica) Failed() <-chan struct{} { return g.stop.Failed() }

// Stuck returns why the state machine here applies no more entries, nil while it
// does.
func (g *Replica) Stuck() error {
	if g.cfg.Stuck == nil {
		return nil
	}
	return g.cfg.Stuck()
}

// Ready returns nil while this node leads the group and has applied every
// entry that it should, those of the terms before too, and errs.ErrNoLeader otherwise.
func (g *Replica) Ready() error {
	if err := g.stop.Failure(); err != nil {
		return fmt.Errorf("%w: %w", errs.ErrNoLeader, err)
	}
	if err := g.Stuck(); err != nil {
		return fmt.Errorf("%w: %w", errs.ErrNoLeader, err)
	}
	if g.raft.State() != raft.Leader || g.readyTerm.Load() != g.raft.CurrentTerm() {
		return errs.ErrNoLeader
	}
	return nil
}

// SoleVoter reports whether this node is the group's only voter.
func (g *Replica) SoleVoter() bool {
	future := g.raft.GetConfiguration()
	if future.Error() != nil {
		return false
	}
	voters, self := 0, false
	for _, s := range future.Configuration().Servers {
		if s.Suffrage == raft.Voter {
			voters++
			self = self || s.ID == g.ID()
		}
	}
	return voters == 1 && self
}

// Stats is what raft knows of a group.
type Stats struct {
	Role     string // leader, follower, candidate, shutdown
	Leader   string // node key, "" when not known
	Term     uint64
	Applied  uint64 // raft's own; the FSM may be a moment behind it or ahead
	Commit   uint64
	Snapshot uint64 // index of the newest snapshot, 0 for none
}

func (g *Replica) Stats() Stats {
	_, leader := g.raft.LeaderWithID()
	return Stats{
		Role:     strings.ToLower(g.raft.State().String()),
		Leader:   NodeOf(leader),
		Term:     g.raft.CurrentTerm(),
		Applied:  g.raft.AppliedIndex(),
		Commit:   g.raft.CommitIndex(),
		Snapshot: g.snaps.NewestIndex(),
	}
}

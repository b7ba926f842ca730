// Package replica owns this node's replica of one Raft group. It owns raft itself, and the layers
// around raft: rpcFilter and raftTransport to the network, watchedFSM to the state machine, and
// logCache over package storage to the disk. It decides when the replica takes snapshots and
// campaigns. Dirs owns the directories of all replicas of the node.
//
// It never chooses the members, proves that a leader still leads, or interprets an entry; the owner
// of the replica does.
//
// Invariant: whatever peers send, raft never acknowledges an entry that is not on disk here, never
// votes twice in a term, and never reverts an applied entry. A replica that can no longer guarantee
// this fails for good, or is opened again. A node never takes a replica with lost files for a new
// one, and never reuses the number of a replica that it deleted.
package replica

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/storage"
)

// EnqueueTimeoutMax bounds the wait for space in raft's queue. So it also bounds how long Close
// waits for running calls of Apply.
const EnqueueTimeoutMax = 5 * time.Second

// Replica is this node's replica of one Raft group, from Open to Close.
//
// Its goroutines are the rpcFilter, watchLeadership, Snapshotter.run and WatchStalls. startGroup
// starts them; Close stops them and waits. watchLeadership also starts confirm for each term that
// this node leads.
type Replica struct {
	cfg         Config
	raft        *raft.Raft
	trans       raftTransport
	stores      storage.Stores // closed by Close; nil if the caller of startGroup closes them
	log         *storage.Log
	snaps       *storage.Snapshots
	stop        *storage.FailStop
	settings    settings
	snapshotter Snapshotter
	Growth      Growth

	members committedMembers
	entries entryWindow
	first   bool // this replica is the first voter of a new group
	// Heirless is set if the last attempt to hand over the leadership found no voter that can
	// lead.
	Heirless atomic.Bool

	leadership chan bool // raft's NotifyCh; raft blocks while a value in it is unread
	// readyTerm is the term in which this node leads and has applied its barrier, or 0. confirm
	// sets it; watchLeadership clears it.
	readyTerm atomic.Uint64
	// barrierIndex is the index of the last barrier that was applied here: confirm raises it before
	// readyTerm, and Growth too. Committed entries after it reach the FSM, unless Growth awaits a barrier.
	barrierIndex atomic.Uint64
	// hangs is set while a write to the log hangs: see noteHang.
	hangs atomic.Bool
	// applying runs while the state machine applies entries. applyHangs is set while the state
	// machine hangs: see noteHang.
	applying   storage.StallGauge
	applyHangs atomic.Bool
	// muted is set while this leader sends no appends, because its disk or state machine hangs.
	muted atomic.Bool
	// AskFirst is the position, in the list of other voters, of the voter that a term proof asks
	// first.
	AskFirst atomic.Uint32

	gate gate

	confirming sync.Mutex // held by confirm

	done       chan struct{} // closed once raft has stopped
	wg         sync.WaitGroup
	ends       atomic.Bool // set by EndWaits
	closeBegan atomic.Bool
	closed     chan struct{} // closed at the end of shutdown, possibly after Close has returned
}

// gate is held for reading while a request enters raft's queue. Once it is closing, no request
// enters the queue.
type gate struct {
	sync.RWMutex
	closing bool
}

// close waits until running calls of Apply have put their entries into raft's queue, and then
// refuses new entries.
func (g *gate) close() {
	g.Lock()
	g.closing = true
	g.Unlock()
}

// refusedFuture is the future of a proposal that never reached raft.
type refusedFuture struct{ err error }

func (f refusedFuture) Error() error { return f.err }
func (refusedFuture) Index() uint64  { return 0 }
func (refusedFuture) Response() any  { return nil }

// Apply proposes an entry. It returns at once unless raft's queue is full; then it waits for
// space, up to EnqueueTimeoutMax. raft owns the entry after the call: the caller must not change
// it.
//
// The future's Error blocks until the entry is applied here, or returns an error.
// errs.NeverProposed reports whether such an error promises that no log ever has the entry. If the
// group fails or closes meanwhile, Error may block for ever, so wait for Failed as well.
func (g *Replica) Apply(entry []byte) raft.ApplyFuture {
	g.gate.RLock()
	defer g.gate.RUnlock()
	if err := g.refusal(); err != nil {
		return refusedFuture{err}
	}
	return g.raft.Apply(entry, EnqueueTimeoutMax)
}

// barrier proposes a raft barrier, blocks until all entries that were proposed here earlier are
// applied, and returns the barrier's index. The wait for space in raft's queue is bounded by
// EnqueueTimeoutMax.
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
	return future.(raft.IndexFuture).Index(), nil // every future of a log entry is an IndexFuture
}

// await waits for a future. If the group fails, raft may never answer the future. Then await
// returns the failure, and its goroutine stays until the process ends.
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

// refusal returns why entries must not be proposed, or nil. The caller holds gate.
func (g *Replica) refusal() error {
	if g.gate.closing {
		return errs.ErrGroupClosed
	}
	return g.stop.Failure()
}

// Failed returns a channel that closes when the group has stopped for good.
func (g *Replica) Failed() <-chan struct{} { return g.stop.Failed() }

// Stuck returns why the state machine cannot apply further entries, or nil if it can.
func (g *Replica) Stuck() error { return g.cfg.stuck() }

// Ready returns nil while this node leads the group, has applied all committed entries of earlier
// terms, and can apply more. Otherwise its error matches errs.ErrNoLeader. The leader of an unborn shard is
// not ready.
func (g *Replica) Ready() error {
	if err := g.stop.Failure(); err != nil {
		return fmt.Errorf("%w: %w", errs.ErrNoLeader, err)
	}
	if err := g.Stuck(); err != nil {
		return fmt.Errorf("%w: %w", errs.ErrNoLeader, err)
	}
	if !g.Growth.Elected() {
		return errs.ErrNoLeader
	}
	if g.Growth.Unborn() {
		return fmt.Errorf("%w: %w", errs.ErrNoLeader, raftfsm.ErrUnborn)
	}
	return nil
}

// SoleVoter reports whether this node is the group's only voter.
func (g *Replica) SoleVoter() bool {
	return slices.Equal(g.Voters(), []raft.ServerID{g.ID()})
}

// Stats is raft's view of a group.
type Stats struct {
	Role     string // leader, follower, candidate, shutdown
	Leader   string // node key; "" if unknown
	Term     uint64
	Applied  uint64 // raft's applied index; the FSM may be slightly behind or ahead
	Commit   uint64
	Snapshot uint64 // index of the newest snapshot; 0 for none
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

// ID returns the Raft id of this node's replica.
func (g *Replica) ID() raft.ServerID { return g.cfg.ID() }

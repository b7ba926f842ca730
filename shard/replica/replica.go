// Package replica owns this node's replica of one Raft group. That is raft itself, and the layers
// between raft and the network (rpcFilter, raftTransport), its state machine (watchedFSM) and the
// disk (logCache over package storage). It also decides when the replica takes snapshots and
// campaigns.
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

// EnqueueTimeoutMax bounds the wait for space in raft's queue. So it also bounds how long Close
// waits for running calls of Apply.
const EnqueueTimeoutMax = 5 * time.Second

// Replica is this node's replica of one Raft group, from Open to Close.
//
// Its goroutines are the rpcFilter, watchLeadership, runSnapshots and WatchStalls. startGroup
// starts them; Close stops them and waits. watchLeadership also starts confirm for each term that
// this node leads.
type Replica struct {
	cfg    Config
	raft   *raft.Raft
	trans  raftTransport
	stores storage.Stores // closed with the group; nil if the caller of startGroup owns them
	log    *storage.Log
	snaps  *storage.Snapshots
	stop   *storage.FailStop
	// openStored is snaps.Open, except in tests.
	openStored func(id string) (*raft.SnapshotMeta, io.ReadCloser, error)

	members committedMembers
	entries entryWindow
	first   bool // the first voter of a newly created group
	// Heirless is set if the last attempt to hand the group over found no other voter that would
	// lead it.
	Heirless atomic.Bool

	leadership chan bool // raft's NotifyCh; raft blocks until it is read
	// readyTerm is the term whose barrier was applied here while this node led it, or 0. confirm
	// sets it; watchLeadership clears it.
	readyTerm atomic.Uint64
	// barrierIndex is the index of this term's barrier, set before readyTerm. Committed entries
	// after it reach the FSM.
	barrierIndex atomic.Uint64
	// hangs is set while the log takes no entries: see noteHang.
	hangs atomic.Bool
	// applying runs while the state machine applies entries, and applyHangs is set while that
	// hangs: see noteHang.
	applying   storage.StallGauge
	applyHangs atomic.Bool
	// muted is set while this leader sends no appends, because its disk or state machine hangs.
	muted atomic.Bool
	// AskFirst is the index, among the other voters, of the voter that a term proof asks first.
	AskFirst atomic.Uint32

	// gate is held for reading while a request enters raft's queue, and for writing to set
	// closing. After that the queue only empties.
	gate    sync.RWMutex
	closing bool

	settings     sync.Mutex            // held by reload
	confirming   sync.Mutex            // held by confirm
	snapshotting sync.Mutex            // held while a snapshot is taken, opened for sending, installed from a leader, or written by a repair; and by shutdown at the end
	withoutRoom  atomic.Bool           // a snapshot is due and the disk lacks space for it
	unreadable   atomic.Pointer[error] // why the last snapshot could not read its data; nil for no failure

	done       chan struct{} // closed once raft has stopped
	wg         sync.WaitGroup
	ends       atomic.Bool // set by EndWaits
	closeBegan atomic.Bool
	closed     chan struct{} // closed at the end of shutdown, which may be after the first Close has returned
}

// refusedFuture is the answer to a proposal that never reached raft.
type refusedFuture struct{ err error }

func (f refusedFuture) Error() error { return f.err }
func (refusedFuture) Index() uint64  { return 0 }
func (refusedFuture) Response() any  { return nil }

// Apply proposes an entry. It returns at once unless raft's queue is full; then it waits for
// space, up to EnqueueTimeoutMax. raft owns the entry from here on: the caller must not change it.
//
// The future's Error blocks until the entry is applied here, or returns an error.
// errs.NeverProposed reports whether that error promises that no log ever has the entry. If the
// group fails or closes meanwhile, it may block for ever, so wait for Failed as well.
func (g *Replica) Apply(entry []byte) raft.ApplyFuture {
	g.gate.RLock()
	defer g.gate.RUnlock()
	if err := g.refusal(); err != nil {
		return refusedFuture{err}
	}
	return g.raft.Apply(entry, EnqueueTimeoutMax)
}

// barrier blocks until all entries that were proposed here earlier are applied, and returns its own
// index.
// The wait for space in raft's queue is bounded by EnqueueTimeoutMax.
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

// await waits for a future. If the group fails, raft never answers the future: await returns the
// failure, and its goroutine stays until the process ends.
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

// refusal returns why nothing may be proposed, or nil. The caller holds gate.
func (g *Replica) refusal() error {
	if g.closing {
		return errs.ErrGroupClosed
	}
	return g.stop.Failure()
}

// Failed returns a channel that closes when the group has stopped for good.
func (g *Replica) Failed() <-chan struct{} { return g.stop.Failed() }

// Stuck returns why the state machine applies no more entries, or nil.
func (g *Replica) Stuck() error {
	if g.cfg.Stuck == nil {
		return nil
	}
	return g.cfg.Stuck()
}

// Ready returns nil while this node leads the group and has applied all committed entries of
// earlier terms, and errs.ErrNoLeader otherwise.
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

// Stats is raft's view of a group.
type Stats struct {
	Role     string // leader, follower, candidate, shutdown
	Leader   string // node key; "" if unknown
	Term     uint64
	Applied  uint64 // raft's own; the FSM may be slightly behind or ahead
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

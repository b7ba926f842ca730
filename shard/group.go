package shard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
)

// errGroupClosed is returned for a proposal to a group that is closing.
var errGroupClosed = errors.New("the group is closing")

const (
	// enqueueTimeoutMax bounds the wait for room in raft's queue, and with it
	// how long close waits for calls of apply that are under way.
	enqueueTimeoutMax = 5 * time.Second
	// barrierRetryDelay is the pause before a barrier that raft refused for a
	// passing reason is tried again.
	barrierRetryDelay = 10 * time.Millisecond
	// snapshotRetryDelay is the pause before a snapshot that raft put off is
	// tried again.
	snapshotRetryDelay = time.Second
)

// group is this node's replica of one Raft group, from open to close.
//
// Its goroutines: watchLeadership, runSnapshots and watchStalls, which
// startGroup starts and close stops and waits for; confirm, which
// watchLeadership starts for each term that this node leads.
type group struct {
	cfg   groupConfig
	raft  *raft.Raft
	trans raftTransport
	bolt  *boltFile
	log   *checkedLog
	snaps *snapStore
	stop  *failStop

	leadership chan bool // raft's NotifyCh: raft waits until it is read
	// readyTerm is the term whose barrier was applied here while this node
	// led it, 0 for none. Set by confirm, cleared by watchLeadership.
	readyTerm atomic.Uint64

	// gate is held for reading while something is handed to raft's queue and
	// for writing to set closing: behind it the queue only empties.
	gate    sync.RWMutex
	closing bool

	snapshotting sync.Mutex // held by snapshot

	done    chan struct{} // closed when raft has stopped
	wg      sync.WaitGroup
	closed  chan struct{} // closed when the first close has returned
	closeMu sync.Mutex
}

// refusedFuture answers a proposal that raft was never given.
type refusedFuture struct{ err error }

func (f refusedFuture) Error() error { return f.err }
func (refusedFuture) Index() uint64  { return 0 }
func (refusedFuture) Response() any  { return nil }

// apply proposes an entry and returns at once unless raft's queue is full, and
// then after timeout (at most enqueueTimeoutMax). The entry belongs to raft
// from here on and must not be changed.
//
// The future's Error waits until the entry is applied here, or can never be
// told: neverProposed says whether its outcome is certain. It may wait for
// ever if the group fails or is closed meanwhile; wait for failed as well.
func (g *group) apply(entry []byte, timeout time.Duration) raft.ApplyFuture {
	g.gate.RLock()
	defer g.gate.RUnlock()
	if err := g.refusal(); err != nil {
		return refusedFuture{err}
	}
	return g.raft.Apply(entry, boundedEnqueue(timeout))
}

// barrier returns once every entry proposed here before it is applied. It
// waits for room in raft's queue until timeout, and then for its own turn.
func (g *group) barrier(timeout time.Duration) error {
	g.gate.RLock()
	if err := g.refusal(); err != nil {
		g.gate.RUnlock()
		return err
	}
	future := g.raft.Barrier(boundedEnqueue(timeout))
	g.gate.RUnlock()
	return g.await(future)
}

// await waits for a future, which raft leaves without an answer if the group
// fails: then the goroutine that asks it stays behind until the process ends.
func (g *group) await(future raft.Future) error {
	answer := make(chan error, 1)
	go func() { answer <- future.Error() }()
	select {
	case err := <-answer:
		return err
	case <-g.stop.failed:
		return g.stop.failure()
	}
}

// boundedEnqueue keeps 0, which raft takes for no bound, out of raft's sight.
func boundedEnqueue(timeout time.Duration) time.Duration {
	return min(max(timeout, time.Nanosecond), enqueueTimeoutMax)
}

// refusal says why nothing may be proposed. The caller holds gate.
func (g *group) refusal() error {
	if g.closing {
		return errGroupClosed
	}
	return g.stop.failure()
}

// neverProposed reports whether err, from apply's future, promises that the
// entry is in no log and never will be. Any other error leaves it open.
func neverProposed(err error) bool {
	return errors.Is(err, errGroupClosed) || errors.Is(err, raft.ErrNotLeader) ||
		errors.Is(err, raft.ErrEnqueueTimeout) || errors.Is(err, raft.ErrLeadershipTransferInProgress)
}

// failed is closed when the group has stopped for good.
func (g *group) failed() <-chan struct{} { return g.stop.failed }

// ready returns nil while this node leads the group and has applied every
// entry of the terms before, and ErrNoLeader otherwise.
func (g *group) ready() error {
	if err := g.stop.failure(); err != nil {
		return fmt.Errorf("%w: %w", ErrNoLeader, err)
	}
	if g.raft.State() != raft.Leader || g.readyTerm.Load() != g.raft.CurrentTerm() {
		return ErrNoLeader
	}
	return nil
}

// soleVoter reports whether this node is the group's only voter.
func (g *group) soleVoter() bool {
	future := g.raft.GetConfiguration()
	if future.Error() != nil {
		return false
	}
	voters, self := 0, false
	for _, s := range future.Configuration().Servers {
		if s.Suffrage == raft.Voter {
			voters++
			self = self || s.ID == raft.ServerID(g.cfg.NodeID)
		}
	}
	return voters == 1 && self
}

// groupStats is what raft knows of a group.
type groupStats struct {
	Role     string // leader, follower, candidate, shutdown
	Leader   string // node id, "" when not known
	Term     uint64
	Applied  uint64 // raft's own; the FSM may be a moment behind it or ahead
	Commit   uint64
	Snapshot uint64 // index of the newest snapshot, 0 for none
}

func (g *group) stats() groupStats {
	_, leader := g.raft.LeaderWithID()
	return groupStats{
		Role:     strings.ToLower(g.raft.State().String()),
		Leader:   string(leader),
		Term:     g.raft.CurrentTerm(),
		Applied:  g.raft.AppliedIndex(),
		Commit:   g.raft.CommitIndex(),
		Snapshot: g.snaps.newestIndex.Load(),
	}
}

// watchLeadership follows raft's changes of leadership, so that raft never
// waits for anybody to hear of them.
func (g *group) watchLeadership() {
	for {
		select {
		case leader := <-g.leadership:
			g.readyTerm.Store(0)
			if leader {
				g.wg.Go(g.confirm)
			}
		case <-g.done:
			return
		}
	}
}

// confirm makes this node ready for the term that it leads: entries of earlier
// terms may be committed and not applied here, and a barrier comes after them.
func (g *group) confirm() {
	term := g.raft.CurrentTerm()
	for {
		err := g.barrier(enqueueTimeoutMax)
		if g.raft.State() != raft.Leader || g.raft.CurrentTerm() != term {
			return // another term's confirm is told of it
		}
		if err == nil {
			g.readyTerm.Store(term)
			return
		}
		if errors.Is(err, errGroupClosed) || g.stop.failure() != nil {
			return
		}
		select {
		case <-time.After(barrierRetryDelay):
		case <-g.done:
			return
		}
	}
}

// campaign makes the only voter of a group leader at once. raft has no call
// for it, but lets a follower look at its clock when its heartbeat timeout is
// made shorter, and one that has heard of no leader then stands for election.
func (g *group) campaign() error {
	conf := g.raft.ReloadableConfig()
	conf.HeartbeatTimeout--
	if err := g.raft.ReloadConfig(conf); err != nil {
		return fmt.Errorf("cannot stand for election: %w", err)
	}
	return nil
}

// snapshot writes a snapshot of what is applied and cuts the log before it.
// raft may put it off, with an error, while the configuration changes.
func (g *group) snapshot() error {
	g.snapshotting.Lock()
	defer g.snapshotting.Unlock()
	bytes, entries := g.log.bytes.Load(), g.log.entries.Load()
	if err := g.setTrailing(bytes, entries); err != nil {
		return err
	}
	err := g.raft.Snapshot().Error()
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot take a snapshot: %w", err)
	}
	g.log.bytes.Add(-bytes)
	g.log.entries.Add(-entries)
	return nil
}

// setTrailing makes the next snapshot leave about SnapshotBytes of entries in
// the log, judged by the size of those since the last one.
func (g *group) setTrailing(bytes, entries int64) error {
	trailing := int64(trailingEntriesMax)
	if bytes > 0 && entries > 0 {
		trailing = g.cfg.SnapshotBytes / max(1, bytes/entries)
	}
	conf := g.raft.ReloadableConfig()
	conf.TrailingLogs = uint64(min(max(trailing, trailingEntriesMin), trailingEntriesMax))
	if err := g.raft.ReloadConfig(conf); err != nil {
		return fmt.Errorf("cannot set the entries to keep: %w", err)
	}
	return nil
}

// runSnapshots takes a snapshot whenever the log since the last one has grown
// to SnapshotBytes.
func (g *group) runSnapshots() {
	for {
		select {
		case <-g.log.due:
		case <-g.done:
			return
		}
		for g.log.bytes.Load() >= g.cfg.SnapshotBytes && g.stop.failure() == nil {
			err := g.snapshot()
			if err == nil {
				continue
			}
			g.cfg.Logger.Info("a snapshot was put off", "group", g.cfg.Group, "err", err)
			select {
			case <-time.After(snapshotRetryDelay):
			case <-g.done:
				return
			}
		}
	}
}

// worthSnapshot reports whether replaying the log since the last snapshot
// would take longer than a restart should.
func (g *group) worthSnapshot() bool {
	return g.log.bytes.Load() >= g.cfg.SnapshotBytes/4
}

// close stops the group: what was proposed before is answered, a snapshot is
// taken if asked for and worth it, raft and then its stores are closed. It
// waits for everything, but not past ctx: then it returns ctx's error, with
// the rest stopping behind it. Further calls wait for the first.
func (g *group) close(ctx context.Context, snapshot bool) error {
	g.closeMu.Lock()
	defer g.closeMu.Unlock()
	select {
	case <-g.closed:
		return nil
	default:
	}
	defer close(g.closed)
	g.gate.Lock()
	g.closing = true
	g.gate.Unlock()
	var errs []error
	if g.stop.failure() == nil {
		errs = append(errs, g.settle(ctx, snapshot))
	}
	return errors.Join(append(errs, g.shutdown(ctx))...)
}

// settle lets raft answer what is in its queue. raft forgets what is there
// when it is shut down, and whoever waits for it would wait for ever.
func (g *group) settle(ctx context.Context, snapshot bool) error {
	return within(ctx, func() error {
		// Its answer does not matter: raft's queue is first in, first out.
		_ = g.await(g.raft.Barrier(enqueueTimeoutMax))
		if snapshot && g.worthSnapshot() {
			return g.snapshot()
		}
		return nil
	})
}

// shutdown stops raft, then what stands around it, then closes the stores.
func (g *group) shutdown(ctx context.Context) error {
	return within(ctx, func() error {
		stopped := g.raft.Shutdown()
		// Now, not after: raft waits for its calls to peers, which end with
		// their connections.
		g.trans.CloseStreams()
		g.stop.disarm()
		errs := []error{g.trans.Close(), stopped.Error()}
		close(g.done)
		g.wg.Wait()
		if g.bolt != nil {
			errs = append(errs, g.bolt.close())
		}
		return errors.Join(errs...)
	})
}

// within runs f and returns its error, or ctx's when that comes first.
func within(ctx context.Context, f func() error) error {
	result := make(chan error, 1)
	go func() { result <- f() }()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("cannot close the group in time: %w", ctx.Err())
	}
}

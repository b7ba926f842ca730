package replica

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/shard/errs"
)

// closeShare is the share of the close timeout that a last snapshot may use. The rest of the time
// is for stopping raft.
const closeShare = 0.75

// Close stops the replica. It waits until pending proposals are answered, takes a snapshot if
// snapshot is true and Snapshotter.worthwhile agrees, and closes raft and the stores. If ctx ends
// before all this is done, Close returns ctx's error, and the work continues in the background.
// Later calls wait for the end of that work.
//
// Close interrupts running reads, writes and restores of snapshots, so that a large snapshot does
// not delay it. It does so after its last snapshot if it takes one, and otherwise at once. It also
// ends a write that waits for disk space or file descriptors. If it ended such a write, or a
// leader's snapshot is being installed, Close takes no last snapshot.
//
// If the group applies nothing any more, for example because the followers' disks are full, Close
// does not wait for the pending proposals. Their outcome is then unknown. The replica fails with
// errs.ErrGroupClosed, so that no caller waits for ever (see Failed).
func (g *Replica) Close(ctx context.Context, snapshot bool) error {
	if g.closeBegan.Swap(true) {
		return Within(ctx, func() error { <-g.closed; return nil })
	}
	g.EndWaits()
	all := []error{Within(ctx, func() error { g.gate.close(); return nil })}
	failed := g.stop.Failure()
	installs := g.trans.filter.barred.Load()
	if !snapshot || installs {
		g.interrupt()
	}
	if failed == nil && !installs {
		all = append(all, g.settle(ctx, snapshot))
	}
	g.interrupt()
	all = append(all, g.shutdown(ctx))
	return errors.Join(append(all, g.stop.Untold())...)
}

// EndWaits makes writes of the log and of votes fail instead of waiting for disk space or file
// descriptors. It also ends current waits. Such a failure stops the replica with
// errs.ErrGroupClosed. The caller may still wait for its proposals, and must then call Close.
func (g *Replica) EndWaits() { g.ends.Store(true) }

// interrupt ends the reads and writes of snapshots. An interrupted restore fails the group, but
// Config.Fatal is not called for that.
func (g *Replica) interrupt() {
	g.stop.Disarm()
	g.stop.Interrupt()
}

// AwaitAnswers runs drain, which must return once all proposed entries have their answers. If the
// replica applies nothing for Timing.soon, AwaitAnswers returns false without an error. If ctx
// ends, it returns ctx's error. In both cases drain continues, at most until the group fails.
func (g *Replica) AwaitAnswers(ctx context.Context, drain func()) (all bool, err error) {
	answered := make(chan struct{})
	go func() { drain(); close(answered) }()
	for {
		before := g.raft.AppliedIndex()
		select {
		case <-answered:
			return true, nil
		case <-ctx.Done():
			return false, fmt.Errorf("cannot close in time: %w", ctx.Err())
		case <-time.After(g.cfg.Timing.soon()):
		}
		if g.raft.AppliedIndex() == before {
			return false, nil
		}
	}
}

// settle waits until raft has answered the requests in its queue, because raft's shutdown drops
// them. Then it takes the last snapshot, if Close requested one.
func (g *Replica) settle(ctx context.Context, snapshot bool) error {
	// Any answer to the barrier shows that the earlier requests are answered, because raft's queue
	// is first in, first out.
	all, err := g.AwaitAnswers(ctx, func() { _ = g.await(g.raft.Barrier(EnqueueTimeoutMax)) })
	if !all || !snapshot || !g.snapshotter.worthwhile() || g.stop.Usable() != nil {
		return err
	}
	limited := ctx
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, time.Duration(closeShare*float64(time.Until(deadline))))
		defer cancel()
	}
	// Ignore the error: the log still has all entries, and a fatal error has failed the group.
	if Within(limited, func() error { g.snapshotter.Note(g.snapshotter.Take()); return nil }) != nil {
		g.cfg.Logger.Info("a snapshot was cut short: the next start replays more of the log", "group", g.cfg.Group)
	}
	return nil
}

// shutdown stops raft, then the transport and the goroutines, then closes the stores.
func (g *Replica) shutdown(ctx context.Context) error {
	return Within(ctx, func() error {
		defer close(g.closed)
		stopped := g.raft.Shutdown()
		// Close the streams before raft stops. raft waits for its calls to peers, which end only
		// when their connections close.
		g.trans.CloseStreams()
		all := []error{g.trans.Close(), stopped.Error()}
		_ = g.stop.Fail(errs.ErrGroupClosed) // wakes callers whose requests were still in raft's queue
		close(g.done)
		g.wg.Wait()
		// A repair may be writing a snapshot. After shutdown the caller may delete the directory,
		// or open the replica again.
		_ = g.snapshotter.running.Acquire(context.Background(), 1)
		defer g.snapshotter.running.Release(1)
		if g.stores != nil {
			all = append(all, g.stores.Close())
		}
		return errors.Join(all...)
	})
}

// Closed reports whether raft has stopped.
func (g *Replica) Closed() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// Within runs f and returns its error. If ctx ends before f returns, Within returns ctx's error,
// and f continues.
func Within(ctx context.Context, f func() error) error {
	result := make(chan error, 1)
	go func() { result <- f() }()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("cannot close in time: %w", ctx.Err())
	}
}

// Hold delays Close until release is called, as a running call of Apply does.
func (g *Replica) Hold() (release func()) {
	g.gate.RLock()
	return g.gate.RUnlock
}

// Closing reports whether Close was called.
func (g *Replica) Closing() bool { return g.closeBegan.Load() }

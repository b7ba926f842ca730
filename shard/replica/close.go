package replica

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/shard/errs"
)

// closeShare is the share of the close timeout that a last snapshot may use. The rest is for
// stopping raft.
const closeShare = 0.75

// Close stops the group. It waits until pending proposals are answered, takes a snapshot if wanted
// and worthwhile, and closes raft and the stores. If ctx ends first, it returns ctx's error, and
// the rest stops in the background. Later calls wait for the end of that.
//
// Close interrupts snapshots that are being read, written or restored, at once or after the last
// snapshot. So their size does not delay it. It also ends a write that waits for disk or file
// descriptors; then it takes no last snapshot. Nor does it if a leader's snapshot is being installed.
//
// If nothing is applied any more, for example because the followers' disks are full, Close does not
// wait for the pending proposals. Their outcome is unknown, and the group fails with
// errs.ErrGroupClosed, so that no caller waits for ever (see Failed).
func (g *Replica) Close(ctx context.Context, snapshot bool) error {
	if g.closeBegan.Swap(true) {
		return Within(ctx, func() error { <-g.closed; return nil })
	}
	g.EndWaits()
	all := []error{Within(ctx, g.closeGate)}
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

// EndWaits makes writes of the log and of votes fail instead of waiting for disk or file
// descriptors. That includes the writes that wait now. The group then fails with
// errs.ErrGroupClosed and must be closed. The caller closes the group next; meanwhile it can wait
// for proposals.
func (g *Replica) EndWaits() { g.ends.Store(true) }

// interrupt ends the reads and writes of snapshots. An interrupted restore fails the group, but
// from here on only Close learns of that.
func (g *Replica) interrupt() {
	g.stop.Disarm()
	g.stop.Interrupt()
}

// closeGate waits until the proposals on their way have entered raft's queue, and then refuses new
// ones.
func (g *Replica) closeGate() error {
	g.gate.Lock()
	g.closing = true
	g.gate.Unlock()
	return nil
}

// AwaitAnswers waits until answered is closed, because the entries in flight have their answers. It
// gives up, without an error, once the replica has applied nothing for as long as awaitSoon waits. If
// ctx ends first, it returns ctx's error.
func (g *Replica) AwaitAnswers(ctx context.Context, answered <-chan struct{}) (all bool, err error) {
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

// settle waits until raft has answered the requests in its queue, because raft's shutdown drops them.
func (g *Replica) settle(ctx context.Context, snapshot bool) error {
	answered := make(chan struct{})
	go func() {
		// The result does not matter: raft's queue is first in, first out.
		_ = g.await(g.raft.Barrier(EnqueueTimeoutMax))
		close(answered)
	}()
	all, err := g.AwaitAnswers(ctx, answered)
	if !all || !snapshot || !g.worthSnapshot() || g.stop.Usable() != nil {
		return err
	}
	limited := ctx
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, time.Duration(closeShare*float64(time.Until(deadline))))
		defer cancel()
	}
	// This error does not matter either: the log has everything, and a fatal error has failed the
	// group.
	if Within(limited, func() error { g.NoteSnapshot(g.TakeSnapshot()); return nil }) != nil {
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
		_ = g.stop.Fail(errs.ErrGroupClosed) // for those who wait for a request that was still in raft's queue
		close(g.done)
		g.wg.Wait()
		// A repair may be writing a snapshot. After shutdown the caller may delete the directory,
		// or open the replica again.
		g.snapshotting.Lock()
		defer g.snapshotting.Unlock()
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

// Within runs f and returns its error, or ctx's if that comes first.
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

// Hold delays Close until release is called. A proposal on its way into raft's queue does the
// same.
func (g *Replica) Hold() (release func()) {
	g.gate.RLock()
	return g.gate.RUnlock
}

// Closing reports whether Close was called.
func (g *Replica) Closing() bool { return g.closeBegan.Load() }

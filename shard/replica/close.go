package replica

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/shard/errs"
)

// closeShare is the part of the time to close that a snapshot may take: the rest stops raft.
const closeShare = 0.75

// Close stops the group: what was proposed before is answered, a snapshot is
// taken if asked for and worth it, raft and then its stores are closed. It
// waits for everything, but not past ctx: then it returns ctx's error, with
// the rest stopping behind it. Further calls wait for the first.
//
// Snapshots that are being read, written or restored end at once, or once that last one is
// taken: however large they are, they do not hold up the close. Nor does a write that waits for
// disk or file descriptors: its wait ends, and the last snapshot is not taken.
func (g *Replica) Close(ctx context.Context, snapshot bool) error {
	if g.closeBegan.Swap(true) {
		return Within(ctx, func() error { <-g.closed; return nil })
	}
	defer close(g.closed)
	all := []error{Within(ctx, g.closeGate)}
	failed := g.stop.Failure()
	if !snapshot {
		g.interrupt()
	}
	if failed == nil {
		all = append(all, g.settle(ctx, snapshot))
	}
	g.interrupt()
	all = append(all, g.shutdown(ctx))
	if err := g.stop.Failure(); failed == nil && !errors.Is(err, errs.ErrGroupClosed) {
		all = append(all, err)
	}
	return errors.Join(all...)
}

// interrupt ends the reads and writes of snapshots. A restore that it cuts short fails the group,
// of which only Close hears from here on.
func (g *Replica) interrupt() {
	g.stop.Disarm()
	g.stop.Interrupt()
}

// closeGate refuses proposals, once those are in raft's queue that are on their
// way there.
func (g *Replica) closeGate() error {
	g.gate.Lock()
	g.closing = true
	g.gate.Unlock()
	return nil
}

// settle waits until raft has answered the requests in its queue. At its shutdown raft drops
// the requests that are left, and their callers would wait for ever.
func (g *Replica) settle(ctx context.Context, snapshot bool) error {
	err := Within(ctx, func() error {
		// Its answer does not matter: raft's queue is first in, first out.
		_ = g.await(g.raft.Barrier(EnqueueTimeoutMax))
		return nil
	})
	if err != nil || !snapshot || !g.worthSnapshot() || g.stop.Usable() != nil {
		return err
	}
	limited := ctx
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, time.Duration(closeShare*float64(time.Until(deadline))))
		defer cancel()
	}
	// Its error does not matter either: the log has all, and what must end the process failed the group.
	if Within(limited, func() error { g.NoteSnapshot(g.TakeSnapshot()); return nil }) != nil {
		g.cfg.Logger.Info("a snapshot was cut short: the next start replays more of the log", "group", g.cfg.Group)
	}
	return nil
}

// shutdown stops raft, then what stands around it, then closes the stores.
func (g *Replica) shutdown(ctx context.Context) error {
	return Within(ctx, func() error {
		stopped := g.raft.Shutdown()
		// Now, not after: raft waits for its calls to peers, which end with
		// their connections.
		g.trans.CloseStreams()
		all := []error{g.trans.Close(), stopped.Error()}
		close(g.done)
		g.wg.Wait()
		// A repair may be writing a snapshot. The caller may delete the directory, or open
		// the replica again.
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

// Within runs f and returns its error, or ctx's when that comes first.
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

// Hold delays Close until release is called, as a proposal does that is on its way into
// raft's queue.
func (g *Replica) Hold() (release func()) {
	g.gate.RLock()
	return g.gate.RUnlock
}

// Closing reports whether Close was called.
func (g *Replica) Closing() bool { return g.closeBegan.Load() }

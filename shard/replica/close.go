package replica

import (
	"context"
	"errors"
	"fmt"

	"github.com/countd/countd/raftfsm"
)

// Close stops the group: what was proposed before is answered, a snapshot is
// taken if asked for and worth it, raft and then its stores are closed. It
// waits for everything, but not past ctx: then it returns ctx's error, with
// the rest stopping behind it. Further calls wait for the first.
func (g *Replica) Close(ctx context.Context, snapshot bool) error {
	if g.closeBegan.Swap(true) {
		return Within(ctx, func() error { <-g.closed; return nil })
	}
	defer close(g.closed)
	errs := []error{Within(ctx, g.closeGate)}
	if g.stop.Failure() == nil {
		errs = append(errs, g.settle(ctx, snapshot))
	}
	return errors.Join(append(errs, g.shutdown(ctx))...)
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
	return Within(ctx, func() error {
		// Its answer does not matter: raft's queue is first in, first out.
		_ = g.await(g.raft.Barrier(EnqueueTimeoutMax))
		if snapshot && g.worthSnapshot() {
			err := g.TakeSnapshot()
			if g.NoteSnapshot(err); !errors.Is(err, ErrNoRoom) && !errors.Is(err, raftfsm.ErrStuck) && !isDamage(err) {
				return err
			}
		}
		return nil
	})
}

// shutdown stops raft, then what stands around it, then closes the stores.
func (g *Replica) shutdown(ctx context.Context) error {
	return Within(ctx, func() error {
		stopped := g.raft.Shutdown()
		// Now, not after: raft waits for its calls to peers, which end with
		// their connections.
		g.trans.CloseStreams()
		g.stop.Disarm()
		errs := []error{g.trans.Close(), stopped.Error()}
		close(g.done)
		g.wg.Wait()
		// A repair may be writing a snapshot. The caller may delete the directory, or open
		// the replica again.
		g.snapshotting.Lock()
		defer g.snapshotting.Unlock()
		if g.stores != nil {
			errs = append(errs, g.stores.Close())
		}
		return errors.Join(errs...)
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

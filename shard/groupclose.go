package shard

import (
	"context"
	"errors"
	"fmt"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/raftfsm"
)

// close stops the group: what was proposed before is answered, a snapshot is
// taken if asked for and worth it, raft and then its stores are closed. It
// waits for everything, but not past ctx: then it returns ctx's error, with
// the rest stopping behind it. Further calls wait for the first.
func (g *group) close(ctx context.Context, snapshot bool) error {
	if g.closeBegan.Swap(true) {
		return within(ctx, func() error { <-g.closed; return nil })
	}
	defer close(g.closed)
	errs := []error{within(ctx, g.closeGate)}
	if g.stop.Failure() == nil {
		errs = append(errs, g.settle(ctx, snapshot))
	}
	return errors.Join(append(errs, g.shutdown(ctx))...)
}

// closeGate refuses proposals, once those are in raft's queue that are on their
// way there.
func (g *group) closeGate() error {
	g.gate.Lock()
	g.closing = true
	g.gate.Unlock()
	return nil
}

// settle lets raft answer what is in its queue. raft forgets what is there
// when it is shut down, and whoever waits for it would wait for ever.
func (g *group) settle(ctx context.Context, snapshot bool) error {
	return within(ctx, func() error {
		// Its answer does not matter: raft's queue is first in, first out.
		_ = g.await(g.raft.Barrier(enqueueTimeoutMax))
		if snapshot && g.worthSnapshot() {
			err := g.snapshot()
			if g.tellRoom(err); !errors.Is(err, errNoRoom) && !errors.Is(err, raftfsm.ErrStuck) && !errors.Is(err, cold.ErrDamaged) {
				return err
			}
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

// isClosed reports whether raft has stopped.
func (g *group) isClosed() bool {
	select {
	case <-g.done:
		return true
	default:
		return false
	}
}

// within runs f and returns its error, or ctx's when that comes first.
func within(ctx context.Context, f func() error) error {
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
func (g *group) Hold() (release func()) {
	g.gate.RLock()
	return g.gate.RUnlock
}

// Closing reports whether Close was called.
func (g *group) Closing() bool { return g.closeBegan.Load() }

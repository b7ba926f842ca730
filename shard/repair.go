package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
)

// This file repairs a replica whose cold rows cannot be read, with a snapshot of another replica.
// The node stores the snapshot beside the replica's own log and vote, as if raft had received it
// and had not yet deleted older entries. So the replica keeps its votes and acknowledged entries,
// and stays a voter. Copies of single blocks would not suffice: the other replicas have applied
// later entries, and no longer have the rows of this replica's state.

const (
	// repairAgainAfter is the shortest time from the start of a repair to the next repair of a
	// replica of the same group. A node runs one repair at a time, so that other replicas get their
	// turn.
	repairAgainAfter = 10 * time.Second
	// replayAgainAfter is the same for opening the parent of a replica that is stuck at Adopt. The parent serves.
	replayAgainAfter = time.Minute
)

// repairIfDamaged starts the repair of a damaged replica, unless another repair runs or the
// replica leads. A leading replica first hands its leadership over. runReconcile calls it.
func (n *replicas) repairIfDamaged(g *shardReplica, r *localReplica) {
	if err := r.fsm.Stuck(); err != nil {
		if r.group.Growth.Unborn() && n.helpAdopt(g, r) {
			return
		}
		r.damage.Note(err)
		if errors.Is(err, raftfsm.ErrTooLarge) { // its tables are parted in another way, and no more once it is open again
			n.running.Go(func() { _ = n.reopen(g, r) }) // as for mustReopen
			return
		}
	}
	if !r.damage.Found() || !n.mayRepair(r) || time.Now().Before(g.repairAt) || n.repairing.Swap(true) {
		return
	}
	g.repairAt = time.Now().Add(repairAgainAfter)
	n.running.Go(func() { // ends with the repair, or when the node or the replica is stopping
		defer n.repairing.Store(false)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() { // ends with the repair
			select {
			case <-n.stopping:
				cancel()
			case <-r.group.Done(): // the group's Close waits for the repair
				cancel()
			case <-ctx.Done():
			}
		}()
		if err := n.repair(ctx, g, r); err != nil && ctx.Err() == nil {
			r.unrepaired.Store(true)
			n.mux.Limited().Warn("a replica could not be repaired, and it is tried again", "group", g.number, "err", err)
		}
	})
}

// helpAdopt does what a replica needs that is stuck at Adopt. It returns false if only a repair helps.
func (n *replicas) helpAdopt(g *shardReplica, r *localReplica) bool {
	if r.stuckAt.IsZero() {
		r.stuckAt = time.Now()
	}
	l := r.growing(g)
	switch n.growth.Remedy(&l, r.stuckAt, r.unrepaired.Load() || n.router.alone() || r.group.SoleVoter()) {
	case leadership.RemedyRepair:
		return false
	case leadership.RemedyReopen:
		n.running.Go(func() { _ = n.reopen(g, r) }) // as for mustReopen
	case leadership.RemedyParent:
		if p, r := n.registry.shardOf(g.parent), n.registry.localOf(g.parent); r != nil && !time.Now().Before(g.replayAt) {
			g.replayAt = time.Now().Add(replayAgainAfter)
			n.running.Go(func() { _ = n.reopen(p, r) }) // as for mustReopen
		}
	}
	return true
}

// mayRepair reports whether a damaged replica can be repaired, and may be closed for that.
func (n *replicas) mayRepair(r *localReplica) bool {
	if r.damage.OfMemory() && r.group.SoleVoter() {
		return true // no other voter could lead
	}
	return !n.router.alone() && !r.group.Leads()
}

// repair replaces the state of a replica by a snapshot of another replica. If only data in memory is
// damaged, such as feeds or outboxes, repair just opens the replica again, because that restores them
// from the replica's own snapshot and log.
func (n *replicas) repair(ctx context.Context, g *shardReplica, r *localReplica) error {
	if r.damage.OfMemory() {
		return n.reopen(g, r)
	}
	err := fmt.Errorf("%w: no other node is to hold it", errs.ErrNoQuorum)
	for _, node := range n.router.readers(g) {
		if err = n.fetchSnapshot(ctx, g, r.group, node); err == nil {
			n.tiering.Repaired.Add(1)
			return n.reopen(g, r)
		}
	}
	return err
}

// fetchSnapshot stores another node's snapshot of a group as the newest snapshot of this node's
// replica, the argument own. If the snapshot does not arrive completely, nothing changes.
func (n *replicas) fetchSnapshot(ctx context.Context, g *shardReplica, own *replica.Replica, node string) error {
	return own.Snapshotter().Receive(ctx, node, g.kind, g.first, func(ctx context.Context, from uint64) (*rpc.Stream, error) {
		return n.calls.Stream(ctx, node, methodSnapshot, binary.AppendUvarint(binary.AppendUvarint(nil, uint64(g.number)), from))
	})
}

// reopen closes a replica and opens it again, from its newest snapshot and the log after the
// snapshot.
func (n *replicas) reopen(g *shardReplica, r *localReplica) error {
	n.cfg.Logger.Info("opening a replica again, from its newest snapshot and the log after it", "group", g.number)
	if !n.closeReplica(g, r) {
		return nil
	}
	n.registry.changing.Lock()
	g.closing.Store(nil)
	err := n.openAgain(g, r.group.Number())
	n.registry.changing.Unlock()
	if err != nil && !n.lacks(err) {
		n.fatal(fmt.Errorf("cannot open the replica of group %d: %w", g.number, err))
	}
	return err
}

// serveSnapshot answers methodSnapshot.
func (n *replicas) serveSnapshot(ctx context.Context, request []byte, send func([]byte) error) error {
	q := wire.Reader{Rest: request}
	number, from := uint32(q.UintTo(1<<32-1)), q.Uint()
	if err := q.End(); err != nil {
		return err
	}
	r := n.registry.localOf(number)
	if r == nil {
		return fmt.Errorf("%w: group %d is not here", errs.ErrNoLeader, number)
	}
	if r.damage.Found() {
		return fmt.Errorf("%w: this replica is damaged too", errs.ErrNoQuorum)
	}
	return r.group.Snapshotter().Send(ctx, from, send)
}

package shard

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
)

// This file gives a replica whose cold rows cannot be read those of another: a whole
// snapshot, put beside the replica's own log and vote as one that raft was sent and
// had no time to cut the log behind. What the replica has promised it keeps, so it is a
// voter all the while; a wiped one could not be. Rows of single blocks would not do: a
// replica that cannot apply an entry stands still, the others do not, and none of them
// has the rows of that moment any more.

const (
	// repairAgainAfter is how long after a repair began, of which a node has one at a
	// time, the same replica may have its next: others have their turn meanwhile.
	repairAgainAfter = 10 * time.Second
	// repairSilenceMax bounds the wait for the next piece of a snapshot. The first
	// comes once the other node has written the snapshot.
	repairSilenceMax = 2 * time.Minute
	// repairPieceBytes is what a snapshot travels in: little beside streamWindowBytes.
	repairPieceBytes = 256 << 10
)

// repairIfDamaged begins to repair a replica that needs it, unless it leads, when it is
// to be handed over first, or another is being repaired. runReconcile calls it.
func (n *Node) repairIfDamaged(g *shardReplica, r *localReplica) {
	if err := r.fsm.Stuck(); err != nil {
		r.damage.Note(err)
	}
	if !r.damage.Found() || !n.mayRepair(r) || time.Now().Before(r.repairAt) || n.repairing.Swap(true) {
		return
	}
	r.repairAt = time.Now().Add(repairAgainAfter)
	n.running.Go(func() { // ends with the repair, or once the node or the replica is stopping
		defer n.repairing.Store(false)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		go func() { // ends with the repair
			select {
			case <-n.stopping:
				cancel()
			case <-r.group.Done(): // whoever closes it waits
				cancel()
			case <-ctx.Done():
			}
		}()
		if err := n.repair(ctx, g, r); err != nil && ctx.Err() == nil {
			n.mux.Limited().Warn("a replica could not be repaired, and it is tried again", "group", g.number, "err", err)
		}
	})
}

// mayRepair reports whether a replica that is damaged may be away for a moment, and can be
// repaired.
func (n *Node) mayRepair(r *localReplica) bool {
	if r.damage.OfBodies() && r.group.SoleVoter() {
		return true // it has them in its snapshot and log, and nobody to hand over to
	}
	return !n.router.alone() && !r.group.Leads()
}

// repair replaces what a replica holds by what another has. Feeds and outboxes need none:
// those on disk are of one life of the replica, and it has all of them in its own snapshot
// and log.
func (n *Node) repair(ctx context.Context, g *shardReplica, r *localReplica) error {
	if r.damage.OfBodies() {
		return n.reopen(g, r)
	}
	err := fmt.Errorf("%w: no other node is to hold it", ErrNoQuorum)
	for _, node := range n.router.readers(g) {
		if err = n.fetchSnapshot(ctx, g, r.group, node); err == nil {
			n.tiering.Repaired.Add(1)
			return n.reopen(g, r)
		}
	}
	return err
}

// fetchSnapshot makes another node's snapshot of a group the newest of the replica here.
// It reads it whole, and leaves everything as it was if it is not.
func (n *Node) fetchSnapshot(ctx context.Context, g *shardReplica, own *replica.Replica, node string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return own.Receive(node, g.kind, g.of(), func(from uint64) (*raft.SnapshotMeta, io.ReadCloser, error) {
		request := binary.AppendUvarint(binary.AppendUvarint(nil, uint64(g.number)), from)
		silence := time.AfterFunc(repairSilenceMax, cancel)
		stream, err := n.calls.Stream(ctx, node, methodSnapshot, request)
		if err != nil {
			silence.Stop()
			return nil, nil, fmt.Errorf("cannot ask %s for a snapshot: %w", node, err)
		}
		meta, err := readSnapshotMeta(stream)
		if err != nil {
			heard{stream, silence}.Close()
			return nil, nil, fmt.Errorf("cannot read the snapshot of %s: %w", node, err)
		}
		return meta, heard{stream, silence}, nil
	})
}

// heard reads a stream, and puts off what a timer does each time that something comes.
type heard struct {
	stream  *rpc.Stream
	silence *time.Timer
}

func (h heard) Read(p []byte) (int, error) {
	n, err := h.stream.Read(p)
	if n > 0 {
		h.silence.Reset(repairSilenceMax)
	}
	return n, err
}

func (h heard) Close() error {
	h.silence.Stop()
	h.stream.Close()
	return nil
}

func readSnapshotMeta(stream *rpc.Stream) (*raft.SnapshotMeta, error) {
	head, err := stream.Next()
	if err != nil {
		return nil, err
	}
	var meta raft.SnapshotMeta
	if err := json.Unmarshal(head, &meta); err != nil {
		return nil, fmt.Errorf("%w: %w", rpc.ErrBadAnswer, err)
	}
	if meta.Index == 0 || meta.Size < 0 || len(meta.Configuration.Servers) == 0 {
		return nil, fmt.Errorf("%w: a snapshot of entry %d, %d bytes and %d members",
			rpc.ErrBadAnswer, meta.Index, meta.Size, len(meta.Configuration.Servers))
	}
	return &meta, nil
}

// reopen opens a replica again, with its newest snapshot and the log behind that.
func (n *Node) reopen(g *shardReplica, r *localReplica) error {
	n.registry.changing.Lock()
	defer n.registry.changing.Unlock()
	if n.draining.Load() || g.replica.Load() != r {
		return nil // the next start finds the snapshot, or there is no replica any more
	}
	n.cfg.Logger.Info("opening a replica again, from its newest snapshot and the log after it", "group", g.number)
	g.replica.Store(nil)
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	err := r.close(ctx, false)
	if err == nil {
		err = n.openReplica(g, r.group.Number(), n.catalog.View())
	}
	if err != nil && !n.lacks(err) {
		n.fatal(fmt.Errorf("cannot open the replica of group %d: %w", g.number, err))
	}
	return err
}

// serveSnapshot sends another node a snapshot of a replica here that is of an entry or
// a later one: first what raft knows of it, as JSON, then raftfsm's stream with the cold
// rows in it.
func (n *Node) serveSnapshot(ctx context.Context, request []byte, send func([]byte) error) error {
	q := wire.Reader{Rest: request}
	number, from := uint32(q.UintTo(1<<32-1)), q.Uint()
	if err := q.End(); err != nil {
		return err
	}
	g := n.registry.shardOf(number)
	if g == nil || g.replica.Load() == nil {
		return fmt.Errorf("%w: group %d is not here", ErrNoLeader, number)
	}
	r := g.replica.Load()
	if r.damage.Found() {
		return fmt.Errorf("%w: this replica is damaged too", ErrNoQuorum)
	}
	meta, state, err := r.group.SnapshotFrom(ctx, from)
	if err != nil {
		return err
	}
	defer state.Close()
	head, err := json.Marshal(meta)
	if err == nil {
		err = send(head)
	}
	for err == nil {
		piece, n := make([]byte, repairPieceBytes), 0
		if n, err = io.ReadFull(state, piece); n > 0 {
			err = errors.Join(send(piece[:n]), err)
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

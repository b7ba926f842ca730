package replica

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// This file copies stored snapshots between replicas for repairs. raft uses its own transport for
// the snapshots that it sends.

const (
	// silenceMax bounds the wait for the next piece of a snapshot. It is long, because the first
	// piece comes only after the other node has written the snapshot.
	silenceMax = 2 * time.Minute
	// pieceBytes is the size of the pieces of a snapshot. It is small compared with the window of a
	// stream.
	pieceBytes = 256 << 10
)

// Send sends a stored snapshot whose log index is at least the argument index, in pieces. The first
// piece is raft's metadata as JSON. The following pieces are raftfsm's stream, which includes the
// cold rows.
func (s *Snapshotter) Send(ctx context.Context, index uint64, send func([]byte) error) error {
	meta, state, err := s.OpenFrom(ctx, index)
	if err != nil {
		return err
	}
	defer state.Close()
	head, err := json.Marshal(meta)
	if err == nil {
		err = send(head)
	}
	for err == nil {
		piece, n := make([]byte, pieceBytes), 0
		if n, err = io.ReadFull(state, piece); n > 0 {
			err = errors.Join(send(piece[:n]), err)
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil
	}
	return err
}

// Receive installs a snapshot of another replica as this replica's newest, and keeps this replica's
// log and vote. fetch asks node for a snapshot whose log index is at least the argument index; see
// Send. If Receive cannot read the whole snapshot, it changes nothing. After silenceMax without a
// piece of the snapshot, it gives up.
func (s *Snapshotter) Receive(ctx context.Context, node string, kind codec.Kind, route codec.Route, fetch func(ctx context.Context, index uint64) (*rpc.Stream, error)) error {
	if err := s.lock(ctx); err != nil { // keep this replica from beginning an older snapshot meanwhile
		return err
	}
	defer s.running.Release(1)
	index := s.stored.NewestIndex()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	state := heard{silence: time.AfterFunc(silenceMax, cancel)}
	defer state.silence.Stop()
	var err error
	if state.stream, err = fetch(ctx, index); err != nil {
		return fmt.Errorf("cannot ask %s for a snapshot: %w", node, err)
	}
	defer state.stream.Close()
	meta, err := parseMeta(state.stream)
	if err != nil {
		return fmt.Errorf("cannot read the snapshot of %s: %w", node, err)
	}
	if term := s.raft.CurrentTerm(); meta.Index < index || meta.Term > term {
		return fmt.Errorf("%w: %s has a snapshot of entry %d in term %d, this replica needs %d in %d at most",
			errs.ErrBehind, node, meta.Index, meta.Term, index, term)
	}
	if s.cfg.Room != nil {
		give, err := s.cfg.Room(uint64(meta.Size))
		if err != nil {
			return err
		}
		defer give()
	}
	sink, err := s.stored.Create(raft.SnapshotVersionMax, meta.Index, meta.Term, meta.Configuration, meta.ConfigurationIndex, s.trans)
	if err != nil {
		return err
	}
	facts, err := kinds.All.VisitSnapshot(io.TeeReader(state, sink), kind, route, raftfsm.SnapshotVisitor{})
	if err == nil && facts.Index > meta.Index {
		err = fmt.Errorf("%w: its state is of entry %d, it says %d", rpc.ErrBadAnswer, facts.Index, meta.Index)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot read the snapshot of %s: %w", node, err), sink.Cancel())
	}
	return sink.Close()
}

// heard reads a stream, and restarts the timer silence with each piece.
type heard struct {
	stream  *rpc.Stream
	silence *time.Timer
}

func (h heard) Read(p []byte) (int, error) {
	n, err := h.stream.Read(p)
	if n > 0 {
		h.silence.Reset(silenceMax)
	}
	return n, err
}

func parseMeta(stream *rpc.Stream) (*raft.SnapshotMeta, error) {
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

package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/countd/countd/client"
	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/replica"
)

// SnapshotCall is the name of the stream call that requests a snapshot of a shard from the leader of its
// group: a snapshotRequest as JSON → snapshotFacts as JSON, and then the snapshot in pieces.
const SnapshotCall = "admin.snapshot"

const (
	// snapshotPieceBytes is the size of a piece. It is small compared with the window of a stream, so that
	// a slow reader holds little memory of the leader.
	snapshotPieceBytes = 256 << 10
	// snapshotOpenMax bounds the leader's tries to take a snapshot, for example while the members of the
	// group change. Then the reader may try another node.
	snapshotOpenMax = 30 * time.Second
)

// snapshotWaits bounds the waits for the leader that sends a snapshot.
type snapshotWaits struct {
	// first is for the first piece. The leader reads the whole snapshot before, to check it.
	first time.Duration
	later time.Duration // for each later piece
}

// snapshotWaitsDefault suffices to check a shard of 360 GB at 100 MB/s.
var snapshotWaitsDefault = snapshotWaits{first: time.Hour, later: time.Minute}

type snapshotRequest struct {
	Group uint32 `json:"group"`
}

// snapshotFacts describes a snapshot of a shard.
type snapshotFacts struct {
	Bytes   int64  `json:"bytes"` // length of the stream
	Index   uint64 `json:"index"` // index of the last log entry in the snapshot
	Rows    uint64 `json:"rows"`
	Digest  string `json:"digest"`  // digest of the rows, 16 hex digits
	Modulus int    `json:"modulus"` // number of shards by which the ids of the shard were chosen
}

func factsOf(s *replica.Snapshot) snapshotFacts {
	return snapshotFacts{Bytes: s.Bytes, Index: s.Index, Rows: s.Rows, Digest: fmt.Sprintf("%016x", s.Digest), Modulus: int(s.Route.Modulus)}
}

// SendSnapshot answers SnapshotCall. It returns errs.ErrNoLeader if this node does not lead the group. It holds
// one piece in memory. It ends with ctx, so when the caller gives up or its deadline passes.
func (a *Cluster) SendSnapshot(ctx context.Context, request []byte, send func([]byte) error) error {
	var asked snapshotRequest
	if err := json.Unmarshal(request, &asked); err != nil {
		return fmt.Errorf("cannot read the request for a snapshot: %w", err)
	}
	n, err := a.cfg.Node()
	if err != nil {
		return err
	}
	s, err := openSnapshot(ctx, n, asked.Group)
	if err != nil {
		return err
	}
	defer s.Close()
	head, err := json.Marshal(factsOf(s))
	if err != nil {
		return err
	}
	if err := send(head); err != nil {
		return err
	}
	for left := s.Bytes; left > 0; {
		piece := make([]byte, min(left, snapshotPieceBytes)) // a sent piece must not change
		if _, err := io.ReadFull(s, piece); err != nil {
			return fmt.Errorf("cannot read the snapshot of group %d: %w", asked.Group, err)
		}
		if err := send(piece); err != nil {
			return err
		}
		left -= int64(len(piece))
	}
	return nil
}

// openSnapshot is shard.Node.OpenSnapshot within snapshotOpenMax.
func openSnapshot(ctx context.Context, n *shard.Node, group uint32) (*replica.Snapshot, error) {
	ctx, cancel := context.WithTimeout(ctx, snapshotOpenMax)
	defer cancel()
	return n.OpenSnapshot(ctx, group)
}

// of returns a snapshot with these facts.
func (f snapshotFacts) of(r io.ReadCloser) *clientadmin.Snapshot {
	return &clientadmin.Snapshot{ReadCloser: r, Bytes: f.Bytes, Index: f.Index, Rows: f.Rows, Digest: f.Digest, Modulus: f.Modulus}
}

// snapshot opens a snapshot of a shard through the leader of its group. The snapshot has everything that
// was acknowledged before the call. client.Retryable is true for the error if another try may succeed, for example with
// the next leader, also for an error of Read. A snapshot that ends early returns an error.
func (a *Cluster) snapshot(ctx context.Context, group uint32) (*clientadmin.Snapshot, error) {
	n, err := a.cfg.Node()
	if err != nil {
		return nil, retryable(ctx, err)
	}
	s, err := openSnapshot(ctx, n, group)
	if err == nil {
		return factsOf(s).of(&snapshotReader{ctx: ctx, from: s, left: s.Bytes, close: s.Close}), nil
	}
	leader := n.LeaderOf(group)
	if !errors.Is(err, errs.ErrNoLeader) || leader == "" {
		return nil, retryable(ctx, err)
	}
	return fetchSnapshot(ctx, n, leader, group, snapshotWaitsDefault)
}

// fetchSnapshot opens a snapshot of a shard on the node that leads its group.
func fetchSnapshot(ctx context.Context, n *shard.Node, leader string, group uint32, wait snapshotWaits) (*clientadmin.Snapshot, error) {
	request, err := json.Marshal(snapshotRequest{group})
	if err != nil {
		return nil, err
	}
	until, cancel := context.WithCancel(ctx)
	silence := time.AfterFunc(wait.first, cancel)
	stream, err := n.Stream(until, leader, SnapshotCall, request)
	if err != nil {
		cancel()
		return nil, retryable(ctx, err)
	}
	r := &snapshotReader{ctx: ctx, from: stream, silence: silence, wait: wait.later, close: func() error {
		silence.Stop()
		cancel()
		stream.Close()
		return nil
	}}
	head, err := stream.Next()
	silence.Stop()
	var facts snapshotFacts
	if err == nil {
		err = json.Unmarshal(head, &facts)
	}
	if err != nil {
		return nil, errors.Join(retryable(ctx, fmt.Errorf("cannot fetch a snapshot of group %d from the node %s: %w", group, leader, err)), r.Close())
	}
	r.left = facts.Bytes
	return facts.of(r), nil
}

// snapshotReader reads a snapshot until its last byte, or until ctx ends.
type snapshotReader struct {
	ctx     context.Context
	from    io.Reader
	left    int64       // bytes that were not read yet
	silence *time.Timer // ends a Read of another node's snapshot after wait; nil for a snapshot of this node
	wait    time.Duration
	close   func() error
}

func (r *snapshotReader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, err
	}
	if r.left == 0 {
		return 0, io.EOF
	}
	if r.silence != nil {
		r.silence.Reset(r.wait)
		defer r.silence.Stop()
	}
	n, err := r.from.Read(p[:min(int64(len(p)), r.left)])
	r.left -= int64(n)
	switch {
	case errors.Is(err, io.EOF) && r.left > 0:
		err = retryable(r.ctx, fmt.Errorf("the snapshot ends %d bytes early", r.left))
	case errors.Is(err, io.EOF): // the next Read returns it
		err = nil
	case err != nil:
		err = retryable(r.ctx, err)
	}
	return n, err
}

func (r *snapshotReader) Close() error { return r.close() }

// retryable makes client.Retryable true for an error after which another try may succeed. If ctx has ended, it
// returns the reason of that.
func retryable(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, shard.ErrNotBackedUp), errors.Is(err, errs.ErrUnknownKeyspace):
		return err
	}
	return fmt.Errorf("%w: %w", client.ErrNoAnswer, err)
}

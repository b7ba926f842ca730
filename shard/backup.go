package shard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/shard/rpc"
)

// ErrNotBackedUp is returned by OpenSnapshot for a group that no keyspace has:
// the catalog's own is made anew with a new cluster.
var ErrNotBackedUp = errors.New("only groups of keyspaces are backed up")

// Snapshot is a snapshot of one shard on its way out. It is the caller's, who
// closes it.
type Snapshot struct {
	io.ReadCloser       // of Bytes bytes: raftfsm's stream
	Bytes         int64 // of the stream
	raftfsm.SnapshotFacts
}

// LeaderOf returns the key of the node that leads a group, as far as this node
// knows, or "".
func (n *Node) LeaderOf(number uint32) string {
	if number == catalogGroup {
		return n.meta.leader()
	}
	if g := n.shardOf(number); g != nil {
		return g.leader()
	}
	return ""
}

// OpenSnapshot takes a snapshot of a shard that this node leads, between two
// entries, with all in it that was acknowledged before the call. It is one of
// the group's own snapshots, read back and checked whole before it is handed
// out. ErrNoLeader means that another node leads the group, ErrOverloaded that
// there was none by the end of ctx.
func (n *Node) OpenSnapshot(ctx context.Context, number uint32) (*Snapshot, error) {
	g := n.shardOf(number)
	if g == nil {
		return nil, ErrNotBackedUp
	}
	for {
		r, err := g.led()
		if err != nil {
			return nil, rpc.ErrLedBy(g.leader())
		}
		s, err := n.openProved(ctx, r.group, g.kind)
		if err == nil {
			return s, nil
		}
		// It is put off while the members change, may be superseded before it is
		// opened, and is worth nothing if the others cannot be asked.
		select {
		case <-time.After(retryPauseMax):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: no snapshot of group %d by the deadline: %w", ErrOverloaded, number, err)
		}
	}
}

// openProved takes a snapshot of a group that this node leads, and proves then that
// no later leader had acknowledged anything before.
func (n *Node) openProved(ctx context.Context, g *group, kind codec.Kind) (*Snapshot, error) {
	term := g.readyTerm.Load()
	s, err := g.openSnapshotWithin(ctx, kind)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	if err := n.proveTerm(ctx, g, term); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// openSnapshotWithin is openSnapshot, which cannot be cut short: one that comes
// too late is closed.
func (g *group) openSnapshotWithin(ctx context.Context, kind codec.Kind) (*Snapshot, error) {
	type outcome struct {
		snapshot *Snapshot
		err      error
	}
	opened := make(chan outcome, 1)
	go func() { // ends with the snapshot, or with the process of a failed group
		s, err := g.openSnapshot(kind)
		if err == nil && ctx.Err() != nil {
			s, err = nil, errors.Join(ctx.Err(), s.Close())
		}
		opened <- outcome{s, err}
	}()
	select {
	case o := <-opened:
		return o.snapshot, o.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (g *group) openSnapshot(kind codec.Kind) (*Snapshot, error) {
	if err := g.snapshot(); err != nil {
		return nil, err
	}
	if err := g.ready(); err != nil {
		return nil, err
	}
	metas, err := g.snaps.List()
	if err != nil {
		return nil, err
	}
	if len(metas) == 0 {
		return nil, errors.New("the group has no snapshot yet")
	}
	checked, _, err := g.openCarried(metas[0].ID)
	if err != nil {
		return nil, err
	}
	facts, err := raftfsm.VisitSnapshot(checked, kind, raftfsm.SnapshotVisitor{})
	if err := errors.Join(err, checked.Close()); err != nil {
		g.noteColdDamage(metas[0].Index, err)
		return nil, fmt.Errorf("cannot read the snapshot: %w", err)
	}
	state, bytes, err := g.openCarried(metas[0].ID)
	if err != nil {
		return nil, err
	}
	return &Snapshot{ReadCloser: state, Bytes: bytes, SnapshotFacts: facts}, nil
}

// openCarried opens a stored snapshot, of counters with its cold rows in it, and
// says how long that is.
func (g *group) openCarried(id string) (io.ReadCloser, int64, error) {
	meta, state, err := g.snaps.Open(id)
	if err != nil {
		return nil, 0, err
	}
	if g.cfg.Cold == nil {
		return state, meta.Size, nil
	}
	carried, err := raftfsm.CarryBlocks(state, g.cfg.Cold)
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("cannot read the snapshot: %w", err), state.Close())
	}
	return carriedFile{carried, state}, meta.Size + carried.Added(), nil
}

// carriedFile is a snapshot and the file that it is read from.
type carriedFile struct {
	*raftfsm.Carried
	file io.Closer
}

func (f carriedFile) Close() error {
	f.Carried.Close()
	return f.file.Close()
}

package replica

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// Snapshot is an open snapshot of one shard. The caller must close it.
type Snapshot struct {
	io.ReadCloser       // reader of Bytes bytes, as raftfsm writes them
	Bytes         int64 // length of the stream
	raftfsm.SnapshotFacts
}

// OpenSnapshot takes a snapshot, opens it, and checks all of it. ctx bounds only the wait for other
// snapshots. Reading may take minutes for a large shard; Replica.Close interrupts the reading.
func (g *Replica) OpenSnapshot(ctx context.Context, kind codec.Kind, route codec.Route) (*Snapshot, error) {
	sent, checked, err := g.openTaken(ctx)
	if err != nil {
		return nil, err
	}
	facts, err := kinds.All.VisitSnapshot(untilClosing{checked, g}, kind, route, raftfsm.SnapshotVisitor{})
	if err == nil && facts.Later {
		err = fmt.Errorf("%w: members of an entry behind the snapshot", errs.ErrBehind)
	}
	if c, is := checked.ReadCloser.(carriedFile); is {
		c.note(err) // VisitSnapshot finds damage that Read cannot; Read has noted the rest
	}
	if err = errors.Join(err, checked.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot read the snapshot: %w", err), sent.Close())
	}
	return &Snapshot{ReadCloser: sent, Bytes: sent.meta.Size, SnapshotFacts: facts}, nil
}

type untilClosing struct {
	io.Reader
	group *Replica
}

func (r untilClosing) Read(p []byte) (int, error) {
	if r.group.Closing() {
		return 0, errs.ErrGroupClosed
	}
	return r.Reader.Read(p)
}

// lockSnapshots acquires snapshotting, unless ctx ends first or the replica is closed. The
// directory of a closed replica may be deleted, or in use by another replica.
func (g *Replica) lockSnapshots(ctx context.Context) error {
	if err := g.snapshotting.Acquire(ctx, 1); err != nil {
		return err
	}
	if g.Closed() {
		g.snapshotting.Release(1)
		return errs.ErrGroupClosed
	}
	return nil
}

// openTaken takes a snapshot and opens it twice: the caller reads one reader to check the snapshot,
// and then sends the other.
//
// While openTaken opens both readers, it holds the lock snapshotting, so that no other snapshot
// removes the file, its cold rows or the view of its sets. HoldViews keeps the views from expiring.
// Once both readers are open, a later snapshot changes neither of them: an open file stays
// readable, CarryBlocks holds the cold rows, and members.ViewReader keeps the sets. So the check,
// which may take long, delays no snapshot.
//
// Before both are open, only a leader's snapshot or the removal of a damaged file can replace the
// sets. Then openTaken returns an error, and the caller tries again.
func (g *Replica) openTaken(ctx context.Context) (sent, checked *storedSnapshot, err error) {
	if err := g.lockSnapshots(ctx); err != nil {
		return nil, nil, err
	}
	defer g.snapshotting.Release(1)
	if g.cfg.Members != nil {
		release := g.cfg.Members.HoldViews()
		defer release()
	}
	if err := g.takeSnapshotLocked(); err != nil {
		return nil, nil, err
	}
	if err := g.Ready(); err != nil {
		return nil, nil, err
	}
	metas, err := g.snaps.List()
	if err != nil {
		return nil, nil, err
	}
	if len(metas) == 0 {
		return nil, nil, errors.New("the group has no snapshot yet")
	}
	if sent, err = g.openCarried(metas[0].ID); err != nil {
		return nil, nil, err
	}
	if checked, err = g.openCarried(metas[0].ID); err != nil {
		return nil, nil, errors.Join(err, sent.Close())
	}
	return sent, checked, nil
}

// storedSnapshot is an open stored snapshot. A snapshot of a shard of counters includes its cold
// rows and its sets of members.
type storedSnapshot struct {
	io.ReadCloser
	meta *raft.SnapshotMeta // meta.Size is the size of the stream
}

// openCarried opens a stored snapshot. If the caller does not hold snapshotting, a newer snapshot
// may replace this one meanwhile.
func (g *Replica) openCarried(id string) (*storedSnapshot, error) {
	meta, state, err := g.openStored(id)
	if err != nil {
		return nil, err
	}
	if g.cfg.Cold == nil && g.cfg.Members == nil {
		return &storedSnapshot{state, meta}, nil
	}
	c, err := g.carry(meta.ID, state)
	if err != nil {
		return nil, errors.Join(err, state.Close())
	}
	meta.Size += c.Added()
	return &storedSnapshot{carriedFile{c, state}, meta}, nil
}

// carry opens the cold rows and the sets of the stored snapshot with the given id; state is the
// snapshot's file. The cold rows have the log index of state. The sets have the same index, or a
// later index together with the outcomes of the entries in between. members.OpenView verifies that.
//
// raft holds no lock while it sends a snapshot: it opens the file before the transport calls carry.
// If two newer snapshots finish before carry returns, carry or a later read fails, because the cold
// rows of the old snapshot are removed. raft then tries again with the newest snapshot. In the end
// it succeeds, because writing and syncing two snapshots takes longer than reading one.
//
// An open part is never removed (see openTaken). So if the snapshot was still the newest when
// everything was open, an unreadable part is damaged. carry reports that damage for repair;
// otherwise the follower would get the same error for ever. If the snapshot was not the newest, a
// later snapshot may have removed the part, even a snapshot of the same log index.
func (g *Replica) carry(id string, state io.Reader) (*carried, error) {
	rows, err := counters.CarryBlocks(state, g.cfg.Cold, g.cfg.Members)
	c := &carried{rows, g, g.snaps.IsNewest(id)}
	if err != nil {
		c.note(err)
		return nil, fmt.Errorf("cannot read the snapshot: %w", err)
	}
	return c, nil
}

// carried is a snapshot with the data that carry opened.
type carried struct {
	*counters.Carried
	group  *Replica
	newest bool // the snapshot was still the newest after everything was opened
}

func (c *carried) Read(p []byte) (int, error) {
	n, err := c.Carried.Read(p)
	c.note(err)
	return n, err
}

// note reports damage to Config.ColdDamaged.
func (c *carried) note(err error) {
	if c.newest && isDamage(err) && c.group.cfg.ColdDamaged != nil {
		c.group.cfg.ColdDamaged(err)
	}
}

type carriedFile struct {
	*carried
	file io.Closer
}

func (f carriedFile) Close() error {
	f.carried.Close()
	return f.file.Close()
}

// SnapshotFrom opens the newest stored snapshot. If that snapshot's log index is less than the
// parameter index, SnapshotFrom takes a new snapshot first. As in openTaken, no other snapshot
// replaces this one before it is open. The sets may have a later log index than the snapshot's
// file; a replica can start from such a snapshot. ctx bounds only the wait for other snapshots.
func (g *Replica) SnapshotFrom(ctx context.Context, index uint64) (*raft.SnapshotMeta, io.ReadCloser, error) {
	if err := g.lockSnapshots(ctx); err != nil {
		return nil, nil, err
	}
	defer g.snapshotting.Release(1)
	if g.snaps.NewestIndex() < index || index == 0 {
		if err := g.takeSnapshotLocked(); err != nil {
			return nil, nil, err
		}
	}
	metas, err := g.snaps.List()
	if err != nil {
		return nil, nil, err
	}
	if len(metas) == 0 || metas[0].Index < index {
		return nil, nil, errs.ErrBehind
	}
	s, err := g.openCarried(metas[0].ID)
	if err != nil {
		return nil, nil, err
	}
	return s.meta, s, nil
}

// Receive installs a snapshot of another replica as this replica's newest, and keeps this replica's
// log and vote. fetch requests a snapshot from node whose log index is at least the argument index.
// If Receive cannot read the whole snapshot, it changes nothing. ctx bounds only the wait for other
// snapshots.
func (g *Replica) Receive(ctx context.Context, node string, kind codec.Kind, route codec.Route, fetch func(index uint64) (*raft.SnapshotMeta, io.ReadCloser, error)) error {
	if err := g.lockSnapshots(ctx); err != nil { // keep this replica from beginning an older snapshot meanwhile
		return err
	}
	defer g.snapshotting.Release(1)
	index := g.snaps.NewestIndex()
	meta, state, err := fetch(index)
	if err != nil {
		return err
	}
	defer state.Close()
	if term := g.raft.CurrentTerm(); meta.Index < index || meta.Term > term {
		return fmt.Errorf("%w: %s has a snapshot of entry %d in term %d, this replica needs %d in %d at most",
			errs.ErrBehind, node, meta.Index, meta.Term, index, term)
	}
	if g.cfg.Room != nil {
		give, err := g.cfg.Room(uint64(meta.Size))
		if err != nil {
			return err
		}
		defer give()
	}
	sink, err := g.snaps.Create(raft.SnapshotVersionMax, meta.Index, meta.Term, meta.Configuration, meta.ConfigurationIndex, g.trans)
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

// isDamage reports whether err means that cold rows or sets on this node's disk are damaged. They
// can be loaded from another replica.
func isDamage(err error) bool {
	return errors.Is(err, cold.ErrDamaged) || errors.Is(err, members.ErrDamaged)
}

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

// Snapshot is a snapshot of one shard that is ready to be sent. The caller must close it.
type Snapshot struct {
	io.ReadCloser       // of Bytes bytes, as raftfsm writes it
	Bytes         int64 // of the stream
	raftfsm.SnapshotFacts
}

// OpenSnapshot takes a snapshot, opens it, and checks all of it. ctx bounds only the wait for other
// snapshots. The rest takes as long as the disk needs, which is minutes for a large shard.
// Replica.Close interrupts it.
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
		c.note(err) // damage that only VisitSnapshot finds; Read has noted other damage
	}
	if err = errors.Join(err, checked.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot read the snapshot: %w", err), sent.Close())
	}
	return &Snapshot{ReadCloser: sent, Bytes: sent.meta.Size, SnapshotFacts: facts}, nil
}

// untilClosing is a reader that fails once the replica is closing.
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

// lockSnapshots locks snapshotting, unless ctx ends first or the replica is closed. The directory of a
// closed replica may be deleted, or belong to another one.
func (g *Replica) lockSnapshots(ctx context.Context) error {
	locked := make(chan struct{})
	go func() { // ends once the others unlock it: at most they write and open a snapshot
		g.snapshotting.Lock()
		select {
		case locked <- struct{}{}:
		case <-ctx.Done(): // the caller no longer waits
			g.snapshotting.Unlock()
		}
	}()
	select {
	case <-locked:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := ctx.Err()
	if err == nil && g.Closed() {
		err = errs.ErrGroupClosed
	}
	if err != nil {
		g.snapshotting.Unlock()
	}
	return err
}

// openTaken takes a snapshot and opens it twice: once to be sent, once to be checked first.
//
// Both readers show the moment of the snapshot, whatever snapshots follow. Until both are open,
// the snapshotting lock keeps out any other snapshot, taken or received. So the file, the cold
// rows that it names and the view of its sets exist, and HoldViews keeps the views from expiring.
// Afterwards neither reader needs what a later snapshot removes: an open file stays readable,
// CarryBlocks holds the cold rows, and members.ViewReader keeps its sets. The check may take long,
// but delays no snapshot.
//
// Only two things can still replace the sets: a snapshot from another leader, and the removal of a
// damaged file. In both cases openTaken returns an error, and the caller tries again.
func (g *Replica) openTaken(ctx context.Context) (sent, checked *storedSnapshot, err error) {
	if err := g.lockSnapshots(ctx); err != nil {
		return nil, nil, err
	}
	defer g.snapshotting.Unlock()
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
	meta *raft.SnapshotMeta // Size is the size of the stream
}

// openCarried opens a stored snapshot. If the caller does not hold snapshotting, a newer snapshot
// may replace it meanwhile.
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

// carry opens the cold rows and the sets that the stored snapshot id names; state is the snapshot's
// file. Either both are of the same entry as state, or the sets are of a later entry and include
// the outcomes of the entries in between. members.OpenView verifies that.
//
// raft holds no lock while it sends a snapshot: it opens and reads the file before it calls carry.
// If two newer snapshots finish before carry returns, carry fails, or a later read misses a
// generation. raft then tries again with the newest snapshot. That cannot go on for ever, because
// writing and syncing two snapshots takes longer than reading one.
//
// If the snapshot was the newest when everything was open, any part that cannot be read is damaged,
// because nothing removes what is open (see openTaken). carry reports that damage; otherwise the
// follower would get the same error for ever. If the snapshot was not the newest, a later snapshot
// may have removed the part. Even a snapshot of the same entry may do so, because cold rows change
// without an entry.
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
	newest bool // was still the newest after everything was opened
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

// carriedFile is a carried snapshot together with its file.
type carriedFile struct {
	*carried
	file io.Closer
}

func (f carriedFile) Close() error {
	f.carried.Close()
	return f.file.Close()
}

// SnapshotFrom opens the newest stored snapshot. If the newest is of an entry before index,
// SnapshotFrom takes a new snapshot first. No other snapshot replaces it before it is open, as in
// openTaken. Its sets may be of a later entry than the snapshot; a replica can start from such a
// snapshot. ctx bounds the wait until it may begin.
func (g *Replica) SnapshotFrom(ctx context.Context, index uint64) (*raft.SnapshotMeta, io.ReadCloser, error) {
	if err := g.lockSnapshots(ctx); err != nil {
		return nil, nil, err
	}
	defer g.snapshotting.Unlock()
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

// Receive installs a snapshot of another replica as the newest of this one, and keeps this
// replica's log and vote. fetch asks node for a snapshot of the entry at index, or of a later
// entry. If Receive cannot read all of it, it changes nothing. ctx bounds the wait for other snapshots.
func (g *Replica) Receive(ctx context.Context, node string, kind codec.Kind, route codec.Route, fetch func(index uint64) (*raft.SnapshotMeta, io.ReadCloser, error)) error {
	if err := g.lockSnapshots(ctx); err != nil { // keeps out this replica's own snapshots, which would be older
		return err
	}
	defer g.snapshotting.Unlock()
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

// isDamage reports whether err means that rows or members on disk cannot be read. Another replica
// has them.
func isDamage(err error) bool {
	return errors.Is(err, cold.ErrDamaged) || errors.Is(err, members.ErrDamaged)
}

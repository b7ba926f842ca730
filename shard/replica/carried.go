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
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// Snapshot is a snapshot of one shard on its way out. It is the caller's, who
// closes it.
type Snapshot struct {
	io.ReadCloser       // of Bytes bytes: raftfsm's stream
	Bytes         int64 // of the stream
	raftfsm.SnapshotFacts
}

// OpenSnapshot takes a snapshot, opens it, and checks it whole. ctx bounds the wait until it may
// begin. Then it takes as long as the disk does, for a large shard minutes, and Close ends it.
func (g *Replica) OpenSnapshot(ctx context.Context, kind codec.Kind, route codec.Route) (*Snapshot, error) {
	sent, checked, err := g.openTaken(ctx)
	if err != nil {
		return nil, err
	}
	facts, err := raftfsm.VisitSnapshot(untilClosing{checked, g}, kind, route, raftfsm.SnapshotVisitor{})
	if err == nil && facts.MembersLater {
		err = fmt.Errorf("%w: members of an entry behind the snapshot", errs.ErrBehind)
	}
	if c, is := checked.ReadCloser.(carriedFile); is {
		c.note(err) // of what was read and makes no sense; Read has noted the rest
	}
	if err = errors.Join(err, checked.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot read the snapshot: %w", err), sent.Close())
	}
	return &Snapshot{ReadCloser: sent, Bytes: sent.meta.Size, SnapshotFacts: facts}, nil
}

// untilClosing reads until the replica is closed.
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

// lockSnapshots locks snapshotting, unless ctx ends before. Nobody may open a snapshot of a
// replica that is closed.
func (g *Replica) lockSnapshots(ctx context.Context) error {
	locked := make(chan struct{})
	go func() { // ends once the others have unlocked it: they write and open a snapshot at most
		g.snapshotting.Lock()
		select {
		case locked <- struct{}{}:
		case <-ctx.Done(): // the caller leaves or has left
			g.snapshotting.Unlock()
		}
	}()
	select {
	case <-locked:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := ctx.Err()
	if err == nil && g.Closed() { // its directory may be deleted, or be another replica's
		err = errs.ErrGroupClosed
	}
	if err != nil {
		g.snapshotting.Unlock()
	}
	return err
}

// openTaken takes a snapshot and opens it twice: to be sent, and to be checked before.
//
// Both are of the moment of the snapshot, however often others are taken. From before the
// snapshot is taken until both are open, nobody takes or receives another (snapshotting), so
// its file, the cold rows that it names and the view of its sets are kept, and the views are
// held against the clock. From then on neither needs what a later snapshot removes: an open
// file stays readable, CarryBlocks holds the cold rows, and members.ViewReader keeps its sets.
// The check, which may take long, holds up no snapshot.
//
// Two things can still replace the sets: a snapshot that another leader sends, and the removal
// of a damaged file. Then the caller gets an error, and tries again.
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

// storedSnapshot is a stored snapshot on its way out, of counters with its cold rows and its
// sets of members in it.
type storedSnapshot struct {
	io.ReadCloser
	meta *raft.SnapshotMeta // its Size is that of the stream
}

// openCarried opens a stored snapshot. The caller holds snapshotting, or the snapshot may be
// replaced meanwhile.
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

// carry opens the cold rows and the sets that the stored snapshot id names, whose file is state.
// They are of the same entry as state, or the sets are of a later one and the outcomes since are
// with them: members.OpenView compares what the snapshot names.
//
// raft's own sends hold no lock. If two snapshots are finished from when raft opens the file,
// which reads it, until carry returns, carry fails, or a generation is missing later; raft tries
// again with the newest. That cannot go on: to write and sync two snapshots takes longer than to
// read one.
//
// What cannot be read of a snapshot that was the newest once all was open is damaged, however
// many have come since: nothing removes what is open (see openTaken). It is noted, or the
// follower would get the same error again and again. Before, a later snapshot may have removed it,
// also one of the same entry: cold rows change without an entry.
func (g *Replica) carry(id string, state io.Reader) (*carried, error) {
	rows, err := raftfsm.CarryBlocks(state, g.cfg.Cold, g.cfg.Members)
	c := &carried{rows, g, g.snaps.IsNewest(id)}
	if err != nil {
		c.note(err)
		return nil, fmt.Errorf("cannot read the snapshot: %w", err)
	}
	return c, nil
}

// carried is a snapshot with what carry opened.
type carried struct {
	*raftfsm.Carried
	group  *Replica
	newest bool // since before what is read now was opened
}

func (c *carried) Read(p []byte) (int, error) {
	n, err := c.Carried.Read(p)
	c.note(err)
	return n, err
}

// note reports damage.
func (c *carried) note(err error) {
	if c.newest && isDamage(err) && c.group.cfg.ColdDamaged != nil {
		c.group.cfg.ColdDamaged(err)
	}
}

// carriedFile is a snapshot and the file that it is read from.
type carriedFile struct {
	*carried
	file io.Closer
}

func (f carriedFile) Close() error {
	f.carried.Close()
	return f.file.Close()
}

// SnapshotFrom opens the newest snapshot that is stored, and takes one first if that is
// of an earlier entry. As in openTaken, no other replaces it before it is open. Its sets may be
// of a later entry, which a replica may start from. ctx bounds the wait until it may begin.
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

// Receive makes a snapshot of another replica the newest of this one, whose log and vote
// stay. fetch asks node for one that is of entry from or a later one. Receive reads it whole,
// and leaves everything as it was if it is not.
func (g *Replica) Receive(node string, kind codec.Kind, route codec.Route, fetch func(from uint64) (*raft.SnapshotMeta, io.ReadCloser, error)) error {
	g.snapshotting.Lock() // by none of its own, which would be of an earlier moment
	defer g.snapshotting.Unlock()
	if g.Closed() { // its directory may be deleted, and raft's store would make it again
		return errs.ErrGroupClosed
	}
	from := g.snaps.NewestIndex()
	meta, state, err := fetch(from)
	if err != nil {
		return err
	}
	defer state.Close()
	if term := g.raft.CurrentTerm(); meta.Index < from || meta.Term > term {
		return fmt.Errorf("%w: %s has a snapshot of entry %d in term %d, this replica needs %d in %d at most",
			errs.ErrBehind, node, meta.Index, meta.Term, from, term)
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
	facts, err := raftfsm.VisitSnapshot(io.TeeReader(state, sink), kind, route, raftfsm.SnapshotVisitor{})
	if err == nil && facts.Index > meta.Index {
		err = fmt.Errorf("%w: its state is of entry %d, it says %d", rpc.ErrBadAnswer, facts.Index, meta.Index)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot read the snapshot of %s: %w", node, err), sink.Cancel())
	}
	return sink.Close()
}

// isDamage reports whether err means that rows or members on disk cannot be read. Another
// replica has them.
func isDamage(err error) bool {
	return errors.Is(err, cold.ErrDamaged) || errors.Is(err, members.ErrDamaged)
}

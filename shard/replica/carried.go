package replica

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/hashicorp/raft"

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

// OpenSnapshot is openSnapshot, which cannot be cut short: one that comes
// too late is closed.
func (g *Replica) OpenSnapshot(ctx context.Context, kind codec.Kind) (*Snapshot, error) {
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

func (g *Replica) openSnapshot(kind codec.Kind) (*Snapshot, error) {
	if err := g.TakeSnapshot(); err != nil {
		return nil, err
	}
	if err := g.Ready(); err != nil {
		return nil, err
	}
	metas, err := g.snaps.List()
	if err != nil {
		return nil, err
	}
	if len(metas) == 0 {
		return nil, errors.New("the group has no snapshot yet")
	}
	// What is sent is opened first: if the sets of the snapshot's moment are there for the
	// check, which may take long, they were before.
	state, bytes, err := g.openCarried(metas[0].ID)
	if err != nil {
		return nil, err
	}
	facts, err := g.check(metas[0].ID, kind)
	if err != nil {
		g.NoteColdDamage(metas[0].Index, err)
		return nil, errors.Join(fmt.Errorf("cannot read the snapshot: %w", err), state.Close())
	}
	return &Snapshot{ReadCloser: state, Bytes: bytes, SnapshotFacts: facts}, nil
}

// check reads a whole stored snapshot as it would be sent.
func (g *Replica) check(id string, kind codec.Kind) (raftfsm.SnapshotFacts, error) {
	state, _, err := g.openCarried(id)
	if err != nil {
		return raftfsm.SnapshotFacts{}, err
	}
	facts, err := raftfsm.VisitSnapshot(state, kind, raftfsm.SnapshotVisitor{})
	if err == nil && facts.MembersLater {
		err = fmt.Errorf("%w: members of an entry behind the snapshot", errs.ErrBehind)
	}
	return facts, errors.Join(err, state.Close())
}

// openCarried opens a stored snapshot, of counters with its cold rows in it, and
// says how long that is.
func (g *Replica) openCarried(id string) (io.ReadCloser, int64, error) {
	meta, state, err := g.snaps.Open(id)
	if err != nil {
		return nil, 0, err
	}
	if g.cfg.Cold == nil && g.cfg.Members == nil {
		return state, meta.Size, nil
	}
	carried, err := raftfsm.CarryBlocks(state, g.cfg.Cold, g.cfg.Members)
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

// SnapshotFrom opens the newest snapshot that is stored, and takes one first if that is
// of an earlier entry.
func (g *Replica) SnapshotFrom(index uint64) (*raft.SnapshotMeta, io.ReadCloser, error) {
	if g.snaps.NewestIndex() < index || index == 0 {
		if err := g.TakeSnapshot(); err != nil {
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
	state, bytes, err := g.openCarried(metas[0].ID)
	if err != nil {
		return nil, nil, err
	}
	metas[0].Size = bytes
	return metas[0], state, nil
}

// NoteColdDamage reports that the cold rows of the snapshot of an index could not be read and
// sent, unless a later snapshot has replaced that one, and its rows, meanwhile.
func (g *Replica) NoteColdDamage(index uint64, err error) {
	if isDamage(err) && g.cfg.ColdDamaged != nil && g.snaps.NewestIndex() == index {
		g.cfg.ColdDamaged(err)
	}
}

// Receive makes a snapshot of another replica the newest of this one, whose log and vote
// stay. fetch asks node for one that is of entry from or a later one. Receive reads it whole,
// and leaves everything as it was if it is not.
func (g *Replica) Receive(node string, kind codec.Kind, fetch func(from uint64) (*raft.SnapshotMeta, io.ReadCloser, error)) error {
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
	facts, err := raftfsm.VisitSnapshot(io.TeeReader(state, sink), kind, raftfsm.SnapshotVisitor{})
	if err == nil && facts.Index > meta.Index {
		err = fmt.Errorf("%w: its state is of entry %d, it says %d", rpc.ErrBadAnswer, facts.Index, meta.Index)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("cannot read the snapshot of %s: %w", node, err), sink.Cancel())
	}
	return sink.Close()
}

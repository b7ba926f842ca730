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
)

// Snapshot is an open snapshot of one shard. The caller must close it.
type Snapshot struct {
	io.ReadCloser       // the snapshot's stream of Bytes bytes, in raftfsm's format
	Bytes         int64 // length of the stream
	raftfsm.SnapshotFacts
}

// Open takes a snapshot, opens it, and checks all of it. ctx bounds only the wait for other
// snapshots. Reading may take minutes for a large shard; Replica.Close interrupts the reading.
func (s *Snapshotter) Open(ctx context.Context, kind codec.Kind, route codec.Route) (*Snapshot, error) {
	sent, checked, err := s.openTaken(ctx)
	if err != nil {
		return nil, err
	}
	facts, err := kinds.All.VisitSnapshot(untilClosing{checked, s.closing}, kind, route, raftfsm.SnapshotVisitor{})
	if err == nil && facts.Later {
		err = fmt.Errorf("%w: members of an entry behind the snapshot", errs.ErrBehind)
	}
	if c, is := checked.ReadCloser.(carriedFile); is {
		c.note(err) // VisitSnapshot may find damage that Read did not note
	}
	if err = errors.Join(err, checked.Close()); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot read the snapshot: %w", err), sent.Close())
	}
	return &Snapshot{ReadCloser: sent, Bytes: sent.meta.Size, SnapshotFacts: facts}, nil
}

type untilClosing struct {
	io.Reader
	closing func() bool
}

func (r untilClosing) Read(p []byte) (int, error) {
	if r.closing() {
		return 0, errs.ErrGroupClosed
	}
	return r.Reader.Read(p)
}

// lock acquires s.running. It returns an error if ctx ends during the wait or the replica is
// closed. The directory of a closed replica may be deleted, or in use by another replica.
func (s *Snapshotter) lock(ctx context.Context) error {
	if err := s.running.Acquire(ctx, 1); err != nil {
		return err
	}
	select {
	case <-s.done:
		s.running.Release(1)
		return errs.ErrGroupClosed
	default:
		return nil
	}
}

// openTaken takes a snapshot and opens it twice: the caller reads one reader to check the snapshot,
// and then sends the other.
//
// While openTaken opens both readers, it holds s.running, so that no other snapshot removes the
// file, its cold rows or the view of its sets. HoldViews keeps the views from expiring. Once both
// readers are open, a later snapshot changes neither of them: an open file stays readable,
// CarryBlocks holds the cold rows, and members.ViewReader keeps the sets. So the check, which may
// take long, delays no snapshot.
//
// Before both are open, only a leader's snapshot or the removal of a damaged file can replace the
// sets. If one does, openTaken returns an error, and the caller tries again.
func (s *Snapshotter) openTaken(ctx context.Context) (sent, checked *storedSnapshot, err error) {
	if err := s.lock(ctx); err != nil {
		return nil, nil, err
	}
	defer s.running.Release(1)
	if s.cfg.Members != nil {
		release := s.cfg.Members.HoldViews()
		defer release()
	}
	if err := s.takeLocked(); err != nil {
		return nil, nil, err
	}
	if err := s.ready(); err != nil {
		return nil, nil, err
	}
	metas, err := s.stored.List()
	if err != nil {
		return nil, nil, err
	}
	if len(metas) == 0 {
		return nil, nil, errors.New("the group has no snapshot yet")
	}
	if sent, err = s.openCarried(metas[0].ID); err != nil {
		return nil, nil, err
	}
	if checked, err = s.openCarried(metas[0].ID); err != nil {
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

// openCarried opens a stored snapshot. If the caller does not hold s.running, a newer snapshot may
// replace this one meanwhile.
func (s *Snapshotter) openCarried(id string) (*storedSnapshot, error) {
	meta, state, err := s.openStored(id)
	if err != nil {
		return nil, err
	}
	if s.cfg.Cold == nil && s.cfg.Members == nil {
		return &storedSnapshot{state, meta}, nil
	}
	c, err := s.carry(meta.ID, state)
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
// rows of the old snapshot are removed. raft then tries again with the newest snapshot. A later try
// succeeds, because writing and syncing two snapshots takes longer than reading one.
//
// An open part of a snapshot is never removed (see openTaken). So if the snapshot was still the
// newest when everything was open, an unreadable part is damaged. carry reports that damage for
// repair; otherwise the follower would get the same error for ever. If the snapshot was not the
// newest, a later snapshot may have removed the part, even a snapshot of the same log index.
func (s *Snapshotter) carry(id string, state io.Reader) (*carried, error) {
	rows, err := counters.CarryBlocks(state, s.cfg.Cold, s.cfg.Members)
	c := &carried{rows, s.cfg.ColdDamaged, s.stored.IsNewest(id)}
	if err != nil {
		c.note(err)
		return nil, fmt.Errorf("cannot read the snapshot: %w", err)
	}
	return c, nil
}

// carried is a snapshot with the data that carry opened.
type carried struct {
	*counters.Carried
	damaged func(error) // Config.ColdDamaged
	newest  bool        // the snapshot was still the newest after everything was opened
}

func (c *carried) Read(p []byte) (int, error) {
	n, err := c.Carried.Read(p)
	c.note(err)
	return n, err
}

// note reports damage to Config.ColdDamaged.
func (c *carried) note(err error) {
	if c.newest && isDamage(err) && c.damaged != nil {
		c.damaged(err)
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

// OpenFrom opens the newest stored snapshot. If index is 0 or above that snapshot's log index,
// OpenFrom takes a new snapshot first. If index is 0 and a growth refuses a new one, the stored one
// suffices. As in openTaken, no other snapshot replaces this one before
// it is open. The sets may have a later log index than the snapshot's file; a replica can start
// from such a snapshot. ctx bounds only the wait for other snapshots.
func (s *Snapshotter) OpenFrom(ctx context.Context, index uint64) (*raft.SnapshotMeta, io.ReadCloser, error) {
	if err := s.lock(ctx); err != nil {
		return nil, nil, err
	}
	defer s.running.Release(1)
	if s.stored.NewestIndex() < index || index == 0 {
		err := s.takeLocked()
		if err != nil && (index > 0 || !errors.Is(err, raftfsm.ErrNotNow)) {
			return nil, nil, err
		}
	}
	metas, err := s.stored.List()
	if err != nil {
		return nil, nil, err
	}
	if len(metas) == 0 || metas[0].Index < index {
		return nil, nil, errs.ErrBehind
	}
	newest, err := s.openCarried(metas[0].ID)
	if err != nil {
		return nil, nil, err
	}
	return newest.meta, newest, nil
}

// isDamage reports whether err means that cold rows or sets on this node's disk are damaged. A
// repair can load them from another replica.
func isDamage(err error) bool {
	return errors.Is(err, cold.ErrDamaged) || errors.Is(err, members.ErrDamaged)
}

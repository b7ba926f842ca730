package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/semaphore"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/storage"
)

// snapshotRetryDelay is the pause before the retry of a deferred snapshot.
const snapshotRetryDelay = time.Second

// These bound the pause before the retry of a snapshot that only a growth makes due. Each retry doubles the pause,
// because the snapshot may be impossible for long.
const (
	growthRetryMax = time.Minute
	// growthSoonMax is the bound while the growth waits for the snapshot, and while a try only asks for disk space.
	growthSoonMax = 5 * time.Second
)

// Snapshotter takes the snapshots of one replica, opens them for other nodes, and receives those of
// other replicas. Its methods are safe for concurrent use.
type Snapshotter struct {
	cfg      *Config
	raft     *raft.Raft // set once raft has started
	settings *settings
	log      *storage.Log
	stored   *storage.Snapshots
	stop     *storage.FailStop
	trans    raft.Transport
	ready    func() error    // Replica.Ready
	closing  func() bool     // Replica.Closing
	done     <-chan struct{} // closed once raft has stopped
	// openStored is stored.Open, except in tests.
	openStored func(id string) (*raft.SnapshotMeta, io.ReadCloser, error)

	running     *semaphore.Weighted   // weight 1; held to take, open, install or repair a snapshot, and at the end of shutdown
	withoutRoom atomic.Bool           // a snapshot is due, but the disk lacks space for it
	cause       atomic.Pointer[error] // why the last snapshot could not read cold rows or sets, or was refused; raft's error contains only its text; nil for no failure
	grew        chan struct{}         // capacity 1; gets a token if growthDue may have become true
}

// Take writes a snapshot of the applied state, and then deletes older entries from the
// log. While the configuration changes, it returns raft's error. If the disk lacks space for it,
// Take returns ErrNoRoom. While the shard grows, it may return raftfsm.ErrNotNow.
func (s *Snapshotter) Take() error {
	_ = s.running.Acquire(context.Background(), 1)
	defer s.running.Release(1)
	return s.takeLocked()
}

// takeLocked is Take for a caller that holds s.running.
func (s *Snapshotter) takeLocked() error {
	if err := s.cfg.stuck(); err != nil {
		return err
	}
	if s.cfg.Room != nil {
		give, err := s.cfg.Room(s.Bytes())
		if err != nil {
			return err
		}
		defer give()
	}
	if err := s.adopts(); err != nil {
		return err
	}
	bytes, entries := s.log.SinceSnapshot()
	if err := s.setTrailing(bytes, entries); err != nil {
		return err
	}
	err := s.raft.Snapshot().Error()
	if cause := s.cause.Swap(nil); cause != nil {
		err = *cause
	}
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot take a snapshot: %w", err)
	}
	s.sweepCold()
	s.trimMembers()
	s.log.SetDue(s.dueBytes())
	s.log.Covered(bytes, entries)
	return nil
}

// noteUnreadable records that a snapshot could not read cold rows or sets.
func (s *Snapshotter) noteUnreadable(err error) {
	s.cause.Store(&err)
	if s.cfg.ColdDamaged != nil {
		s.cfg.ColdDamaged(err)
	}
}

// noteRefused records why the state machine takes no snapshot now.
func (s *Snapshotter) noteRefused(err error) { s.cause.Store(&err) }

// dueBytes returns by how many bytes the log must grow after a snapshot before the next snapshot is
// due. A snapshot leaves about the same number of bytes of older entries in the log. dueBytes is at
// least the size of a snapshot, so that writing snapshots costs at most as much as writing the log.
// So a follower also has enough time to restore a snapshot before the leader deletes the entries
// after that snapshot.
func (s *Snapshotter) dueBytes() int64 { return max(s.cfg.SnapshotBytes, s.stored.NewestBytes()) }

// Bytes estimates the next snapshot's size: the size of the last snapshot or
// Config.StateBytes, whichever is larger.
func (s *Snapshotter) Bytes() uint64 {
	bytes := uint64(s.stored.NewestBytes())
	if s.cfg.StateBytes != nil {
		bytes = max(bytes, s.cfg.StateBytes())
	}
	return bytes
}

// setTrailing makes the next snapshot leave about dueBytes of entries in the log. It assumes the
// average size of the entries since the last snapshot. The first snapshot after an Adopt leaves only entries
// after that one, so that a new member gets the snapshot, and not a log that it cannot apply.
func (s *Snapshotter) setTrailing(bytes, entries int64) error {
	trailing := int64(trailingEntriesDefault)
	if bytes > 0 && entries > 0 {
		trailing = s.dueBytes() / max(1, bytes/entries)
	}
	trailing = max(trailing, trailingEntriesMin)
	if s.firstOfPart() {
		trailing = min(trailing, max(1, int64(s.raft.LastIndex()-s.cfg.Machine.AdoptedAt())))
	}
	if err := s.settings.change(func(conf *raft.ReloadableConfig) { conf.TrailingLogs = uint64(trailing) }); err != nil {
		return fmt.Errorf("cannot set the entries to keep: %w", err)
	}
	return nil
}

// growthDue reports whether the shard has grown since the oldest stored snapshot, and a snapshot may contain
// that. So after a growth, a replica without writes also replaces each snapshot from before: the shard cannot
// grow again until then.
func (s *Snapshotter) growthDue() bool {
	m := s.cfg.Machine
	return m != nil && m.GrewAt() > s.stored.OldestIndex() && s.adopts() == nil
}

// adopts returns an error while the first snapshot must wait. It may begin only after Adopt, so that setTrailing knows
// Adopt, and after the next entry, because it must not truncate the log's last entry.
func (s *Snapshotter) adopts() error {
	m := s.cfg.Machine
	switch {
	case m == nil:
		return nil
	case m.Unborn():
		return raftfsm.ErrUnborn
	case s.firstOfPart() && s.raft.LastIndex() <= m.AdoptedAt():
		return errAdopts
	}
	return nil
}

var errAdopts = fmt.Errorf("%w: the shard has just adopted its part", raftfsm.ErrNotNow)

// due reports whether run takes a snapshot.
func (s *Snapshotter) due() bool {
	return (s.logSince() >= s.dueBytes() || s.growthDue()) && s.stop.Failure() == nil
}

// run takes a snapshot whenever the log since the last snapshot reaches dueBytes, and at once after
// the shard has grown.
func (s *Snapshotter) run() {
	s.log.SetDue(s.dueBytes())
	for {
		select {
		case <-s.log.SnapshotDue():
		case <-s.grew:
		case <-s.done:
			return
		}
		var pause retryPause
		for s.due() {
			leave, ok := s.cfg.Turns.wait(s.done)
			if !ok {
				return
			}
			if !s.due() { // somebody has taken one meanwhile
				leave()
				break
			}
			before := s.logSince()
			err := s.Take()
			leave()
			s.Note(err)
			if err == nil && s.logSince() < before {
				continue
			}
			// raft refused to take the snapshot now, or has applied nothing yet because no leader
			// announced a commit index.
			var due <-chan struct{}
			if s.logSince() >= s.dueBytes() {
				pause = retryPause{}
			} else {
				due = s.log.SnapshotDue()
			}
			select {
			case <-time.After(pause.after(err, s.firstOfPart())):
			case <-due:
			case <-s.done:
				return
			}
		}
	}
}

// firstOfPart reports whether the next snapshot is the first one of a part. The growth goes on once a majority has it.
func (s *Snapshotter) firstOfPart() bool {
	m := s.cfg.Machine
	return m != nil && m.AdoptedAt() > s.stored.NewestIndex()
}

// retryPause chooses the pauses between tries of a snapshot. Its zero value is for the first try.
type retryPause struct {
	last   time.Duration
	failed bool // the last try failed
}

// after returns the pause after a try. awaited means that somebody waits for the snapshot. After a success, the
// pauses begin anew. They grow while one success follows another: then the disk does not let go of old snapshots.
//
// The pauses must not end with a token of Snapshotter.grew. Growth.Begun sends one in each reconcile.
func (p *retryPause) after(err error, awaited bool) time.Duration {
	longest := growthRetryMax
	if awaited || errors.Is(err, ErrNoRoom) {
		longest = growthSoonMax
	}
	if p.last = min(2*p.last, longest); p.last == 0 || p.failed && err == nil {
		p.last = snapshotRetryDelay
	}
	p.failed = err != nil
	return p.last
}

// Note logs the error of a snapshot that will be retried. It logs a lack of disk space,
// which an operator must solve, only once. A growth may refuse snapshots for minutes, so its message is
// rate-limited.
func (s *Snapshotter) Note(err error) {
	without := errors.Is(err, ErrNoRoom)
	was := s.withoutRoom.Swap(without)
	switch {
	case without && !was:
		s.cfg.Mux.Limited().Warn("a snapshot is put off until the disk has room, and the log grows", "group", s.cfg.Group, "err", err)
	case errors.Is(err, raftfsm.ErrNotNow):
		s.cfg.Mux.Limited().Info("a snapshot waits, and the log grows", "group", s.cfg.Group, "err", err)
	case err != nil && !without:
		s.cfg.Logger.Info("deferred a snapshot", "group", s.cfg.Group, "err", err)
	}
}

// worthwhile reports whether a snapshot at the close shortens the next start noticeably.
func (s *Snapshotter) worthwhile() bool {
	return s.logSince() >= s.dueBytes()/4
}

// logSince returns the bytes of log since the last snapshot.
func (s *Snapshotter) logSince() int64 {
	bytes, _ := s.log.SinceSnapshot()
	return bytes
}

// WithoutRoom reports whether a snapshot is due but the disk lacks space for it.
func (s *Snapshotter) WithoutRoom() bool { return s.withoutRoom.Load() }

// sweepCold removes the cold rows that are used neither by the table nor by a stored snapshot.
func (s *Snapshotter) sweepCold() {
	if s.cfg.Cold == nil {
		return
	}
	if err := s.cfg.Cold.Sweep(s.stored.Names); err != nil {
		s.cfg.Mux.Limited().Warn("cold rows that nobody needs stay until the next snapshot", "group", s.cfg.Group, "err", err)
	}
}

// trimMembers removes outcomes of entries that the oldest stored snapshot covers.
func (s *Snapshotter) trimMembers() {
	oldest := s.stored.OldestIndex()
	if s.cfg.Members == nil || oldest == 0 {
		return
	}
	if err := s.cfg.Members.Trim(oldest); err != nil {
		s.cfg.Mux.Limited().Warn("outcomes of members that nobody needs stay until the next snapshot", "group", s.cfg.Group, "err", err)
	}
}

// ErrNoRoom is returned if the disk lacks space for a snapshot. An attempt would fail halfway, and
// until then occupy space that the log needs.
var ErrNoRoom = errors.New("the disk has no room for a snapshot")

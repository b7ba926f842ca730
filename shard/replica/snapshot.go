package replica

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
)

// snapshotRetryDelay is the pause before the retry of a deferred snapshot.
const snapshotRetryDelay = time.Second

// TakeSnapshot writes a snapshot of the applied state, and then deletes older entries from the
// log. While the configuration changes, it returns raft's error. If the disk lacks space for it,
// TakeSnapshot returns ErrNoRoom.
func (g *Replica) TakeSnapshot() error {
	_ = g.snapshotting.Acquire(context.Background(), 1)
	defer g.snapshotting.Release(1)
	return g.takeSnapshotLocked()
}

// takeSnapshotLocked is TakeSnapshot for a caller that holds snapshotting.
func (g *Replica) takeSnapshotLocked() error {
	if err := g.Stuck(); err != nil {
		return err
	}
	if g.cfg.Room != nil {
		give, err := g.cfg.Room(g.SnapshotBytes())
		if err != nil {
			return err
		}
		defer give()
	}
	bytes, entries := g.log.SinceSnapshot()
	if err := g.setTrailing(bytes, entries); err != nil {
		return err
	}
	err := g.raft.Snapshot().Error()
	if unreadable := g.unreadable.Swap(nil); unreadable != nil { // raft's error contains only the text of this one
		err = *unreadable
	}
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot take a snapshot: %w", err)
	}
	g.sweepCold()
	g.trimMembers()
	g.log.SetDue(g.dueBytes())
	g.log.Covered(bytes, entries)
	return nil
}

// noteUnreadable records that a snapshot could not read cold rows or sets.
func (g *Replica) noteUnreadable(err error) {
	g.unreadable.Store(&err)
	if g.cfg.ColdDamaged != nil {
		g.cfg.ColdDamaged(err)
	}
}

// dueBytes returns the bytes of log since the last snapshot at which the next snapshot is due.
// About as many bytes of older entries stay in the log. dueBytes is at least the size of a
// snapshot, so that writing snapshots costs at most as much as writing the log. It also gives a
// follower enough time to restore a snapshot before the leader deletes the entries after that
// snapshot.
func (g *Replica) dueBytes() int64 { return max(g.cfg.SnapshotBytes, g.snaps.NewestBytes()) }

// SnapshotBytes estimates the next snapshot's size: the size of the last snapshot or
// Config.StateBytes, whichever is larger.
func (g *Replica) SnapshotBytes() uint64 {
	bytes := uint64(g.snaps.NewestBytes())
	if g.cfg.StateBytes != nil {
		bytes = max(bytes, g.cfg.StateBytes())
	}
	return bytes
}

// setTrailing makes the next snapshot leave about dueBytes of entries in the log. It assumes the
// average size of the entries since the last snapshot.
func (g *Replica) setTrailing(bytes, entries int64) error {
	trailing := int64(trailingEntriesDefault)
	if bytes > 0 && entries > 0 {
		trailing = g.dueBytes() / max(1, bytes/entries)
	}
	trailing = max(trailing, trailingEntriesMin)
	if err := g.reload(func(conf *raft.ReloadableConfig) { conf.TrailingLogs = uint64(trailing) }); err != nil {
		return fmt.Errorf("cannot set the entries to keep: %w", err)
	}
	return nil
}

// runSnapshots takes a snapshot whenever the log since the last snapshot reaches dueBytes.
func (g *Replica) runSnapshots() {
	g.log.SetDue(g.dueBytes())
	for {
		select {
		case <-g.log.SnapshotDue():
		case <-g.done:
			return
		}
		for g.logSinceSnapshot() >= g.dueBytes() && g.stop.Failure() == nil {
			before := g.logSinceSnapshot()
			err := g.TakeSnapshot()
			g.NoteSnapshot(err)
			if err == nil && g.logSinceSnapshot() < before {
				continue
			}
			// raft refused to take the snapshot now, or has applied nothing yet because no leader
			// announced a commit index.
			select {
			case <-time.After(snapshotRetryDelay):
			case <-g.done:
				return
			}
		}
	}
}

// NoteSnapshot logs the error of a snapshot that will be retried. It logs a lack of disk space,
// which an operator must solve, only once.
func (g *Replica) NoteSnapshot(err error) {
	without := errors.Is(err, ErrNoRoom)
	was := g.withoutRoom.Swap(without)
	switch {
	case without && !was:
		g.cfg.Mux.Limited().Warn("a snapshot is put off until the disk has room, and the log grows", "group", g.cfg.Group, "err", err)
	case err != nil && !without:
		g.cfg.Logger.Info("deferred a snapshot", "group", g.cfg.Group, "err", err)
	}
}

// worthSnapshot reports whether a snapshot at the close shortens the next start noticeably.
func (g *Replica) worthSnapshot() bool {
	return g.logSinceSnapshot() >= g.dueBytes()/4
}

// logSinceSnapshot returns the bytes of log since the last snapshot.
func (g *Replica) logSinceSnapshot() int64 {
	bytes, _ := g.log.SinceSnapshot()
	return bytes
}

// sweepCold removes the cold rows that are used neither by the table nor by a stored snapshot.
func (g *Replica) sweepCold() {
	if g.cfg.Cold == nil {
		return
	}
	if err := g.cfg.Cold.Sweep(g.snaps.Names); err != nil {
		g.cfg.Mux.Limited().Warn("cold rows that nobody needs stay until the next snapshot", "group", g.cfg.Group, "err", err)
	}
}

// trimMembers removes outcomes of entries that the oldest stored snapshot covers.
func (g *Replica) trimMembers() {
	oldest := g.snaps.OldestIndex()
	if g.cfg.Members == nil || oldest == 0 {
		return
	}
	if err := g.cfg.Members.Trim(oldest); err != nil {
		g.cfg.Mux.Limited().Warn("outcomes of members that nobody needs stay until the next snapshot", "group", g.cfg.Group, "err", err)
	}
}

// ErrNoRoom is returned if the disk lacks space for a snapshot. An attempt would fail halfway, and
// until then occupy space that the log needs.
var ErrNoRoom = errors.New("the disk has no room for a snapshot")

package storage

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// Recover drops a log that the newest snapshot replaced. Otherwise it checks that the log continues
// that snapshot. It verifies and counts the entries after the snapshot, and checks that the stored
// term is not below theirs.
func Recover(log *Log, snaps *Snapshots, votes *Votes) error {
	metas, err := snaps.List()
	if err != nil {
		return err
	}
	var snapIndex, snapTerm uint64
	if len(metas) > 0 {
		snapIndex, snapTerm = metas[0].Index, metas[0].Term
		if err := dropSuperseded(log, snaps, metas[0]); err != nil {
			return err
		}
	}
	first, err := log.FirstIndex()
	if err != nil {
		return err
	}
	if first > snapIndex+1 {
		return log.fail(fmt.Errorf("%w: the log begins at entry %d but the newest snapshot ends at %d",
			ErrDamaged, first, snapIndex))
	}
	lastTerm, err := checkEntries(log, snapIndex+1, snapTerm)
	if err != nil {
		return err
	}
	term, err := votes.Term()
	if err == nil && term < lastTerm {
		err = log.fail(fmt.Errorf("%w: the stored term %d is below %d, the last entry's", ErrDamaged, term, lastTerm))
	}
	return err
}

// dropSuperseded deletes a log that the newest snapshot replaced. This happens if a leader sent
// the snapshot and this node crashed before raft deleted the log. The log's entries may never have
// been committed.
func dropSuperseded(log *Log, snaps *Snapshots, newest *raft.SnapshotMeta) error {
	first, err := log.FirstIndex()
	if err != nil || first == 0 {
		return err
	}
	last, err := log.LastIndex()
	if err != nil {
		return err
	}
	if last >= newest.Index {
		if first > newest.Index {
			return nil
		}
		var entry raft.Log
		if err := log.GetLog(newest.Index, &entry); err != nil {
			return err
		}
		if entry.Term == newest.Term {
			return nil
		}
	}
	// Only an intact snapshot may replace the log.
	_, state, err := snaps.Open(newest.ID)
	if err != nil {
		return err
	}
	return errors.Join(state.Close(), log.DeleteRange(first, last))
}

// checkEntries reads the log from index first on. It returns the term of the last entry, or the
// argument term if there is no entry.
func checkEntries(log *Log, first, term uint64) (lastTerm uint64, err error) {
	last, err := log.LastIndex()
	if err != nil {
		return 0, err
	}
	for index := first; index <= last; index++ {
		var entry raft.Log
		if err := log.GetLog(index, &entry); err != nil {
			if errors.Is(err, raft.ErrLogNotFound) {
				err = log.fail(fmt.Errorf("%w: entry %d of %d is missing", ErrDamaged, index, last))
			}
			return 0, err
		}
		if entry.Term < term {
			return 0, log.fail(fmt.Errorf("%w: entry %d has term %d after term %d", ErrDamaged, index, entry.Term, term))
		}
		term = entry.Term
		log.entries.Add(1)
		log.grow(int64(EntryBytes(&entry)))
	}
	return term, nil
}

package shard

import (
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
)

// recoverLog checks that the log and the newest snapshot make one history, and
// every entry that is to be applied again; and counts those.
func (g *group) recoverLog(stable *checkedStable) error {
	metas, err := g.snaps.List()
	if err != nil {
		return err
	}
	var snapIndex, snapTerm uint64
	if len(metas) > 0 {
		snapIndex, snapTerm = metas[0].Index, metas[0].Term
		if err := g.dropSuperseded(metas[0]); err != nil {
			return err
		}
	}
	first, err := g.log.FirstIndex()
	if err != nil {
		return err
	}
	if first > snapIndex+1 {
		return g.log.fail(fmt.Errorf("%w: the log begins at entry %d but the newest snapshot ends at %d",
			errDamaged, first, snapIndex))
	}
	lastTerm, err := g.checkEntries(snapIndex+1, snapTerm)
	if err != nil {
		return err
	}
	term, err := storedTerm(stable)
	if err == nil && term < lastTerm {
		err = g.log.fail(fmt.Errorf("%w: the stored term %d is below %d, the last entry's", errDamaged, term, lastTerm))
	}
	return err
}

// dropSuperseded deletes a log that the newest snapshot replaced: a leader
// sent the snapshot, and a crash came before raft deleted the log. Its entries
// may never have been committed.
func (g *group) dropSuperseded(newest *raft.SnapshotMeta) error {
	first, err := g.log.FirstIndex()
	if err != nil || first == 0 {
		return err
	}
	last, err := g.log.LastIndex()
	if err != nil {
		return err
	}
	if last >= newest.Index {
		if first > newest.Index {
			return nil
		}
		var entry raft.Log
		if err := g.log.GetLog(newest.Index, &entry); err != nil {
			return err
		}
		if entry.Term == newest.Term {
			return nil
		}
	}
	// Only a snapshot that is whole may take the log's place.
	_, state, err := g.snaps.Open(newest.ID)
	if err != nil {
		return err
	}
	return errors.Join(state.Close(), g.log.DeleteRange(first, last))
}

// checkEntries reads the log from an index on and returns its last term, or
// term when it has no such entries.
func (g *group) checkEntries(from, term uint64) (lastTerm uint64, err error) {
	last, err := g.log.LastIndex()
	if err != nil {
		return 0, err
	}
	for index := from; index <= last; index++ {
		var entry raft.Log
		if err := g.log.GetLog(index, &entry); err != nil {
			if errors.Is(err, raft.ErrLogNotFound) {
				err = g.log.fail(fmt.Errorf("%w: entry %d of %d is missing", errDamaged, index, last))
			}
			return 0, err
		}
		if entry.Term < term {
			return 0, g.log.fail(fmt.Errorf("%w: entry %d has term %d after term %d", errDamaged, index, entry.Term, term))
		}
		term = entry.Term
		g.log.entries.Add(1)
		g.log.grow(int64(entryBytes(&entry)))
	}
	return term, nil
}

package tiering

import (
	"time"

	"github.com/countd/countd/raftfsm"
)

const (
	// SealAfterDefault is when a row is packed in memory by the time in its id: those
	// of the last day are read most, and a packed one takes longer to read.
	SealAfterDefault = 24 * time.Hour
	// sealRoundMax bounds a round. What it does not come to is the next one's, so that
	// rows which are to leave memory do not wait for longer.
	sealRoundMax = 30 * time.Second
	// sealReliefShare is how many rows in memory, as a share, a round has packed when
	// none go to disk though memory is tight: what that gave back shows once the
	// collector has run.
	sealReliefShare = 16
)

// OldToSeal returns which ranges of a group's keys are packed when a snapshot is read,
// nil for none: unread numbers, feeds and keyspaces whose ids have no time are read
// all alike. While memory is tight those are all rows, as for SealOld: a node that was
// full of packed rows, young ones too, could not hold them unpacked when it restarts.
func (t *Tiering) OldToSeal(s *Shard) func(first, last uint64) bool {
	layout, after := t.cfg.Cold.Layouts[s.Keyspace], t.cfg.Cold.SealAfter
	if layout.Unit == 0 || after == 0 {
		return nil
	}
	return func(first, last uint64) bool {
		return t.cfg.Headroom.MemoryTight.Load() || layout.old(time.Now(), after, s.PerKey)(first, last)
	}
}

// dueToSeal is OldToSeal for a table that is there, without what is about to go to disk.
func (t *Tiering) dueToSeal(s *Shard) func(first, last uint64) bool {
	old, now := t.OldToSeal(s), time.Now()
	if old == nil || !t.mayMove() || !t.MayFreeze() {
		return old
	}
	leaves := t.cfg.Cold.Layouts[s.Keyspace].old(now, t.cfg.Cold.After, s.PerKey)
	return func(first, last uint64) bool { return !leaves(first, last) && old(first, last) }
}

// SealOld is the other half of a round of Run: it packs old rows, of segments that
// were not written to since the round before, and whatever their age while memory is
// tight. It reports whether that were so many that memory may not be tight any more.
func (t *Tiering) SealOld() (relieved bool) {
	end := time.Now().Add(sealRoundMax)
	all, packed, held := t.cfg.Shards(), uint64(0), uint64(0)
	for i := range all {
		at := (t.sealNext + i) % len(all)
		s := all[at]
		old := t.dueToSeal(s)
		if old == nil {
			continue
		}
		rows, done := t.seal(s.FSM, old, end)
		stats := s.FSM.Table().Stats()
		packed, held = packed+rows, held+stats.Rows-min(stats.Rows, stats.ColdRows)
		if !done {
			t.sealNext = at
			break
		}
	}
	return packed > 0 && packed >= held/sealReliefShare
}

// seal goes through the rows of a replica, a segment at a time with pauses between,
// until it has looked at all, a time is over or the node stops. It returns how many
// rows it packed, and false if it has not looked at all.
func (t *Tiering) seal(fsm *raftfsm.Counters, old func(first, last uint64) bool, end time.Time) (packed uint64, done bool) {
	for from, more := uint64(0), true; more; {
		due := old
		if t.cfg.Headroom.MemoryTight.Load() {
			due = AnyAge
		}
		var rows int
		var took time.Duration
		rows, from, more, took = fsm.Seal(from, due)
		t.Sealed.Add(uint64(rows))
		packed += uint64(rows)
		t.rest(took)
		if t.isStopping() || time.Now().After(end) {
			return packed, !more
		}
	}
	return packed, true
}

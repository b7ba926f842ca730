package tiering

import (
	"time"

	"github.com/countd/countd/raftfsm/counters"
)

const (
	// SealAfterDefault is the age from which a row is packed in memory.
	// Rows of the last day are read most, and reading packed rows takes longer.
	SealAfterDefault = 24 * time.Hour
	// sealRoundMax bounds a round of packing, because moves to disk wait until the round ends. The
	// next round continues with the remaining rows.
	sealRoundMax = 30 * time.Second
	// While memory is tight, a round that packs at least this share (1/16) of the rows in memory
	// moves no rows to disk. The freed memory shows only after the garbage collector has run, so
	// the round cannot know yet whether it was enough.
	sealReliefShare = 16
)

// OldToSeal returns a function that reports which ranges of keys to pack when a snapshot is loaded;
// nil for none. It selects no rows whose age is unknown, such as those whose ids are numbers without a time.
// While memory is tight, it selects all rows: a node that was full of packed rows could not hold
// them unpacked after a restart.
func (t *Tiering) OldToSeal(s *Shard) func(first, last uint64) bool {
	after := t.cfg.Cold.SealAfter
	if after == 0 || !t.hasAge(s) {
		return nil
	}
	return func(first, last uint64) bool {
		return t.cfg.Headroom.MemoryTight.Load() || t.knownOld(s, after)(first, last)
	}
}

// dueToSeal is OldToSeal for a loaded table. It omits rows that are about to move to disk.
func (t *Tiering) dueToSeal(s *Shard) func(first, last uint64) bool {
	old := t.OldToSeal(s)
	if old != nil && !t.cfg.Headroom.MemoryTight.Load() {
		t.learn(s, t.cfg.Cold.SealAfter)
	}
	if old == nil || t.cfg.Cold.After == 0 || !t.MayFreeze() {
		return old
	}
	leaves := t.knownOld(s, t.cfg.Cold.After)
	return func(first, last uint64) bool { return !leaves(first, last) && old(first, last) }
}

// SealOld packs old rows of segments that were not written since the previous round. While memory
// is tight it packs rows of any age. It reports whether it packed enough rows to relieve memory.
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

// seal packs rows of a replica, one segment at a time with pauses in between. It stops when the
// deadline, the argument end, has passed, or when the node stops. packed is the number of packed
// rows, and done reports whether seal checked all segments.
func (t *Tiering) seal(fsm *counters.Machine, isOld func(first, last uint64) bool, end time.Time) (packed uint64, done bool) {
	for from, more := uint64(0), true; more; {
		due := isOld
		if t.cfg.Headroom.MemoryTight.Load() {
			due = AnyAge
		}
		var rows int
		var took time.Duration
		rows, from, more, took = fsm.Seal(from, due)
		t.Sealed.Add(uint64(rows))
		packed += uint64(rows)
		t.rest(took)
		if t.cfg.Draining.Load() || time.Now().After(end) {
			return packed, !more
		}
	}
	return packed, true
}

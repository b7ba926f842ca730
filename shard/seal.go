package shard

import (
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
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

// oldToSeal returns which ranges of a group's keys are packed when a snapshot is read,
// nil for none: unread numbers, feeds and keyspaces whose ids have no time are read
// all alike. While memory is tight those are all rows, as for sealOld: a node that was
// full of packed rows, young ones too, could not hold them unpacked when it restarts.
func (t *tiering) oldToSeal(g *shardReplica) func(first, last uint64) bool {
	layout, after := t.cfg.Layouts[g.keyspace], t.cfg.SealAfter
	if g.kind != codec.KindCounters || layout.Unit == 0 || after == 0 {
		return nil
	}
	return func(first, last uint64) bool {
		return t.headroom.MemoryTight.Load() || layout.old(time.Now(), after, g.route)(first, last)
	}
}

// dueToSeal is oldToSeal for a table that is there, without what is about to go to disk.
func (t *tiering) dueToSeal(g *shardReplica) func(first, last uint64) bool {
	old, now := t.oldToSeal(g), time.Now()
	if old == nil || !t.mayMove() || !t.mayFreeze() {
		return old
	}
	leaves := t.queue.unlessKept(g, t.cfg.Layouts[g.keyspace].old(now, t.cfg.After, g.route))
	return func(first, last uint64) bool { return !leaves(first, last) && old(first, last) }
}

// sealOld is the other half of a round of tiering.run: it packs old rows, of segments that
// were not written to since the round before, and whatever their age while memory is
// tight. It reports whether that were so many that memory may not be tight any more.
func (t *tiering) sealOld() (relieved bool) {
	end := time.Now().Add(sealRoundMax)
	all, packed, held := t.registry.groups.Load().all, uint64(0), uint64(0)
	for i := range all {
		at := (t.sealNext + i) % len(all)
		r := all[at].replica.Load()
		old := t.dueToSeal(all[at])
		if r == nil || old == nil {
			continue
		}
		rows, done := t.seal(r.counters, old, end)
		stats := r.counters.Table().Stats()
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
func (t *tiering) seal(fsm *raftfsm.Counters, old func(first, last uint64) bool, end time.Time) (packed uint64, done bool) {
	for from, more := uint64(0), true; more; {
		due := old
		if t.headroom.MemoryTight.Load() {
			due = anyAge
		}
		var rows int
		var took time.Duration
		rows, from, more, took = fsm.Seal(from, due)
		t.sealed.Add(uint64(rows))
		packed += uint64(rows)
		t.rest(took)
		if t.isStopping() || time.Now().After(end) {
			return packed, !more
		}
	}
	return packed, true
}

package storage

import (
	"fmt"
	"sync/atomic"
	"time"
)

// DiskStallMax bounds one write of a log. A process whose disk hangs longer is useless, so the
// group then fails. If a leader's disk hangs, another node leads long before that.
const DiskStallMax = 10 * time.Second

const (
	// StallTicks is the number of ticks after which a write counts as stalled: the watchdog
	// detects the stall StallTicks to StallTicks+1 ticks after the write began.
	StallTicks = 20
	// hangTicks is the number of ticks after which a write of entries counts as hanging: 1 to 1.5
	// s with DiskStallMax. A merely busy disk needs less time for a write.
	hangTicks = 2
	// applyTicks is the number of ticks after which the state machine counts as hanging: 3 to 3.5
	// s with DiskStallMax. The state machine may need seconds for entries that change many rows.
	applyTicks = 6
	// slowTicks is the number of ticks for which a disk counts as slow after a hanging write of
	// entries has ended: a minute with DiskStallMax.
	slowTicks = 120
)

// tickOrigin aligns the ticks of all groups, so that an idle process wakes once a tick for all of
// them.
var tickOrigin = time.Now()

// StallGauge shows whether a write of one kind is running, and whether it is still the same write.
// It costs two atomic adds for each write. Writes of one gauge must not overlap.
//
// turn is odd during a write and even otherwise. It only increases, so two reads of the same odd
// value have seen the same write.
type StallGauge struct{ turn atomic.Uint64 }

func (g *StallGauge) Begin() { g.turn.Add(1) }
func (g *StallGauge) End()   { g.turn.Add(1) }

// watchedGauge is the watchdog's state for one gauge.
type watchedGauge struct {
	gauge *StallGauge
	what  string
	turn  uint64 // value of gauge.turn at the last tick
	ticks int    // number of ticks that have seen the same write running
}

// stalled checks the gauge at a tick. It reports whether more than StallTicks ticks have seen the
// same write. It counts ticks instead of time, so that a pause of the whole process does not count
// as a hang of its disk.
func (w *watchedGauge) stalled() bool {
	turn := w.gauge.turn.Load()
	if turn%2 == 0 || turn != w.turn {
		w.turn, w.ticks = turn, 0
	}
	if turn%2 == 1 {
		w.ticks++
	}
	return w.ticks > StallTicks
}

// Hang is the state of a write whose hang does not fail the group.
type Hang struct {
	Hangs   bool
	Unusual bool // the hang is more than twice as long as the longest recent hang that ended
	Long    bool // the hang is longer than StallTicks ticks
}

// hangGauge detects hanging writes of one kind.
type hangGauge struct {
	watchedGauge
	after    int
	slowest  int // ticks of the longest write that hung and ended within slowTicks
	slowFrom int // ticks since the last such write
}

// check returns the Hang at a tick. Unusual is false for a hang of a usual length, because such a
// hang must not cost the leader its leadership: the other nodes' disks may be as slow, and an
// election takes longer than the hang.
func (g *hangGauge) check() Hang {
	was := g.ticks
	long := g.stalled()
	g.slowFrom++
	if g.ticks < was && was > g.after {
		g.slowest, g.slowFrom = max(g.slowest, was), 0
	}
	if g.slowFrom > slowTicks {
		g.slowest = 0
	}
	return Hang{g.ticks > g.after, g.ticks > max(g.after, 2*g.slowest), long}
}

// WatchStalls fails the FailStop if a write of the log or of votes takes longer than limit, which
// must be at least StallTicks nanoseconds. It returns when done closes or after that failure.
// applying is the gauge of the state machine. At each tick, WatchStalls calls hangs with the state
// of the log's writes of entries and with the state of the gauge applying.
func WatchStalls(limit time.Duration, log *Log, votes *Votes, applying *StallGauge, stop *FailStop, hangs func(storing, applying Hang), done <-chan struct{}) {
	gauges := []watchedGauge{
		{gauge: &log.writing, what: "store entries in " + log.path},
		{gauge: &log.cutting, what: "delete entries from " + log.path},
		{gauge: &votes.mu.writing, what: "store term and vote in " + log.path},
	}
	stores := hangGauge{watchedGauge: watchedGauge{gauge: &log.storing}, after: hangTicks} // log.storing includes waits of any length, so it must not fail the group
	applies := hangGauge{watchedGauge: watchedGauge{gauge: applying}, after: applyTicks}
	every := limit / StallTicks
	for {
		select {
		case <-time.After(every - time.Since(tickOrigin)%every):
		case <-done:
			return
		}
		for i := range gauges {
			if gauges[i].stalled() {
				_ = stop.Fail(fmt.Errorf("cannot %s: the disk has not answered for %v", gauges[i].what, limit))
				return
			}
		}
		hangs(stores.check(), applies.check())
	}
}

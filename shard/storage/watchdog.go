package storage

import (
	"fmt"
	"sync/atomic"
	"time"
)

// DiskStallMax is how long one write of a log may take. A leader whose disk hangs has other
// nodes lead long before; a process whose disk hangs for longer is of no more use.
const DiskStallMax = 10 * time.Second

const (
	// StallTicks is how often a write is looked at before it counts as stalled: it
	// is found between StallTicks and StallTicks+1 ticks after it began.
	StallTicks = 20
	// hangTicks is likewise when a write of entries hangs: 1 to 1.5 s by DiskStallMax. A disk
	// that is merely busy takes less.
	hangTicks = 2
	// slowTicks is for how long a disk is called slow after a write of entries that hung and ended:
	// a minute by DiskStallMax.
	slowTicks = 120
)

// tickOrigin is from when ticks are counted: those of all groups fall together, so that an
// idle process wakes once for all of them.
var tickOrigin = time.Now()

// stallGauge tells whether one kind of write is running and since when, at the
// cost of two atomic adds a write. Writes of one gauge must not overlap.
//
// turn is even while nothing runs and odd during a write. It only rises, so
// that an odd value seen twice is the same write.
type stallGauge struct{ turn atomic.Uint64 }

func (g *stallGauge) begin() { g.turn.Add(1) }
func (g *stallGauge) end()   { g.turn.Add(1) }

// watchedGauge is what the watchdog alone knows of a gauge.
type watchedGauge struct {
	gauge *stallGauge
	what  string
	turn  uint64 // as seen at the last tick
	ticks int    // at which that turn was running
}

// stalled looks at the gauge once and reports whether one write was seen
// running at more than StallTicks ticks. It counts ticks, not time, so that a
// process that was stopped for a while does not blame its disk.
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

// hangGauge is a gauge of writes of entries.
type hangGauge struct {
	watchedGauge
	slowest  int // ticks of the longest write that hung and ended within slowTicks
	slowFrom int // ticks since the last such write
}

// hangs looks at the gauge once. It reports whether a write hangs, and whether for twice as long as those
// that hung and ended not long ago. If all disks are slow, others would take as long, and an election
// longer: the leader goes on.
func (g *hangGauge) hangs() (hangs, unusual bool) {
	was := g.ticks
	g.stalled()
	g.slowFrom++
	if g.ticks < was && was > hangTicks {
		g.slowest, g.slowFrom = max(g.slowest, was), 0
	}
	if g.slowFrom > slowTicks {
		g.slowest = 0
	}
	return g.ticks > hangTicks, g.ticks > max(hangTicks, 2*g.slowest)
}

// WatchStalls fails stop when a write of the log or of votes runs for longer than
// limit, which is StallTicks nanoseconds at least. It returns when done is closed or
// after it has failed stop. Before that it calls hangs, at each tick, with whether the log
// takes entries no more, and whether that is unusual for its disk.
func WatchStalls(limit time.Duration, log *Log, votes *Votes, stop *FailStop, hangs func(hangs, unusual bool), done <-chan struct{}) {
	gauges := []watchedGauge{
		{gauge: &log.writing, what: "store entries in " + log.path},
		{gauge: &log.cutting, what: "delete entries from " + log.path},
		{gauge: &votes.mu.writing, what: "store term and vote in " + log.path},
	}
	storing := hangGauge{watchedGauge: watchedGauge{gauge: &log.storing}} // it may wait as long as it must
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
		hangs(storing.hangs())
	}
}

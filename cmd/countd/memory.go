package main

import (
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// gcPercent is the collector's goal for a large heap. The tables are nearly
	// all of it and hold no pointers, so a cycle costs little more than the
	// segments' headers; what a higher goal would buy in time is paid in memory
	// of the tables' size.
	gcPercent = 25
	// gcHeadroomBytes is what a cycle may leave room for at least. A quarter of
	// a small heap would be filled, and collected, many times a second.
	gcHeadroomBytes = 64 << 20
	// gcTick is how often the goal follows the heap.
	gcTick = time.Second
)

// tuneCollector sets the collector for a heap of tables, and keeps it so until
// the process ends. The operator's GOGC stands if set, and GOMEMLIMIT is
// honoured by the runtime itself.
func tuneCollector() {
	if os.Getenv("GOGC") != "" {
		return
	}
	percent := 0
	follow := func() {
		if p := percentFor(liveBytes()); p != percent {
			percent = p
			debug.SetGCPercent(percent)
		}
	}
	follow()
	go func() { // lives as long as the process
		for range time.Tick(gcTick) {
			follow()
		}
	}()
}

// percentFor returns the goal for a live heap, in steps so that it seldom
// changes.
func percentFor(live uint64) int {
	percent := gcPercent
	for grown := uint64(gcHeadroomBytes * 100 / gcPercent); live < grown && percent < 100*gcPercent; grown /= 2 {
		percent *= 2
	}
	return percent
}

// liveBytes returns what the last cycle found alive.
func liveBytes() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

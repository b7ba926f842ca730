package main

import (
	"math"
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
	// restBytes is what a process allocates in a gcTick at most while it rests: a
	// few times what timers and heartbeats take.
	restBytes = 1 << 20
	// restTicks is how long it rests before the room of the load before is given
	// back to the system.
	restTicks = 30
)

// tuneCollector sets the collector for a heap of tables under a limit, 0 for none, and
// keeps it so until the process ends. It returns what the goal comes down to as the heap
// nears the limit. The operator's GOGC stands if set, of which it returns 0, and so does
// GOMEMLIMIT.
func tuneCollector(limit uint64) uint64 {
	if os.Getenv("GOGC") != "" {
		return 0
	}
	bounded := limit > 0 && os.Getenv("GOMEMLIMIT") == ""
	percent := 0
	var rest rest
	follow := func() {
		live := readBytes("/gc/heap/live:bytes")
		if p := percentFor(live, limit); p != percent {
			percent = p
			debug.SetGCPercent(percent)
		}
		if bounded {
			debug.SetMemoryLimit(int64(runtimeLimit(live, limit)))
		}
		if rest.begins(readBytes("/gc/heap/allocs:bytes")) {
			debug.FreeOSMemory()
		}
	}
	follow()
	go func() { // lives as long as the process
		for range time.Tick(gcTick) {
			follow()
		}
	}()
	return gcPercent
}

// percentFor returns the goal for a live heap, in steps so that it seldom
// changes: one that gives a small heap room, as far as there is some below the limit.
func percentFor(live, limit uint64) int {
	percent := gcPercent
	for percent < 100*gcPercent {
		room := live * uint64(percent) / 100
		if room >= gcHeadroomBytes || limit > 0 && live+2*room > limit {
			break
		}
		percent *= 2
	}
	return percent
}

// runtimeLimit returns the bytes that the runtime may have in all. The goal follows a
// heap once a gcTick; a small one grows to several times its size meanwhile, and would be
// let grow by the old goal. An eighth and gcHeadroomBytes are for what is no live heap:
// the runtime's own, stacks, and spans that are not full. A heap that is over the limit
// already, after a start with a lower one, is not collected without end.
func runtimeLimit(live, limit uint64) uint64 {
	heap := min(max(limit, live+live*gcPercent/100), math.MaxInt64/2)
	return heap + heap/8 + gcHeadroomBytes
}

// rest tells when a process has come to rest after a load. The runtime alone keeps
// the room that it collected in, as much as the goal allows; without garbage it
// needs none.
type rest struct {
	allocated uint64 // of all time, at the last tick
	quiet     int    // ticks since the load, restTicks at most
}

// begins is called once a gcTick with the bytes that were allocated of all time, and
// reports whether a rest begins.
func (r *rest) begins(allocated uint64) bool {
	loaded := allocated-r.allocated > restBytes
	r.allocated = allocated
	switch {
	case loaded:
		r.quiet = 0
	case r.quiet < restTicks:
		r.quiet++
		return r.quiet == restTicks
	}
	return false
}

// readBytes returns a metric of the runtime that is a number of bytes.
func readBytes(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

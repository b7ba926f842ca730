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
	// restBytes is what a process allocates in a gcTick at most while it rests: a
	// few times what timers and heartbeats take.
	restBytes = 1 << 20
	// restTicks is how long it rests before the room of the load before is given
	// back to the system.
	restTicks = 30
)

// tuneCollector sets the collector for a heap of tables, and keeps it so until
// the process ends. The operator's GOGC stands if set, and GOMEMLIMIT is
// honoured by the runtime itself.
func tuneCollector() {
	if os.Getenv("GOGC") != "" {
		return
	}
	percent := 0
	var rest rest
	follow := func() {
		if p := percentFor(readBytes("/gc/heap/live:bytes")); p != percent {
			percent = p
			debug.SetGCPercent(percent)
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
}

// heapGoal returns the goal that tuneCollector sets for a live heap, nil if the
// operator's stands.
func heapGoal() func(live uint64) (percent uint64) {
	if os.Getenv("GOGC") != "" {
		return nil
	}
	return func(live uint64) uint64 { return uint64(percentFor(live)) }
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

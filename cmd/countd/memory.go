package main

import (
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// gcPercent is the garbage collector's target (GOGC) for a large heap. Most of the heap is
	// tables without pointers, so a collection scans little more than the headers of their
	// segments. A higher target would save little time and cost memory in proportion to the tables.
	gcPercent = 25
	// gcHeadroomBytes is the least growth of the heap between two collections. Without it, a small
	// heap would grow by a quarter, and be collected, many times a second.
	gcHeadroomBytes = 64 << 20
	// gcTick is how often the target is adjusted to the heap.
	gcTick = time.Second
	// idleBytes is the most that an idle process allocates in a gcTick: a few times the
	// allocations of timers and heartbeats.
	idleBytes = 1 << 20
	// After idleTicks idle gcTicks in a row, the process returns free memory to the system.
	idleTicks = 30
)

// tuneCollector sets the garbage collector's target for a heap of tables under a memory limit, 0
// for none, and adjusts it until the process ends. It returns the lowest target, which applies near
// the limit. If the operator has set GOGC, it changes nothing and returns 0. If GOMEMLIMIT is set,
// it leaves the runtime's memory limit unchanged.
func tuneCollector(limit uint64) uint64 {
	if os.Getenv("GOGC") != "" {
		return 0
	}
	bounded := limit > 0 && os.Getenv("GOMEMLIMIT") == ""
	percent := 0
	var idle idleness
	follow := func() {
		live := readBytes("/gc/heap/live:bytes")
		if p := percentFor(live, limit); p != percent {
			percent = p
			debug.SetGCPercent(percent)
		}
		if bounded {
			debug.SetMemoryLimit(int64(runtimeLimit(live, limit)))
		}
		if idle.begins(readBytes("/gc/heap/allocs:bytes")) {
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

// percentFor returns the target for a live heap. For a small heap, it doubles gcPercent several
// times, as far as the limit allows. The doubling makes steps so large that the target seldom
// changes.
func percentFor(live, limit uint64) int {
	percent := gcPercent
	for percent < 100*gcPercent {
		growth := live * uint64(percent) / 100
		if growth >= gcHeadroomBytes || limit > 0 && live+2*growth > limit {
			break
		}
		percent *= 2
	}
	return percent
}

// runtimeLimit returns the memory limit for debug.SetMemoryLimit. The limit is needed because the
// target follows the heap only once per gcTick: until then, a small heap could grow to several
// times its size. runtimeLimit adds an eighth and gcHeadroomBytes for memory outside the live heap:
// the runtime's own, stacks, and partly filled spans. If the live heap already exceeds the limit,
// for example after a start with a lower limit, runtimeLimit returns more than the limit, which
// avoids endless collections.
func runtimeLimit(live, limit uint64) uint64 {
	heap := min(max(limit, live+live*gcPercent/100), math.MaxInt64/2)
	return heap + heap/8 + gcHeadroomBytes
}

// idleness detects that a process is idle after a load. An idle process can return the free memory
// that the runtime keeps.
type idleness struct {
	allocated uint64 // total of allocated bytes at the last tick
	quiet     int    // idle ticks since the last load, at most idleTicks
}

// begins reports whether an idle phase begins. It must be called once per gcTick, with the total of
// bytes allocated so far.
func (r *idleness) begins(allocated uint64) bool {
	loaded := allocated-r.allocated > idleBytes
	r.allocated = allocated
	switch {
	case loaded:
		r.quiet = 0
	case r.quiet < idleTicks:
		r.quiet++
		return r.quiet == idleTicks
	}
	return false
}

// readBytes returns the value of a runtime metric in bytes.
func readBytes(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

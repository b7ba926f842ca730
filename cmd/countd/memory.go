package main

import (
	"math"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// gcPercent is the collector's target for a large heap. Most of the heap is tables without
	// pointers, so a collection scans little more than the headers of their segments. A higher
	// target would save little time and cost memory in proportion to the tables.
	gcPercent = 25
	// gcHeadroomBytes is the least growth between two cycles. Without it, a small heap would grow
	// by a quarter, and be collected, many times a second.
	gcHeadroomBytes = 64 << 20
	// gcTick is how often the target is adjusted to the heap.
	gcTick = time.Second
	// idleBytes is the most that an idle process allocates in a gcTick: a few times the
	// allocations of timers and heartbeats.
	idleBytes = 1 << 20
	// After idleTicks idle gcTicks, the memory of the previous load is returned to the system.
	idleTicks = 30
)

// tuneCollector sets the collector for a heap of tables under a limit, 0 for none, and
// adjusts it until the process ends. It returns the lowest target that applies near the
// limit. If the operator has set GOGC, it is left unchanged and the result is 0; GOMEMLIMIT
// is left unchanged too.
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

// percentFor returns the target for a live heap, in steps so that it seldom changes. The
// target is higher for a small heap, as far as the limit allows.
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

// runtimeLimit returns the memory limit of the runtime. The target follows the heap only once per
// gcTick. Until then, a small heap can grow to several times its size under the old target. An
// eighth and gcHeadroomBytes are reserved for memory outside the live heap: the runtime's own,
// stacks, and partly filled spans. If the heap already exceeds the limit, after a start with a
// lower limit, runtimeLimit avoids endless collections.
func runtimeLimit(live, limit uint64) uint64 {
	heap := min(max(limit, live+live*gcPercent/100), math.MaxInt64/2)
	return heap + heap/8 + gcHeadroomBytes
}

// idleness detects that a process is idle after a load. The runtime keeps as much free memory as
// the target allows, and an idle process does not need it.
type idleness struct {
	allocated uint64 // total at the last tick
	quiet     int    // idle ticks since the last load, at most idleTicks
}

// begins is called once a gcTick with the total of allocated bytes, and reports whether an
// idle phase begins.
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

// readBytes returns a metric of the runtime that is a number of bytes.
func readBytes(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

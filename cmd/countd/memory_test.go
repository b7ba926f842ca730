package main

import (
	"testing"
)

func TestPercentFor(t *testing.T) {
	for _, live := range []uint64{0, 1 << 20, 10 << 20, 100 << 20, 255 << 20, 256 << 20, 1 << 30, 64 << 30} {
		percent := percentFor(live, 0)
		room := live * uint64(percent) / 100
		if percent < gcPercent || live >= 4<<20 && room < gcHeadroomBytes/2 {
			t.Errorf("%d bytes live: %d %%, %d bytes of room", live, percent, room)
		}
		if live > 256<<20 && percent != gcPercent {
			t.Errorf("%d bytes live: %d %%, want %d", live, percent, gcPercent)
		}
		if live < 256<<20 && room > 4*gcHeadroomBytes {
			t.Errorf("%d bytes live: room for %d bytes", live, room)
		}
	}
	if live := readBytes("/gc/heap/live:bytes"); live > 1<<40 {
		t.Errorf("%d bytes live", live)
	}
}

// Under a limit, the target uses the memory below the limit, and never falls below the
// lowest target.
func TestPercentUnderALimit(t *testing.T) {
	for _, limit := range []uint64{64 << 20, 100 << 20, 200 << 20, 10 << 30} {
		for live := uint64(1 << 20); live < 2*limit; live += live / 3 {
			percent := percentFor(live, limit)
			goal := live + live*uint64(percent)/100
			if percent < gcPercent || percent > gcPercent && goal > limit {
				t.Errorf("limit %d, %d live: %d %%, a goal of %d", limit, live, percent, goal)
			}
			if has := runtimeLimit(live, limit); has < max(live+live*gcPercent/100, limit)+gcHeadroomBytes || has > 2*max(live, limit)+gcHeadroomBytes {
				t.Errorf("limit %d, %d live: the runtime may have %d", limit, live, has)
			}
		}
	}
}

// After each load, an idle phase begins exactly once, after idleTicks idle ticks.
func TestRestBeginsOnceALoad(t *testing.T) {
	var r idleness
	allocated := uint64(1 << 30)
	r.begins(allocated)
	for load := range 3 {
		for tick := range 4 * idleTicks {
			allocated += idleBytes
			if got, want := r.begins(allocated), tick == idleTicks-1; got != want {
				t.Errorf("after load %d, tick %d: begins %t", load, tick, got)
			}
		}
		for range idleTicks / 2 { // a load with pauses that are too short for an idle phase
			paused := r.begins(allocated)
			allocated += idleBytes + 1
			if r.begins(allocated) || paused {
				t.Errorf("rests within load %d", load+1)
			}
		}
	}
}

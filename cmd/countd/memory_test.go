package main

import "testing"

func TestPercentFor(t *testing.T) {
	for _, live := range []uint64{0, 1 << 20, 10 << 20, 100 << 20, 255 << 20, 256 << 20, 1 << 30, 64 << 30} {
		percent := percentFor(live)
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

// A node tells what would fit by the goal that the collector will have, unless that is
// the operator's.
func TestHeapGoal(t *testing.T) {
	t.Setenv("GOGC", "")
	if goal := heapGoal(); goal(1<<30) != gcPercent || goal(10<<20) <= gcPercent {
		t.Errorf("%d %% of 1 GiB, %d %% of 10 MiB", goal(1<<30), goal(10<<20))
	}
	t.Setenv("GOGC", "100")
	if heapGoal() != nil {
		t.Error("the operator's goal does not stand")
	}
}

// Memory is given back once after each load, when little was allocated for long
// enough.
func TestRestBeginsOnceALoad(t *testing.T) {
	var r rest
	allocated := uint64(1 << 30)
	r.begins(allocated)
	for load := range 3 {
		for tick := range 4 * restTicks {
			allocated += restBytes
			if got, want := r.begins(allocated), tick == restTicks-1; got != want {
				t.Errorf("after load %d, tick %d: begins %t", load, tick, got)
			}
		}
		for range restTicks / 2 { // a load with a pause that is too short
			paused := r.begins(allocated)
			allocated += restBytes + 1
			if r.begins(allocated) || paused {
				t.Errorf("rests within load %d", load+1)
			}
		}
	}
}

package storage

import (
	"testing"

	"github.com/countd/countd/internal/must"
)

func TestStalledGauge(t *testing.T) {
	var g StallGauge
	w := watchedGauge{gauge: &g}
	ticks := func(n int) (stalled bool) {
		for range n {
			stalled = w.stalled()
		}
		return stalled
	}
	if ticks(5 * StallTicks) {
		t.Error("idle counts as stalled")
	}
	for range 5 * StallTicks {
		g.Begin()
		if ticks(2) {
			t.Fatal("short writes, one after the other, count as stalled")
		}
		g.End()
	}
	for range 5 * StallTicks {
		g.Begin()
		if ticks(1) {
			t.Fatal("short writes, each seen running, count as stalled")
		}
		g.End()
	}
	g.Begin()
	if ticks(StallTicks) {
		t.Error("stalled too early")
	}
	if !ticks(1) {
		t.Error("not stalled")
	}
	g.End()
	if ticks(1) {
		t.Error("stalled after its end")
	}
}

// A hang of a slow disk is unusual the first time. A later hang is unusual only if it is more than
// twice as long as every earlier one. After a while without a hang, the disk counts as fast again.
func TestSlowDisk(t *testing.T) {
	var g StallGauge
	w := hangGauge{watchedGauge: watchedGauge{gauge: &g}, after: hangTicks}
	write := func(ticks int) (hung, unusual bool) {
		g.Begin()
		for range ticks {
			now := w.check()
			hung, unusual = hung || now.Hangs, unusual || now.Unusual
		}
		g.End()
		w.check()
		return hung, unusual
	}
	for i, c := range []struct {
		ticks         int
		hung, unusual bool
	}{
		{hangTicks, false, false}, {4, true, true}, {4, true, false}, {8, true, false}, {9, true, false}, {19, true, true}, {19, true, false},
	} {
		if hung, unusual := write(c.ticks); hung != c.hung || unusual != c.unusual {
			t.Errorf("write %d, of %d ticks: hung %v, unusual %v", i, c.ticks, hung, unusual)
		}
	}
	for range slowTicks {
		write(1)
	}
	if _, unusual := write(4); !unusual {
		t.Error("it is still called slow")
	}
}

var mustDo, changed = must.Do, must.Flipped

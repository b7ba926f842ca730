package storage

import (
	"testing"

	"github.com/countd/countd/internal/must"
)

func TestStalledGauge(t *testing.T) {
	var g stallGauge
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
		g.begin()
		if ticks(2) {
			t.Fatal("short writes, one after the other, count as stalled")
		}
		g.end()
	}
	for range 5 * StallTicks {
		g.begin()
		if ticks(1) {
			t.Fatal("short writes, each seen running, count as stalled")
		}
		g.end()
	}
	g.begin()
	if ticks(StallTicks) {
		t.Error("stalled too early")
	}
	if !ticks(1) {
		t.Error("not stalled")
	}
	g.end()
	if ticks(1) {
		t.Error("stalled after its end")
	}
}

var mustDo, changed = must.Do, must.Flipped

package storage

import (
	"bytes"
	"testing"
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

func mustDo(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// changed returns a copy with one bit of a byte flipped.
func changed(content []byte, at int) []byte {
	c := bytes.Clone(content)
	c[at] ^= 0x40
	return c
}

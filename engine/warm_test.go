package engine

import (
	"errors"
	"testing"
)

// Rows of a range come back, whole segments and no others, for at most what it was said
// to cost; and go again at the second look after that.
func TestWarmRange(t *testing.T) {
	tab, ids := filled(t, 45_000)
	cold := &memCold{}
	freeze(t, tab, cold, 1<<20)
	before := tab.Stats()
	from, to := ids[15_000], ids[16_000]
	rows, bytes := tab.WarmCost(from, to)
	if rows < 1_000 || rows > 3*rowsMax {
		t.Fatalf("%d rows are to come of a range of 1000", rows)
	}
	warmed, _, more, err := tab.Warm(from, to, 1<<20)
	if warmed != rows || more || err != nil {
		t.Fatalf("%d rows came of %d, more %v, %v", warmed, rows, more, err)
	}
	after := tab.Stats()
	if took := after.Bytes - before.Bytes; before.ColdRows-after.ColdRows != uint64(rows) || took > bytes {
		t.Errorf("%d rows take %d bytes, said to be %d; %+v, was %+v", rows, took, bytes, after, before)
	}
	var row [1]int64
	for i, want := range map[int]bool{14_000 - rowsMax: false, 15_000: true, 16_000: true, 17_000 + rowsMax: false} {
		if tab.Get(ids[i], row[:]) != want {
			t.Errorf("row %d is in memory: %v", i, !want)
		}
	}
	if rows, bytes := tab.WarmCost(from, to); rows != 0 || bytes != 0 {
		t.Errorf("again it costs %d rows, %d bytes", rows, bytes)
	}
	if warmed, _, more, err := tab.Warm(from, to, 1); warmed != 0 || more || err != nil {
		t.Errorf("again: %d rows, more %v, %v", warmed, more, err)
	}
	if idle, due := tab.Watch(anyAge); len(idle) != 0 || due < rows {
		t.Errorf("at the first look %d segments are idle, %d rows due", len(idle), due)
	}
	if aged := tab.Aged(anyAge); aged != rows {
		t.Errorf("%d rows are old and in memory, want %d", aged, rows)
	}
	if idle, _ := tab.Watch(anyAge); len(idle) == 0 {
		t.Error("at the second look none is idle")
	}
	steps, next := 0, uint64(0)
	for more := true; more; steps++ {
		if _, next, more, err = tab.Warm(next, 1<<64-1, 1); err != nil {
			t.Fatal(err)
		}
	}
	if left := tab.Stats().ColdRows; steps < 3 || left != 0 {
		t.Errorf("%d rows are cold after %d steps", left, steps)
	}
	if n := cold.needed(); n != 0 {
		t.Errorf("%d generations are needed", n)
	}
}

// What cannot be read is told with where to go on behind it.
func TestWarmGoesOnBehindAFailure(t *testing.T) {
	tab, _ := filled(t, 45_000)
	cold := &memCold{}
	freeze(t, tab, cold, 1<<20)
	before := tab.Stats().ColdRows
	cold.fail = errGone
	_, next, more, err := tab.Warm(0, 1<<64-1, 1)
	if !errors.Is(err, errGone) || next == 0 || !more {
		t.Fatalf("next %d, more %v, %v", next, more, err)
	}
	cold.fail = nil
	if rows, _, more, err := tab.Warm(next, 1<<64-1, 1<<20); rows == 0 || more || err != nil || tab.Stats().ColdRows != before-uint64(rows) || uint64(rows) == before {
		t.Errorf("%d rows came of %d, more %v, %v", rows, before, more, err)
	}
}

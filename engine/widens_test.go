package engine

import "testing"

// A floor is not a count, so a cell with a floor never widens rows.
func TestFloorsDoNotWiden(t *testing.T) {
	tab, ids := filled(t, 100)
	for _, floor := range []int64{-5, 0, 1} {
		for column, want := range map[uint8]bool{0: false, wordColumns - 1: false, wordColumns: true} {
			op := floored(ids[0], column, -1, floor)
			if got := tab.Widens(&op); got != want {
				t.Errorf("column %d with floor %d: widens %t", column, floor, got)
			}
		}
	}
}

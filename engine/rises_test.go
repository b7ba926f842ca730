package engine

import "testing"

// If rises were lost, the next Take returns false, even if Watch was called for the column before
// that Take.
func TestLostRisesAreTold(t *testing.T) {
	t.Parallel()
	tab := newTable(t)
	raise := func(id uint64) { mustApply(t, tab, Op{ID: id, Kind: OpAdd, Cells: []Cell{{0, 1}}}) }
	tab.Rises.Watch(0, Place{})
	for id := range uint64(risesMax + 2) {
		raise(id)
	}
	tab.Rises.Watch(0, Place{})
	raise(risesMax + 2)
	rises, whole := tab.Rises.Take(nil)
	if len(rises) != 1 || whole {
		t.Errorf("%d rises, whole: %v; want the one since the last Watch, as a part", len(rises), whole)
	}
	raise(risesMax + 3)
	if rises, whole = tab.Rises.Take(nil); len(rises) != 1 || rises[0] != (Rise{risesMax + 3, 0}) || !whole {
		t.Errorf("then %v, whole: %v", rises, whole)
	}
}

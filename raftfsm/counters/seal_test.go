package counters

import (
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
)

// The first segment is sealed if its rows are old, although its range begins at 0.
func TestFirstSegmentIsSealed(t *testing.T) {
	const first = 3_300_000_000 << 22
	c := newCounters(t)
	var ops []engine.Op
	for i := range uint64(25_000) {
		ops = append(ops, add(first+i<<22, 0, 1))
	}
	c.Apply(rafttest.Command(1, entryOf(0, ops)))
	old := func(from, _ uint64) bool { return from >= first }
	for range 2 {
		for from, more := uint64(0), true; more; {
			_, from, more, _ = c.Seal(from, old)
		}
	}
	if sealed, aged := c.Table().Stats().SealedRows, c.Aged(old); sealed == 0 || int(sealed) != aged {
		t.Errorf("%d rows are sealed, %d are old", sealed, aged)
	}
}

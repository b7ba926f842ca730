package rows

import (
	"errors"
	"sync"
	"testing"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
)

// While Apply moves the rows that are left, nobody may move rows to disk between two steps: the next step would find
// them there.
func TestNothingLeavesMemoryBetweenSteps(t *testing.T) {
	t.Parallel()
	by := raftfsm.Partition{From: codec.Whole, Divisor: 1, Parts: 3}
	other := by
	other.Parts++
	table := engine.New()
	for key := range uint64(400_000) {
		_, err := table.Apply([]engine.Op{{ID: key, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 1}}}}, 0, nil, nil)
		must.Do(t, err)
	}
	p := &Parting{Lock: new(sync.Mutex)}
	whole := func() bool {
		_, err := engine.Split(table, by)
		return !errors.Is(err, engine.ErrUnparted)
	}
	began, ended := make(chan struct{}), make(chan bool)
	go func() { // ends once all rows are parted
		between := false
		close(began)
		for all := false; !all; {
			p.Lock.Lock()
			all = whole()
			between = between || p.Pauses == 0 && !all && engine.CheckParting(table, other) != nil
			p.Lock.Unlock()
		}
		ended <- between
	}()
	<-began
	must.Do(t, p.finish(by, table))
	if <-ended {
		t.Error("rows could move to disk between two steps")
	}
	if p.Pauses != 0 {
		t.Errorf("%d pauses are left", p.Pauses)
	}
}

package counters

import (
	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/rankings"
)

// feedHot passes to the hot lists what each add in the batch has added to counts. Other kinds of
// ops only correct counts. Here an op on a set or an outbox is an add, whose value the judge has
// set. feedHot may change the batch, because it is the last reader of the batch.
func (c *contents) feedHot(now int64, r *raftfsm.Result) {
	ops, lists := c.batch.Ops, c.hot
	for _, refused := range r.Overflows {
		ops[refused.Op].Cells = nil
	}
	op, next := -1, 0 // cuts are in the order of cells, and the cells before next have had theirs
	for _, cut := range r.Cuts {
		if cut.Op != op {
			op, next = cut.Op, 1
		}
		for cells := ops[op].Cells; next < len(cells); next++ {
			if c := &cells[next]; cells[next-1].Column == engine.FloorMark|cut.Column && c.Value < 0 {
				c.Value = cut.Added
				next++
				break
			}
		}
	}
	lists.Begin(now)
	for i := range ops {
		op := &ops[i]
		if op.Kind != engine.OpAdd {
			continue
		}
		for n := range op.Cells {
			if cell := &op.Cells[n]; !cell.IsBound() && cell.Value != 0 {
				lists.Add(op.ID, cell.Column, cell.Value)
			}
		}
	}
	lists.End()
}

// Hot returns the hot lists of the shard. Restore replaces them.
func (c *Machine) Hot() *rankings.HotLists { return c.hot.Load() }

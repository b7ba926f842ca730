package counters

import (
	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/rankings"
)

// feedHot passes the deltas of all OpAdds in the batch to the hot lists. It ignores ops of other
// kinds, because they only correct counts. An op on a set or an outbox is an OpAdd here, and the
// judge has set its value. feedHot changes the batch; nobody reads the batch afterwards.
func (c *contents) feedHot(now int64, r *raftfsm.Result) {
	ops, lists := c.batch.Ops, c.hot
	for _, refused := range r.Overflows {
		ops[refused.Op].Cells = nil
	}
	op, next := -1, 0 // cuts are in the order of cells; those before next are done
	for _, cut := range r.Cuts {
		if cut.Op != op {
			op, next = cut.Op, 1
		}
		for cells := ops[op].Cells; next < len(cells); next++ {
			if c := &cells[next]; c.Column == cut.Column && cells[next-1].IsBound() {
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

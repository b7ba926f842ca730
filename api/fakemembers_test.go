package api

import (
	"math"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard"
)

// memberLocked applies an op to a set. It returns the cell that the op adds to its count, whether
// the count overflows, and whether the set changes. An overflow leaves the set unchanged.
func (n *fakeNode) memberLocked(ks *shard.Keyspace, op engine.Op, row []int64) (sum engine.Cell, overflows, changes bool) {
	column, member := op.Cells[0].Column, uint64(op.Cells[0].Value)
	sets := n.mu.sets.Of(ks.Name, int(column))
	sum = engine.Cell{Column: column, Value: 1}
	if op.Kind == engine.OpLeave {
		sum.Value = -1
	}
	if _, copied := op.Copied(); copied {
		sum.Value = 0
		return sum, false, sets.Join(op.ID, member)
	}
	switch {
	case sets.In(op.ID, member) == (op.Kind == engine.OpJoin):
		return sum, false, false
	case row[column] == math.MaxInt64 && sum.Value > 0, row[column] == math.MinInt64 && sum.Value < 0:
		return sum, true, false
	case sum.Value > 0:
		sets.Join(op.ID, member)
	default:
		sets.Leave(op.ID, member)
	}
	return sum, false, true
}

// readSets answers a query of sets.
func (n *fakeNode) readSets(ks *shard.Keyspace, query raftfsm.Query, ids []uint64, opt *shard.ReadOptions) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.sets.Answer(ks.Name, query, ids)
	n.mu.lastRead = *opt
	return n.troubleLocked()
}

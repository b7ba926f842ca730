package api

import (
	"math"

	"github.com/countd/countd/api/apitest"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/shard"
)

// setsOf names the sets of a column.
type setsOf struct {
	keyspace string
	column   int
}

// setsLocked returns the sets of a column.
func (n *fakeNode) setsLocked(ks *shard.Keyspace, column int) *apitest.Sets {
	of := setsOf{ks.Name, column}
	if n.mu.sets[of] == nil {
		n.mu.sets[of] = &apitest.Sets{}
	}
	return n.mu.sets[of]
}

// memberLocked applies an op to a set. It returns the cell that the op adds to its count, whether
// that overflows, and whether the set changes. An overflow leaves the set unchanged.
func (n *fakeNode) memberLocked(ks *shard.Keyspace, op engine.Op, row []int64) (sum engine.Cell, overflows, changes bool) {
	column, member := op.Cells[0].Column, uint64(op.Cells[0].Value)
	sets := n.setsLocked(ks, int(column))
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
	switch q := query.(type) {
	case *counters.ContainsQuery:
		for i, id := range ids {
			q.In[i] = n.setsLocked(ks, int(q.Column)).In(id, q.Member)
		}
	case *counters.MembersQuery:
		q.List = n.setsLocked(ks, int(q.Column)).List(ids[0], q.Page)
	case *counters.RowsOfMemberQuery:
		q.List = n.setsLocked(ks, int(q.Column)).Of(q.Member, q.Page)
	}
	n.mu.lastRead = *opt
	return n.troubleLocked()
}

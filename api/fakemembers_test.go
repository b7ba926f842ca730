package api

import (
	"math"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/engine/members/memberstest"
	"github.com/countd/countd/shard"
)

// setsOf names the sets of a column.
type setsOf struct {
	keyspace string
	column   int
}

// setsLocked returns the sets of a column.
func (n *fakeNode) setsLocked(ks *shard.Keyspace, column int) *memberstest.Sets {
	of := setsOf{ks.Name, column}
	if n.mu.sets[of] == nil {
		n.mu.sets[of] = &memberstest.Sets{}
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

func (n *fakeNode) Members() shard.MemberReads { return fakeMembers{n} }

// fakeMembers reads the sets of a fakeNode.
type fakeMembers struct{ n *fakeNode }

func (m fakeMembers) begin(opt *shard.ReadOptions) error {
	m.n.mu.lastRead = *opt
	return m.n.troubleLocked()
}

func (m fakeMembers) Check(ks *shard.Keyspace, column int, member uint64, ids []uint64, opt *shard.ReadOptions, in []bool) error {
	m.n.mu.Lock()
	defer m.n.mu.Unlock()
	for i, id := range ids {
		in[i] = m.n.setsLocked(ks, column).In(id, member)
	}
	return m.begin(opt)
}

func (m fakeMembers) List(ks *shard.Keyspace, column int, id uint64, page members.Page, opt *shard.ReadOptions) (members.List, error) {
	m.n.mu.Lock()
	defer m.n.mu.Unlock()
	return m.n.setsLocked(ks, column).List(id, page), m.begin(opt)
}

func (m fakeMembers) Of(ks *shard.Keyspace, column int, member uint64, page members.Page, opt *shard.ReadOptions) (members.List, error) {
	m.n.mu.Lock()
	defer m.n.mu.Unlock()
	return m.n.setsLocked(ks, column).Of(member, page), m.begin(opt)
}

package redis

import (
	"slices"

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

func (n *fakeNode) setsLocked(ks *shard.Keyspace, column int) *memberstest.Sets {
	of := setsOf{ks.Name, column}
	if n.sets[of] == nil {
		n.sets[of] = &memberstest.Sets{}
	}
	return n.sets[of]
}

// joinLocked changes the sets as a write's ops say, and returns the ops on counts.
func (n *fakeNode) joinLocked(ks *shard.Keyspace, w *shard.Write) []engine.Op {
	w.Changed = w.Changed[:0]
	if !slices.ContainsFunc(w.Ops, func(op engine.Op) bool { return op.OfMember() || op.Kind == engine.OpDelete }) {
		return w.Ops
	}
	ops := slices.Clone(w.Ops)
	for i := range ops {
		op := &ops[i]
		for column := range ks.Columns {
			if op.Kind == engine.OpDelete {
				n.setsLocked(ks, column).Delete(op.ID)
			}
		}
		if !op.OfMember() {
			continue
		}
		sets, member, delta := n.setsLocked(ks, int(op.Cells[0].Column)), uint64(op.Cells[0].Value), int64(0)
		if op.Kind == engine.OpJoin && sets.Join(op.ID, member) {
			delta = 1
		} else if op.Kind == engine.OpLeave && sets.Leave(op.ID, member) {
			delta = -1
		}
		if delta != 0 {
			w.Changed = append(w.Changed, i)
		}
		op.Kind, op.Cells = engine.OpAdd, []engine.Cell{{Column: op.Cells[0].Column, Value: delta}}
	}
	return ops
}

func (n *fakeNode) Members() shard.MemberReads { return fakeMembers{n} }

// fakeMembers reads the sets of a fakeNode.
type fakeMembers struct{ n *fakeNode }

func (m fakeMembers) Check(ks *shard.Keyspace, column int, member uint64, ids []uint64, opt *shard.ReadOptions, in []bool) error {
	m.n.mu.Lock()
	defer m.n.mu.Unlock()
	m.n.mu.opt = *opt
	for i, id := range ids {
		in[i] = m.n.setsLocked(ks, column).In(id, member)
	}
	if m.n.mu.readErr != nil {
		return m.n.mu.readErr(ids)
	}
	return nil
}

func (m fakeMembers) List(ks *shard.Keyspace, column int, id uint64, page members.Page, opt *shard.ReadOptions) (members.List, error) {
	m.n.mu.Lock()
	defer m.n.mu.Unlock()
	m.n.mu.opt = *opt
	if m.n.mu.readErr != nil {
		return members.List{}, m.n.mu.readErr([]uint64{id})
	}
	return m.n.setsLocked(ks, column).List(id, page), nil
}

func (m fakeMembers) Of(ks *shard.Keyspace, column int, member uint64, page members.Page, _ *shard.ReadOptions) (members.List, error) {
	m.n.mu.Lock()
	defer m.n.mu.Unlock()
	return m.n.setsLocked(ks, column).Of(member, page), nil
}

package redis

import (
	"slices"

	"github.com/countd/countd/api/apitest"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/shard"
)

// joinLocked applies the ops of a write to the sets, and returns the ops on counts.
func (n *fakeNode) joinLocked(ks *shard.Keyspace, w *shard.Write) []engine.Op {
	w.Changed = w.Changed[:0]
	ops := apitest.RowOps(w.Ops)
	if outbox, is := w.Ops.(counters.OutboxOps); is {
		ops = []engine.Op{{ID: outbox[0].Author}}
	}
	if !slices.ContainsFunc(ops, func(op engine.Op) bool { return op.OfMember() || op.Kind == engine.OpDelete }) {
		return ops
	}
	ops = slices.Clone(ops)
	for i := range ops {
		op := &ops[i]
		for column := range ks.Columns {
			if op.Kind == engine.OpDelete {
				n.sets.Of(ks.Name, column).Delete(op.ID)
			}
		}
		if !op.OfMember() {
			continue
		}
		sets, member, delta := n.sets.Of(ks.Name, int(op.Cells[0].Column)), uint64(op.Cells[0].Value), int64(0)
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

// readSets answers a query of sets.
func (n *fakeNode) readSets(ks *shard.Keyspace, query raftfsm.Query, ids []uint64, opt *shard.ReadOptions) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.opt = *opt
	if n.mu.readErr != nil {
		return n.mu.readErr(ids)
	}
	n.sets.Answer(ks.Name, query, ids)
	return nil
}

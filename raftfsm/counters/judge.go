package counters

import (
	"cmp"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
)

// judge applies the ops on outboxes and sets of an entry while the table applies its own ops. The
// table calls it right before each op. So the judge sees the table, the outboxes and the sets as
// all earlier ops left them. If the count of an op overflows, the judge undoes the op before it
// judges the next one.
type judge struct {
	*contents
	now  int64
	sets *sets // nil if the entry does not change them

	outboxes, members int // how many ops of the batch were judged

	undo struct { // undoes the last op that changed an outbox
		op   int
		body []byte
	}
	unchanged, refused []int // numbers of the ops on outboxes
}

// Before implements engine.Judge.
func (j *judge) Before(op int) {
	b := j.batch
	switch {
	case b.Ops[op].Kind == engine.OpDelete:
		j.deleteRow(b.Ops[op].ID)
	case j.outboxes < len(b.outbox) && b.outbox[j.outboxes].op == op:
		j.outboxes++
		j.outboxOp(&b.outbox[j.outboxes-1], b.Ops[op].ID)
	case j.members < len(b.members) && b.members[j.members].op == op:
		j.members++
		j.sets.apply(b, &b.members[j.members-1])
	}
}

func (j *judge) deleteRow(key uint64) {
	if body := j.out.bodies.Get(key); body != nil {
		j.change.Drop(key, body)
		j.set(key)
	}
	if j.sets != nil {
		j.sets.batch.DeleteRow(key)
	}
}

func (j *judge) outboxOp(o *outboxOp, key uint64) {
	if o.Kind == ClearOutboxes {
		j.out.clear()
		return
	}
	j.undo.op, j.undo.body = -1, j.out.bodies.Get(key)
	switch j.change.Apply(&o.PostOp, key, j.undo.body, j.now) {
	case outboxChanged:
		j.undo.op = o.op
		j.set(key)
		return
	case outboxTooOld:
		j.refused = append(j.refused, o.op)
	case outboxUnchanged:
		j.unchanged = append(j.unchanged, o.op)
	}
	if o.cell >= 0 {
		j.batch.Cells[o.cell].Value = 0
	}
}

// set stores the outbox that is the result of j.change.
func (j *judge) set(key uint64) {
	j.out.bodies.Set(key, j.change.Body)
	j.out.sum += j.change.Digest
}

// Refused implements engine.Judge.
func (j *judge) Refused(op int) {
	if j.undo.op == op {
		j.out.bodies.Set(j.batch.Ops[op].ID, j.undo.body)
		j.out.sum -= j.change.Digest
	}
	if j.sets != nil {
		j.sets.undo(op)
	}
}

// applyJudged is Apply for an entry that may change outboxes. If touched is set, the entry may also
// change sets of members.
func (c *contents) applyJudged(now int64, touched bool, r *raftfsm.Result) (err error) {
	j := judge{contents: c, now: now}
	j.undo.op = -1
	if touched {
		j.sets = &c.sets
	}
	if err := c.out.bodies.LockReturned(c.batch.outboxKeys); err != nil {
		return err
	}
	defer c.out.bodies.Unlock()
	if r.Overflows, err = c.table.ApplyJudged(c.batch.Ops, r.Width, r.Rows, nil, &j); err != nil {
		return err
	}
	for _, op := range j.refused {
		r.Overflows = append(r.Overflows, engine.Overflow{Op: op, Column: TooOldColumn})
	}
	slices.SortFunc(r.Overflows, func(a, b engine.Overflow) int { return cmp.Compare(a.Op, b.Op) })
	r.Cuts = slices.Clone(c.table.Cuts())
	for _, op := range j.unchanged {
		r.Cuts = append(r.Cuts, engine.Cut{Op: op, Column: UnchangedColumn})
	}
	slices.SortStableFunc(r.Cuts, func(a, b engine.Cut) int { return cmp.Compare(a.Op, b.Op) })
	return nil
}

// changesOutboxes reports whether the ops of the batch may change outboxes.
func (c *contents) changesOutboxes() bool {
	return len(c.batch.outbox) > 0 || c.batch.deletes() && !c.out.none()
}

func (c *contents) Apply(now int64, _ bool, r *raftfsm.Result) error {
	c.batch.Link()
	touched, err := c.sets.begin(c.batch, r.Index, now)
	if err != nil {
		return err
	}
	if touched || c.changesOutboxes() {
		err = c.applyJudged(now, touched, r)
	} else {
		r.Overflows, err = c.table.Apply(c.batch.Ops, r.Width, r.Rows, nil)
		r.Cuts = slices.Clone(c.table.Cuts())
	}
	if err == nil && touched {
		err = c.sets.commit()
	}
	r.Changed = c.sets.changed
	if err == nil {
		c.feedHot(now, r)
	}
	if cap(c.batch.Ops) > batchOpsKept {
		batches.Put(c.batch)
		c.batch = nil
	}
	return err
}

package counters

import (
	"cmp"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
)

// judge applies an entry's ops on outboxes and sets while the table applies the ops on counts. The
// table calls it just before each op. So at that time all earlier ops have changed the table, the
// outboxes and the sets. If the table refuses the count of an op, the judge undoes the op before
// the next one.
type judge struct {
	*contents
	now  int64
	sets *sets // nil if the entry cannot change them

	outboxes, members int // number of ops of batch.outbox and batch.members done so far

	undo struct { // the last op that changed an outbox, and the outbox before it
		op   int
		body []byte
	}
	unchanged, refused []int // indexes of ops on outboxes
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
		j.out.bodies.Clear()
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

// set stores the result of j.change as the outbox of key.
func (j *judge) set(key uint64) {
	j.out.bodies.Set(key, j.change.Body, j.change.Digest)
}

// Refused implements engine.Judge.
func (j *judge) Refused(op int) {
	if j.undo.op == op {
		j.out.bodies.Set(j.batch.Ops[op].ID, j.undo.body, -j.change.Digest)
	}
	if j.sets != nil {
		j.sets.undo(op)
	}
}

// applyJudged applies an entry that may change outboxes or, if touched is set, sets of members.
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

package redis

import (
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/shard"
)

// read fills t.rows.
func (t *table) read(c *conn, deadline time.Time) {
	t.rows = resized(t.rows, len(t.ids)*t.width())
	err := t.get(c, t.ids, t.rows, deadline)
	if err == nil {
		return
	}
	t.unread = make([]error, len(t.ids))
	for i, id := range t.ids {
		t.unread[i] = readErrorOf(err, id)
	}
}

// readErrorOf returns the part of a read's error that is an id's.
func readErrorOf(err error, id uint64) error {
	if some, ok := errors.AsType[*shard.ReadError](err); ok {
		return some.Of(id)
	}
	return err
}

// apply writes the ops: those of plain commands together, those that count once
// each under its own identity.
func (t *table) apply(c *conn, deadline time.Time) {
	t.counts = resized(t.counts, len(t.ops)*t.width())
	for from := 0; from < len(t.units); {
		to := from + 1
		if t.units[from].id.Exists() {
			to = t.wave(from)
			t.applyOnce(c, from, to, deadline)
		} else {
			for to < len(t.units) && !t.units[to].id.Exists() {
				to++
			}
			t.applyPlain(c, from, to, deadline)
		}
		from = to
	}
}

// waveMax bounds the writes of one connection that go side by side, each with a
// goroutine of its own.
const waveMax = 256

// wave returns the unit up to which those from one on may go side by side:
// they all have identities, and no id in common.
func (t *table) wave(from int) (to int) {
	seen := map[uint64]int{}
	for to = from; to < len(t.units) && to-from < waveMax && t.units[to].id.Exists(); to++ {
		for i := t.units[to].first; i < t.end(to); i++ {
			if unit, ok := seen[t.ops[i].ID]; ok && unit != to {
				return to
			}
			seen[t.ops[i].ID] = to
		}
	}
	return to
}

// prepare makes the write of some units.
func (t *table) prepare(w *shard.Write, from, to int, deadline time.Time) {
	first, end := t.units[from].first, t.end(to-1)
	w.Ops, w.ID, w.Width, w.Deadline = t.ops[first:end], t.units[from].id, t.width(), deadline
	w.Rows = t.counts[first*t.width() : end*t.width()]
}

// applyPlain writes units as one request.
func (t *table) applyPlain(c *conn, from, to int, deadline time.Time) {
	w := &t.write
	t.prepare(w, from, to, deadline)
	err := c.server.cfg.Backend.Write(t.ks, w)
	if errors.Is(err, shard.ErrMemoryFull) && t.leaveOutNewRows(c, from, to, deadline) {
		err = c.server.cfg.Backend.Write(t.ks, w)
	}
	t.settle(w, t.units[from].first, err)
	if err != nil {
		t.lookElsewhere(c, deadline)
	}
}

// applyOnce writes each unit as a request of its own, all side by side.
func (t *table) applyOnce(c *conn, from, to int, deadline time.Time) {
	writes := make([]shard.Write, to-from)
	errs := make([]error, to-from)
	var all sync.WaitGroup
	for i := range writes {
		w := &writes[i]
		t.prepare(w, from+i, from+i+1, deadline)
		all.Go(func() { errs[i] = c.server.cfg.Backend.Write(t.ks, w) })
	}
	all.Wait()
	for i := range writes {
		t.settle(&writes[i], t.units[from+i].first, errs[i])
	}
}

// settle notes what became of the ops of a write, the first of which is the
// table's op of that number.
func (t *table) settle(w *shard.Write, first int, err error) {
	partial, some := errors.AsType[*shard.PartialError](err)
	if err == nil || some {
		t.written.add(&w.Token)
		for _, o := range w.Overflows {
			t.fail(first+o.Op, errOverflow)
		}
		for _, op := range w.Unknown {
			t.fail(first+op, errForgotten)
		}
	}
	if err == nil {
		return
	}
	for i := range w.Ops {
		of := err
		if some {
			of = partial.Of(w.Ops[i].ID)
		}
		if of != nil {
			t.fail(first+i, of)
		}
	}
}

func (t *table) fail(op int, err error) {
	if t.failed == nil {
		t.failed = make([]error, len(t.ops))
	}
	if t.failed[op] == nil {
		t.failed[op] = err
	}
}

// leaveOutNewRows fails those of some units that would make rows, for which there
// is no memory, and has their ops do nothing, so that the others can be done. It
// returns false if it found none.
func (t *table) leaveOutNewRows(c *conn, from, to int, deadline time.Time) (found bool) {
	w := &t.write
	ids := make([]uint64, len(w.Ops))
	for i := range ids {
		ids[i] = w.Ops[i].ID
	}
	opt := shard.ReadOptions{Consistency: shard.Stale, Deadline: deadline}
	if c.server.cfg.Backend.Get(t.ks, ids, t.width(), &opt, w.Rows) != nil {
		return false
	}
	for number := from; number < to; number++ {
		if !t.makesRow(number) {
			continue
		}
		found = true
		for i := t.units[number].first; i < t.end(number); i++ {
			t.ops[i] = engine.Op{ID: t.ops[i].ID, Kind: engine.OpAdd, Cells: []engine.Cell{{}}}
			t.fail(i, shard.ErrMemoryFull)
		}
	}
	return found
}

// makesRow reports whether an op of the unit leaves a row where t.counts has
// none.
func (t *table) makesRow(number int) bool {
	for i := t.units[number].first; i < t.end(number); i++ {
		makes := slices.ContainsFunc(t.ops[i].Cells, func(c engine.Cell) bool { return c.Value != 0 })
		row := t.counts[i*t.width() : (i+1)*t.width()]
		if makes && !slices.ContainsFunc(row, func(count int64) bool { return count != 0 }) {
			return true
		}
	}
	return false
}

// lookElsewhere reads what was to be read among ops that failed: a disk that is
// full is no reason not to answer a GET.
func (t *table) lookElsewhere(c *conn, deadline time.Time) {
	var ids []uint64
	var ops []int32
	for _, op := range t.looks {
		if t.failed != nil && t.failed[op] != nil {
			ids, ops = append(ids, t.ops[op].ID), append(ops, op)
		}
	}
	if len(ids) == 0 {
		return
	}
	rows := make([]int64, len(ids)*t.width())
	err := t.get(c, ids, rows, deadline)
	for i, op := range ops {
		t.failed[op] = readErrorOf(err, ids[i])
		copy(t.counts[int(op)*t.width():], rows[i*t.width():(i+1)*t.width()])
	}
}

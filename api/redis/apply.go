package redis

import (
	"errors"
	"slices"
	"time"

	"github.com/countd/countd/api/gate"
	"github.com/countd/countd/api/redis/resp"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// read fills t.rows, and t.unread if rows could not be read.
func (t *table) read(c *conn, deadline time.Time) {
	t.rows = slices.Grow(t.rows[:0], len(t.ids)*t.width())[:len(t.ids)*t.width()]
	err := t.get(c, t.ids, t.rows, deadline)
	if err == nil {
		return
	}
	for i, id := range t.ids {
		t.got(i, id, readErrorOf(err, id))
	}
}

// readErrorOf returns the error of a read for id. If only some shards failed, the error may be nil.
func readErrorOf(err error, id uint64) error {
	if some, ok := errors.AsType[*shard.ReadError](err); ok {
		return some.Of(id)
	}
	return err
}

// judgeKeyspace is the keyspace whose shards check the idempotency keys of all commands on counts.
// So a second, different command with the same key is refused, even if it names other keyspaces.
// Nobody can drop this keyspace. While a cluster is new, other keyspaces may exist before this one.
// countdIncr then refuses the key.
const judgeKeyspace = kinds.KeyspacePosts

// applyAcross writes the ops of all tables as one request. All of them belong to one command with
// an idempotency key.
func (b *batch) applyAcross(deadline time.Time) {
	c := b.conn
	w := shard.Write{Spaces: []*shard.Keyspace{c.server.node().Keyspace(judgeKeyspace)}, Deadline: deadline, Permission: c}
	type target struct {
		table *table
		op    int
	}
	var targets []target // one for each op
	var ops counters.Ops
	for _, t := range b.tables {
		if len(t.ops) == 0 {
			continue
		}
		space := slices.IndexFunc(w.Spaces, func(ks *shard.Keyspace) bool { return ks.Name == t.ks.Name })
		if space < 0 {
			space = len(w.Spaces)
			w.Spaces = append(w.Spaces, t.ks)
		}
		t.counts = slices.Grow(t.counts[:0], len(t.ops)*t.width())[:len(t.ops)*t.width()]
		w.ID, w.Width = t.units[0].id, max(w.Width, t.width())
		for op := range t.ops {
			targets = append(targets, target{t, op})
			ops, w.In = append(ops, t.ops[op]), append(w.In, uint8(space))
		}
	}
	w.Ops, w.Rows = ops, make([]int64, len(ops)*w.Width)
	err := c.server.node().Write(w.Spaces[0], &w)
	settle(&w, err, func(op int) (*table, int) { return targets[op].table, targets[op].op })
	for i, to := range targets {
		width := to.table.width()
		copy(to.table.counts[to.op*width:(to.op+1)*width], w.Rows[i*w.Width:])
	}
}

// apply writes the ops. Consecutive commands without an identity share one request; each command
// with an identity has its own request.
func (t *table) apply(c *conn, deadline time.Time) {
	t.counts = slices.Grow(t.counts[:0], len(t.ops)*t.width())[:len(t.ops)*t.width()]
	for from := 0; from < len(t.units); {
		to := from + 1
		if err := t.lost(from); err != nil {
			for op := t.units[from].first; op < t.end(from); op++ {
				t.fail(op, err)
			}
		} else if t.units[from].id.Exists() {
			to = t.wave(from)
			t.applyOnce(c, from, to, deadline)
		} else {
			for to < len(t.units) && !t.units[to].id.Exists() && t.lost(to) == nil {
				to++
			}
			t.applyPlain(c, from, to, deadline)
		}
		from = to
	}
}

// wave returns the end of the range of units, beginning at index start, that can be written
// concurrently. All units of the range have identities, and no two share an id or a key.
func (t *table) wave(start int) (end int) {
	seen, used := map[uint64]int{}, keys{}
	for end = start; end < len(t.units) && end-start < gate.WaveMax && t.units[end].id.Exists() && t.lost(end) == nil && used.add(&t.units[end].id); end++ {
		for i := t.units[end].first; i < t.end(end); i++ {
			if unit, ok := seen[t.ops[i].ID]; ok && unit != end {
				return end
			}
			seen[t.ops[i].ID] = end
		}
	}
	return end
}

// keys holds the idempotency keys of concurrent writes. Writes with the same key may be repeats,
// so they must run one after the other.
type keys map[[16]byte]bool

// add adds the key of id, and returns false if keys already has it. It returns true for a write
// without a key.
func (k keys) add(id *dedup.RequestID) bool {
	if !id.Keyed() {
		return true
	}
	before := k[id.Key()]
	k[id.Key()] = true
	return !before
}

// prepare fills w with the ops of some units. ops is the memory of w.Ops.
func (t *table) prepare(c *conn, w *shard.Write, ops *counters.Ops, from, to int, deadline time.Time) {
	first, end := t.units[from].first, t.end(to-1)
	*ops = t.ops[first:end]
	w.Ops, w.ID, w.Width, w.Deadline = ops, t.units[from].id, t.width(), deadline
	w.Permission = c
	w.Rows = t.counts[first*t.width() : end*t.width()]
	w.Whole = w.Whole[:0]
	for _, exec := range t.execs {
		if exec[0] >= first && exec[1] <= end {
			w.Whole = append(w.Whole, [2]int{exec[0] - first, exec[1] - first})
		}
	}
	if w.ID.Keyed() && isCounters(t.ks) && t.ks.Name != judgeKeyspace {
		w.Spaces, w.In = []*shard.Keyspace{c.server.node().Keyspace(judgeKeyspace), t.ks}, slices.Repeat([]uint8{1}, end-first)
	}
}

// applyPlain writes units as one request.
func (t *table) applyPlain(c *conn, from, to int, deadline time.Time) {
	w := &t.write
	t.prepare(c, w, &t.sent, from, to, deadline)
	first := t.units[from].first
	err := c.server.node().Write(t.ks, w)
	settle(w, err, func(op int) (*table, int) { return t, first + op })
	if errs.RefusesRows(err) {
		t.applyWithoutNewRows(c, from, to, deadline)
	}
	if err != nil {
		t.readInstead(c, deadline)
	}
}

// applyOnce writes each unit as a separate request. All requests run concurrently.
func (t *table) applyOnce(c *conn, from, to int, deadline time.Time) {
	writes := make([]shard.Write, to-from)
	errs := make([]error, to-from)
	c.server.helpers.Concurrently(len(writes), func(i int) {
		t.prepare(c, &writes[i], new(counters.Ops), from+i, from+i+1, deadline)
		errs[i] = c.server.node().Write(t.ks, &writes[i])
	})
	for i := range writes {
		first := t.units[from+i].first
		settle(&writes[i], errs[i], func(op int) (*table, int) { return t, first + op })
	}
}

// settle records the result of each op of a write. locate returns the table of an op and its
// index there.
func settle(w *shard.Write, err error, locate func(op int) (*table, int)) {
	fail := func(op int, err error) {
		t, i := locate(op)
		t.fail(i, err)
	}
	partial, some := errors.AsType[*shard.PartialError](err)
	if err == nil || some {
		for _, o := range w.Overflows {
			fail(o.Op, resp.Error(o.Why.Reason().Redis))
		}
		for _, op := range w.Unknown {
			fail(op, errForgotten)
		}
		for _, op := range w.Changed {
			t, i := locate(op)
			if t.joined == nil {
				t.joined = make([]bool, len(t.ops))
			}
			t.joined[i] = true
		}
	}
	var noted *table // the last table to which the write's token was added
	for i := range w.Ops.Len() {
		t, op := locate(i)
		if err == nil && w.Repeated && t.ops[op].Kind == engine.OpTake {
			clear(w.Rows[i*w.Width : (i+1)*w.Width]) // the reply is 0, because a repeat takes no counts
		}
		if t != noted && (err == nil || some) {
			t.wrote(w)
			noted = t
		}
		opErr := err
		if some {
			opErr = partial.Of(i)
		}
		if opErr != nil {
			fail(i, opErr)
		}
	}
}

func (t *table) wrote(w *shard.Write) {
	token := w.Token
	if len(w.Spaces) > 0 {
		token.At = slices.DeleteFunc(slices.Clone(token.At), func(at shard.GroupIndex) bool {
			return slices.ContainsFunc(w.Spaces, func(ks *shard.Keyspace) bool { // t.ks.Groups lacks new parts of a shard
				return !ks.Same(t.ks) && slices.Contains(ks.Groups, at.Group)
			})
		})
	}
	t.written.add(&token)
}

// applyWithoutNewRows retries the units that were refused for lack of memory, except the units
// that create rows. A shard refuses all ops of a request if one of them needs a new row. Shards
// that did not refuse have applied their ops already.
func (t *table) applyWithoutNewRows(c *conn, from, to int, deadline time.Time) {
	units, err := t.refusedForMemory(c, from, to, deadline)
	if err == nil {
		t.applyAgain(c, units, deadline)
	}
}

// applyAgain retries the ops of units. If the backend refuses some of them for lack of memory
// again, applyAgain retries each half of these units separately. It cannot pick the units that
// would succeed, because only the nodes that own the rows know which ops widen rows.
func (t *table) applyAgain(c *conn, units [][]int, deadline time.Time) {
	again := slices.Concat(units...)
	if len(again) == 0 {
		return
	}
	ops := make(counters.Ops, len(again))
	w := shard.Write{Ops: ops, Width: t.width(), Rows: make([]int64, len(again)*t.width()), Deadline: deadline, Permission: c}
	for i, op := range again {
		ops[i], t.failed[op] = t.ops[op], nil
	}
	at := 0
	for _, unit := range units {
		if slices.ContainsFunc(t.execs, func(exec [2]int) bool { return exec[0] <= unit[0] && unit[0] < exec[1] }) {
			w.Whole = append(w.Whole, [2]int{at, at + len(unit)})
		}
		at += len(unit)
	}
	err := c.server.node().Write(t.ks, &w)
	for i, op := range again {
		copy(t.counts[op*t.width():(op+1)*t.width()], w.Rows[i*t.width():(i+1)*t.width()])
	}
	settle(&w, err, func(op int) (*table, int) { return t, again[op] })
	if len(units) < 2 || !errs.RefusesRows(err) {
		return
	}
	var refused [][]int
	for _, ops := range units {
		if ops = slices.DeleteFunc(ops, func(op int) bool { return !t.lacksMemory(op) }); len(ops) > 0 {
			refused = append(refused, ops)
		}
	}
	half := len(refused) / 2
	t.applyAgain(c, refused[:half], deadline)
	t.applyAgain(c, refused[half:], deadline)
}

// lacksMemory reports whether an op was refused for lack of memory.
func (t *table) lacksMemory(op int) bool { return errs.RefusesRows(t.failed[op]) }

// refusedForMemory returns, for each unit in [from, to), its ops that were refused for lack of
// memory. It omits a unit if one of these ops creates a row.
func (t *table) refusedForMemory(c *conn, from, to int, deadline time.Time) (units [][]int, err error) {
	var ids []uint64
	for i := t.units[from].first; i < t.end(to-1); i++ {
		ids = append(ids, t.ops[i].ID)
	}
	width := t.width()
	q := rows.Query{Width: width, Rows: make([]int64, len(ids)*width)}
	opt := shard.ReadOptions{Consistency: shard.Stale, Deadline: deadline}
	if err := c.server.node().Read(t.ks, &q, ids, &opt); err != nil {
		return nil, err
	}
	for number := from; number < to; number++ {
		var ops []int
		makes := false
		for i := t.units[number].first; i < t.end(number); i++ {
			if t.lacksMemory(i) {
				row := (i - t.units[from].first) * width
				absent := !slices.ContainsFunc(q.Rows[row:row+width], func(count int64) bool { return count != 0 })
				ops, makes = append(ops, i), makes || absent && t.ops[i].HasValue()
			}
		}
		if !makes && len(ops) > 0 {
			units = append(units, ops)
		}
	}
	return units, nil
}

// readInstead reads the rows of those failed ops that only read. Otherwise a node with a full disk,
// which refuses all ops, would not answer a GET.
func (t *table) readInstead(c *conn, deadline time.Time) {
	var ids []uint64
	var ops []int32
	for _, op := range t.fetched {
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

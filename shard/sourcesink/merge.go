package sourcesink

import (
	"fmt"
	"math"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/keyspace"
	"github.com/countd/countd/source/sink"
)

// cellsMax bounds the cells of an op, as a log entry does.
const cellsMax = engine.ColumnsMax

// takesMessages reports whether messages may have ops on a keyspace.
func takesMessages(k *keyspace.Keyspace) bool {
	return k.Kind == keyspace.KindCounters || k.Kind == keyspace.KindUnread
}

// rejectedOps returns the ops that no shard would take, ascending.
func rejectedOps(keyspaces []*keyspace.Keyspace, ops []sink.Op) (rejected []sink.Rejection) {
	byName := make(map[string]*keyspace.Keyspace, len(keyspaces))
	for _, k := range keyspaces {
		byName[k.Name] = k
	}
	for i := range ops {
		if reason := whyRejected(byName[ops[i].Keyspace], &ops[i]); reason != "" {
			rejected = append(rejected, sink.Rejection{Op: i, Reason: reason})
		}
	}
	return rejected
}

// whyRejected returns why an op on a keyspace, nil for one that does not exist, cannot be
// applied, or "". The rules are those of POST /v1/ops.
func whyRejected(k *keyspace.Keyspace, op *sink.Op) string {
	switch {
	case k == nil:
		return fmt.Sprintf("keyspace %q: no such keyspace", op.Keyspace)
	case !takesMessages(k):
		return fmt.Sprintf("keyspace %q: neither of counters nor of unread numbers", op.Keyspace)
	case op.Kind > sink.Leave:
		return "neither add nor set"
	case op.Kind.OfMember() && k.Kind != keyspace.KindCounters:
		return "member: rows of unread have no members"
	case op.Kind.OfMember() && (op.HasFloor || len(op.Cells) != 1):
		return "member: an op with a floor, or with another number of columns than 1"
	case op.Kind == sink.Set && k.Kind != keyspace.KindCounters:
		return "set: counts of unread numbers are not set"
	case op.Kind == sink.Set && op.HasFloor:
		return "floor: of an add only"
	case len(op.Cells) < 1 || len(op.Cells) > cellsMax:
		return fmt.Sprintf("%d columns are not 1…%d", len(op.Cells), cellsMax)
	}
	seen := uint64(0)
	for _, c := range op.Cells {
		column := k.Column(c.Column)
		if column < 0 {
			return fmt.Sprintf("column %q: keyspace %s has no such column", c.Column, k.Name)
		}
		if seen&(1<<column) != 0 {
			return fmt.Sprintf("column %q: is there twice", c.Column)
		}
		seen |= 1 << column
	}
	return ""
}

// merge puts ops of messages into a write, one op for all deltas of a row where that
// gives the same counts.
type merge struct {
	w      *Write
	spaces map[string]space
	last   map[mergeKey]int // the latest op on a row, by number in w
	from   []part           // the ops of the batch, in order

	// of the op that resolve returned the shard of
	space space
	cells []engine.Cell

	room []engine.Cell // for the cells of ops, which would be an allocation each
}

// part is an op of a batch that is in an op of a write.
type part struct{ op, in int }

// space is a keyspace of a write.
type space struct {
	*keyspace.Keyspace
	number uint8 // among the keyspaces
	first  int   // place of its first shard
	route  keyspace.Route
}

// mergeKey names a row of a write.
type mergeKey struct {
	space uint8
	id    uint64
}

// newMerge returns a merge of up to so many ops.
func newMerge(w *Write, ops int) *merge {
	m := &merge{w: w, spaces: make(map[string]space, len(w.Spaces)), last: make(map[mergeKey]int, ops), from: make([]part, 0, ops)}
	w.Ops, w.In = make([]engine.Op, 0, ops), make([]uint8, 0, ops)
	first := 0
	for i, k := range w.Spaces {
		m.spaces[k.Name] = space{k, uint8(i), first, k.Route()}
		first += k.Shards
	}
	return m
}

// used reports whether there is anything to send.
func (m *merge) used(w *Write) bool {
	for _, section := range w.Sections {
		if section != nil {
			return true
		}
	}
	return false
}

// resolve returns the place of an op's shard, and keeps its cells for add.
func (m *merge) resolve(op *sink.Op) (slot int, err error) {
	space, known := m.spaces[op.Keyspace]
	if !known {
		return 0, fmt.Errorf("%w: %s", errs.ErrUnknownKeyspace, op.Keyspace)
	}
	m.space, m.cells = space, m.cells[:0]
	for _, c := range op.Cells {
		column := space.Column(c.Column)
		if column < 0 {
			return 0, fmt.Errorf("%w: %s of keyspace %s", errs.ErrUnknownColumn, c.Column, op.Keyspace)
		}
		if op.HasFloor {
			m.cells = append(m.cells, engine.Cell{Column: engine.FloorMark | uint8(column), Value: op.Floor})
		}
		m.cells = append(m.cells, engine.Cell{Column: uint8(column), Value: c.Value})
	}
	shard, _ := space.route.KeyOf(op.ID)
	return space.first + shard, nil
}

// add adds the op that was resolved last, which has a number in the batch.
func (m *merge) add(op *sink.Op, number int) {
	key := mergeKey{m.space.number, op.ID}
	kind := [...]engine.OpKind{sink.Add: engine.OpAdd, sink.Set: engine.OpSet, sink.Join: engine.OpJoin, sink.Leave: engine.OpLeave}[op.Kind]
	if i, there := m.last[key]; there && kind == engine.OpAdd && !op.HasFloor && mergeCells(&m.w.Ops[i], m.cells) {
		m.from = append(m.from, part{number, i})
		return
	}
	m.last[key] = len(m.w.Ops)
	m.from = append(m.from, part{number, len(m.w.Ops)})
	m.w.Ops = append(m.w.Ops, engine.Op{ID: op.ID, Kind: kind, Cells: m.keep(m.cells)})
	m.w.In = append(m.w.In, m.space.number)
}

// keep returns a copy of cells, which nothing is appended to in place.
func (m *merge) keep(cells []engine.Cell) []engine.Cell {
	const chunk = 1024
	if cap(m.room)-len(m.room) < len(cells) {
		m.room = make([]engine.Cell, 0, max(chunk, len(cells)))
	}
	first := len(m.room)
	m.room = append(m.room, cells...)
	return m.room[first:len(m.room):len(m.room)]
}

// mergeCells adds deltas to those of an op. It changes nothing and returns false if the
// counts could differ from those of two ops: deltas of both signs, which a floor takes one
// by one, a floor of the op, a value that is set, or a sum that overflows.
func mergeCells(op *engine.Op, cells []engine.Cell) bool {
	if op.Kind != engine.OpAdd || len(op.Cells)+len(cells) > 2*cellsMax {
		return false
	}
	for _, has := range op.Cells {
		if has.Column&engine.FloorMark != 0 {
			return false
		}
		for _, c := range cells {
			if c.Column == has.Column && !sameSign(has.Value, c.Value) {
				return false
			}
		}
	}
next:
	for _, c := range cells {
		for i := range op.Cells {
			if op.Cells[i].Column == c.Column {
				op.Cells[i].Value += c.Value
				continue next
			}
		}
		op.Cells = append(op.Cells, c)
	}
	return true
}

// sameSign reports whether two deltas of one sign have a sum.
func sameSign(a, b int64) bool {
	if a >= 0 {
		return b >= 0 && a <= math.MaxInt64-b
	}
	return b < 0 && a >= math.MinInt64-b
}

// Compile-time check that a log entry takes the columns of any op.
const _ = uint(64 - cellsMax)

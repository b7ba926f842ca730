package sourcesink

import (
	"fmt"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/keyspace"
	"github.com/countd/countd/source/sink"
)

// takesMessages reports whether messages may have ops on a keyspace.
func takesMessages(k *keyspace.Keyspace) bool {
	return k.Kind == keyspace.KindCounters || k.Kind == keyspace.KindUnread
}

// rejectedOps returns the ops that no shard would take, in order.
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

// whyRejected returns why no shard would take an op on keyspace k, or "". k is nil if the keyspace does not
// exist. The rules are those of POST /v1/ops.
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
	case len(op.Cells) < 1 || len(op.Cells) > engine.ColumnsMax:
		return fmt.Sprintf("%d columns are not 1…%d", len(op.Cells), engine.ColumnsMax)
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

// mergedMax bounds merged deltas and their sums.
const mergedMax = 1 << 32

// merge adds ops of messages to a write. It merges deltas of a row into one op if counts and
// refusals stay the same as with one op for each message:
//
//   - merge only merges ops of the same columns, because an op applies whole or not at all.
//   - No op between the two merged ops touches these columns. An op on other columns of the row may lie
//     between: it does not change these counts, and neither op can make the other fail.
//   - merge only merges deltas of one sign. Each intermediate sum then lies between the first count and the
//     last. So all fit if the last one fits, and a floor of the column cuts all of them to the same count. merge
//     never merges ops that have floors of their own.
//   - merge never merges deltas or sums beyond mergedMax. So if a merged op
//     overflows, its count is already within mergedMax of an end of int64. Then the shard refuses all messages
//     of the op, although the first ones may still fit. Only an absurd delta brings a count there.
type merge struct {
	w      *Write
	spaces map[string]space
	last   map[mergeKey]int // the index in w of the latest op on a column of a row
	from   []part           // the ops of the batch, in order

	// space and cells are those of the op that resolve got last.
	space space
	cells []engine.Cell

	chunk []engine.Cell // memory for the cells of ops, so that not each op allocates
}

// part records which op of the write holds an op of the batch.
type part struct{ op, in int }

type space struct {
	*keyspace.Keyspace
	number uint8 // index in Write.Spaces
	first  int   // index of its first shard in Write.Sections
	route  raftfsm.Route
}

// mergeKey names a column of a row of a write.
type mergeKey struct {
	space, column uint8
	id            uint64
}

// newMerge returns a merge with memory for a number of ops.
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

// used reports whether a write has a section.
func (m *merge) used(w *Write) bool {
	for _, section := range w.Sections {
		if section != nil {
			return true
		}
	}
	return false
}

// resolve returns the index of an op's shard, and prepares the op for add.
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

// add adds the op that resolve got last. number is its index in the batch.
func (m *merge) add(op *sink.Op, number int) {
	kind := [...]engine.OpKind{sink.Add: engine.OpAdd, sink.Set: engine.OpSet, sink.Join: engine.OpJoin, sink.Leave: engine.OpLeave}[op.Kind]
	if kind == engine.OpAdd {
		if i, there := m.latest(op.ID); there && mergeCells(&m.w.Ops[i], m.cells) {
			m.from = append(m.from, part{number, i})
			return
		}
	}
	for _, c := range m.cells {
		m.last[m.key(op.ID, c)] = len(m.w.Ops)
	}
	m.from = append(m.from, part{number, len(m.w.Ops)})
	m.w.Ops = append(m.w.Ops, engine.Op{ID: op.ID, Kind: kind, Cells: m.keep(m.cells)})
	m.w.In = append(m.w.In, m.space.number)
}

func (m *merge) key(id uint64, c engine.Cell) mergeKey {
	return mergeKey{m.space.number, c.Column &^ engine.FloorMark, id}
}

// latest returns the op of the write that was the last one on each column of m.cells. It returns
// false if those columns have different last ops.
func (m *merge) latest(id uint64) (op int, there bool) {
	for n, c := range m.cells {
		i, known := m.last[m.key(id, c)]
		if !known || n > 0 && i != op {
			return 0, false
		}
		op = i
	}
	return op, true
}

// keep returns a copy of cells whose capacity is its length.
func (m *merge) keep(cells []engine.Cell) []engine.Cell {
	const chunkCells = 1024
	if cap(m.chunk)-len(m.chunk) < len(cells) {
		m.chunk = make([]engine.Cell, 0, max(chunkCells, len(cells)))
	}
	first := len(m.chunk)
	m.chunk = append(m.chunk, cells...)
	return m.chunk[first:len(m.chunk):len(m.chunk)]
}

// mergeCells adds deltas to those of an op. It changes nothing and returns false if the rules of merge forbid it.
func mergeCells(op *engine.Op, cells []engine.Cell) bool {
	if op.Kind != engine.OpAdd || len(op.Cells) != len(cells) {
		return false
	}
	for _, c := range cells {
		if i := cellOf(op, c.Column); i < 0 || c.Column&engine.FloorMark != 0 || !merges(op.Cells[i].Value, c.Value) {
			return false
		}
	}
	for _, c := range cells {
		op.Cells[cellOf(op, c.Column)].Value += c.Value
	}
	return true
}

func cellOf(op *engine.Op, column uint8) int {
	return slices.IndexFunc(op.Cells, func(c engine.Cell) bool { return c.Column == column })
}

// merges reports whether two deltas have the same sign and are small enough.
func merges(a, b int64) bool {
	if a > mergedMax || a < -mergedMax || b > mergedMax || b < -mergedMax {
		return false
	}
	return (a >= 0) == (b >= 0) && a+b <= mergedMax && a+b >= -mergedMax
}

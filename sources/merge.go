package sources

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/source/sink"
)

// takesMessages reports whether ops of messages may change a keyspace.
func takesMessages(k *shard.Keyspace) bool {
	return k.Kind == kinds.Counters || k.Kind == kinds.Unread
}

// rejectedOps returns the ops that their shards would refuse, in order.
func rejectedOps(keyspaces []*shard.Keyspace, ops []sink.Op) (rejected []sink.Rejection) {
	byName, texts := make(map[string]*shard.Keyspace, len(keyspaces)), textIDsOf(keyspaces)
	for _, k := range keyspaces {
		byName[k.Name] = k
	}
	for i := range ops {
		reason := whyRejected(byName[ops[i].Keyspace], &ops[i])
		if reason = cmp.Or(reason, texts.whyBad(&ops[i])); reason != "" {
			rejected = append(rejected, sink.Rejection{Op: i, Reason: reason})
		}
	}
	return rejected
}

// whyRejected returns the reason why a shard would refuse an op on keyspace k, or "". k is nil if
// the keyspace does not exist. The rules are the same as for POST /v1/ops.
func whyRejected(k *shard.Keyspace, op *sink.Op) string {
	switch {
	case k == nil:
		return fmt.Sprintf("keyspace %q: no such keyspace", op.Keyspace)
	case !takesMessages(k):
		return fmt.Sprintf("keyspace %q: neither of counters nor of unread numbers", op.Keyspace)
	case op.Kind > sink.Leave:
		return "neither add nor set"
	case op.Kind.OfMember() && k.Kind != kinds.Counters:
		return "member: rows of unread have no members"
	case op.Kind.OfMember() && (op.HasFloor || len(op.Cells) != 1):
		return "member: an op with a floor, or with another number of columns than 1"
	case op.Kind == sink.Set && k.Kind != kinds.Counters:
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

// merge adds ops of messages to a write. It merges deltas of a row into one op, if the merged op
// leads to the same counts and refusals:
//
//   - merge only merges ops of the same columns, because an op applies whole or not at all.
//   - It merges two ops only if no op between them changes the same columns. An op between them may
//     change other columns of the row, because it does not affect these counts.
//   - merge only merges deltas of one sign. Each intermediate sum is then between the first count
//     and the last one. So every sum fits into int64 if the last one fits, and a floor of the
//     column leads to the same count. merge never merges ops that have floors of their own, or ops on
//     columns for which column.Settings.Sums is false.
//   - merge never merges deltas or sums beyond mergedMax. So a merged op can overflow only if the
//     count is within mergedMax of the bounds of int64. No plausible deltas lead to such a count.
//     If a merged op overflows, the shard refuses all messages of the op, even if the first ones
//     would fit.
type merge struct {
	w      *write
	spaces map[string]space
	last   map[mergeKey]int // index in w of the latest op on a column of a row
	from   []part           // one for each op of the batch, in order

	// space and cells are those of the op that was last passed to resolve.
	space space
	cells []engine.Cell

	chunk []engine.Cell // memory for the cells of several ops, so that most ops allocate nothing
}

// part locates an op of the batch in the write.
type part struct{ op, in int }

type space struct {
	*shard.Keyspace
	number uint8 // index in layout.spaces
}

// mergeKey identifies a column of a row.
type mergeKey struct {
	space, column uint8
	id            uint64
}

// newMerge returns a merge with memory for a number of ops.
func newMerge(w *write, ops int) *merge {
	m := &merge{w: w, spaces: make(map[string]space, len(w.spaces)), last: make(map[mergeKey]int, ops), from: make([]part, 0, ops)}
	w.ops, w.in = make([]engine.Op, 0, ops), make([]uint8, 0, ops)
	for i, k := range w.spaces {
		m.spaces[k.Name] = space{Keyspace: k, number: uint8(i)}
	}
	return m
}

// used reports whether a write has at least one section.
func (m *merge) used(w *write) bool {
	for _, section := range w.sections {
		if section != nil {
			return true
		}
	}
	return false
}

// resolve returns the index of an op's shard in the layout, and prepares the op for add.
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
	return m.w.shardOf(int(space.number), op.ID), nil
}

// add adds the op that was last passed to resolve. number is its index in the batch.
func (m *merge) add(op *sink.Op, number int) {
	kind := [...]engine.OpKind{sink.Add: engine.OpAdd, sink.Set: engine.OpSet, sink.Join: engine.OpJoin, sink.Leave: engine.OpLeave}[op.Kind]
	if kind == engine.OpAdd {
		if i, there := m.latest(op.ID); there && mergeCells(&m.w.ops[i], m.cells) {
			m.from = append(m.from, part{number, i})
			return
		}
	}
	for _, c := range m.cells {
		m.last[m.key(op.ID, c)] = len(m.w.ops)
	}
	m.from = append(m.from, part{number, len(m.w.ops)})
	m.w.ops = append(m.w.ops, engine.Op{ID: op.ID, Kind: kind, Cells: m.keep(m.cells)})
	m.w.in = append(m.w.in, m.space.number)
}

func (m *merge) key(id uint64, c engine.Cell) mergeKey {
	return mergeKey{m.space.number, c.Column &^ engine.FloorMark, id}
}

// latest returns the index of the op of the write that last changed the columns of m.cells. It
// returns false if these columns have different latest ops, or if merge must not merge ops on one
// of them.
func (m *merge) latest(id uint64) (op int, there bool) {
	for n, c := range m.cells {
		i, known := m.last[m.key(id, c)]
		if !known || n > 0 && i != op || !m.space.Sums(m.space.Columns[c.Column&^engine.FloorMark]) {
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

// mergeCells adds deltas to the deltas of an op. If the rules of merge forbid that, it changes
// nothing and returns false.
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

// merges reports whether two deltas have the same sign, and each and their sum are within
// mergedMax.
func merges(a, b int64) bool {
	if a > mergedMax || a < -mergedMax || b > mergedMax || b < -mergedMax {
		return false
	}
	return (a >= 0) == (b >= 0) && a+b <= mergedMax && a+b >= -mergedMax
}

package counters

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/rows"
)

const (
	memberSize = rows.OpSizeMin + 1 + 8
	stampSize  = 6

	// PurgePairsMax bounds the pairs that one op removes, and so the delay of the entries
	// after it.
	PurgePairsMax = 4096
)

// memberOp is an op on sets. Its op in the batch's Ops changes the count: the last cell of that op
// has the delta.
type memberOp struct {
	kind  opKind
	op    int // index of its op in the batch's Ops
	pair  members.Pair
	stamp members.Stamp // only for opCopy
	pairs int           // only for opPurge
}

// ofPair reports whether the op is on one pair: a join, a copy or a leave.
func (o *memberOp) ofPair() bool { return o.kind != opPurge && o.kind != opClearMembers }

func (b *batch) memberOp(p []byte) (rest []byte, err error) {
	o := memberOp{kind: opKind(p[0]), op: len(b.Ops)}
	switch o.kind {
	case opClearMembers:
		rest = p[1:]
	case opPurge:
		pairs, n := binary.Uvarint(p[1:])
		if n <= 0 || pairs == 0 || pairs > PurgePairsMax {
			return nil, fmt.Errorf("%w: a purge of %d pairs", codec.ErrEntry, pairs)
		}
		o.pairs, rest = int(pairs), p[1+n:]
	default:
		if rest, err = b.pairOp(&o, p); err != nil {
			return nil, err
		}
	}
	b.Add(engine.OpAdd, o.pair.Row)
	b.members = append(b.members, o)
	return rest, nil
}

// pairOp decodes a join, copy or leave, and appends the cells of its count.
func (b *batch) pairOp(o *memberOp, p []byte) (rest []byte, err error) {
	if len(p) < memberSize {
		return nil, fmt.Errorf("%w: %s of %d bytes", codec.ErrEntry, o.kind, len(p))
	}
	mark := p[rows.OpSizeMin]
	o.pair = members.Pair{Row: binary.LittleEndian.Uint64(p[1:]), Column: mark & rows.ColumnNumber, Member: binary.LittleEndian.Uint64(p[rows.OpSizeMin+1:])}
	p = p[memberSize:]
	if o.kind != opCopy {
		return b.Delta(p, mark, o.kind.delta())
	}
	if mark != o.pair.Column || len(p) < stampSize {
		return nil, fmt.Errorf("%w: %s with column %02x and %d bytes behind", codec.ErrEntry, o.kind, mark, len(p))
	}
	o.stamp = members.Stamp(binary.LittleEndian.Uint16(p[4:]))<<32 | members.Stamp(binary.LittleEndian.Uint32(p))
	return p[stampSize:], nil
}

// delta returns what an op on a pair adds to the count if it changes the set.
func (k opKind) delta() int64 {
	switch k {
	case opJoin:
		return 1
	case opLeave:
		return -1
	}
	return 0
}

// appendMember appends a join, copy or leave of a member in the row key. It panics unless the op
// has the given number of cells.
func appendMember(w *raftfsm.RequestWriter, kind opKind, cells int, key uint64, op *engine.Op) {
	if len(op.Cells) != cells || op.Cells[0].Column >= engine.ColumnsMax {
		rows.PanicOn(op)
	}
	number, member := op.Cells[0].Column, uint64(op.Cells[0].Value)
	bound := rows.BoundOf(w, number, kind.delta())
	buf := append(rows.AppendHead(w.Buffer(), byte(kind), key), number|bound.Mark)
	buf = bound.AppendTo(binary.LittleEndian.AppendUint64(buf, member))
	if stamp, copied := op.Copied(); copied {
		buf = binary.LittleEndian.AppendUint32(buf, uint32(stamp))
		buf = binary.LittleEndian.AppendUint16(buf, uint16(stamp>>32))
	}
	w.Put(buf, true)
}

// purgePairs bounds the members that one step of Cleanup removes. So a step delays later entries by
// some milliseconds at most. At five steps a second, the members of a row with a million of them
// are removed within 2 minutes.
const purgePairs = 2048

// Cleanup implements Machine. It returns a step that removes members of deleted rows. Such members
// only occupy disk space, because reads do not return them.
func (c *Machine) Cleanup(time.Time, time.Duration) (step raftfsm.Cleanup) {
	if sets := c.Members(); sets != nil && sets.Dying() > 0 {
		step.Append = func(w *raftfsm.RequestWriter) { AppendPurge(w, purgePairs) }
	}
	return step
}

// AppendPurge appends an op that removes up to the given number of pairs of deleted rows. It panics
// if pairs is above PurgePairsMax.
func AppendPurge(w *raftfsm.RequestWriter, pairs int) {
	if pairs < 1 || pairs > PurgePairsMax {
		panic(fmt.Sprintf("a purge of %d pairs has no form in a log entry", pairs))
	}
	w.Put(binary.AppendUvarint(append(w.Buffer(), byte(opPurge)), uint64(pairs)), true)
}

// AppendClearMembers appends an op that removes all members of the shard.
func AppendClearMembers(w *raftfsm.RequestWriter) {
	w.Put(append(w.Buffer(), byte(opClearMembers)), true)
}

package raftfsm

import (
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm/codec"
)

// Ops on the sets of a shard of counters. They need the leader's time
// before them in the entry.
//
//	member:  head (1) | key (8) | column (1) | member (8) | floor (varint), if bit 4 | stamp (6), if bit 5
//	purge:   head (1) | pairs (8)    removes so many pairs of deleted rows
//	clear:   head (1) | 0 (8)        removes all pairs
//
// Bits 0–1 of the head are 0 and bit 6 is 1, which no op on counts or outboxes has. Bits 2–3 are
// the form: leave 0, join 1, purge 2, clear 3. Of a join: bit 5 has it keep its stamp, unless that is 0, and change no
// count. Of a leave: bit 4.
const (
	memberHead      = 1 << 6
	memberFormShift = 2
	memberForms     = 3
	memberLeave     = 0
	memberJoin      = 1
	memberPurge     = 2
	memberClear     = 3
	memberFloored   = 1 << 4
	memberCopied    = 1 << 5

	memberSize = opSizeMin + 1 + 8
	stampSize  = 6

	// PurgePairsMax bounds the pairs that one op removes, and so the delay of the entries
	// behind it.
	PurgePairsMax = 4096
)

// memberOp is an op on sets. Its op in the batch has the change of the count as the last cell,
// if it changes one.
type memberOp struct {
	form   byte
	copied bool
	op     int // of the batch
	pair   members.Pair
	stamp  members.Stamp
	pairs  int // of a purge
}

// ofPair reports whether the op joins or leaves a set.
func (o *memberOp) ofPair() bool { return o.form <= memberJoin }

// memberOp decodes an op on sets.
func (b *batch) memberOp(p []byte) ([]byte, error) {
	if len(p) < opSizeMin {
		return nil, fmt.Errorf("%w: op of %d bytes", codec.ErrEntry, len(p))
	}
	head, n := p[0], binary.LittleEndian.Uint64(p[1:])
	o := memberOp{form: head >> memberFormShift & memberForms, op: len(b.ops), copied: head&memberCopied != 0}
	flags := head &^ (memberHead | memberForms<<memberFormShift)
	switch {
	case flags == 0:
	case flags == memberFloored && o.form == memberLeave, flags == memberCopied && o.form == memberJoin:
	default:
		return nil, fmt.Errorf("%w: op head %02x", codec.ErrEntry, head)
	}
	rest := p[opSizeMin:]
	op := engine.Op{Kind: engine.OpAdd}
	switch {
	case o.ofPair():
		var err error
		if rest, err = b.memberCells(&o, p, head); err != nil {
			return nil, err
		}
		op.ID = n
	case o.form == memberClear && n != 0, o.form == memberPurge && (n == 0 || n > PurgePairsMax):
		return nil, fmt.Errorf("%w: op % x", codec.ErrEntry, p[:opSizeMin])
	default:
		o.pairs = int(n)
	}
	b.ops, b.ends, b.members = append(b.ops, op), append(b.ends, len(b.cells)), append(b.members, o)
	return rest, nil
}

// memberCells decodes a join or leave, and appends the cells of its count.
func (b *batch) memberCells(o *memberOp, p []byte, head byte) (rest []byte, err error) {
	if len(p) < memberSize || p[opSizeMin] >= engine.ColumnsMax {
		return nil, fmt.Errorf("%w: op of a member of %d bytes", codec.ErrEntry, len(p))
	}
	o.pair = members.Pair{Row: binary.LittleEndian.Uint64(p[1:]), Column: p[opSizeMin], Member: binary.LittleEndian.Uint64(p[opSizeMin+1:])}
	p = p[memberSize:]
	switch {
	case o.copied:
		if len(p) < stampSize {
			return nil, fmt.Errorf("%w: a stamp of %d bytes", codec.ErrEntry, len(p))
		}
		o.stamp = members.Stamp(binary.LittleEndian.Uint16(p[4:]))<<32 | members.Stamp(binary.LittleEndian.Uint32(p))
		return p[stampSize:], nil
	case head&memberFloored != 0:
		floor, n := binary.Varint(p)
		if n <= 0 {
			return nil, fmt.Errorf("%w: floor of column %d", codec.ErrEntry, o.pair.Column)
		}
		b.cells = append(b.cells, engine.Cell{Column: engine.FloorMark | o.pair.Column, Value: floor})
		p = p[n:]
	}
	delta := int64(1)
	if o.form == memberLeave {
		delta = -1
	}
	b.cells = append(b.cells, engine.Cell{Column: o.pair.Column, Value: delta})
	return p, nil
}

// member appends a join or leave under key.
func (w *RequestWriter) member(key uint64, op *engine.Op) {
	column, member := op.Cells[0].Column, uint64(op.Cells[0].Value)
	head := byte(memberHead | memberLeave<<memberFormShift)
	stamp, copied := op.Copied()
	floor, floored := int64(0), false
	if op.Kind == engine.OpJoin {
		head = memberHead | memberJoin<<memberFormShift
	} else {
		floor, floored = w.floors.Of(column)
	}
	if copied {
		head |= memberCopied
	}
	if floored {
		head |= memberFloored
	}
	w.buf = binary.LittleEndian.AppendUint64(append(w.buf, head), key)
	w.buf = binary.LittleEndian.AppendUint64(append(w.buf, column), member)
	if floored {
		w.buf = binary.AppendVarint(w.buf, floor)
	}
	if copied {
		w.buf = binary.LittleEndian.AppendUint32(w.buf, uint32(stamp))
		w.buf = binary.LittleEndian.AppendUint16(w.buf, uint16(stamp>>32))
	}
	w.ops++
	w.ofMembers = true
}

// PurgeMembers appends an op that removes pairs of deleted rows, up to PurgePairsMax.
func (w *RequestWriter) PurgeMembers(pairs int) {
	if pairs < 1 || pairs > PurgePairsMax {
		panic(fmt.Sprintf("a purge of %d pairs has no form in a log entry", pairs))
	}
	w.buf = append(w.buf, memberHead|memberPurge<<memberFormShift)
	w.buf = binary.LittleEndian.AppendUint64(w.buf, uint64(pairs))
	w.ops++
	w.ofMembers = true
}

// ClearMembers appends an op that removes all members of the shard.
func (w *RequestWriter) ClearMembers() {
	w.buf = append(w.buf, memberHead|memberClear<<memberFormShift, 0, 0, 0, 0, 0, 0, 0, 0)
	w.ops++
	w.ofMembers = true
}

// OfMembers reports whether an op on sets was written. Such a section needs the leader's time
// before it.
func (w *RequestWriter) OfMembers() bool { return w.ofMembers }

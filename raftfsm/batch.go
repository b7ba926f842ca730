package raftfsm

import (
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec"
)

// The form of an op on a table, drawn in codec.
const (
	opSizeMin  = 9
	opCellsMax = 64 // six bits hold cells-1
	opKindBits = 3
)

// batch is the decoded table ops of one entry. It reuses its memory.
type batch struct {
	ops     []engine.Op
	cells   []engine.Cell
	ends    []int      // the end of each op's cells; link needs it once cells no longer moves
	outbox  []outboxOp // ops on outboxes, which are among ops too
	members []memberOp // ops on sets, which are among ops too; ascending by op
}

func (b *batch) begin() {
	clear(b.outbox) // do not keep restored outboxes alive
	b.ops, b.cells, b.ends = b.ops[:0], b.cells[:0], b.ends[:0]
	b.outbox, b.members = b.outbox[:0], b.members[:0]
}

// link sets the cells of each op, once all cells are decoded.
func (b *batch) link() {
	start := 0
	for i, end := range b.ends {
		b.ops[i].Cells = b.cells[start:end]
		start = end
	}
}

// void replaces the last n ops by ones without cells, which change nothing and return
// their row.
func (b *batch) void(n int) {
	first := len(b.ops) - n
	cells := 0
	if first > 0 {
		cells = b.ends[first-1]
	}
	b.cells = b.cells[:cells]
	for len(b.members) > 0 && b.members[len(b.members)-1].op >= first {
		b.members = b.members[:len(b.members)-1]
	}
	for i := first; i < len(b.ops); i++ {
		b.ops[i].Kind, b.ends[i] = engine.OpAdd, cells
	}
	for len(b.outbox) > 0 && b.outbox[len(b.outbox)-1].op >= first {
		b.outbox = b.outbox[:len(b.outbox)-1]
	}
}

// opForm decodes one op and returns the remaining bytes.
type opForm func(p []byte) (rest []byte, err error)

// parseOps decodes the number of a request's ops and each op.
func parseOps(p []byte, sizeMin int, op opForm) (ops int, err error) {
	if len(p) < 4 {
		return 0, fmt.Errorf("%w: request of %d bytes", codec.ErrEntry, len(p))
	}
	n := int(binary.LittleEndian.Uint32(p))
	p = p[4:]
	if n > len(p)/sizeMin {
		return 0, fmt.Errorf("%w: %d ops in %d bytes", codec.ErrEntry, n, len(p))
	}
	for range n {
		if p, err = op(p); err != nil {
			return 0, err
		}
	}
	if len(p) > 0 {
		return 0, fmt.Errorf("%w: %d bytes after the last op", codec.ErrEntry, len(p))
	}
	return n, nil
}

// op decodes an op of a counter shard.
func (b *batch) op(p []byte) ([]byte, error) {
	if len(p) > 0 && p[0]&opKindBits == 0 {
		if p[0]&memberHead != 0 {
			return b.memberOp(p)
		}
		return b.outboxOp(p)
	}
	return b.tableOp(p)
}

// tableOp decodes an op of any kind on a table.
func (b *batch) tableOp(p []byte) ([]byte, error) {
	if len(p) < opSizeMin {
		return nil, fmt.Errorf("%w: op of %d bytes", codec.ErrEntry, len(p))
	}
	op := engine.Op{Kind: engine.OpKind(p[0] & opKindBits), ID: binary.LittleEndian.Uint64(p[1:])}
	cells := int(p[0]>>2) + 1
	p = p[opSizeMin:]
	switch {
	case op.Kind == 0:
		op.Kind = engine.OpTake
	case op.Kind == engine.OpDelete && cells == 1:
		cells = 0
	case op.Kind == engine.OpDelete:
		return nil, fmt.Errorf("%w: op kind %d with %d cells", codec.ErrEntry, op.Kind, cells)
	}
	for range cells {
		floored := len(p) > 0 && p[0]&engine.FloorMark != 0
		if len(p) < 2 || p[0]&^engine.FloorMark >= engine.ColumnsMax || floored && op.Kind != engine.OpAdd {
			return nil, fmt.Errorf("%w: cell % x", codec.ErrEntry, p[:min(len(p), 2)])
		}
		v, n := binary.Varint(p[1:])
		if n <= 0 || op.Kind == engine.OpTake && v < 0 {
			return nil, fmt.Errorf("%w: value of column %d", codec.ErrEntry, p[0])
		}
		column := p[0] &^ engine.FloorMark
		p = p[1+n:]
		if floored {
			floor, n := binary.Varint(p)
			if n <= 0 || v >= 0 {
				return nil, fmt.Errorf("%w: floor of column %d", codec.ErrEntry, column)
			}
			b.cells = append(b.cells, engine.Cell{Column: engine.FloorMark | column, Value: floor})
			p = p[n:]
		}
		b.cells = append(b.cells, engine.Cell{Column: column, Value: v})
	}
	b.ops = append(b.ops, op)
	b.ends = append(b.ends, len(b.cells))
	return p, nil
}

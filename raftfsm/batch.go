package raftfsm

import (
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec"
)

// batch holds the decoded table ops of one entry. It reuses its memory.
type batch struct {
	ops     []engine.Op
	cells   []engine.Cell
	ends    []int      // where each op's cells end, for link: they may move until all are decoded
	outbox  []outboxOp // ops on outboxes; each also has an op in ops
	members []memberOp // ops on sets, ascending by op; each also has an op in ops
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

// void removes the cells of the last n ops, so that they change nothing and return their row.
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

// parseOps decodes the ops of a request, one after the other, and returns their number.
func parseOps(p []byte, op func(p []byte) (rest []byte, err error)) (ops int, err error) {
	for ; len(p) > 0; ops++ {
		if p, err = op(p); err != nil {
			return 0, err
		}
	}
	return ops, nil
}

// op decodes an op of a counter shard.
func (b *batch) op(p []byte) ([]byte, error) {
	switch OpKind(p[0]) {
	case opAdd, opSet, opDelete:
		return b.tableOp(p)
	case opJoin, opLeave, opCopy, opPurge, opClearMembers:
		return b.memberOp(p)
	case opPublish, opUnpublish, opPutOutbox, opClearOutboxes:
		return b.outboxOp(p)
	}
	return nil, errOp(p, codec.KindCounters)
}

// onTable returns the engine.OpKind of an op.
func (k OpKind) onTable() engine.OpKind {
	switch k {
	case opSet, opPlace:
		return engine.OpSet
	case opDelete, opForget:
		return engine.OpDelete
	case opTake, opBegin:
		return engine.OpTake
	}
	return engine.OpAdd
}

// tableOp decodes an op on a table.
func (b *batch) tableOp(p []byte) ([]byte, error) {
	if len(p) < opSizeMin {
		return nil, fmt.Errorf("%w: op of %d bytes", codec.ErrEntry, len(p))
	}
	kind := OpKind(p[0])
	op := engine.Op{Kind: kind.onTable(), ID: binary.LittleEndian.Uint64(p[1:])}
	p = p[opSizeMin:]
	for more := op.Kind != engine.OpDelete; more; {
		if len(p) < 2 {
			return nil, fmt.Errorf("%w: cell % x", codec.ErrEntry, p)
		}
		mark, column := p[0], p[0]&columnNumber
		more = mark&columnMore != 0
		v, n := binary.Varint(p[1:])
		if n <= 0 || kind == opTake && v < 0 {
			return nil, fmt.Errorf("%w: value of column %d", codec.ErrEntry, column)
		}
		if p = p[1+n:]; mark&columnFloored != 0 {
			if kind != opAdd || v >= 0 {
				return nil, fmt.Errorf("%w: floor of column %d", codec.ErrEntry, column)
			}
			var err error
			if p, err = b.floor(p, column); err != nil {
				return nil, err
			}
		}
		b.cells = append(b.cells, engine.Cell{Column: column, Value: v})
	}
	b.ops = append(b.ops, op)
	b.ends = append(b.ends, len(b.cells))
	return p, nil
}

// floor decodes the floor of a column.
func (b *batch) floor(p []byte, column uint8) ([]byte, error) {
	floor, n := binary.Varint(p)
	if n <= 0 {
		return nil, fmt.Errorf("%w: floor of column %d", codec.ErrEntry, column)
	}
	b.cells = append(b.cells, engine.Cell{Column: engine.FloorMark | column, Value: floor})
	return p[n:], nil
}

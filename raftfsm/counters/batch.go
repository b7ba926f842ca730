package counters

import (
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/rows"
)

// batch contains the decoded ops of one entry. It reuses its memory.
type batch struct {
	rows.Batch
	outbox  []outboxOp // ops on outboxes; each also has an op in Ops
	members []memberOp // ops on sets, ascending by op; each also has an op in Ops
}

func (b *batch) begin() {
	b.Begin()
	clear(b.outbox) // let the garbage collector free restored outboxes
	b.outbox, b.members = b.outbox[:0], b.members[:0]
}

// void makes the last n ops change nothing; their results are still their rows.
func (b *batch) void(n int) {
	first := len(b.Ops) - n
	b.Void(n)
	for len(b.members) > 0 && b.members[len(b.members)-1].op >= first {
		b.members = b.members[:len(b.members)-1]
	}
	for len(b.outbox) > 0 && b.outbox[len(b.outbox)-1].op >= first {
		b.outbox = b.outbox[:len(b.outbox)-1]
	}
}

func (b *batch) op(p []byte) ([]byte, error) {
	if kind, ofRow := rows.KindOf(p[0]); ofRow {
		return b.Op(p, kind)
	}
	switch opKind(p[0]) {
	case opJoin, opLeave, opCopy, opPurge, opClearMembers:
		return b.memberOp(p)
	case opPublish, opUnpublish, opPutOutbox, opClearOutboxes:
		return b.outboxOp(p)
	}
	return nil, raftfsm.ErrOp(p, codec.KindCounters)
}

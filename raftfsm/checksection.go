package raftfsm

import (
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/outbox"
)

// SectionVisitor receives the ops of a request's section, in order. It must not keep
// them. Its error ends the visit. A nil function skips its part.
type SectionVisitor struct {
	Op   func(table Table, key uint64, op *engine.Op) error // counters and unread
	Feed func(key uint64, op *FeedOp) error
	// Outbox receives the ops on outboxes of counters, after all calls of Op. Op has received the
	// change of the count of each such op.
	Outbox func(key uint64, op *outbox.Op) error
	// Member receives the pairs that join or leave sets of counters, after all calls of Op. Op has
	// received the change of the count, too.
	Member func(p members.Pair) error
}

// CheckSection calls a visitor with the ops of a request's section for a shard of a kind and a
// route. It returns the number of ops, and whether the leader's time must precede the section in an
// entry. It refuses a section that no RequestWriter makes, because that section in an entry would
// stop every replica. It returns an ErrRoute for a section of another route, and the visitor's
// error.
func CheckSection(kind codec.Kind, route codec.Route, section []byte, see SectionVisitor) (ops int, clocked bool, err error) {
	form, payload, rest, err := codec.NextSection(section)
	if err != nil {
		return 0, false, err
	}
	if len(rest) > 0 {
		return 0, false, fmt.Errorf("%w: %d bytes behind the section", codec.ErrEntry, len(rest))
	}
	var id dedup.RequestID
	to, payload, err := parseRequest(form, payload, &id)
	if err == nil {
		err = route.Check(to)
	}
	if err != nil {
		return 0, false, err
	}
	of, known := formOf(kind)
	if !known {
		return 0, false, fmt.Errorf("%w: a section for %s", codec.ErrEntry, kind)
	}
	if id.MovesPositions() && kind != codec.KindCounters && kind != codec.KindUnread {
		return 0, false, fmt.Errorf("%w: a section of a source for %s", codec.ErrEntry, kind)
	}
	ops, clocked, err = of.check(&id, payload, see)
	return ops, clocked || id.Exists() || of.clocked, err
}

// SourceOf returns the section of a source in a request's section. It returns nil for any other
// request, and for a section that CheckSection refuses.
func SourceOf(section []byte) *dedup.SourceSection {
	form, payload, _, err := codec.NextSection(section)
	if err != nil || form != codec.SectionSource {
		return nil
	}
	var id dedup.RequestID
	if _, _, err := parseRequest(form, payload, &id); err != nil {
		return nil
	}
	return id.SourceSection()
}

// The checks of sections by kind. clocked reports whether an op needs the leader's time.

func checkCounts(_ *dedup.RequestID, p []byte, see SectionVisitor) (ops int, clocked bool, err error) {
	var b batch
	if ops, err = parseOps(p, b.op); err != nil {
		return ops, false, err
	}
	if err := b.visit(see.Op, func(int) Table { return TableCounts }); err != nil {
		return ops, false, err
	}
	for i := 0; see.Outbox != nil && i < len(b.outbox); i++ {
		if err := see.Outbox(b.ops[b.outbox[i].op].ID, &b.outbox[i].Op); err != nil {
			return ops, false, err
		}
	}
	for i := 0; see.Member != nil && i < len(b.members); i++ {
		if o := &b.members[i]; o.ofPair() {
			if err := see.Member(o.pair); err != nil {
				return ops, false, err
			}
		}
	}
	return ops, len(b.members)+len(b.outbox) > 0, nil
}

func checkUnread(id *dedup.RequestID, p []byte, see SectionVisitor) (ops int, clocked bool, err error) {
	var u unread
	if ops, err = u.decode(id, p, true); err != nil {
		return ops, false, err
	}
	return ops, false, u.batch.visit(see.Op, func(i int) Table { return u.tables[i] })
}

func checkFeed(id *dedup.RequestID, p []byte, see SectionVisitor) (ops int, clocked bool, err error) {
	var f feed
	if ops, err = f.decode(id, p, true); err != nil {
		return ops, false, err
	}
	return ops, false, f.batch.visit(see.Feed)
}

func checkBoard(id *dedup.RequestID, p []byte, _ SectionVisitor) (ops int, clocked bool, err error) {
	var b board
	ops, err = b.decode(id, p, true)
	return ops, false, err
}

func (b *batch) visit(see func(Table, uint64, *engine.Op) error, table func(op int) Table) error {
	b.link()
	for i := 0; see != nil && i < len(b.ops); i++ {
		if err := see(table(i), b.ops[i].ID, &b.ops[i]); err != nil {
			return err
		}
	}
	return nil
}

func (b *feedBatch) visit(see func(uint64, *FeedOp) error) error {
	b.link()
	for i := 0; see != nil && i < len(b.ops); i++ {
		if err := see(b.ops[i].User, &b.ops[i]); err != nil {
			return err
		}
	}
	return nil
}

package counters

import (
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/spill"
)

// This file adds outboxes to a shard of counters. An author's outbox has the same key as the
// author's row, which counts the posts. A publish or a removal changes both the outbox and the
// count, or neither.
//
//   - The table calls a judge just before it applies an op. At that time all earlier ops have
//     changed the table and the outboxes.
//   - If the count of a publish overflows, the judge undoes the publish before the next op.
//   - If a row that the entry needs cannot be read, the table fails before the first op.

const (
	// PostsColumn is the column with the number of an author's posts.
	PostsColumn = 0

	// A Cut with UnchangedColumn marks an op on an outbox that changed nothing.
	UnchangedColumn = engine.ColumnsMax - 1
	// An Overflow with TooOldColumn marks a publish whose outcome is outboxTooOld.
	TooOldColumn = PostsColumn + 1

	// outboxPageBytes is small because a publish copies a page.
	outboxPageBytes = 512
	// Smaller outboxes are not moved to disk. outboxSpillBytes is twice the size of the mark that
	// stays in memory; so moving an outbox frees at least half of its memory.
	outboxSpillBytes = 26
)

type outboxes struct {
	bodies *spill.Bodies // by author; their digest is that of all outboxes
}

func newOutboxBodies(place spill.Place) *spill.Shard {
	return spill.NewShard(spill.Config{
		Place: place, What: "the outbox of author", PageBytes: outboxPageBytes,
		BytesMin: outboxSpillBytes, Summarise: appendOutboxSummary, Digest: outboxBodyDigest,
	})
}

func (o *outboxes) none() bool { return o.bodies.Keys() == 0 }

// outboxOp is an op on an outbox among the ops of a batch.
type outboxOp struct {
	PostOp
	op   int // index of its op in batch.Ops
	cell int // index of the cell that counts the post; -1 if there is none
}

// outboxKeys calls yield with the author of each op that may change an outbox.
func (b *batch) outboxKeys(yield func(author uint64)) {
	for i := range b.outbox {
		if o := &b.outbox[i]; o.Kind != ClearOutboxes {
			yield(b.Ops[o.op].ID)
		}
	}
	for i := range b.Ops {
		if b.Ops[i].Kind == engine.OpDelete {
			yield(b.Ops[i].ID)
		}
	}
}

// outboxOp decodes an op on an outbox. It also adds an op on the table, which changes the number of
// posts by 1 or -1. If the outbox does not change, the judge makes this change 0.
func (b *batch) outboxOp(p []byte) ([]byte, error) {
	kind := PostOpKind(p[0])
	if len(p) < rows.OpSizeMin {
		return nil, fmt.Errorf("%w: op of %d bytes", codec.ErrEntry, len(p))
	}
	key := binary.LittleEndian.Uint64(p[1:])
	o := outboxOp{PostOp: PostOp{Kind: kind}, op: len(b.Ops), cell: -1}
	r := wire.Reader{Rest: p[rows.OpSizeMin:]}
	if o.parse(&r); r.Err != nil {
		return nil, fmt.Errorf("%w: %s: %w", codec.ErrEntry, opKind(kind), r.Err)
	}
	switch kind {
	case Publish:
		b.Cells = append(b.Cells, engine.Cell{Column: PostsColumn, Value: 1})
		o.cell = len(b.Cells) - 1
	case Unpublish:
		if o.HasFloor {
			b.Cells = append(b.Cells, engine.Cell{Column: engine.FloorMark | PostsColumn, Value: o.Floor})
		}
		b.Cells = append(b.Cells, engine.Cell{Column: PostsColumn, Value: -1})
		o.cell = len(b.Cells) - 1
	}
	b.outbox = append(b.outbox, o)
	b.Add(engine.OpAdd, key)
	return r.Rest, nil
}

// capturedOutboxes is a snapshot of the outboxes, including those on disk.
type capturedOutboxes struct {
	view *spill.View
	sum  uint64
}

func (o *outboxes) capture() capturedOutboxes {
	return capturedOutboxes{o.bodies.Capture(), o.bodies.Digest()}
}

// write writes the sections of outboxes, or nothing if there are none. An outbox has the same
// encoding as in an op.
func (c *capturedOutboxes) write(w *codec.StreamWriter) error {
	var box Outbox
	return raftfsm.WriteBodies(w, codec.StreamOutboxes, c.view, func(b, body []byte) []byte {
		box.IDs = box.IDs[:0]
		decodeOutboxBody(&box, body)
		return appendOutbox(b, &box)
	})
}

// outboxReader decodes the sections of outboxes of a stream, in order.
type outboxReader struct {
	raftfsm.BodyReader
	box Outbox
}

// section calls visit with each author of a section and the author's outbox.
func (r *outboxReader) section(p []byte, visit func(key uint64, box *Outbox) error) error {
	return r.Section(p, func(key uint64, p *wire.Reader) error {
		parseOutbox(&r.box, p)
		if p.Err != nil || len(r.box.IDs) == 0 && r.box.Trimmed == 0 {
			return fmt.Errorf("%w: outbox of key %d", codec.ErrSnapshot, key)
		}
		return visit(key, &r.box)
	})
}

func (c *contents) loadOutboxes(p []byte) error {
	var body []byte
	err := c.outs.section(p, func(key uint64, box *Outbox) error {
		body = appendOutboxBody(body[:0], box)
		c.out.bodies.Set(key, body, outboxDigest(key, box))
		return nil
	})
	if err != nil {
		return err
	}
	return c.out.bodies.SpillLoaded(c.outs.Hash)
}

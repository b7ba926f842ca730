package counters

import (
	"encoding/binary"
	"errors"

	"github.com/countd/countd/internal/wire"
)

// PostOpKind is the kind of an op on an outbox. Its value is also the opKind in log entries.
type PostOpKind uint8

const (
	// Publish adds a post and counts it.
	Publish PostOpKind = 16
	// Unpublish removes a post and subtracts it from the count.
	Unpublish PostOpKind = 17
	// PutOutbox replaces an outbox and counts nothing; only for a restore.
	PutOutbox PostOpKind = 18
	// ClearOutboxes removes all outboxes of the shard and counts nothing; only for a restore.
	ClearOutboxes PostOpKind = 19
)

// PostOp is one change of one outbox. It does not contain the author, whom callers pass as the key
// of the row that counts the author's posts.
//
// In an entry, these fields follow the kind and the key:
//
//	publish:  id (8) | posts (uvarint) | keep (uvarint), and if that is not 0:
//	          shift (1) | unit in microseconds (uvarint) | epoch (varint) | first id (uvarint)
//	remove:   id (8) | 0, or 1 and the floor of the count (varint)
//	put:      trimmed (8) | ids (4) | newest id (8), gaps (uvarint) …
//	clear:    nothing
type PostOp struct {
	Kind   PostOpKind
	ID     uint64       // id of the post
	Limits OutboxLimits // only for Publish

	HasFloor bool // only for Unpublish: the count must not fall below Floor
	Floor    int64

	Outbox Outbox // only for PutOutbox
}

var errOutboxForm = errors.New("an op on an outbox that has no form in a log entry")

// check returns an error if appendTo cannot encode the op.
func (op *PostOp) check() error {
	switch {
	case op.Kind < Publish || op.Kind > ClearOutboxes,
		op.Kind == Publish && !op.Limits.valid(),
		op.Kind == PutOutbox && !op.Outbox.valid():
		return errOutboxForm
	}
	return nil
}

func (o *Outbox) valid() bool {
	for i := 1; i < len(o.IDs); i++ {
		if o.IDs[i] >= o.IDs[i-1] {
			return false
		}
	}
	return len(o.IDs) <= OutboxPostsMax
}

// appendTo appends the fields that follow the kind and the key.
func (op *PostOp) appendTo(dst []byte) []byte {
	switch op.Kind {
	case Publish:
		l := &op.Limits
		dst = binary.LittleEndian.AppendUint64(dst, op.ID)
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, uint64(l.Posts)), l.Keep)
		if l.Keep > 0 {
			dst = binary.AppendUvarint(append(dst, l.Shift), l.UnitMicros)
			dst = binary.AppendUvarint(binary.AppendVarint(dst, l.Epoch), l.First)
		}
	case Unpublish:
		dst = binary.LittleEndian.AppendUint64(dst, op.ID)
		if !op.HasFloor {
			return append(dst, 0)
		}
		dst = binary.AppendVarint(append(dst, 1), op.Floor)
	case PutOutbox:
		dst = appendOutbox(dst, &op.Outbox)
	}
	return dst
}

// parse reads the fields that appendTo appended. If they are invalid, it calls r.Fail.
func (op *PostOp) parse(r *wire.Reader) {
	switch op.Kind {
	case Publish:
		op.ID, op.Limits = r.Fixed64(), OutboxLimits{Posts: int(r.UintTo(OutboxPostsMax)), Keep: r.Uint()}
		if l := &op.Limits; l.Keep > 0 {
			l.Shift, l.UnitMicros, l.Epoch, l.First = r.Byte(), r.Uint(), r.Int(), r.Uint()
		}
	case Unpublish:
		if op.ID, op.HasFloor = r.Fixed64(), r.Bool(); op.HasFloor {
			op.Floor = r.Int()
		}
	case PutOutbox:
		op.Outbox = Outbox{}
		parseOutbox(&op.Outbox, r)
	}
	if op.check() != nil {
		r.Fail("an op")
	}
}

// appendOutbox appends the encoding of an outbox for entries and snapshots.
func appendOutbox(dst []byte, o *Outbox) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, o.Trimmed)
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(o.IDs)))
	if len(o.IDs) == 0 {
		return dst
	}
	dst = binary.LittleEndian.AppendUint64(dst, o.IDs[0])
	for i := 1; i < len(o.IDs); i++ {
		dst = binary.AppendUvarint(dst, o.IDs[i-1]-o.IDs[i])
	}
	return dst
}

// parseOutbox reads an outbox that appendOutbox appended, and reuses o.IDs. If the outbox is
// invalid, parseOutbox calls r.Fail.
func parseOutbox(o *Outbox, r *wire.Reader) {
	o.Trimmed, o.IDs = r.Fixed64(), o.IDs[:0]
	n := int(r.Fixed32())
	if n > OutboxPostsMax || n > len(r.Rest) {
		r.Fail("an outbox")
		return
	}
	for i := range n {
		if i == 0 {
			o.IDs = append(o.IDs, r.Fixed64())
			continue
		}
		gap, last := r.Uint(), o.IDs[i-1]
		if gap == 0 || gap > last {
			r.Fail("a gap")
			return
		}
		o.IDs = append(o.IDs, last-gap)
	}
}

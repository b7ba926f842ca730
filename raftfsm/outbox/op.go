package outbox

import (
	"encoding/binary"
	"errors"

	"github.com/countd/countd/internal/wire"
)

// Kind is the kind of an op on an outbox, with the value of the op in log entries.
type Kind uint8

const (
	// Publish adds a post and counts it.
	Publish Kind = 16
	// Remove removes a post and subtracts it from the count.
	Remove Kind = 17
	// Put replaces an outbox and counts nothing: a restore.
	Put Kind = 18
	// Clear removes all outboxes of the shard and counts nothing: a restore.
	Clear Kind = 19
)

// Op is one change of one outbox. Its author is the row that counts the posts; callers pass the key of
// that row beside the Op.
//
// In an entry, behind the kind and the key:
//
//	publish:  id (8) | posts (uvarint) | keep (uvarint), and if that is not 0:
//	          shift (1) | unit in microseconds (uvarint) | epoch (varint) | first id (uvarint)
//	remove:   id (8) | 0, or 1 and the floor of the count (varint)
//	put:      trimmed (8) | ids (4) | newest id (8), gaps (uvarint) …
//	clear:    nothing
type Op struct {
	Kind   Kind
	ID     uint64 // of the post
	Limits Limits // only for Publish

	HasFloor bool // only for Remove: the count does not fall below Floor
	Floor    int64

	Outbox Outbox // only for Put
}

var errForm = errors.New("an op on an outbox that has no form in a log entry")

// Check returns an error for an op that AppendTo cannot express.
func (op *Op) Check() error {
	switch {
	case op.Kind < Publish || op.Kind > Clear,
		op.Kind == Publish && !op.Limits.valid(),
		op.Kind == Put && !op.Outbox.valid():
		return errForm
	}
	return nil
}

func (o *Outbox) valid() bool {
	for i := 1; i < len(o.IDs); i++ {
		if o.IDs[i] >= o.IDs[i-1] {
			return false
		}
	}
	return len(o.IDs) <= PostsMax
}

// AppendTo appends the fields behind kind and key.
func (op *Op) AppendTo(dst []byte) []byte {
	switch op.Kind {
	case Publish:
		l := &op.Limits
		dst = binary.LittleEndian.AppendUint64(dst, op.ID)
		dst = binary.AppendUvarint(binary.AppendUvarint(dst, uint64(l.Posts)), l.Keep)
		if l.Keep > 0 {
			dst = binary.AppendUvarint(append(dst, l.Shift), l.UnitMicros)
			dst = binary.AppendUvarint(binary.AppendVarint(dst, l.Epoch), l.First)
		}
	case Remove:
		dst = binary.LittleEndian.AppendUint64(dst, op.ID)
		if !op.HasFloor {
			return append(dst, 0)
		}
		dst = binary.AppendVarint(append(dst, 1), op.Floor)
	case Put:
		dst = AppendOutbox(dst, &op.Outbox)
	}
	return dst
}

// Parse reads the fields that AppendTo appended. It fails r for anything else.
func (op *Op) Parse(r *wire.Reader) {
	switch op.Kind {
	case Publish:
		op.ID, op.Limits = r.Fixed64(), Limits{Posts: int(r.UintTo(PostsMax)), Keep: r.Uint()}
		if l := &op.Limits; l.Keep > 0 {
			l.Shift, l.UnitMicros, l.Epoch, l.First = r.Byte(), r.Uint(), r.Int(), r.Uint()
		}
	case Remove:
		if op.ID, op.HasFloor = r.Fixed64(), r.Bool(); op.HasFloor {
			op.Floor = r.Int()
		}
	case Put:
		op.Outbox = Outbox{}
		ParseOutbox(&op.Outbox, r)
	}
	if op.Check() != nil {
		r.Fail("an op")
	}
}

// AppendOutbox appends an outbox in its form in entries and snapshots.
func AppendOutbox(dst []byte, o *Outbox) []byte {
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

// ParseOutbox reads an outbox that AppendOutbox appended, and reuses o.IDs. It fails r for anything
// else.
func ParseOutbox(o *Outbox, r *wire.Reader) {
	o.Trimmed, o.IDs = r.Fixed64(), o.IDs[:0]
	n := int(r.Fixed32())
	if n > PostsMax || n > len(r.Rest) {
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

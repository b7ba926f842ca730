// Package forward owns how parts of writes travel to the node that leads their group. It
// sends nothing.
package forward

import (
	"encoding/binary"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/source/sink"
)

// Part is one request's part for a group that another node leads.
type Part struct {
	Section []byte
	Width   int
	Judges  bool // the answer has the use of the request's key
	Ops     int  // in the section; the leader counts them itself
}

// SettledMax bounds the bytes that say what became of the part: of each op a row and a
// refusal, of each two bytes of the section at most one cut, and an error.
func (f *Part) SettledMax() int {
	return rpc.ErrorTextMax + rpc.LeaderKeyMax + 64 + max(PositionAnswerMax, useMax) + f.Ops*(f.Width*binary.MaxVarintLen64+8) + len(f.Section)*8
}

// SizeMin is a part of a section of one byte.
const SizeMin = 4

// Append appends a part:
//
//	1 if the answer has the use of the request's key (1) | columns of a result row (uvarint) | length of section (uvarint) | section
func Append(dst []byte, f *Part) []byte {
	dst = binary.AppendUvarint(append(dst, wire.Bit(f.Judges)), uint64(f.Width))
	return wire.AppendBytes(dst, f.Section)
}

// Parse reads what Append wrote.
func Parse(r *wire.Reader) *Part {
	return &Part{Judges: r.Bool(), Width: int(r.UintTo(engine.ColumnsMax)), Section: r.Bytes()}
}

// OfSource reports whether the part is a section of a source, whose answer has a position.
func (f *Part) OfSource() bool {
	return len(f.Section) > 0 && f.Section[0] == codec.SectionSource
}

// useMax bounds the bytes of a use in an answer.
const useMax = 2 * binary.MaxVarintLen64

// AppendUse appends the use of the key of a part that judges it.
func AppendUse(dst []byte, q *propose.Proposal) []byte {
	use := q.Use()
	return binary.AppendVarint(binary.AppendVarint(dst, use.Met), use.Floor)
}

// ParseUse reads what AppendUse wrote.
func ParseUse(r *wire.Reader) (use dedup.Use) {
	use.Met, use.Floor = r.Int(), r.Int()
	if use.Met <= 0 || use.Floor > use.Met {
		r.Fail("the use of a key")
	}
	return use
}

// PositionAnswerMax bounds the bytes of a position in an answer.
const PositionAnswerMax = 7 * binary.MaxVarintLen64

// AppendPosition appends the position of the partition of a section: flags, and the
// checkpoint if there is one.
func AppendPosition(dst []byte, q *propose.Proposal) []byte {
	at, _ := q.Position()
	flags := uint64(0)
	for bit, set := range [...]bool{at.Known, at.Closed, at.Deleted, at.Full} {
		if set {
			flags |= 1 << bit
		}
	}
	dst = binary.AppendUvarint(dst, flags)
	if at.Known {
		dst = binary.AppendUvarint(dst, uint64(at.Epoch))
		for _, n := range [...]uint64{at.At.Hi, at.At.Lo, at.Mark.Position.Hi, at.Mark.Position.Lo, at.Mark.Sum} {
			dst = binary.AppendUvarint(dst, n)
		}
	}
	return dst
}

// ParsePosition reads what AppendPosition wrote.
func ParsePosition(r *wire.Reader) (at dedup.PositionAnswer) {
	flags := r.UintTo(15)
	at.Known, at.Closed, at.Deleted, at.Full = flags&1 != 0, flags&2 != 0, flags&4 != 0, flags&8 != 0
	if at.Known {
		at.Epoch = uint32(r.UintTo(1<<32 - 1))
		at.At = sink.Position{Hi: r.Uint(), Lo: r.Uint()}
		at.Mark = sink.Mark{Position: sink.Position{Hi: r.Uint(), Lo: r.Uint()}, Sum: r.Uint()}
	}
	return at
}

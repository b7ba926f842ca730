package propose

import (
	"encoding/binary"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/source/sink"
)

// This file and settled.go define two formats: the part of a write that a node forwards to the
// leader of a group, and its answer.

// ForwardedPart is the part of a write for a group that another node leads.
type ForwardedPart struct {
	Section []byte
	Width   int
	Judges  bool // the answer includes how the write used its key
	Ops     int  // number of ops in the section; not sent, because the leader counts them
}

// SettledMax returns an upper bound of the size of the part's answer. An answer has an error, a row
// and a refusal for each op, and at most one cut for each two bytes of the section.
func (f *ForwardedPart) SettledMax() int {
	return rpc.ErrorTextMax + rpc.LeaderKeyMax + 64 + max(PositionAnswerMax, useMax) + f.Ops*(f.Width*binary.MaxVarintLen64+8) + len(f.Section)*8
}

// PartSizeMin is the size of a part with a section of one byte.
const PartSizeMin = 4

// AppendPart appends a part:
//
//	1 if the answer has the use of the request's key (1) | columns of a result row (uvarint) | length of section (uvarint) | section
func AppendPart(dst []byte, f *ForwardedPart) []byte {
	dst = binary.AppendUvarint(append(dst, wire.Bit(f.Judges)), uint64(f.Width))
	return wire.AppendBytes(dst, f.Section)
}

// ParsePart parses the output of AppendPart.
func ParsePart(r *wire.Reader) *ForwardedPart {
	return &ForwardedPart{Judges: r.Bool(), Width: int(r.UintTo(engine.ColumnsMax)), Section: r.Bytes()}
}

// OfSource reports whether the part is a section of a source. The answer to such a part has a
// position.
func (f *ForwardedPart) OfSource() bool {
	return len(f.Section) > 0 && f.Section[0] == codec.SectionSource
}

// useMax bounds the size of an encoded use of a key.
const useMax = 2*binary.MaxVarintLen64 + len(dedup.Use{}.Names)*binary.MaxVarintLen32

// AppendUse appends how the proposal used its key: Met and Floor as varints. If the use has names,
// Met is negated, and the names follow as uvarints.
func AppendUse(dst []byte, q *Proposal) []byte {
	use := q.Use()
	if use.Names[0] == 0 {
		return binary.AppendVarint(binary.AppendVarint(dst, use.Met), use.Floor)
	}
	dst = binary.AppendVarint(binary.AppendVarint(dst, -use.Met), use.Floor)
	for _, name := range use.Names {
		dst = binary.AppendUvarint(dst, uint64(name))
	}
	return dst
}

// ParseUse parses the output of AppendUse.
func ParseUse(r *wire.Reader) (use dedup.Use) {
	use.Met, use.Floor = r.Int(), r.Int()
	named := use.Met < 0
	if named {
		use.Met = -use.Met
		for i := range use.Names {
			use.Names[i] = uint32(r.UintTo(1<<32 - 1))
		}
	}
	if use.Met <= 0 || use.Floor > use.Met || named && use.Names[0] == 0 {
		r.Fail("the use of a key")
	}
	return use
}

// PositionAnswerMax bounds the size of an encoded position.
const PositionAnswerMax = 7 * binary.MaxVarintLen64

// AppendPosition appends the position of the section's partition: flags and, if there is one, the
// checkpoint.
func AppendPosition(dst []byte, q *Proposal) []byte {
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

// ParsePosition parses the output of AppendPosition.
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

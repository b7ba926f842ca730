package shard

import (
	"encoding/binary"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/wire"
	"github.com/countd/countd/source/sink"
)

// forwarded is one request's part for a group that another node leads.
type forwarded struct {
	section []byte
	width   int
	clocked bool // as of a proposal; a leader of today's program finds it out by itself
	arrival bool // the answer has when the request came first
	ops     int  // in the section
}

// The flags of a part on its way. The second is sent only from versionOfArrivals on.
const (
	forwardedClocked = 1
	forwardedArrival = 2
)

// settledMax bounds the bytes that say what became of the part: of each op a row and a
// refusal, of each two bytes of the section at most one cut, and an error.
func (f *forwarded) settledMax() int {
	return rpc.ErrorTextMax + rpc.LeaderKeyMax + 64 + positionAnswerMax + f.ops*(f.width*binary.MaxVarintLen64+8) + len(f.section)*8
}

// forwardedSizeMin is a part of a section of one byte.
const forwardedSizeMin = 4

func appendForwarded(dst []byte, f *forwarded) []byte {
	flags := uint64(0)
	if f.clocked {
		flags |= forwardedClocked
	}
	if f.arrival {
		flags |= forwardedArrival
	}
	dst = binary.AppendUvarint(dst, flags)
	dst = binary.AppendUvarint(dst, uint64(f.width))
	return wire.AppendBytes(dst, f.section)
}

func parseForwarded(r *wire.Reader) *forwarded {
	flags := r.UintTo(forwardedClocked | forwardedArrival)
	f := &forwarded{clocked: flags&forwardedClocked != 0, arrival: flags&forwardedArrival != 0, width: int(r.UintTo(engine.ColumnsMax))}
	f.section = r.Bytes()
	return f
}

// ofSource reports whether the part is a section of a source, whose answer has a position.
func (f *forwarded) ofSource() bool {
	return len(f.section) > 0 && f.section[0] == codec.SectionSource
}

// positionAnswerMax bounds the bytes of a position in an answer.
const positionAnswerMax = 4 * binary.MaxVarintLen64

// appendPositionAnswer appends the position of the partition of a section: flags, and the
// checkpoint if there is one.
func appendPositionAnswer(dst []byte, q *propose.Proposal) []byte {
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
		dst = binary.AppendUvarint(dst, at.At.Hi)
		dst = binary.AppendUvarint(dst, at.At.Lo)
	}
	return dst
}

func parsePositionAnswer(r *wire.Reader) (at dedup.PositionAnswer) {
	flags := r.UintTo(15)
	at.Known, at.Closed, at.Deleted, at.Full = flags&1 != 0, flags&2 != 0, flags&4 != 0, flags&8 != 0
	if at.Known {
		at.Epoch = uint32(r.UintTo(1<<32 - 1))
		at.At = sink.Position{Hi: r.Uint(), Lo: r.Uint()}
	}
	return at
}

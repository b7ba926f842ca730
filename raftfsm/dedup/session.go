package dedup

import "encoding/binary"

const (
	// SessionBlock is the number of writes of a session in one stream. It is the number of requests
	// that a shard remembers of each producer.
	SessionBlock = 64
	// SessionWritesMax bounds the writes of one session, because the number of a session's stream
	// has two bytes.
	SessionWritesMax = SessionBlock << 16
	// SessionSeqMax bounds the numbers of sessions, because such a number and the number of a write
	// share 64 bits.
	SessionSeqMax = 1<<64/SessionBlock - 1
	// SessionNameMax bounds a producer's name, to which a stream adds three bytes.
	SessionNameMax = ProducerBytesMax - 3
)

// Session gives each later write of a connection an identity, so that a repeat of the write has no
// effect. Write n of session Seq has the number Seq*64 + n mod 64 in the stream
//
//	Name 00 n/64 (2 bytes, big endian)
//
// A shard remembers 64 numbers of each stream, so a session of any length can be repeated, even if
// the network splits the pipeline differently. The zero Session assigns no numbers.
type Session struct {
	Name   []byte
	Seq    uint64
	Writes uint64
	// Unsure is set after an unknown command. Another node's program may know the command and count
	// it as a write. Then the numbers of later writes would differ between nodes.
	Unsure bool
	stream []byte // name of the current block's stream; each block allocates a new one
}

// Open reports whether there is a session.
func (s *Session) Open() bool { return s.Name != nil }

// Next returns the identity of the next write.
func (s *Session) Next() RequestID {
	if s.stream == nil || s.Writes%SessionBlock == 0 {
		s.stream = append(append(make([]byte, 0, len(s.Name)+3), s.Name...), 0)
		s.stream = binary.BigEndian.AppendUint16(s.stream, uint16(s.Writes/SessionBlock))
	}
	n := s.Writes
	s.Writes++
	return ByProducer(s.stream, s.Seq*SessionBlock+n%SessionBlock)
}

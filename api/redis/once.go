package redis

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm/dedup"
)

const (
	// sessionBlock is the number of writes of a session in one stream. It is the number of requests
	// that a shard remembers of each producer.
	sessionBlock = 64
	// sessionWritesMax bounds the writes of one session, because the number of a session's stream
	// has two bytes.
	sessionWritesMax = sessionBlock << 16
	// sessionSeqMax bounds the numbers of sessions, because such a number and the number of a write
	// share 64 bits.
	sessionSeqMax = 1<<64/sessionBlock - 1
	// sessionNameMax bounds a producer's name, to which a stream adds three bytes.
	sessionNameMax = dedup.ProducerBytesMax - 3
)

// open reports whether there is a session.
func (s *session) open() bool { return s.name != nil }

// next returns the identity of the next write.
func (s *session) next() dedup.RequestID {
	if s.writes%sessionBlock == 0 {
		s.stream = append(append(make([]byte, 0, len(s.name)+3), s.name...), 0)
		s.stream = binary.BigEndian.AppendUint16(s.stream, uint16(s.writes/sessionBlock))
	}
	n := s.writes
	s.writes++
	return dedup.ByProducer(s.stream, s.seq*sessionBlock+n%sessionBlock)
}

// refusal returns why the session cannot number another write, or "".
func (s *session) refusal() string {
	switch {
	case s.unsure:
		return errSessionUnsure
	case s.writes >= sessionWritesMax:
		return errSessionFull
	}
	return ""
}

const errSessionUnsure = "ERR a command of this session is unknown, so the writes behind it have no certain number; begin another with COUNTD.SESSION"

var errSessionFull = fmt.Sprintf("ERR a session has at most %d writes; begin another with COUNTD.SESSION", sessionWritesMax)

// countdSession starts or ends a session.
func countdSession(c *conn, args [][]byte) {
	if len(args) == 2 && bytes.EqualFold(args[1], []byte("end")) {
		c.once = session{}
		c.ok()
		return
	}
	if len(args) != 3 {
		c.refuse(wrongArity("countd.session"))
		return
	}
	name := args[1]
	if len(name) < 1 || len(name) > sessionNameMax || bytes.IndexByte(name, 0) >= 0 {
		c.refuse(fmt.Sprintf("ERR producer: 1 to %d bytes, none of them 0", sessionNameMax))
		return
	}
	seq, ok := strictjson.ParseUint64(args[2])
	if !ok || seq > sessionSeqMax {
		c.refuse(fmt.Sprintf("ERR seq: not a number of 0 to %d", uint64(sessionSeqMax)))
		return
	}
	c.once = session{name: bytes.Clone(name), seq: seq}
	c.ok()
}

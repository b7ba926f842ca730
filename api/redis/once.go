package redis

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/shard"
)

const (
	// sessionBlock is the number of writes of a session in one stream. A shard remembers that many
	// requests of a producer.
	sessionBlock = 64
	// sessionWritesMax bounds the writes of one session: a stream has a number of two
	// bytes.
	sessionWritesMax = sessionBlock << 16
	// sessionSeqMax bounds the numbers of sessions, because such a number and the number of a write
	// share 64 bits.
	sessionSeqMax = 1<<64/sessionBlock - 1
	// sessionNameMax bounds a producer's name, to which a stream adds three bytes.
	sessionNameMax = shard.ProducerBytesMax - 3
)

// open reports whether there is a session.
func (s *session) open() bool { return s.name != nil }

// next returns the identity of the next write.
func (s *session) next() shard.RequestID {
	if s.writes%sessionBlock == 0 {
		s.stream = append(append(make([]byte, 0, len(s.name)+3), s.name...), 0)
		s.stream = binary.BigEndian.AppendUint16(s.stream, uint16(s.writes/sessionBlock))
	}
	n := s.writes
	s.writes++
	return shard.ByProducer(s.stream, s.seq*sessionBlock+n%sessionBlock)
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

func countdCommands() []spec {
	const group = "countd"
	return []spec{
		{"countd.incr", -3, keyed | writes, pairs, auth.Ingest.InBody(), group, "adds numbers to counts, only once under an idempotency key", (*conn).countdIncr},
		{"countd.session", -2, unplanned, noKeys, auth.Known.Need(), group, "makes each later write count once, also when repeated", (*conn).countdSession},
	}
}

// countdSession starts or ends a session.
func (c *conn) countdSession(args [][]byte) {
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

// countdIncr adds to several counts. With KEY, all additions are one write, which counts once.
// Without KEY, the additions to each keyspace are one write.
func (c *conn) countdIncr(args [][]byte) {
	b := c.batch
	args, err := b.keyAtEnd(args, 3)
	if b.failed(err) {
		return
	}
	adds := args[1:]
	if len(adds)%2 != 0 {
		b.fail(wrongArity("countd.incr"))
		return
	}
	keys, err := b.readKeys(adds, 2, (*batch).count)
	if b.failed(err) {
		return
	}
	values, err := b.readValues(adds, 2)
	if b.failed(err) {
		return
	}
	if !b.id.Keyed() {
		b.addAll(keys, values)
		return
	}
	if b.conn.server.node().Keyspace(judgeKeyspace) == nil {
		b.failed(errNoKeyspaces)
		return
	}
	t := keys[0].table
	across := slices.ContainsFunc(keys, func(k key) bool { return k.table != t })
	if before := b.keyed[b.id.Key()]; across || before != nil && before != t {
		b.flush() // because the tables of a batch are written concurrently
	}
	if b.keyed == nil {
		b.keyed = map[[16]byte]*table{}
	}
	b.keyed[b.id.Key()] = t
	b.addAll(keys, values)
	if b.across = across; across {
		b.flush()
	}
}

// addAll plans additions to counts, each with its own reply.
func (b *batch) addAll(keys []key, values []int64) {
	from := len(b.cells)
	for i, k := range keys {
		b.wrote(k, b.op(k.table, k.id, engine.OpAdd, k.cellOf(values[i])))
	}
	b.answer(replyCounts, from)
}

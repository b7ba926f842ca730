package raftfsm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/countd/countd/engine"
)

// A log entry. Integers are little-endian; uvarint and varint (zigzag) are
// those of encoding/binary.
//
//	 0      1      2      3      4                            n-4       n
//	+------+------+------+------+----------------------------+---------+
//	|  1   | kind |width |  0   | sections …                 | CRC32C  |
//	+------+------+------+------+----------------------------+---------+
//	 version       columns of a result row; the CRC is of all before it
//
//	section:  kind (1) | length of payload (4) | payload
//	request:  ops (4) | op …                   one client's request without an identity
//	clock:    leader's time (8) | key horizon (8) | producer idle time (8) | keys (4) | producers (4)
//	          times in milliseconds; before the first request with an identity
//	producer: length of name (1) | name | number (8) | as request
//	keyed:    key (16) | body (16) | made at (8) | as request
//	op:       head (1) | key (8) | cell …
//	          head: bits 0–1 engine.OpKind, bits 2–7 cells-1 (0 for a delete)
//	cell:     column (1) | delta or value (varint)
//	catalog:  one JSON command
//
// Unknown versions, kinds and set zero bytes are refused: what they would mean
// is decided by the version that introduces them.
const (
	entryVersion    = 1
	entryHeadSize   = 4
	entryCRCSize    = 4
	sectionHeadSize = 5
	opSizeMin       = 9
	opCellsMax      = 64 // what six bits hold

	entryCounters = 1
	entryCatalog  = 2

	sectionRequest  = 1
	sectionCatalog  = 2
	sectionClock    = 3
	sectionProducer = 16
	sectionKeyed    = 17

	clockSize = 32
	keyedSize = 40
)

// EntryOverhead is how many bytes BeginEntry, AppendClock and SealEntry add to
// the requests.
const EntryOverhead = entryHeadSize + sectionHeadSize + clockSize + entryCRCSize

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errEntry is the cause of every EntryError that a wrong byte makes.
var errEntry = errors.New("not a log entry of this version")

// EntryError is what Apply panics with.
type EntryError struct {
	Index uint64
	Err   error
}

func (e *EntryError) Error() string {
	return fmt.Sprintf("cannot apply log entry %d: %v", e.Index, e.Err)
}

func (e *EntryError) Unwrap() error { return e.Err }

// BeginEntry appends the head of an entry of counter ops to dst. Each op's
// result row will have width columns, none if width is 0.
func BeginEntry(dst []byte, width int) []byte {
	return append(dst, entryVersion, entryCounters, byte(width), 0)
}

// SealEntry appends the checksum. Entry must start with the head.
func SealEntry(entry []byte) []byte {
	return binary.LittleEndian.AppendUint32(entry, crc32.Checksum(entry, castagnoli))
}

// AppendClock appends the section that stamps an entry with the leader's time
// and the limits that hold from there on. An entry with a request that has an
// identity begins with one.
func AppendClock(dst []byte, now time.Time, l Limits) []byte {
	dst = append(dst, sectionClock, clockSize, 0, 0, 0)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(now.UnixMilli()))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(l.KeyHorizon.Milliseconds()))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(l.ProducerIdle.Milliseconds()))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(l.KeysMax))
	return binary.LittleEndian.AppendUint32(dst, uint32(l.ProducersMax))
}

func parseClock(p []byte) (now int64, l Limits, err error) {
	if len(p) != clockSize {
		return 0, l, fmt.Errorf("%w: clock of %d bytes", errEntry, len(p))
	}
	ms := func(at int) time.Duration {
		return time.Duration(min(binary.LittleEndian.Uint64(p[at:]), uint64(math.MaxInt64/time.Millisecond))) * time.Millisecond
	}
	now = int64(binary.LittleEndian.Uint64(p))
	l.KeyHorizon, l.ProducerIdle = ms(8), ms(16)
	l.KeysMax, l.ProducersMax = int(binary.LittleEndian.Uint32(p[24:])), int(binary.LittleEndian.Uint32(p[28:]))
	if now < 0 {
		return 0, l, fmt.Errorf("%w: time %d", errEntry, now)
	}
	if err := l.Check(); err != nil {
		return 0, l, fmt.Errorf("%w: %w", errEntry, err)
	}
	return now, l, nil
}

// RequestWriter appends one request section to a buffer that it owns until
// Section hands it out.
type RequestWriter struct {
	buf   []byte
	opsAt int // where the number of ops stands
	ops   uint32
}

// Reset starts a section in buf, whose contents are overwritten. Like Op it
// panics on an identity that the format has no form for.
func (w *RequestWriter) Reset(buf []byte, id *RequestID) {
	if n := len(id.producer); id.kind == byProducer && (n < 1 || n > ProducerBytesMax) {
		panic(fmt.Sprintf("a producer's name of %d bytes has no form in a log entry", n))
	}
	kind := [...]byte{byNothing: sectionRequest, byProducer: sectionProducer, byKey: sectionKeyed}[id.kind]
	w.buf = append(buf[:0], kind, 0, 0, 0, 0)
	switch id.kind {
	case byProducer:
		w.buf = append(append(w.buf, byte(len(id.producer))), id.producer...)
		w.buf = binary.LittleEndian.AppendUint64(w.buf, id.seq)
	case byKey:
		w.buf = append(append(w.buf, id.key[:]...), id.body[:]...)
		w.buf = binary.LittleEndian.AppendUint64(w.buf, uint64(id.born))
	}
	w.opsAt, w.ops = len(w.buf), 0
	w.buf = append(w.buf, 0, 0, 0, 0)
}

// Op appends an op under key, which stands in place of the op's id. It panics
// on an op that the format has no form for: an entry that cannot be applied must
// not be proposed, because no replica would survive it.
func (w *RequestWriter) Op(key uint64, op *engine.Op) {
	if !writable(op) {
		panic(fmt.Sprintf("an op of kind %d with %d cells has no form in a log entry", op.Kind, len(op.Cells)))
	}
	head := byte(op.Kind)
	if len(op.Cells) > 0 {
		head |= byte(len(op.Cells)-1) << 2
	}
	w.buf = binary.LittleEndian.AppendUint64(append(w.buf, head), key)
	for _, c := range op.Cells {
		w.buf = binary.AppendVarint(append(w.buf, c.Column), c.Value)
	}
	w.ops++
}

// writable reports whether decode takes the op back.
func writable(op *engine.Op) bool {
	for i := range op.Cells {
		if op.Cells[i].Column >= engine.ColumnsMax {
			return false
		}
	}
	switch op.Kind {
	case engine.OpAdd, engine.OpSet:
		return len(op.Cells) >= 1 && len(op.Cells) <= opCellsMax
	case engine.OpDelete:
		return len(op.Cells) == 0
	}
	return false
}

// Ops is how many ops were appended.
func (w *RequestWriter) Ops() int { return int(w.ops) }

// Section returns the finished section, which may be appended to an entry.
func (w *RequestWriter) Section() []byte {
	binary.LittleEndian.PutUint32(w.buf[1:], uint32(len(w.buf)-sectionHeadSize))
	binary.LittleEndian.PutUint32(w.buf[w.opsAt:], w.ops)
	return w.buf
}

// openEntry verifies an entry's frame and returns its kind, width and sections.
func openEntry(entry []byte) (kind byte, width int, sections []byte, err error) {
	if len(entry) < entryHeadSize+entryCRCSize {
		return 0, 0, nil, fmt.Errorf("%w: %d bytes", errEntry, len(entry))
	}
	body, crc := entry[:len(entry)-entryCRCSize], binary.LittleEndian.Uint32(entry[len(entry)-entryCRCSize:])
	if got := crc32.Checksum(body, castagnoli); got != crc {
		return 0, 0, nil, fmt.Errorf("%w: checksum %08x, want %08x", errEntry, got, crc)
	}
	if body[0] != entryVersion || body[2] > engine.ColumnsMax || body[3] != 0 {
		return 0, 0, nil, fmt.Errorf("%w: head % x", errEntry, body[:entryHeadSize])
	}
	return body[1], int(body[2]), body[entryHeadSize:], nil
}

// nextSection splits the first section off.
func nextSection(sections []byte) (kind byte, payload, rest []byte, err error) {
	if len(sections) < sectionHeadSize {
		return 0, nil, nil, fmt.Errorf("%w: section of %d bytes", errEntry, len(sections))
	}
	n := uint64(binary.LittleEndian.Uint32(sections[1:]))
	if n > uint64(len(sections)-sectionHeadSize) {
		return 0, nil, nil, fmt.Errorf("%w: section of %d bytes in %d", errEntry, n, len(sections))
	}
	end := sectionHeadSize + int(n)
	return sections[0], sections[sectionHeadSize:end], sections[end:], nil
}

// batch is the ops of a whole entry, decoded into memory that is used again.
type batch struct {
	ops      []engine.Op
	cells    []engine.Cell
	ends     []int // cells of op i end here; set until the cells no longer move
	outcomes []Outcome
}

// decode fills the batch with all ops of a counters entry, in order, and has
// the memory of requests judge each. Ops that are not to be applied become
// ones without cells, which change nothing and answer their row.
func (b *batch) decode(sections []byte, once *once) error {
	b.ops, b.cells, b.ends, b.outcomes = b.ops[:0], b.cells[:0], b.ends[:0], b.outcomes[:0]
	ticked := false
	for len(sections) > 0 {
		kind, payload, rest, err := nextSection(sections)
		if err != nil {
			return err
		}
		if kind == sectionClock {
			now, limits, err := parseClock(payload)
			if err != nil {
				return err
			}
			once.tick(now, limits)
			ticked = true
		} else if err := b.request(kind, payload, once, ticked); err != nil {
			return err
		}
		sections = rest
	}
	start := 0
	for i, end := range b.ends {
		b.ops[i].Cells = b.cells[start:end]
		start = end
	}
	return nil
}

// request decodes one request and has it judged.
func (b *batch) request(kind byte, p []byte, once *once, ticked bool) error {
	id, p, err := parseIdentity(kind, p)
	if err != nil {
		return err
	}
	if id.Exists() && !ticked {
		return fmt.Errorf("%w: a request with an identity before the clock", errEntry)
	}
	first, cells := len(b.ops), len(b.cells)
	if err := b.requestOps(p); err != nil {
		return err
	}
	outcome := once.judge(&id)
	b.outcomes = append(b.outcomes, outcome)
	if outcome == Applied {
		return nil
	}
	b.cells = b.cells[:cells]
	for i := first; i < len(b.ops); i++ {
		b.ops[i].Kind, b.ends[i] = engine.OpAdd, cells
	}
	return nil
}

// CheckSection returns how many ops a request's section has. It fails for what
// no RequestWriter makes, which in an entry would end every replica, and with
// see's error. see, unless it is nil, gets each op in its turn and does not
// keep it.
func CheckSection(section []byte, see func(key uint64, op *engine.Op) error) (ops int, err error) {
	kind, payload, rest, err := nextSection(section)
	if err != nil {
		return 0, err
	}
	if len(rest) > 0 {
		return 0, fmt.Errorf("%w: %d bytes behind the section", errEntry, len(rest))
	}
	_, payload, err = parseIdentity(kind, payload)
	if err != nil {
		return 0, err
	}
	var b batch
	if err := b.requestOps(payload); err != nil {
		return 0, err
	}
	start := 0
	for i := 0; see != nil && i < len(b.ops); i++ {
		b.ops[i].Cells = b.cells[start:b.ends[i]]
		start = b.ends[i]
		if err := see(b.ops[i].ID, &b.ops[i]); err != nil {
			return 0, err
		}
	}
	return len(b.ops), nil
}

// noteRefused has the memory know which requests of the entry had each op
// refused, and tells their repeats inside the entry. It comes after the ops
// were applied, and only if any overflowed, so it decodes heads again instead of
// having every entry keep them.
func (b *batch) noteRefused(sections []byte, once *once, overflows []engine.Overflow) error {
	request, first := 0, 0
	refused := map[string]bool{} // by identity as it stands in the entry
	for len(sections) > 0 {
		kind, payload, rest, err := nextSection(sections)
		if err != nil {
			return err
		}
		sections = rest
		if kind == sectionClock {
			continue
		}
		id, ops, err := parseIdentity(kind, payload)
		if err != nil {
			return err
		}
		name := payload[:len(payload)-len(ops)]
		end, n := first+int(binary.LittleEndian.Uint32(ops)), 0
		for ; len(overflows) > 0 && overflows[0].Op < end; overflows = overflows[1:] {
			n++
		}
		switch {
		case b.outcomes[request] == Applied && n > 0 && n == end-first:
			once.refuse(&id)
			refused[string(name)] = true
		case b.outcomes[request] == Duplicate && refused[string(name)]:
			b.outcomes[request] = Refused
		}
		request, first = request+1, end
	}
	return nil
}

// parseIdentity splits a request's identity off. Its name is the payload's.
func parseIdentity(kind byte, p []byte) (id RequestID, rest []byte, err error) {
	switch {
	case kind == sectionRequest:
		return id, p, nil
	case kind == sectionProducer && len(p) >= 1 && p[0] >= 1 && p[0] <= ProducerBytesMax && len(p) >= int(p[0])+9:
		n := 1 + int(p[0])
		id = ByProducer(p[1:n], binary.LittleEndian.Uint64(p[n:]))
		return id, p[n+8:], nil
	case kind == sectionKeyed && len(p) >= keyedSize:
		id = RequestID{kind: byKey, key: [16]byte(p), body: [16]byte(p[16:]), born: int64(binary.LittleEndian.Uint64(p[32:]))}
		return id, p[keyedSize:], nil
	}
	return id, nil, fmt.Errorf("%w: section kind %d of %d bytes", errEntry, kind, len(p))
}

func (b *batch) requestOps(p []byte) error {
	if len(p) < 4 {
		return fmt.Errorf("%w: request of %d bytes", errEntry, len(p))
	}
	n := int(binary.LittleEndian.Uint32(p))
	p = p[4:]
	if n > len(p)/opSizeMin {
		return fmt.Errorf("%w: %d ops in %d bytes", errEntry, n, len(p))
	}
	for range n {
		var err error
		if p, err = b.op(p); err != nil {
			return err
		}
	}
	if len(p) > 0 {
		return fmt.Errorf("%w: %d bytes after the last op", errEntry, len(p))
	}
	return nil
}

func (b *batch) op(p []byte) ([]byte, error) {
	if len(p) < opSizeMin {
		return nil, fmt.Errorf("%w: op of %d bytes", errEntry, len(p))
	}
	op := engine.Op{Kind: engine.OpKind(p[0] & 3), ID: binary.LittleEndian.Uint64(p[1:])}
	cells := int(p[0]>>2) + 1
	p = p[opSizeMin:]
	switch {
	case op.Kind == engine.OpDelete && cells == 1:
		cells = 0
	case op.Kind != engine.OpAdd && op.Kind != engine.OpSet:
		return nil, fmt.Errorf("%w: op kind %d with %d cells", errEntry, op.Kind, cells)
	}
	for range cells {
		if len(p) < 2 || p[0] >= engine.ColumnsMax {
			return nil, fmt.Errorf("%w: cell % x", errEntry, p[:min(len(p), 2)])
		}
		v, n := binary.Varint(p[1:])
		if n <= 0 {
			return nil, fmt.Errorf("%w: value of column %d", errEntry, p[0])
		}
		b.cells = append(b.cells, engine.Cell{Column: p[0], Value: v})
		p = p[1+n:]
	}
	b.ops = append(b.ops, op)
	b.ends = append(b.ends, len(b.cells))
	return p, nil
}

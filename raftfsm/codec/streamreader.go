package codec

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"
)

// StreamReader reads the frames of a snapshot.
type StreamReader struct {
	r        *bufio.Reader
	buf      []byte
	cold     byte   // the head's byte for cold rows; valid after the head
	last     byte   // kind of the previous section without blocks; 0 before the head
	sections uint32 // number of sections without blocks
}

// NewStreamReader returns a reader of r.
func NewStreamReader(r io.Reader) *StreamReader {
	return &StreamReader{r: bufio.NewReaderSize(r, streamBufferSize)}
}

// places maps each kind of section to its place in a stream. Sections are in ascending order of
// their places. Only at the places in severalAt may there be several sections. It is read only.
var places = [256]uint8{
	StreamHead: 1, StreamCatalog: 2, StreamMembers: 2, StreamCarriedMembers: 2,
	StreamRows: 3, StreamCold: 3, StreamCarried: 3, StreamFeeds: 3, StreamBoard: 4,
	StreamOutboxes: 5, StreamCursors: 5, StreamSweep: 6, StreamHot: 6, StreamProducers: 7,
	StreamShare: 3, StreamCarriedShare: 3, StreamNames: 4, StreamTexts: 5,
	StreamForgotten: 8, StreamKeys: 9, StreamPositions: 10, StreamJudging: 11,
}

const severalAt = 1<<3 | 1<<5

// follows reports whether a section may follow the previous one. It does not check the order of
// blocks: the reader of the section before them does.
func (s *StreamReader) follows(kind byte) bool {
	switch {
	case kind == StreamBlock || kind == StreamMemberBlock:
		return s.last != 0
	case (kind == StreamCold || kind == StreamShare) && s.cold != coldNamed,
		(kind == StreamCarried || kind == StreamCarriedShare) && s.cold != coldCarried:
		return false
	case kind == StreamKeys && s.last == StreamKeys:
		return true
	case kind >= StreamForgotten && kind <= StreamPositions:
		return s.last == kind-1
	case kind == StreamJudging:
		return s.last == StreamKeys || s.last == StreamPositions
	case kind == StreamEnd:
		return s.last == StreamCatalog || s.last == StreamKeys || s.last == StreamPositions || s.last == StreamJudging
	}
	place, last := places[kind], places[s.last]
	return place > last || place == last && severalAt>>place&1 != 0
}

// Next returns the next section. It fails unless the section may follow the previous one. The
// payload is valid until the next call.
func (s *StreamReader) Next() (kind byte, payload []byte, err error) {
	var head [SectionHeadSize]byte
	if _, err := io.ReadFull(s.r, head[:]); err != nil {
		return 0, nil, fmt.Errorf("%w: section %d: %w", ErrSnapshot, s.sections, err)
	}
	length := binary.LittleEndian.Uint32(head[1:])
	if length > PayloadMax {
		return 0, nil, fmt.Errorf("%w: section %d of %d bytes", ErrSnapshot, s.sections, length)
	}
	n := int(length)
	if cap(s.buf) < n+ChecksumSize {
		s.buf = make([]byte, n+ChecksumSize)
	}
	s.buf = s.buf[:n+ChecksumSize]
	if _, err := io.ReadFull(s.r, s.buf); err != nil {
		return 0, nil, fmt.Errorf("%w: section %d: %w", ErrSnapshot, s.sections, err)
	}
	want := binary.LittleEndian.Uint32(s.buf[n:])
	if got := crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, s.buf[:n]); got != want {
		return 0, nil, fmt.Errorf("%w: section %d: checksum %08x, want %08x", ErrSnapshot, s.sections, got, want)
	}
	if !s.follows(head[0]) {
		return 0, nil, fmt.Errorf("%w: section kind %d behind %d", ErrSnapshot, head[0], s.last)
	}
	if head[0] != StreamBlock && head[0] != StreamMemberBlock {
		s.sections, s.last = s.sections+1, head[0]
	}
	return head[0], s.buf[:n], nil
}

// Head reads the head of a snapshot of the kind state. If a shard of the given route can never have
// the route of the snapshot, it returns an ErrRoute.
func (s *StreamReader) Head(state Kind, route Route) (Head, error) {
	h, err := s.AnyHead(state)
	if err == nil && !route.GrowsTo(h.Route) {
		err = fmt.Errorf("%w: %w", ErrSnapshot, route.Check(h.Route))
	}
	return h, err
}

// AnyHead is Head for a snapshot of any route.
func (s *StreamReader) AnyHead(state Kind) (Head, error) {
	h, _, err := s.head(state)
	return h.Head, err
}

// CarriedHead reads the head of a snapshot. It returns the head that the same snapshot has if it
// carries its cold rows, and the number of bytes that these rows add. The head is valid until the
// next call.
func (s *StreamReader) CarriedHead(state Kind) (payload []byte, blocks int64, err error) {
	h, payload, err := s.head(state)
	if err != nil {
		return nil, 0, err
	}
	if h.cold == coldNamed {
		payload[len(streamMagic)+2] = coldCarried
		return payload, h.blocks, nil
	}
	return payload, 0, nil
}

type streamHead struct {
	Head
	cold   byte
	blocks int64
}

// head reads the head of a snapshot of the kind state.
func (s *StreamReader) head(state Kind) (h streamHead, payload []byte, err error) {
	kind, p, err := s.Next()
	if err != nil {
		return h, nil, err
	}
	if h, err = parseHead(kind, p, state); err != nil {
		return h, nil, fmt.Errorf("%w: %w", ErrSnapshot, err)
	}
	s.cold = h.cold
	return h, p, nil
}

func parseHead(kind byte, p []byte, state Kind) (h streamHead, err error) {
	magic := string(p[:min(len(p), len(streamMagic))])
	switch {
	case kind == StreamHead && magic != streamMagic && strings.HasPrefix(magic, streamUnreleased):
		return h, errors.New("it is of a version of countd that was never released")
	case kind != StreamHead || magic != streamMagic || len(p) < streamHeadSize:
		return h, fmt.Errorf("head %d %q", kind, magic)
	}
	at := p[len(streamMagic):]
	if at[0] != streamVersion {
		return h, fmt.Errorf("version %d, this program knows %d", at[0], streamVersion)
	}
	if at[1] != byte(state) {
		return h, fmt.Errorf("it is of %s, not of %s", Kind(at[1]), state)
	}
	h.cold, h.Index, h.blocks = at[2], binary.LittleEndian.Uint64(at[3:]), int64(binary.LittleEndian.Uint64(at[11:]))
	rest, ok := []byte(nil), false
	if h.Route, rest, ok = ParseRoute(p[streamHeadSize:]); !ok {
		return h, fmt.Errorf("route % x", p[streamHeadSize:])
	}
	if len(rest) > 0 {
		n := 0
		if h.Abandoned, n = binary.Uvarint(rest); n != len(rest) || h.Abandoned == 0 {
			return h, fmt.Errorf("abandoned attempt % x", rest)
		}
	}
	if h.cold > coldCarried || h.blocks < 0 || h.cold == coldNone && h.blocks > 0 || h.cold != coldNone && state != KindCounters {
		return h, fmt.Errorf("cold rows %d of %d bytes", h.cold, h.blocks)
	}
	return h, nil
}

// Totals are the totals in the end of a stream.
type Totals struct{ Rows, Digest uint64 }

// End verifies the payload of the end section, and that the stream ends there. found receives the
// totals in the end section, and returns the totals of the contents that were read.
func (s *StreamReader) End(p []byte, found func(told Totals) (Totals, error)) error {
	if len(p) != 20 {
		return fmt.Errorf("%w: end of %d bytes", ErrSnapshot, len(p))
	}
	want, sections := Totals{binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])}, binary.LittleEndian.Uint32(p[16:])
	got, err := found(want)
	if err != nil {
		return err
	}
	if got != want || s.sections-1 != sections {
		return fmt.Errorf("%w: %d rows, digest %016x, %d sections, want %d, %016x, %d",
			ErrSnapshot, got.Rows, got.Digest, s.sections-1, want.Rows, want.Digest, sections)
	}
	return s.AtEnd()
}

// AtEnd returns an error if the stream has more bytes, or if a read fails.
func (s *StreamReader) AtEnd() error {
	switch _, err := s.r.ReadByte(); err {
	case io.EOF:
		return nil
	case nil:
		return fmt.Errorf("%w: more behind its end", ErrSnapshot)
	default:
		return fmt.Errorf("%w: behind its end: %w", ErrSnapshot, err)
	}
}

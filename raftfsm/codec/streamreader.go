package codec

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
)

// StreamReader reads the frames of a snapshot.
type StreamReader struct {
	r        *bufio.Reader
	buf      []byte
	version  byte   // of the head, once that was read
	sections uint32 // blocks aside
}

// NewStreamReader returns a reader of r.
func NewStreamReader(r io.Reader) *StreamReader {
	return &StreamReader{r: bufio.NewReaderSize(r, streamBufferSize)}
}

// Allows returns an error for a section kind that a stream of this version cannot have.
func (s *StreamReader) Allows(kind byte) error {
	if kind == StreamCold && s.version != streamVersionCold || kind == StreamCarried && s.version != streamVersionCarried {
		return fmt.Errorf("%w: section kind %d in version %d", ErrSnapshot, kind, s.version)
	}
	return nil
}

// Next returns the next section. The payload is valid until the next call.
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
	if head[0] != StreamBlock && head[0] != StreamMemberBlock {
		s.sections++
	}
	return head[0], s.buf[:n], nil
}

// Head reads the head of a snapshot of the kind state and returns its index.
func (s *StreamReader) Head(state Kind) (index uint64, err error) {
	kind, p, err := s.Next()
	if err != nil {
		return 0, err
	}
	if index, _, err = parseHead(kind, p, state); err == nil {
		s.version = p[len(streamMagic)]
	}
	return index, err
}

// CarriedHead reads the head of a snapshot and returns the head of the same snapshot
// with its cold rows carried, and how many bytes they add. The head is valid until the
// next call.
func (s *StreamReader) CarriedHead(state Kind) (head []byte, blocks int64, err error) {
	kind, head, err := s.Next()
	if err != nil {
		return nil, 0, err
	}
	if _, blocks, err = parseHead(kind, head, state); err != nil {
		return nil, 0, err
	}
	const at = len(streamMagic)
	if s.version = head[at]; s.version == streamVersionCold {
		head[at] = streamVersionCarried
	}
	return head, blocks, nil
}

// parseHead returns the index of a head, and how many bytes the stream grows by when it
// carries its cold rows.
func parseHead(kind byte, p []byte, state Kind) (index uint64, blocks int64, err error) {
	const at = len(streamMagic) + 2
	bad := kind != StreamHead || len(p) < at+8 || string(p[:at-2]) != streamMagic || p[at-1] != byte(state)
	switch {
	case !bad && p[at-2] == streamVersion && len(p) == at+8:
	case !bad && p[at-2] == streamVersionCold && len(p) == at+16 && state == KindCounters:
		blocks = int64(binary.LittleEndian.Uint64(p[at+8:]))
		bad = blocks < 0
	case !bad && p[at-2] == streamVersionCarried && len(p) == at+16 && state == KindCounters:
	default:
		bad = true
	}
	if bad {
		return 0, 0, fmt.Errorf("%w: head %d %q", ErrSnapshot, kind, p[:min(len(p), at)])
	}
	return binary.LittleEndian.Uint64(p[at:]), blocks, nil
}

// End verifies the payload of the end section, and that nothing follows it.
func (s *StreamReader) End(p []byte, rows, digest uint64) error {
	if len(p) != 20 {
		return fmt.Errorf("%w: end of %d bytes", ErrSnapshot, len(p))
	}
	wantRows, wantDigest := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
	sections := binary.LittleEndian.Uint32(p[16:])
	if rows != wantRows || digest != wantDigest || s.sections-1 != sections {
		return fmt.Errorf("%w: %d rows, digest %016x, %d sections, want %d, %016x, %d",
			ErrSnapshot, rows, digest, s.sections-1, wantRows, wantDigest, sections)
	}
	return s.AtEnd()
}

// AtEnd returns an error if the stream goes on.
func (s *StreamReader) AtEnd() error {
	if _, err := s.r.ReadByte(); err != io.EOF {
		return fmt.Errorf("%w: more behind its end", ErrSnapshot)
	}
	return nil
}

package raftfsm

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
)

type streamReader struct {
	r        *bufio.Reader
	buf      []byte
	version  byte   // of the head, once that was read
	sections uint32 // blocks aside
}

func newStreamReader(r io.Reader) *streamReader {
	return &streamReader{r: bufio.NewReaderSize(r, streamBufferSize)}
}

// allows returns an error for a section that a stream of this version has not got.
func (s *streamReader) allows(kind byte) error {
	if kind == streamCold && s.version != streamVersionCold || kind == streamCarried && s.version != streamVersionCarried {
		return fmt.Errorf("%w: section kind %d in version %d", errSnapshot, kind, s.version)
	}
	return nil
}

// next returns the next section. The payload is valid until the next call.
func (s *streamReader) next() (kind byte, payload []byte, err error) {
	var head [sectionHeadSize]byte
	if _, err := io.ReadFull(s.r, head[:]); err != nil {
		return 0, nil, fmt.Errorf("%w: section %d: %w", errSnapshot, s.sections, err)
	}
	length := binary.LittleEndian.Uint32(head[1:])
	if length > payloadMax {
		return 0, nil, fmt.Errorf("%w: section %d of %d bytes", errSnapshot, s.sections, length)
	}
	n := int(length)
	if cap(s.buf) < n+entryCRCSize {
		s.buf = make([]byte, n+entryCRCSize)
	}
	s.buf = s.buf[:n+entryCRCSize]
	if _, err := io.ReadFull(s.r, s.buf); err != nil {
		return 0, nil, fmt.Errorf("%w: section %d: %w", errSnapshot, s.sections, err)
	}
	want := binary.LittleEndian.Uint32(s.buf[n:])
	if got := crc32.Update(crc32.Checksum(head[:], castagnoli), castagnoli, s.buf[:n]); got != want {
		return 0, nil, fmt.Errorf("%w: section %d: checksum %08x, want %08x", errSnapshot, s.sections, got, want)
	}
	if head[0] != streamBlock {
		s.sections++
	}
	return head[0], s.buf[:n], nil
}

func (s *streamReader) head(state Kind) (index uint64, err error) {
	kind, p, err := s.next()
	if err != nil {
		return 0, err
	}
	if index, _, err = parseHead(kind, p, state); err == nil {
		s.version = p[len(streamMagic)]
	}
	return index, err
}

// headOfCarried reads the head of a shard's snapshot. It returns the head of the same
// snapshot with its blocks put in, valid until the next call, and how many bytes they add.
func (s *streamReader) headOfCarried(state Kind) (head []byte, blocks int64, err error) {
	kind, head, err := s.next()
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

// parseHead returns the index and how much longer the stream gets when its blocks are
// put in.
func parseHead(kind byte, p []byte, state Kind) (index uint64, blocks int64, err error) {
	const at = len(streamMagic) + 2
	bad := kind != streamHead || len(p) < at+8 || string(p[:at-2]) != streamMagic || p[at-1] != byte(state)
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
		return 0, 0, fmt.Errorf("%w: head %d %q", errSnapshot, kind, p[:min(len(p), at)])
	}
	return binary.LittleEndian.Uint64(p[at:]), blocks, nil
}

// end verifies an end section's payload, and that nothing stands behind it.
func (s *streamReader) end(p []byte, rows, digest uint64) error {
	if len(p) != 20 {
		return fmt.Errorf("%w: end of %d bytes", errSnapshot, len(p))
	}
	wantRows, wantDigest := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
	sections := binary.LittleEndian.Uint32(p[16:])
	if rows != wantRows || digest != wantDigest || s.sections-1 != sections {
		return fmt.Errorf("%w: %d rows, digest %016x, %d sections, want %d, %016x, %d",
			errSnapshot, rows, digest, s.sections-1, wantRows, wantDigest, sections)
	}
	return s.atEnd()
}

// atEnd refuses a stream that goes on.
func (s *streamReader) atEnd() error {
	if _, err := s.r.ReadByte(); err != io.EOF {
		return fmt.Errorf("%w: more behind its end", errSnapshot)
	}
	return nil
}

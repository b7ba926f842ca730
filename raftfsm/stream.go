package raftfsm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/countd/countd/engine"
)

// A snapshot. It is a stream of sections, each with its own checksum, that
// begins with a head and ends with an end.
//
//	section:  kind (1) | length of payload (4) | payload | CRC32C of all before (4)
//	head:     "countd" | version 1 (1) | state kind (1) | applied index (8)
//	rows:     streamrows.go; ascending over the whole stream
//	producers, gone, keys: oncestate.go; each once, behind the rows
//	catalog:  JSON
//	end:      rows, of a catalog its keyspaces (8) | digest (8) | sections before this one (4)
//
// The state kind is that of the entries. A reader takes nothing for granted: a
// stream that is cut, or has anything behind its end, is refused.
const (
	streamVersion = 1
	streamMagic   = "countd"

	streamHead    = 1
	streamRows    = 2
	streamCatalog = 3

	streamProducers = 4 // these three: oncestate.go
	streamGone      = 5
	streamKeys      = 6

	streamEnd = 255

	// payloadMax bounds what a reader allocates on the word of a length field.
	// The largest section of rows has 21.6 MB, 660 B a row; that of a catalog,
	// with as many keyspaces, shards and nodes as there may be, some 3 MB.
	payloadMax = 32 << 20

	streamBufferSize = 1 << 20
)

// errSnapshot is the cause of every refusal of a snapshot.
var errSnapshot = errors.New("not a whole snapshot of this version")

type streamWriter struct {
	w        *bufio.Writer
	buf      []byte
	sections uint32
}

// section appends the frame around what fill appends to its argument.
func (s *streamWriter) section(kind byte, fill func([]byte) []byte) error {
	s.buf = fill(append(s.buf[:0], kind, 0, 0, 0, 0))
	binary.LittleEndian.PutUint32(s.buf[1:], uint32(len(s.buf)-sectionHeadSize))
	s.buf = binary.LittleEndian.AppendUint32(s.buf, crc32.Checksum(s.buf, castagnoli))
	s.sections++
	if _, err := s.w.Write(s.buf); err != nil {
		return fmt.Errorf("cannot write snapshot: %w", err)
	}
	return nil
}

func (s *streamWriter) head(state byte, index uint64) error {
	return s.section(streamHead, func(b []byte) []byte {
		return binary.LittleEndian.AppendUint64(append(append(b, streamMagic...), streamVersion, state), index)
	})
}

func (s *streamWriter) end(rows, digest uint64) error {
	n := s.sections
	err := s.section(streamEnd, func(b []byte) []byte {
		b = binary.LittleEndian.AppendUint64(b, rows)
		b = binary.LittleEndian.AppendUint64(b, digest)
		return binary.LittleEndian.AppendUint32(b, n)
	})
	if err != nil {
		return err
	}
	if err := s.w.Flush(); err != nil {
		return fmt.Errorf("cannot write snapshot: %w", err)
	}
	return nil
}

type streamReader struct {
	r        *bufio.Reader
	buf      []byte
	sections uint32
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
	s.sections++
	return head[0], s.buf[:n], nil
}

func (s *streamReader) head(state byte) (index uint64, err error) {
	kind, p, err := s.next()
	if err != nil {
		return 0, err
	}
	want := append([]byte(streamMagic), streamVersion, state)
	if kind != streamHead || len(p) != len(want)+8 || string(p[:len(want)]) != string(want) {
		return 0, fmt.Errorf("%w: head %d %q", errSnapshot, kind, p[:min(len(p), len(want))])
	}
	return binary.LittleEndian.Uint64(p[len(want):]), nil
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
	if _, err := s.r.ReadByte(); err != io.EOF {
		return fmt.Errorf("%w: more behind its end", errSnapshot)
	}
	return nil
}

// writeCounters streams a table to w.
func writeCounters(w io.Writer, index uint64, table *engine.Snapshot, once *onceView) error {
	s := &streamWriter{w: bufio.NewWriterSize(w, streamBufferSize)}
	if err := s.head(entryCounters, index); err != nil {
		return err
	}
	err := table.Pages(func(p *engine.Page) error {
		for from := 0; from < len(p.IDs); from += sectionRowsMax {
			to := min(from+sectionRowsMax, len(p.IDs))
			err := s.section(streamRows, func(b []byte) []byte { return appendRows(b, p, from, to) })
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i, fill := range []func([]byte) []byte{once.appendProducers, once.appendGone, once.appendKeys} {
		if err := s.section(byte(streamProducers+i), fill); err != nil {
			return err
		}
	}
	return s.end(uint64(table.Rows()), table.Digest())
}

// readCounters reads what writeCounters wrote, to the end of r.
func readCounters(r io.Reader) (index uint64, table *engine.Table, once *once, err error) {
	s := &streamReader{r: bufio.NewReaderSize(r, streamBufferSize)}
	if index, err = s.head(entryCounters); err != nil {
		return 0, nil, nil, err
	}
	table, once = engine.New(), newOnce()
	var page engine.Page
	for last := byte(streamRows); ; {
		kind, payload, err := s.next()
		if err != nil {
			return 0, nil, nil, err
		}
		if kind == streamEnd && last == streamKeys {
			return index, table, once, s.end(payload, table.Stats().Rows, table.Digest())
		}
		if !follows(kind, last) {
			return 0, nil, nil, fmt.Errorf("%w: section kind %d behind %d", errSnapshot, kind, last)
		}
		last = kind
		if err := readSection(kind, payload, &page, table, once); err != nil {
			return 0, nil, nil, err
		}
	}
}

// follows reports whether a section may come behind another, the head taken for
// one of rows.
func follows(kind, last byte) bool {
	switch kind {
	case streamRows:
		return last == streamRows
	case streamProducers:
		return last == streamRows
	case streamGone, streamKeys:
		return last == kind-1
	}
	return false
}

// readSection adds one section between head and end to the state.
func readSection(kind byte, payload []byte, page *engine.Page, table *engine.Table, once *once) error {
	switch kind {
	case streamRows:
		if err := parseRows(payload, page); err != nil {
			return err
		}
		if err := table.Load(page); err != nil {
			return fmt.Errorf("%w: %w", errSnapshot, err)
		}
		return nil
	case streamProducers:
		return once.restoreProducers(payload)
	case streamGone:
		return once.restoreGone(payload)
	case streamKeys:
		return once.restoreKeys(payload)
	}
	return fmt.Errorf("%w: section kind %d", errSnapshot, kind)
}

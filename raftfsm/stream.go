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
//	cursors:  as rows, behind them
//	sweep:    sweep.go; once, behind the cursors
//	feeds:    feed.go
//	board:    JSON; once
//	producers, gone, keys: oncestate.go; each once, behind all of a shard
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

	streamCursors = 7 // unread.go
	streamSweep   = 8
	streamFeeds   = 9  // feedstream.go
	streamBoard   = 10 // board.go

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

func (s *streamWriter) head(state Kind, index uint64) error {
	return s.section(streamHead, func(b []byte) []byte {
		return binary.LittleEndian.AppendUint64(append(append(b, streamMagic...), streamVersion, byte(state)), index)
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

func (s *streamReader) head(state Kind) (index uint64, err error) {
	kind, p, err := s.next()
	if err != nil {
		return 0, err
	}
	want := append([]byte(streamMagic), streamVersion, byte(state))
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

// writeShard streams what a shard holds to w, and what it remembers of requests.
func writeShard(w io.Writer, kind Kind, index uint64, held captured, once *onceView) error {
	s := &streamWriter{w: bufio.NewWriterSize(w, streamBufferSize)}
	if err := s.head(kind, index); err != nil {
		return err
	}
	if err := held.write(s); err != nil {
		return err
	}
	for i, fill := range []func([]byte) []byte{once.appendProducers, once.appendGone, once.appendKeys} {
		if err := s.section(byte(streamProducers+i), fill); err != nil {
			return err
		}
	}
	return s.end(held.rows(), held.digest())
}

// writeRows writes the rows of a table as sections of a kind.
func writeRows(s *streamWriter, kind byte, table *engine.Snapshot) error {
	return table.Pages(func(p *engine.Page) error {
		for from := 0; from < len(p.IDs); from += sectionRowsMax {
			to := min(from+sectionRowsMax, len(p.IDs))
			if err := s.section(kind, func(b []byte) []byte { return appendRows(b, p, from, to) }); err != nil {
				return err
			}
		}
		return nil
	})
}

// readShard reads what writeShard wrote, to the end of r, into empty contents.
func readShard(r io.Reader, kind Kind, held contents) (index uint64, once *once, err error) {
	once = newOnce()
	take := func(section, last byte, p []byte) error {
		switch section {
		case streamProducers:
			return once.restoreProducers(p)
		case streamGone:
			return once.restoreGone(p)
		case streamKeys:
			return once.restoreKeys(p)
		}
		return held.load(section, last, p)
	}
	err = readSections(r, kind, &index, take, func(uint64) (rows, digest uint64) { return held.stats().Rows, held.digest() })
	return index, once, err
}

// readSections reads a stream to its end and calls take with each section between
// head and end, the memory of requests in its order behind all others. found
// returns the rows and the digest that there should be at the end, given the
// digest that is told there.
func readSections(r io.Reader, kind Kind, index *uint64, take func(section, last byte, p []byte) error,
	found func(told uint64) (rows, digest uint64)) (err error) {
	s := &streamReader{r: bufio.NewReaderSize(r, streamBufferSize)}
	if *index, err = s.head(kind); err != nil {
		return err
	}
	for last := byte(streamHead); ; {
		section, payload, err := s.next()
		if err != nil {
			return err
		}
		if section == streamEnd && last == streamKeys {
			told := uint64(0)
			if len(payload) >= 16 {
				told = binary.LittleEndian.Uint64(payload[8:])
			}
			rows, digest := found(told)
			return s.end(payload, rows, digest)
		}
		if !inPlace(section, last) {
			return misplaced(section, last)
		}
		if err := take(section, last, payload); err != nil {
			return err
		}
		last = section
	}
}

// inPlace reports whether a section may come behind another as far as the memory
// of requests goes.
func inPlace(section, last byte) bool {
	switch {
	case isOnce(last):
		return isOnce(section) && section == last+1
	case isOnce(section):
		return section == streamProducers
	}
	return true
}

// isOnce reports whether a section is of the memory of requests.
func isOnce(section byte) bool { return section >= streamProducers && section <= streamKeys }

// misplaced refuses a section behind one that it does not follow.
func misplaced(section, last byte) error {
	return fmt.Errorf("%w: section kind %d behind %d", errSnapshot, section, last)
}

// loadRows adds a section of rows to a table that holds only smaller keys.
func loadRows(table *engine.Table, p []byte, page *engine.Page) error {
	if err := parseRows(p, page); err != nil {
		return err
	}
	if err := table.Load(page); err != nil {
		return fmt.Errorf("%w: %w", errSnapshot, err)
	}
	return nil
}

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
//	          versions 2 and 3 have cold rows: then the bytes of all sections of blocks,
//	          which are there in version 3, carried to another node (8)
//	rows:     streamrows.go; ascending over the whole stream
//	cold, block: streamcold.go; among the rows of counters
//	cursors:  as rows, behind them
//	sweep:    sweep.go; once, behind the cursors
//	feeds:    feed.go
//	board:    JSON; once
//	producers, gone, keys: oncestate.go; each once, behind all of a shard
//	catalog:  JSON
//	end:      rows, of a catalog its keyspaces (8) | digest (8) | sections before this one, blocks aside (4)
//
// The state kind is that of the entries. A reader takes nothing for granted: a
// stream that is cut, or has anything behind its end, is refused.
const (
	streamVersion        = 1
	streamVersionCold    = 2
	streamVersionCarried = 3
	streamMagic          = "countd"

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

	streamCold    = 11 // these three: streamcold.go
	streamCarried = 12
	streamBlock   = 13

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

// head writes the head; blocks is what a stream with cold rows is longer by when it
// is carried, -1 for one without.
func (s *streamWriter) head(state Kind, index uint64, blocks int64) error {
	return s.section(streamHead, func(b []byte) []byte {
		if blocks < 0 {
			return binary.LittleEndian.AppendUint64(append(append(b, streamMagic...), streamVersion, byte(state)), index)
		}
		b = binary.LittleEndian.AppendUint64(append(append(b, streamMagic...), streamVersionCold, byte(state)), index)
		return binary.LittleEndian.AppendUint64(b, uint64(blocks))
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
	version  byte   // of the head, once that was read
	sections uint32 // blocks aside
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
	if _, err := s.r.ReadByte(); err != io.EOF {
		return fmt.Errorf("%w: more behind its end", errSnapshot)
	}
	return nil
}

// writeShard streams what a shard holds to w, and what it remembers of requests. It
// names cold rows and reads none.
func writeShard(w io.Writer, kind Kind, index uint64, held captured, once *onceView) error {
	s := &streamWriter{w: bufio.NewWriterSize(w, streamBufferSize)}
	if err := s.head(kind, index, held.carried()); err != nil {
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

// writeRows writes the rows of a table as sections of a kind. None is cold.
func writeRows(s *streamWriter, kind byte, table *engine.Snapshot) error {
	return table.Pages(func(p *engine.Page) error { return writePage(s, kind, p) })
}

func writePage(s *streamWriter, kind byte, p *engine.Page) error {
	for from := 0; from < len(p.IDs); from += sectionRowsMax {
		to := min(from+sectionRowsMax, len(p.IDs))
		if err := s.section(kind, func(b []byte) []byte { return appendRows(b, p, from, to) }); err != nil {
			return err
		}
	}
	return nil
}

// readShard reads what writeShard wrote, carried or not, to the end of r, into empty
// contents. Of these its caller disposes on an error.
func readShard(r io.Reader, kind Kind, held contents) (index uint64, once *once, err error) {
	once = newOnce()
	take := func(s *streamReader, section, last byte, p []byte) error {
		switch section {
		case streamProducers:
			return once.restoreProducers(p)
		case streamGone:
			return once.restoreGone(p)
		case streamKeys:
			return once.restoreKeys(p)
		}
		return held.load(s, section, last, p)
	}
	err = readSections(r, kind, &index, take, func(told streamTotals) (streamTotals, error) {
		err := held.loaded(told)
		return streamTotals{held.stats().Rows, held.digest()}, err
	})
	return index, once, err
}

// streamTotals are what the end of a stream says of it.
type streamTotals struct{ rows, digest uint64 }

// readSections reads a stream to its end and calls take with each section between
// head and end, the memory of requests in its order behind all others. Cold rows
// stand for rows as the section before. found returns what there should be at the
// end, given what is told there.
func readSections(r io.Reader, kind Kind, index *uint64, take func(s *streamReader, section, last byte, p []byte) error,
	found func(told streamTotals) (streamTotals, error)) (err error) {
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
			told := streamTotals{}
			if len(payload) >= 16 {
				told = streamTotals{binary.LittleEndian.Uint64(payload), binary.LittleEndian.Uint64(payload[8:])}
			}
			totals, err := found(told)
			if err != nil {
				return err
			}
			return s.end(payload, totals.rows, totals.digest)
		}
		if !inPlace(section, last) {
			return misplaced(section, last)
		}
		if err := s.allows(section); err != nil {
			return err
		}
		if err := take(s, section, last, payload); err != nil {
			return err
		}
		if last = section; section == streamCold || section == streamCarried {
			last = streamRows
		}
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
	if err := parseRows(p, page, false); err != nil {
		return err
	}
	return loadPage(table, page)
}

func loadPage(table *engine.Table, page *engine.Page) error {
	if err := table.Load(page); err != nil {
		return fmt.Errorf("%w: %w", errSnapshot, err)
	}
	return nil
}

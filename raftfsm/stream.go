package raftfsm

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
)

// A snapshot. It is a stream of sections, each with its own checksum, that
// begins with a head and ends with an end.
//
//	section:  kind (1) | length of payload (4) | payload | CRC32C of all before (4)
//	head:     "countd" | version 1 (1) | state kind (1) | applied index (8)
//	          versions 2 and 3 have cold rows: then the bytes of all sections of blocks,
//	          which are there in version 3, carried to another node (8)
//	rows:     streamrows.go; ascending over the whole stream
//	producers, gone, keys: oncestate.go; each once, behind the rows
//	cold, block: streamcold.go; among the rows
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

	streamCold    = 7
	streamCarried = 8
	streamBlock   = 9

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
func (s *streamWriter) head(state byte, index uint64, blocks int64) error {
	return s.section(streamHead, func(b []byte) []byte {
		if blocks < 0 {
			return binary.LittleEndian.AppendUint64(append(append(b, streamMagic...), streamVersion, state), index)
		}
		b = binary.LittleEndian.AppendUint64(append(append(b, streamMagic...), streamVersionCold, state), index)
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

func (s *streamReader) head(state byte) (index uint64, err error) {
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
func parseHead(kind byte, p []byte, state byte) (index uint64, blocks int64, err error) {
	const at = len(streamMagic) + 2
	bad := kind != streamHead || len(p) < at+8 || string(p[:at-2]) != streamMagic || p[at-1] != state
	switch {
	case !bad && p[at-2] == streamVersion && len(p) == at+8:
	case !bad && p[at-2] == streamVersionCold && len(p) == at+16 && state == entryCounters:
		blocks = int64(binary.LittleEndian.Uint64(p[at+8:]))
		bad = blocks < 0
	case !bad && p[at-2] == streamVersionCarried && len(p) == at+16 && state == entryCounters:
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

// writeCounters streams a table to w. It names cold rows and reads none.
func writeCounters(w io.Writer, index uint64, table *engine.Snapshot, once *onceView) error {
	s := &streamWriter{w: bufio.NewWriterSize(w, streamBufferSize)}
	if err := s.head(entryCounters, index, carriedBytes(table)); err != nil {
		return err
	}
	err := table.Parts(func(p *engine.Part) error {
		if p.Cold != nil {
			return s.section(streamCold, func(b []byte) []byte { return appendCold(b, p) })
		}
		for from := 0; from < len(p.Page.IDs); from += sectionRowsMax {
			to := min(from+sectionRowsMax, len(p.Page.IDs))
			err := s.section(streamRows, func(b []byte) []byte { return appendRows(b, p.Page, from, to) })
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

// readCounters reads what writeCounters wrote, carried or not, to the end of r.
// Cold rows that the stream names are looked for in rows, which may be nil, and
// those that it carries are put there.
func readCounters(r io.Reader, rows *cold.Group) (index uint64, table *engine.Table, once *once, err error) {
	s := &streamReader{r: bufio.NewReaderSize(r, streamBufferSize)}
	if index, err = s.head(entryCounters); err != nil {
		return 0, nil, nil, err
	}
	load := &loading{stream: s, table: engine.New(), once: newOnce(), cold: rows}
	if err := load.sections(); err != nil {
		load.table.Close()
		return 0, nil, nil, err
	}
	return index, load.table, load.once, nil
}

// loading is the state that a stream of counters makes.
type loading struct {
	stream *streamReader
	table  *engine.Table
	once   *once
	cold   *cold.Group

	page  engine.Page
	named bool        // some rows are not read
	base  engine.Page // the cold rows of a part that is carried
	part  coldPart
	loose int // carried parts that are in memory
	// carried is set from a carried part on until hot rows come. The parts had ids
	// above … below.
	carried      bool
	above, below uint64
}

// sections reads all behind the head.
func (l *loading) sections() error {
	for last := byte(streamRows); ; {
		kind, payload, err := l.stream.next()
		if err != nil {
			return err
		}
		if kind == streamEnd && last == streamKeys {
			return l.end(payload)
		}
		if !follows(kind, last) {
			return fmt.Errorf("%w: section kind %d behind %d", errSnapshot, kind, last)
		}
		if err := l.stream.allows(kind); err != nil {
			return err
		}
		if last = kind; kind == streamCold || kind == streamCarried {
			last = streamRows
		}
		if err := l.section(kind, payload); err != nil {
			return err
		}
	}
}

// end holds what was read to what the stream says of it. Rows and digest of cold
// rows that are named, and not read, are the stream's word, and their generation's
// checksum stands for them.
func (l *loading) end(payload []byte) error {
	if err := l.settle(); err != nil {
		return err
	}
	rows, digest := l.table.Stats().Rows, l.table.Digest()
	if l.named && len(payload) >= 16 {
		rows, digest = binary.LittleEndian.Uint64(payload), binary.LittleEndian.Uint64(payload[8:])
		l.table.Adopt(int64(rows), digest)
	}
	return l.stream.end(payload, rows, digest)
}

// follows reports whether a section may come behind another, the head taken for
// one of rows.
func follows(kind, last byte) bool {
	switch kind {
	case streamRows, streamCold, streamCarried:
		return last == streamRows
	case streamProducers:
		return last == streamRows
	case streamGone, streamKeys:
		return last == kind-1
	}
	return false
}

// section adds one section between head and end to the state.
func (l *loading) section(kind byte, payload []byte) error {
	switch kind {
	case streamRows:
		if err := l.settle(); err != nil {
			return err
		}
		l.carried = false
		if err := parseRows(payload, &l.page, false); err != nil {
			return err
		}
		return l.load(&l.page)
	case streamCold:
		return l.loadNamed(payload)
	case streamCarried:
		return l.loadCarried(payload)
	case streamProducers:
		return l.once.restoreProducers(payload)
	case streamGone:
		return l.once.restoreGone(payload)
	case streamKeys:
		return l.once.restoreKeys(payload)
	}
	return fmt.Errorf("%w: section kind %d", errSnapshot, kind)
}

func (l *loading) load(p *engine.Page) error {
	if err := l.table.Load(p); err != nil {
		return fmt.Errorf("%w: %w", errSnapshot, err)
	}
	return nil
}

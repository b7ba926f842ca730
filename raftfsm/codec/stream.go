package codec

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// A snapshot is a stream of sections, each with its own checksum. The first section is the head,
// and the last one is the end. Integers are little-endian.
//
//	section:  kind (1) | length of payload (4) | payload | CRC32C of all before (4)
//	head:     "countd snapshot" | version 1 (1) | state kind (1) | cold rows (1) | applied index (8)
//	          | bytes of all sections of blocks (8) | route | abandoned attempt (uvarint), if any
//	          cold rows: 0 none, 1 named, 2 carried, as to another node; the bytes of blocks are
//	          those of the carried form, 0 for none. A catalog is shard 0 of 1
//	catalog:  JSON
//	rows:     rows/sections.go; ascending over the whole stream
//	cold, share, block: counters/streamcold.go; among the rows of counters
//	outboxes: bodystream.go; after the rows of counters, none if there are no outboxes
//	hot:      hot/section.go; after the outboxes, at most once
//	members:  counters/streamsets.go; at most once, before the rows of counters
//	cursors:  as rows, after them
//	sweep:    unread/sweep.go; once, after the cursors
//	feeds:    bodystream.go, feed/stream.go
//	board:    JSON; once
//	names, texts: names/stream.go; names once, then texts, none if there are no texts
//	producers, forgotten, keys: dedup/state.go; each once, keys at least once, after all of a shard
//	positions: dedup/positions.go; at most once, after the keys
//	judging: dedup/judging.go; after the positions, only if the shard has split
//	end:      rows, of a catalog its keyspaces (8) | digest (8) | sections before this one, blocks of rows and members aside (4)
//
// The state kind is the kind of the shard, as in entries. A reader refuses a truncated stream, and
// a stream with bytes after its end.
const (
	streamMagic      = "countd snapshot"
	streamVersion    = 1
	streamUnreleased = "countd" // the head of a development version begins with this text and a byte from 1 to 3
	streamHeadSize   = len(streamMagic) + 3 + 8 + 8

	coldNone    = 0
	coldNamed   = 1
	coldCarried = 2

	StreamHead    = 1
	StreamCatalog = 2
	StreamRows    = 3

	StreamCold    = 4 // these three: counters/streamcold.go
	StreamCarried = 5
	StreamBlock   = 6

	StreamOutboxes = 7 // counters/outboxes.go

	StreamMembers        = 8 // these three: counters/streamsets.go
	StreamCarriedMembers = 9
	StreamMemberBlock    = 10

	StreamCursors = 11 // unread/unread.go
	StreamSweep   = 12
	StreamFeeds   = 13 // feed/stream.go
	StreamBoard   = 14 // unread/board.go

	StreamProducers = 15 // these three: dedup/state.go
	StreamForgotten = 16
	StreamKeys      = 17
	StreamPositions = 18 // dedup/positions.go

	StreamHot = 19 // hot/section.go

	StreamJudging = 20 // dedup/judging.go

	StreamShare        = 21 // these two: counters/streamcold.go
	StreamCarriedShare = 22

	StreamNames = 23 // these two: names/stream.go
	StreamTexts = 24

	StreamEnd = 255

	// PayloadMax bounds the payload of a section, and so the memory that a reader allocates for it.
	// The largest section of rows has 21.6 MB, with 660 B a row. The largest catalog has about 3
	// MB.
	PayloadMax = 32 << 20

	streamBufferSize = 1 << 20
)

// Every error that refuses a snapshot wraps ErrSnapshot.
var ErrSnapshot = errors.New("not a whole snapshot of this version")

// StreamWriter writes the frames of a snapshot: Head, sections, End.
type StreamWriter struct {
	w        *bufio.Writer
	buf      []byte
	sections uint32
}

// NewStreamWriter returns a writer to w. Its End flushes.
func NewStreamWriter(w io.Writer) *StreamWriter {
	return &StreamWriter{w: bufio.NewWriterSize(w, streamBufferSize)}
}

// Section writes one section. fill appends the payload to its argument.
func (s *StreamWriter) Section(kind byte, fill func([]byte) []byte) error {
	s.buf = FinishSection(fill(append(s.buf[:0], kind, 0, 0, 0, 0)))
	s.sections++
	if _, err := s.w.Write(s.buf); err != nil {
		return fmt.Errorf("cannot write snapshot: %w", err)
	}
	return nil
}

// FinishSection completes a section: it sets the length and appends the checksum. The section must
// begin with its kind and four bytes for the length.
func FinishSection(section []byte) []byte {
	binary.LittleEndian.PutUint32(section[1:], uint32(len(section)-SectionHeadSize))
	return binary.LittleEndian.AppendUint32(section, crc32.Checksum(section, castagnoli))
}

// Head holds the fields of the head of a snapshot that describe the contents.
type Head struct {
	Index     uint64 // index of the last entry
	Route     Route
	Abandoned uint64 // the highest void attempt to split the shard; 0 for none
}

// Head writes the head of a snapshot of the kind state. blocks is the number of bytes that the cold
// rows would add to the stream if it carried them. It is -1 for a stream without cold rows.
func (s *StreamWriter) Head(state Kind, h Head, blocks int64) error {
	return s.Section(StreamHead, func(b []byte) []byte {
		cold := byte(coldNamed)
		if blocks < 0 {
			cold, blocks = coldNone, 0
		}
		b = append(append(b, streamMagic...), streamVersion, byte(state), cold)
		b = binary.LittleEndian.AppendUint64(b, h.Index)
		b = h.Route.AppendTo(binary.LittleEndian.AppendUint64(b, uint64(blocks)))
		if h.Abandoned == 0 {
			return b
		}
		return binary.AppendUvarint(b, h.Abandoned)
	})
}

// End writes the end section and flushes.
func (s *StreamWriter) End(rows, digest uint64) error {
	n := s.sections
	err := s.Section(StreamEnd, func(b []byte) []byte {
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

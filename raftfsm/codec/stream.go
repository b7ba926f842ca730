package codec

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
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
//	members: streamsets.go; at most once, before the rows of counters
//	outboxes: bodystream.go; behind the rows of counters, none if there are no outboxes
//	cursors:  as rows, behind them
//	sweep:    sweep.go; once, behind the cursors
//	feeds:    bodystream.go, feedstream.go
//	board:    JSON; once
//	producers, forgotten, keys: dedup/state.go; each once, behind all of a shard
//	positions: dedup/positions.go; at most once, behind the keys
//	catalog:  JSON
//	end:      rows, of a catalog its keyspaces (8) | digest (8) | sections before this one, blocks of rows and members aside (4)
//
// The state kind is that of the entries. A reader takes nothing for granted: a
// stream that is cut, or has anything behind its end, is refused.
const (
	streamVersion        = 1
	streamVersionCold    = 2
	streamVersionCarried = 3
	streamMagic          = "countd"

	StreamHead    = 1
	StreamRows    = 2
	StreamCatalog = 3

	StreamProducers = 4 // these three: dedup/state.go
	StreamForgotten = 5
	StreamKeys      = 6

	StreamCursors = 7 // unread.go
	StreamSweep   = 8
	StreamFeeds   = 9  // feedstream.go
	StreamBoard   = 10 // board.go

	StreamCold    = 11 // these three: streamcold.go
	StreamCarried = 12
	StreamBlock   = 13

	StreamPositions = 14 // dedup/positions.go

	StreamOutboxes       = 15 // outboxes.go
	StreamMembers        = 16 // these three: streamsets.go
	StreamCarriedMembers = 17
	StreamMemberBlock    = 18

	StreamEnd = 255

	// PayloadMax bounds what a reader allocates because a length field says so. The
	// largest section of rows has 21.6 MB, 660 B a row; that of a catalog with as many
	// keyspaces, shards and nodes as there may be has about 3 MB.
	PayloadMax = 32 << 20

	streamBufferSize = 1 << 20
)

// ErrSnapshot is wrapped by every refusal of a snapshot.
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

// Section writes one section, whose payload fill appends to its argument.
func (s *StreamWriter) Section(kind byte, fill func([]byte) []byte) error {
	s.buf = FinishSection(fill(append(s.buf[:0], kind, 0, 0, 0, 0)))
	s.sections++
	if _, err := s.w.Write(s.buf); err != nil {
		return fmt.Errorf("cannot write snapshot: %w", err)
	}
	return nil
}

// FinishSection completes a section that begins with its kind and four bytes for its
// length.
func FinishSection(section []byte) []byte {
	binary.LittleEndian.PutUint32(section[1:], uint32(len(section)-SectionHeadSize))
	return binary.LittleEndian.AppendUint32(section, crc32.Checksum(section, castagnoli))
}

// Head writes the head. blocks is how many bytes the stream grows by when it carries
// its cold rows, -1 for a stream without cold rows.
func (s *StreamWriter) Head(state Kind, index uint64, blocks int64) error {
	return s.Section(StreamHead, func(b []byte) []byte {
		if blocks < 0 {
			return binary.LittleEndian.AppendUint64(append(append(b, streamMagic...), streamVersion, byte(state)), index)
		}
		b = binary.LittleEndian.AppendUint64(append(append(b, streamMagic...), streamVersionCold, byte(state)), index)
		return binary.LittleEndian.AppendUint64(b, uint64(blocks))
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

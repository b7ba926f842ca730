package codec

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/countd/countd/engine"
)

// A log entry. Integers are little-endian; uvarint and varint (zigzag) are
// those of encoding/binary.
//
//	 0         1      2       3                            n-4       n
//	+---------+------+-------+----------------------------+---------+
//	| version | kind | width | sections …                 | CRC32C  |
//	|    1    |      |       |                            |         |
//	+---------+------+-------+----------------------------+---------+
//
// width is the number of columns of a result row. The CRC covers all bytes before it.
//
//	section:   kind (1) | length of payload (4) | payload
//	catalog:   one JSON command
//	clock:     leader's time (8) | key horizon (8) | producer idle time (8) | keys (4) | producers (4)
//	           times in milliseconds; stands before the first request with an identity
//	split, abandon, adopt: raftfsm/growthentry.go; the only section of its entry, which has width 0
//
// All other sections are requests. Ops fill the rest of the section.
//
//	request:   route | identity | op …
//	identity:  nothing                       of SectionRequest
//	producer:  length of name (1) | name | number (8)
//	keyed:     key (16) | body (16) | made at (8)
//	judged:    key (16) | body (16) | group of the judge (4) | met (8) | floor (8)
//	           for a key that another shard judged: dedup.Use
//	named:     as judged, with three earlier names of the judge (4 each) after the first; the newest first, then 0
//	restore:   number (8)                    the first write of a restore: forgets the requests of clients
//	source, positions: dedup/positions.go
//	op:        kind (1) | fields of the kind: op.go of the kind's package
//
// A reader refuses unknown versions and kinds, because only a later program can have written them.
const (
	entryVersion    = 1
	entryHeadSize   = 3
	ChecksumSize    = 4
	SectionHeadSize = 5

	SectionCatalog   = 1
	SectionClock     = 2
	SectionRequest   = 3
	SectionProducer  = 4
	SectionKeyed     = 5
	SectionJudged    = 6
	SectionSource    = 7
	SectionRestore   = 8
	SectionPositions = 9
	SectionNamed     = 10
	SectionSplit     = 11
	SectionAbandon   = 12
	SectionAdopt     = 13

	ClockSize = 32
)

// EntryOverhead is the number of bytes that BeginEntry, dedup.AppendClock and AppendChecksum add to
// the requests.
const EntryOverhead = entryHeadSize + SectionHeadSize + ClockSize + ChecksumSize

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Every EntryError that wrong bytes cause wraps ErrEntry.
var ErrEntry = errors.New("not a log entry of this version")

// EntryError is the value that Apply panics with.
type EntryError struct {
	Index uint64
	Err   error
}

func (e *EntryError) Error() string {
	return fmt.Sprintf("cannot apply log entry %d: %v", e.Index, e.Err)
}

func (e *EntryError) Unwrap() error { return e.Err }

// BeginEntry appends the head of a log entry to dst. The result row of each op will
// have width columns, or none if width is 0.
func BeginEntry(dst []byte, kind Kind, width int) []byte {
	return append(dst, entryVersion, byte(kind), byte(width))
}

// AppendChecksum completes an entry that BeginEntry began.
func AppendChecksum(entry []byte) []byte {
	return binary.LittleEndian.AppendUint32(entry, crc32.Checksum(entry, castagnoli))
}

// OpenEntry verifies an entry's frame and returns its kind, width and sections.
func OpenEntry(entry []byte) (kind byte, width int, sections []byte, err error) {
	if len(entry) < entryHeadSize+ChecksumSize {
		return 0, 0, nil, fmt.Errorf("%w: %d bytes", ErrEntry, len(entry))
	}
	body, crc := entry[:len(entry)-ChecksumSize], binary.LittleEndian.Uint32(entry[len(entry)-ChecksumSize:])
	if got := crc32.Checksum(body, castagnoli); got != crc {
		return 0, 0, nil, fmt.Errorf("%w: checksum %08x, want %08x", ErrEntry, got, crc)
	}
	if body[0] != entryVersion || body[2] > engine.ColumnsMax {
		return 0, 0, nil, fmt.Errorf("%w: head % x", ErrEntry, body[:entryHeadSize])
	}
	return body[1], int(body[2]), body[entryHeadSize:], nil
}

// Grows reports whether the sections of an entry are those by which a shard splits, abandons a split,
// or adopts a part.
func Grows(sections []byte) bool {
	return len(sections) > 0 && sections[0] >= SectionSplit && sections[0] <= SectionAdopt
}

// NextSection returns the first section and the sections after it.
func NextSection(sections []byte) (kind byte, payload, rest []byte, err error) {
	if len(sections) < SectionHeadSize {
		return 0, nil, nil, fmt.Errorf("%w: section of %d bytes", ErrEntry, len(sections))
	}
	n := uint64(binary.LittleEndian.Uint32(sections[1:]))
	if n > uint64(len(sections)-SectionHeadSize) {
		return 0, nil, nil, fmt.Errorf("%w: section of %d bytes in %d", ErrEntry, n, len(sections))
	}
	end := SectionHeadSize + int(n)
	return sections[0], sections[SectionHeadSize:end], sections[end:], nil
}

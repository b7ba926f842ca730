package raftfsm

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
//	 0      1      2      3      4                            n-4       n
//	+------+------+------+------+----------------------------+---------+
//	|  1   | kind |width |  0   | sections …                 | CRC32C  |
//	+------+------+------+------+----------------------------+---------+
//	 version       columns of a result row; the CRC is of all before it
//
//	section:  kind (1) | length of payload (4) | payload
//	request:  ops (4) | op …                   one client's request without an identity
//	clock:    leader's time (8) | key horizon (8) | producer idle time (8) | keys (4) | producers (4)
//	          times in milliseconds; before the first request with an identity
//	producer: length of name (1) | name | number (8) | as request
//	keyed:    key (16) | body (16) | made at (8) | as request
//	restore:  number (8) | as request          the first write of a restore: forgets the requests of clients
//	op:       head (1) | key (8) | cell …
//	          head: bits 0–1 engine.OpKind, bits 2–7 cells-1 (0 for a delete)
//	cell:     column (1) | delta or value (varint)
//	          or, of an add on counts in cluster version 5 and up, with a floor:
//	          column + 128 (1) | delta (varint) | floor (varint)
//	catalog:  one JSON command
//
// Unknown versions, kinds and set zero bytes are refused: what they would mean
// is decided by the version that introduces them.
const (
	entryVersion    = 1
	entryHeadSize   = 4
	entryCRCSize    = 4
	sectionHeadSize = 5

	sectionRequest  = 1
	sectionCatalog  = 2
	sectionClock    = 3
	sectionProducer = 16
	sectionKeyed    = 17
	sectionRestore  = 18

	clockSize = 32
)

// EntryOverhead is how many bytes BeginEntry, AppendClock and SealEntry add to
// the requests.
const EntryOverhead = entryHeadSize + sectionHeadSize + clockSize + entryCRCSize

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// errEntry is the cause of every EntryError that a wrong byte makes.
var errEntry = errors.New("not a log entry of this version")

// EntryError is what Apply panics with.
type EntryError struct {
	Index uint64
	Err   error
}

func (e *EntryError) Error() string {
	return fmt.Sprintf("cannot apply log entry %d: %v", e.Index, e.Err)
}

func (e *EntryError) Unwrap() error { return e.Err }

// BeginEntry appends the head of an entry of a shard's ops to dst. Each op's
// result row will have width columns, none if width is 0.
func BeginEntry(dst []byte, kind Kind, width int) []byte {
	return append(dst, entryVersion, byte(kind), byte(width), 0)
}

// SealEntry appends the checksum. Entry must start with the head.
func SealEntry(entry []byte) []byte {
	return binary.LittleEndian.AppendUint32(entry, crc32.Checksum(entry, castagnoli))
}

// openEntry verifies an entry's frame and returns its kind, width and sections.
func openEntry(entry []byte) (kind byte, width int, sections []byte, err error) {
	if len(entry) < entryHeadSize+entryCRCSize {
		return 0, 0, nil, fmt.Errorf("%w: %d bytes", errEntry, len(entry))
	}
	body, crc := entry[:len(entry)-entryCRCSize], binary.LittleEndian.Uint32(entry[len(entry)-entryCRCSize:])
	if got := crc32.Checksum(body, castagnoli); got != crc {
		return 0, 0, nil, fmt.Errorf("%w: checksum %08x, want %08x", errEntry, got, crc)
	}
	if body[0] != entryVersion || body[2] > engine.ColumnsMax || body[3] != 0 {
		return 0, 0, nil, fmt.Errorf("%w: head % x", errEntry, body[:entryHeadSize])
	}
	return body[1], int(body[2]), body[entryHeadSize:], nil
}

// nextSection splits the first section off.
func nextSection(sections []byte) (kind byte, payload, rest []byte, err error) {
	if len(sections) < sectionHeadSize {
		return 0, nil, nil, fmt.Errorf("%w: section of %d bytes", errEntry, len(sections))
	}
	n := uint64(binary.LittleEndian.Uint32(sections[1:]))
	if n > uint64(len(sections)-sectionHeadSize) {
		return 0, nil, nil, fmt.Errorf("%w: section of %d bytes in %d", errEntry, n, len(sections))
	}
	end := sectionHeadSize + int(n)
	return sections[0], sections[sectionHeadSize:end], sections[end:], nil
}

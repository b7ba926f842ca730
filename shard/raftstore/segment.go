package raftstore

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// A segment's file is named by its number and segmentSuffix.
const segmentSuffix = ".log"

func segmentName(number uint32) string { return fmt.Sprintf("%010d%s", number, segmentSuffix) }

// parseSegmentName parses the output of segmentName.
func parseSegmentName(name string) (number uint32, ok bool) {
	digits, ok := strings.CutSuffix(name, segmentSuffix)
	n, err := strconv.ParseUint(digits, 10, 32)
	return uint32(n), ok && err == nil && n > 0 && segmentName(uint32(n)) == name
}

// segment is a part of the log in one file. Its number is never reused, but a later segment may
// reuse its file.
type segment struct {
	number  uint32
	path    string
	file    vfs.File
	sectors int

	// Log.mu guards end, entries and live. end is the sector after the last batch. entries counts
	// the entries written to the segment, and live the entries that are still needed.
	end, entries, live int

	// refs counts the log's own reference and the running reads. A read begins under Log.mu while
	// the segment is in the index, so refs never rises again from 0.
	refs   atomic.Int32
	unused chan struct{} // closed when refs reaches 0
}

func newSegment(number uint32, path string, file vfs.File, sectors int) *segment {
	s := &segment{number: number, path: path, file: file, sectors: sectors, unused: make(chan struct{})}
	s.refs.Store(1)
	return s
}

func (s *segment) release() {
	if s.refs.Add(-1) == 0 {
		close(s.unused)
	}
}

// fail wraps err with the segment's path.
func (s *segment) fail(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("segment %s: %w", s.path, err)
}

// readSectorsFirst is the number of sectors in the first read of an entry. Most entries fit into
// them. The head of a longer entry shows readEntry how much more to read.
const readSectorsFirst = 2

// readEntry reads the entry item at an address.
func (s *segment) readEntry(address uint32) (it item, err error) {
	data, err := s.readData(address, readSectorsFirst*sectorDataBytes)
	if err != nil {
		return item{}, err
	}
	for {
		r := readItems(data)
		if r.next(&it) {
			return it, nil
		}
		need, err := entryItemBytes(data)
		if err != nil || need <= len(data) {
			return item{}, s.fail(errors.Join(err, r.fault()))
		}
		if data, err = s.readData(address, need); err != nil {
			return item{}, err
		}
		if len(data) < need {
			return item{}, s.fail(damage("the entry at sector %d is not whole", address/sectorDataBytes))
		}
	}
}

// entryItemBytes returns the size of the entry item that starts in data.
func entryItemBytes(data []byte) (int, error) {
	r := readItems(data)
	if kind := r.Byte(); kind != itemEntry && kind != itemMove {
		return 0, damage("an item of kind %d is not an entry", kind)
	}
	r.Uint()
	r.Uint()
	extensions, value := r.entryHead(&item{})
	if r.Err != nil {
		return 0, r.fault()
	}
	if extensions > 1<<32 || value > 1<<32 {
		return 0, damage("an entry of %d bytes", value)
	}
	return len(data) - len(r.Rest) + int(extensions) + int(value), nil
}

// readData reads the given number of bytes at an address, or fewer if the batch ends earlier. A
// damaged sector also counts as the batch's end, because it may belong to the next batch, which is
// being written. If the caller needs more bytes than that, it reports damage.
func (s *segment) readData(address uint32, bytes int) ([]byte, error) {
	first, skip := int(address/sectorDataBytes), int(address%sectorDataBytes)
	sectors := min((skip+bytes+sectorDataBytes-1)/sectorDataBytes, s.sectors-first)
	raw := make([]byte, max(sectors, 0)*sectorBytes)
	if n, err := s.file.ReadAt(raw, int64(first)*sectorBytes); err != nil && !(errors.Is(err, io.EOF) && n == len(raw)) {
		if errors.Is(err, io.EOF) {
			err = damage("it ends before sector %d", first+sectors)
		}
		return nil, s.fail(fmt.Errorf("cannot read sector %d: %w", first, err))
	}
	// Join the sectors' data in place, at the front of raw.
	data, batch := raw[:0], 0
	for i := range sectors {
		sector := raw[i*sectorBytes : (i+1)*sectorBytes]
		state, of := classify(sector, s.number, first+i)
		if i > 0 && (state != sectorCurrent || of != batch) {
			break
		}
		if state != sectorCurrent {
			return nil, s.fail(damage("sector %d is not as it was written", first+i))
		}
		batch = of
		data = append(data, sector[sectorHeadBytes:]...)
	}
	if skip > len(data) {
		return nil, s.fail(damage("sector %d is missing", first))
	}
	return data[skip:min(len(data), skip+bytes)], nil
}

package raftstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// ErrDamaged is returned if bytes on disk differ from those written.
var ErrDamaged = errors.New("the stored bytes are damaged")

func damage(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrDamaged, fmt.Sprintf(format, args...))
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A segment is a file of sectors. A disk writes a sector completely or not at all. A file may serve
// several segments in turn. Each sector shows by itself whether it was written for this segment or
// an earlier one, or is damaged. All integers are little endian.
//
//	0        4         8        12       16                          512
//	┌────────┬─────────┬────────┬────────┬──────────────────────────────┐
//	│ crc32c │ segment │ sector │ batch  │ data                         │
//	└────────┴─────────┴────────┴────────┴──────────────────────────────┘
//
// crc32c covers the rest of the sector. The field segment is the number of the segment, sector the
// position of the sector in the file, and batch the position of the first sector of its batch. A
// batch is the unit that one sync makes durable. It fills whole sectors. The data of these sectors
// is the batch's length (4 bytes, which it includes), then the items, then zeros.
const (
	sectorBytes     = 512
	sectorHeadBytes = 16
	sectorDataBytes = sectorBytes - sectorHeadBytes
	batchHeadBytes  = 4
)

// sectorsFor returns the number of sectors of a batch of batchBytes bytes, the batch's head
// included.
func sectorsFor(batchBytes int) int { return (batchBytes + sectorDataBytes - 1) / sectorDataBytes }

// sectorState classifies a sector of a segment.
type sectorState int

const (
	sectorStale   sectorState = iota // zeros, or written for an earlier segment in the file
	sectorCurrent                    // written for this segment
	sectorDamaged
)

// classify returns the state of the sector at position place of the segment. For a current sector,
// it also returns the position of its batch's first sector.
func classify(sector []byte, segment uint32, place int) (state sectorState, batch int) {
	if binary.LittleEndian.Uint32(sector) != crc32.Checksum(sector[4:sectorBytes], castagnoli) {
		for _, b := range sector[:sectorBytes] {
			if b != 0 {
				return sectorDamaged, 0
			}
		}
		return sectorStale, 0
	}
	life := binary.LittleEndian.Uint32(sector[4:])
	batch = int(binary.LittleEndian.Uint32(sector[12:]))
	switch {
	case binary.LittleEndian.Uint32(sector[8:]) != uint32(place), life > segment, batch > place:
		return sectorDamaged, 0
	case life < segment:
		return sectorStale, 0
	}
	return sectorCurrent, batch
}

// framer encodes one batch into sectors.
type framer struct {
	sectors []byte // whole sectors; begin reuses their memory
	used    int    // bytes of batch data so far
}

// begin starts a batch of batchBytes bytes, the batch's head included.
func (f *framer) begin(batchBytes int) {
	size := sectorsFor(batchBytes) * sectorBytes
	if cap(f.sectors) < size {
		f.sectors = make([]byte, size)
	}
	f.sectors = f.sectors[:size]
	f.used = 0
	f.write(binary.LittleEndian.AppendUint32(make([]byte, 0, batchHeadBytes), uint32(batchBytes)))
}

// write appends to the batch's data.
func (f *framer) write(p []byte) {
	for len(p) > 0 {
		sector, at := f.used/sectorDataBytes, f.used%sectorDataBytes
		start := sector*sectorBytes + sectorHeadBytes
		n := copy(f.sectors[start+at:start+sectorDataBytes], p)
		f.used += n
		p = p[n:]
	}
}

// finish completes the heads of the sectors. place is the position of the first sector. The framer
// owns the returned sectors.
func (f *framer) finish(segment uint32, place int) []byte {
	if at := f.used % sectorDataBytes; at > 0 {
		clear(f.sectors[len(f.sectors)-sectorDataBytes+at:])
	}
	for i := 0; i < len(f.sectors)/sectorBytes; i++ {
		s := f.sectors[i*sectorBytes : (i+1)*sectorBytes]
		binary.LittleEndian.PutUint32(s[4:], segment)
		binary.LittleEndian.PutUint32(s[8:], uint32(place+i))
		binary.LittleEndian.PutUint32(s[12:], uint32(place))
		putChecksum(s)
	}
	return f.sectors
}

func putChecksum(sector []byte) {
	binary.LittleEndian.PutUint32(sector, crc32.Checksum(sector[4:sectorBytes], castagnoli))
}

// scanned describes the batches of a segment.
type scanned struct {
	end  int   // the sector after the last whole batch
	last int   // the first sector of the last whole batch
	torn []int // sectors after end that have remains of a batch that was never acknowledged
}

// scanSegment reads a whole segment and calls visit for each whole batch, with its data and the
// address of the data (see position). A crash can leave one torn batch after the whole ones.
// scanSegment returns ErrDamaged unless the sectors after the last whole batch may be what is left
// of a torn batch:
//
//   - each sector is stale or current, because a disk writes a sector whole or not at all;
//   - the current sectors belong to a batch that begins right after the last whole batch, because a
//     batch is written only after the previous one is synced;
//   - at least one sector of that batch is stale. Otherwise the batch is complete and counts as
//     stored, acknowledged or not.
func scanSegment(raw []byte, segment uint32, visit func(batch []byte, at uint32) error) (scanned, error) {
	s := scanned{}
	sectors := len(raw) / sectorBytes
	for s.end < sectors {
		batch, whole, err := readBatch(raw, segment, s.end)
		if err != nil {
			return s, err
		}
		if !whole {
			break
		}
		if err := visit(batch[batchHeadBytes:], uint32(s.end*sectorDataBytes+batchHeadBytes)); err != nil {
			return s, fmt.Errorf("sector %d: %w", s.end, err)
		}
		s.last = s.end
		s.end += sectorsFor(len(batch))
	}
	for i := s.end; i < sectors; i++ {
		switch state, batch := classify(raw[i*sectorBytes:], segment, i); {
		case state == sectorDamaged:
			return s, damage("sector %d is neither as it was written nor as it was before", i)
		case state == sectorCurrent && batch != s.end:
			return s, damage("sector %d is of the batch at sector %d, but the batches end at sector %d", i, batch, s.end)
		case state == sectorCurrent:
			s.torn = append(s.torn, i)
		}
	}
	return s, nil
}

// readBatch returns the data of the batch that begins at the sector numbered first, including the
// batch's head. complete is false if the batch lacks a sector.
func readBatch(raw []byte, segment uint32, first int) (batch []byte, complete bool, err error) {
	size := sectorDataBytes
	for i := first; len(batch) < size; i++ {
		if (i+1)*sectorBytes > len(raw) {
			if i == first {
				return nil, false, nil
			}
			return nil, false, damage("the batch at sector %d is longer than the segment", first)
		}
		sector := raw[i*sectorBytes : (i+1)*sectorBytes]
		if state, of := classify(sector, segment, i); state != sectorCurrent || of != first {
			return nil, false, nil // scanSegment checks these sectors
		}
		batch = append(batch, sector[sectorHeadBytes:]...)
		if i == first {
			size = int(binary.LittleEndian.Uint32(batch))
			if size <= batchHeadBytes {
				return nil, false, damage("the batch at sector %d has a length of %d", first, size)
			}
		}
	}
	for _, b := range batch[size:] {
		if b != 0 {
			return nil, false, damage("the batch at sector %d has something behind its end", first)
		}
	}
	return batch[:size], true, nil
}

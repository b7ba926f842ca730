package shard

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/hashicorp/raft-wal/types"
)

// raft-wal takes whatever it cannot read in its newest segment for the end of
// the log: one damaged byte in its middle, and every entry behind it is gone,
// acknowledged as they were. Of older segments it checks nothing but the head.
// So segments are checked here first. Integers are little endian.
//
//	segment  head 32 | batch … | zeros up to the size it was made with
//	head     magic 4 | zeros 3 | version 0 | base index 8 | id 8 | codec 8
//	batch    entry … | index, in the last batch of a full segment | commit
//	frame    type 1 | zeros 3 | length 4 | payload, zeros up to a multiple of 8
//	index    (payload) position of the frame of each entry of the segment, 4 each
//	commit   type 1 | zeros 3 | crc32c of the batch, the head before the first 4
//
// A batch is what one StoreLogs wrote and synced: the one behind it was begun
// after that.
const (
	walHeadBytes      = 32
	walFrameHeadBytes = 8
	walMagic          = 0x58eb6b0d

	walEntryFrame  = 1
	walIndexFrame  = 2
	walCommitFrame = 3

	// walPayloadBytesMax is the most that raft-wal reads back of a frame.
	walPayloadBytesMax = 64 << 20
)

func walDamage(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errDamaged, fmt.Sprintf(format, args...))
}

// walSegment is what stands in the whole batches of a segment.
type walSegment struct {
	end     int      // behind the last whole batch, 0 for none
	offsets []uint32 // of the entries' frames
	indexAt int      // of the index's payload, 0 while the segment is not full
	torn    int      // bytes behind end that a crash left of a write
	partial bool     // offsets lacks those before: the index is not compared
}

// scanSegment reads a segment's batches until one that is not whole, or until
// nothing but zeros follows. The error, if any, says why the next is not whole.
func scanSegment(raw []byte, info types.SegmentInfo) (walSegment, error) {
	var s walSegment
	if onlyZeros(raw) {
		return s, nil
	}
	if err := checkSegmentHead(raw, info); err != nil {
		return s, err
	}
	for s.indexAt == 0 && !onlyZeros(raw[s.end:]) {
		if err := s.readBatch(raw); err != nil {
			return s, err
		}
	}
	return s, nil
}

func checkSegmentHead(raw []byte, info types.SegmentInfo) error {
	if len(raw) < walHeadBytes {
		return walDamage("it has %d bytes", len(raw))
	}
	if binary.LittleEndian.Uint64(raw) != walMagic || binary.LittleEndian.Uint64(raw[8:]) != info.BaseIndex ||
		binary.LittleEndian.Uint64(raw[16:]) != info.ID || binary.LittleEndian.Uint64(raw[24:]) != info.Codec {
		return walDamage("its head is of another file")
	}
	return nil
}

// readBatch reads the batch at s.end. After an error s is as it was.
func (s *walSegment) readBatch(raw []byte) error {
	next := *s
	for at := max(s.end, walHeadBytes); ; {
		if at+walFrameHeadBytes > len(raw) {
			return walDamage("the batch at %d goes on behind the end, at %d", s.end, len(raw))
		}
		frame, err := readWALFrame(raw, at)
		if err != nil {
			return err
		}
		if frame.end > len(raw) {
			return walDamage("the frame at %d ends behind the end, at %d", at, len(raw))
		}
		if frame.kind == walCommitFrame {
			if crc32.Checksum(raw[s.end:at], castagnoli) != frame.value {
				return walDamage("the checksum of the batch at %d does not match", s.end)
			}
			next.end = frame.end
			*s = next
			return nil
		}
		if err := next.add(raw, at, frame); err != nil {
			return err
		}
		at = frame.end
	}
}

// add takes a frame at a position into account.
func (s *walSegment) add(raw []byte, at int, frame walFrame) error {
	if s.indexAt != 0 {
		return walDamage("a frame at %d, behind the index", at)
	}
	if frame.kind == walEntryFrame {
		s.offsets = append(s.offsets, uint32(at))
		return nil
	}
	s.indexAt = at + walFrameHeadBytes
	if !s.partial && !s.indexMatches(raw[s.indexAt:s.indexAt+int(frame.value)]) {
		return walDamage("the index at %d is not that of the entries", at)
	}
	return nil
}

func (s *walSegment) indexMatches(index []byte) bool {
	if len(index) != 4*len(s.offsets) {
		return false
	}
	for i, offset := range s.offsets {
		if binary.LittleEndian.Uint32(index[4*i:]) != offset {
			return false
		}
	}
	return true
}

// walFrame is the head of a frame.
type walFrame struct {
	kind  byte
	value uint32 // length of the payload; of a commit, the checksum
	end   int    // behind payload and padding, which may be behind the segment's end
}

// readWALFrame reads the head of a frame, which lies whole in raw.
func readWALFrame(raw []byte, at int) (walFrame, error) {
	f := walFrame{kind: raw[at], value: binary.LittleEndian.Uint32(raw[at+4:]), end: at + walFrameHeadBytes}
	if f.kind < walEntryFrame || f.kind > walCommitFrame || !onlyZeros(raw[at+1:at+4]) {
		return walFrame{}, walDamage("there is no frame at %d", at)
	}
	if f.kind == walCommitFrame {
		return f, nil
	}
	if f.value == 0 || f.value > walPayloadBytesMax {
		return walFrame{}, walDamage("a frame of %d bytes at %d", f.value, at)
	}
	f.end += (int(f.value) + 7) &^ 7
	return f, nil
}

// onlyZeros reports whether b holds nothing else.
func onlyZeros(b []byte) bool {
	for ; len(b) >= 8; b = b[8:] {
		if binary.LittleEndian.Uint64(b) != 0 {
			return false
		}
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

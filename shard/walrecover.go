package shard

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// recoverSegments checks every segment, and only when all of them are whole
// completes what a crash interrupted: it deletes files that are not listed,
// clears a torn batch, and opens a segment behind one that is full. raft-wal
// would leave a full one as it is, and refuse every write from then on.
func (m *walMeta) recoverSegments(segmentBytes int) error {
	state, listed, err := m.load()
	if err != nil {
		return err
	}
	strays, err := m.strays(state, listed)
	if err != nil {
		return err
	}
	if !listed {
		return m.deleteSegments(strays)
	}
	if err := checkSegmentList(state); err != nil {
		return err
	}
	tail, err := m.checkSegments(state)
	if err != nil {
		return err
	}
	if err := m.deleteSegments(strays); err != nil {
		return err
	}
	if err := m.settleTail(state.Segments[len(state.Segments)-1], tail); err != nil {
		return err
	}
	return m.rotateFull(state, tail, segmentBytes)
}

// strays returns the segments that are not listed, by id with their first
// index: one that was made and not listed any more before a crash, those that
// were taken off the list and not deleted any more.
func (m *walMeta) strays(state types.PersistentState, listed bool) (map[uint64]uint64, error) {
	found, err := segment.NewFiler(m.dir, fs.New()).List()
	if err != nil {
		return nil, fmt.Errorf("cannot list segments: %w", err)
	}
	for _, info := range state.Segments {
		delete(found, info.ID)
	}
	for id, base := range found {
		if listed && id < state.NextSegmentID {
			continue
		}
		// At most one was made, and nothing is written before it is listed.
		raw, err := os.ReadFile(m.path(types.SegmentInfo{ID: id, BaseIndex: base}))
		if err != nil {
			return nil, err
		}
		if !onlyZeros(raw) {
			return nil, walDamage("the list of segments is missing or older than segment %d", id)
		}
	}
	return found, nil
}

func (m *walMeta) path(info types.SegmentInfo) string {
	return filepath.Join(m.dir, segment.FileName(info))
}

// checkSegmentList refuses a list that raft-wal does not write.
func checkSegmentList(state types.PersistentState) error {
	if len(state.Segments) == 0 {
		return walDamage("no segment is listed")
	}
	for i, s := range state.Segments {
		last := i == len(state.Segments)-1
		switch {
		case s.ID >= state.NextSegmentID, s.SealTime.IsZero() != last, i > 0 && s.MinIndex != s.BaseIndex,
			s.MinIndex < s.BaseIndex, !last && s.MaxIndex < s.MinIndex:
			return walDamage("the list of segments does not agree at segment %d", s.ID)
		case !last && state.Segments[i+1].BaseIndex != s.MaxIndex+1:
			return walDamage("segment %d begins at entry %d but the one before it ends at %d",
				state.Segments[i+1].ID, state.Segments[i+1].BaseIndex, s.MaxIndex)
		}
	}
	return nil
}

// checkSegments reads all segments and returns what is in the newest.
func (m *walMeta) checkSegments(state types.PersistentState) (tail walSegment, err error) {
	for _, info := range state.Segments {
		raw, err := os.ReadFile(m.path(info))
		if errors.Is(err, os.ErrNotExist) {
			err = walDamage("it is missing")
		}
		if err == nil {
			tail, err = checkSegment(raw, info)
		}
		if err != nil {
			return tail, fmt.Errorf("segment %s: %w", segment.FileName(info), err)
		}
	}
	return tail, nil
}

// checkSegment refuses a segment of which any entry that was acknowledged is
// missing or changed.
func checkSegment(raw []byte, info types.SegmentInfo) (walSegment, error) {
	if len(raw) < max(int(info.SizeLimit), walHeadBytes) {
		return walSegment{}, walDamage("it has %d bytes and was made with %d", len(raw), info.SizeLimit)
	}
	s, err := scanSegment(raw, info)
	entries := uint64(len(s.offsets))
	if !info.SealTime.IsZero() {
		if err == nil && (s.indexAt == 0 || uint64(s.indexAt) != info.IndexStart || entries < info.MaxIndex-info.BaseIndex+1) {
			err = walDamage("it holds %d entries from %d on and should end at %d", entries, info.BaseIndex, info.MaxIndex)
		}
		return s, err
	}
	if err != nil {
		if err := tornBatch(raw, s.end); err != nil {
			return s, err
		}
		s.torn = len(bytes.TrimRight(raw, "\x00")) - s.end
	}
	if info.MinIndex > info.BaseIndex && info.BaseIndex+entries <= info.MinIndex {
		return s, walDamage("it holds %d entries from %d on, but its first is %d", entries, info.BaseIndex, info.MinIndex)
	}
	return s, nil
}

// deleteSegments deletes files, by id with their first index.
func (m *walMeta) deleteSegments(found map[uint64]uint64) error {
	for id, base := range found {
		if err := segment.NewFiler(m.dir, fs.New()).Delete(base, id); err != nil {
			return fmt.Errorf("cannot delete segment %d: %w", id, err)
		}
	}
	return nil
}

// settleTail leaves zeros behind the last whole batch of the newest segment,
// and syncs it: who was killed may not have.
func (m *walMeta) settleTail(info types.SegmentInfo, tail walSegment) error {
	file, err := os.OpenFile(m.path(info), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteAt(make([]byte, tail.torn), int64(tail.end))
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("cannot settle the newest segment: %w", err)
	}
	return nil
}

// rotateFull lists the next segment when the newest is full: the crash came
// before raft-wal did.
func (m *walMeta) rotateFull(state types.PersistentState, tail walSegment, segmentBytes int) error {
	if tail.indexAt == 0 {
		return nil
	}
	full := &state.Segments[len(state.Segments)-1]
	full.SealTime = time.Now()
	full.IndexStart = uint64(tail.indexAt)
	full.MaxIndex = full.BaseIndex + uint64(len(tail.offsets)) - 1
	next := types.SegmentInfo{
		ID: state.NextSegmentID, BaseIndex: full.MaxIndex + 1, MinIndex: full.MaxIndex + 1,
		Codec: full.Codec, CreateTime: full.SealTime, SizeLimit: uint32(segmentBytes),
	}
	state.NextSegmentID++
	state.Segments = append(state.Segments, next)
	return m.CommitState(state)
}

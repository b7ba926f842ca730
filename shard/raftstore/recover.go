package raftstore

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const vfsCategory = vfs.WriteCategoryUnspecified

func isNotExist(err error) bool { return errors.Is(err, os.ErrNotExist) }

// recover reads the log. The newest segment describes the whole log except the positions of
// earlier entries. Its first batch has the state at its beginning, and its later batches have the
// changes. recover reads earlier segments only for entries. If several segments have an entry with
// the same index, the newest segment counts.
//
// recover changes files only after it has found everything intact.
func (l *Log) recover() error {
	files, err := l.segmentFiles()
	if err != nil {
		return err
	}
	newest, unbegun, err := l.newestBegun(files)
	if err != nil {
		return err
	}
	if newest == 0 {
		return l.startNew()
	}
	f := fold{index: l.mu.index}
	s, raw, found, err := l.readSegment(newest, f.change)
	if err != nil {
		return err
	}
	// If an error occurs below, the function open closes the files in mu.segments.
	l.mu.segments[newest], l.mu.active, l.writing = s, newest, s
	if f.ended {
		return s.fail(damage("it has ended, and %s after it is missing or does not begin as it was written", segmentName(newest+1)))
	}
	before, err := l.readEarlier(&f, newest, found.last == 0)
	if err != nil {
		return err
	}
	if err := l.countLive(); err != nil {
		return err
	}
	// Settle the newest segment first, because the end item of the previous segment may be written
	// only once the newest segment is durable.
	if err := s.settle(raw, found); err != nil {
		return err
	}
	if before != nil {
		if err := before.settle(l); err != nil {
			return err
		}
	}
	for _, number := range files {
		if number == unbegun || l.mu.segments[number] == nil {
			if err := l.fs.Remove(l.fs.PathJoin(l.dir, segmentName(number))); err != nil {
				return err
			}
		}
	}
	return nil
}

// segmentFiles returns the numbers of the segment files, in order.
func (l *Log) segmentFiles() ([]uint32, error) {
	names, err := l.fs.List(l.dir)
	if err != nil {
		return nil, err
	}
	var numbers []uint32
	for _, name := range names {
		if number, ok := parseSegmentName(name); ok {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// newestBegun returns the newest segment that has a first batch; 0 if the log is empty. unbegun is
// the prepared segment after that one, or 0.
func (l *Log) newestBegun(files []uint32) (newest, unbegun uint32, err error) {
	if len(files) == 0 {
		return 0, 0, nil
	}
	last := files[len(files)-1]
	begun, err := l.hasBegun(last)
	if err != nil || begun {
		return last, 0, err
	}
	var path string
	if len(files) > 1 && files[len(files)-2] == last-1 {
		// If segment last-1 has an end item, segment last has lost its first batch; recover checks
		// that later.
		if begun, err = l.hasBegun(last - 1); err == nil && !begun {
			path = l.fs.PathJoin(l.dir, segmentName(last-1))
			err = fmt.Errorf("segment %s: %w", path, damage("it does not begin as it was written, nor does the one after it"))
		}
		return last - 1, last, err
	}
	if last > 1 {
		path = l.fs.PathJoin(l.dir, segmentName(last-1))
		return 0, 0, fmt.Errorf("segment %s: %w", path, damage("it is missing, and the one after it does not begin as it was written"))
	}
	// Either a crash interrupted the creation of the log, or the whole log is lost. Only the caller
	// of Open knows whether the log had content.
	s, _, _, err := l.readSegment(1, func(*item, position) error { return nil })
	if err != nil {
		return 0, 0, err
	}
	return 0, 0, s.file.Close()
}

func (l *Log) hasBegun(number uint32) (bool, error) {
	s, raw, err := l.openSegment(number)
	if err != nil {
		return false, err
	}
	_, whole, err := readBatch(raw, number, 0)
	return whole, errors.Join(s.fail(err), s.file.Close())
}

// startNew creates the first segment.
func (l *Log) startNew() error {
	s, err := l.make(1, l.sectorsOf(1))
	if err != nil {
		return err
	}
	l.mu.segments[1], l.mu.active, l.writing = s, 1, s
	return l.begin(s, appendBegin(nil, s.sectors, []uint32{1}))
}

// openSegment opens and reads the file of a segment.
func (l *Log) openSegment(number uint32) (s *segment, raw []byte, err error) {
	path := l.fs.PathJoin(l.dir, segmentName(number))
	if _, err := l.fs.Stat(path); err != nil {
		if isNotExist(err) {
			err = damage("it is missing")
		}
		return nil, nil, fmt.Errorf("segment %s: %w", path, err)
	}
	file, err := l.fs.OpenReadWrite(path, vfsCategory)
	if err != nil {
		return nil, nil, err
	}
	info, err := file.Stat()
	if err == nil {
		raw = make([]byte, info.Size())
		var n int
		if n, err = file.ReadAt(raw, 0); n == len(raw) && errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("segment %s: %w", path, err), file.Close())
	}
	return newSegment(number, path, file, len(raw)/sectorBytes), raw, nil
}

// readSegment opens a segment and calls visit for each of its items.
func (l *Log) readSegment(number uint32, visit func(*item, position) error) (s *segment, raw []byte, found scanned, err error) {
	s, raw, err = l.openSegment(number)
	if err != nil {
		return nil, nil, found, err
	}
	found, err = scanSegment(raw, number, func(batch []byte, at uint32) error {
		return eachItem(batch, at, func(it *item, _ []byte, address uint32) error {
			first := address == batchHeadBytes
			if first != (it.kind == itemBegin) || first && it.sectors*sectorBytes != uint64(len(raw)) {
				return damage("its first item is not that of a segment of %d bytes", len(raw))
			}
			if it.kind == itemEntry || it.kind == itemMove {
				s.entries++
			}
			return visit(it, position{number, address})
		})
	})
	if err != nil {
		return nil, nil, found, errors.Join(s.fail(err), s.file.Close())
	}
	s.end = found.end
	return s, raw, found, nil
}

// fold builds the index from the items of the newest segment.
type fold struct {
	*index
	listed map[uint32]bool // the live segments
	ended  bool
}

func (f *fold) change(it *item, at position) error {
	switch it.kind {
	case itemBegin:
		f.listed = map[uint32]bool{}
		for _, s := range it.segments {
			f.listed[s] = true
		}
		if !f.listed[at.segment] {
			return damage("its list of segments lacks it")
		}
		return nil
	case itemEntry:
		return f.add(it.id, it.first, at)
	case itemMove:
		if r := f.replicas[it.id]; r == nil || !r.has(it.first) {
			return damage("entry %d of %s is moved but not stored", it.first, it.id)
		}
		f.move(it.id, it.first, at)
		return nil
	case itemCut:
		return f.cut(it.id, it.first, it.last)
	case itemSet:
		return f.set(it.id, it.key, it.value)
	case itemCreate:
		return f.create(it.id, it.first, it.last)
	case itemDrop:
		return f.drop(it.id)
	case itemRemove:
		if s := it.segments[0]; !f.listed[s] || s == at.segment {
			return damage("segment %d is removed but not live", s)
		}
		delete(f.listed, it.segments[0])
		return nil
	case itemEnd:
		f.ended = true
		return nil
	}
	return damage("an item of the unknown kind %d", it.kind)
}

// ending is the segment before the newest. Its last batch, which has the end item, may be missing
// or may be only in the operating system's memory.
type ending struct {
	*segment
	raw   []byte
	found scanned
	ended bool
}

// settle makes the last batch durable.
func (e *ending) settle(l *Log) error {
	err := e.segment.settle(e.raw, e.found)
	if err != nil || e.ended {
		return err
	}
	return l.end(e.segment)
}

// readEarlier finds the entries in the segments before the newest. If the newest has only its
// first batch, readEarlier also returns the segment right before it, whose end item may not be on
// disk.
func (l *Log) readEarlier(f *fold, newest uint32, onlyBegun bool) (*ending, error) {
	var before *ending
	for _, number := range slices.Sorted(maps.Keys(f.listed)) {
		if number == newest {
			continue
		}
		ended := false
		s, raw, found, err := l.readSegment(number, func(it *item, at position) error {
			if ended {
				return damage("it has items behind its end")
			}
			ended = it.kind == itemEnd
			if it.kind == itemEntry || it.kind == itemMove {
				f.locate(it.id, it.first, at)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		l.mu.segments[number] = s
		last := number == newest-1 && onlyBegun
		if ended && len(found.torn) > 0 || !ended && !last {
			return nil, s.fail(damage("it ends at sector %d, and not as it was written", found.end))
		}
		if last {
			before = &ending{segment: s, raw: raw, found: found, ended: ended}
		}
	}
	return before, nil
}

// locate records the position of an entry, unless the entry was deleted or has a later position.
func (x *index) locate(id ReplicaID, entry uint64, at position) {
	r := x.replicas[id]
	if r == nil || !r.has(entry) {
		return
	}
	if p := &r.positions[entry-r.first]; p.segment <= at.segment {
		*p = at
	}
}

// countLive counts the live entries of each segment. It returns ErrDamaged if an entry of the
// index is in no segment.
func (l *Log) countLive() error {
	for _, s := range l.mu.segments {
		s.live = 0
	}
	for id, r := range l.mu.replicas {
		for i, p := range r.positions {
			s := l.mu.segments[p.segment]
			if s == nil {
				return damage("entry %d of %s is in no segment; its log is %d to %d", r.first+uint64(i), id, r.first, r.last())
			}
			s.live++
		}
	}
	return nil
}

// settle makes the last batch of a segment durable, and clears the remains of a torn batch.
//
// After the process was killed, the last batch may be only in the operating system's memory. A sync
// alone may not write that batch: if an earlier sync failed, the system may treat the batch as
// written. So settle writes the batch again. It clears the sectors of a torn batch, because a later
// batch at that place could include them.
func (s *segment) settle(raw []byte, found scanned) error {
	for _, i := range found.torn {
		if _, err := s.file.WriteAt(make([]byte, sectorBytes), int64(i)*sectorBytes); err != nil {
			return s.fail(fmt.Errorf("cannot clear sector %d: %w", i, err))
		}
	}
	return s.write(raw[found.last*sectorBytes:found.end*sectorBytes], found.last)
}

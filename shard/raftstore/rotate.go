package raftstore

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/countd/countd/internal/scarce"
)

// endSectors is the number of sectors kept free in each segment for the batch with its end item.
const endSectors = 1

// zeroBytes is the number of bytes that Log.make writes to a new file between two syncs. So a sync
// of the log never waits for more than zeroBytes of the new file.
const zeroBytes = 1 << 20

// sparesMax bounds the files of removed segments that the log keeps for later segments.
const sparesMax = 4

// prepared is a new segment without any batch, or the reason why it could not be made.
type prepared struct {
	segment *segment
	err     error
}

// rotate continues in the next segment, which has space for a batch of the given number of sectors.
//
// The first batch of the next segment has the whole index except the positions of entries, so
// recovery needs no values of earlier segments. rotate writes that batch, then the end item of the
// old segment, and only then another batch. So if a segment has its end item and the next segment
// lacks its first batch, the next segment was damaged.
func (l *Log) rotate(need int) error {
	old, number := l.writing, l.writing.number+1
	next, err := l.takeNext(number)
	if err != nil {
		return err
	}
	first := l.beginning(number, next.sectors)
	if enough := sectorsFor(len(first)+batchHeadBytes) + need + endSectors; enough > next.sectors {
		if err := errors.Join(next.file.Close(), l.fs.Remove(next.path)); err != nil {
			return l.noSegment(number, err)
		}
		if next, err = l.make(number, enough); err != nil {
			return l.noSegment(number, err)
		}
		first = l.beginning(number, next.sectors)
	}
	if err := l.begin(next, first); err != nil {
		return err
	}
	if err := l.end(old); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.segments[number] = next
	l.mu.active, l.writing = number, next
	l.startPrepare(number + 1)
	l.wakeCleaner()
	return nil
}

// beginning returns the items of a segment's first batch.
func (l *Log) beginning(number uint32, sectors int) []byte {
	x := l.mu.index // only the caller changes the index: its goroutine has set busy
	return x.appendTo(appendBegin(nil, sectors, append(slices.Sorted(maps.Keys(x.segments)), number)))
}

// begin writes the first batch of a segment.
func (l *Log) begin(s *segment, items []byte) error {
	l.framer.begin(batchHeadBytes + len(items))
	l.framer.write(items)
	sectors := l.framer.finish(s.number, 0)
	if err := s.write(sectors, 0); err != nil {
		return err
	}
	s.end = len(sectors) / sectorBytes
	return nil
}

// end writes the last batch of a segment.
func (l *Log) end(s *segment) error {
	l.framer.begin(batchHeadBytes + 1)
	l.framer.write([]byte{itemEnd})
	return s.write(l.framer.finish(s.number, s.end), s.end)
}

// startPrepare prepares a segment in its own goroutine.
func (l *Log) startPrepare(number uint32) {
	l.wg.Go(func() {
		s, err := l.prepare(number)
		l.next <- prepared{s, err}
	})
}

// takeNext returns the prepared segment. If the preparation failed, for example on a full disk,
// takeNext prepares the segment once more. That is safe, because nothing was written to the
// segment.
func (l *Log) takeNext(number uint32) (*segment, error) {
	next := <-l.next
	if next.err == nil {
		return next.segment, nil
	}
	s, err := l.prepare(number)
	if err != nil {
		return nil, l.noSegment(number, err)
	}
	return s, nil
}

// noSegment returns the error for a segment that could not be made. If err is transient, noSegment
// starts another preparation for the next batch.
func (l *Log) noSegment(number uint32, err error) error {
	if scarce.Is(err) {
		l.startPrepare(number)
		return NoSegment(err)
	}
	return fmt.Errorf("cannot make the next segment: %w", err)
}

// prepare makes a segment ready for writing. Its file is a spare or a new one, and is durable. The
// file has its full size from the start, because a sync after overwriting is faster than one after
// growing.
func (l *Log) prepare(number uint32) (*segment, error) {
	path := l.fs.PathJoin(l.dir, segmentName(number))
	select {
	case spare := <-l.spares:
		err := l.fs.Rename(spare.path, path)
		if err == nil {
			err = l.syncDir(l.dir)
		}
		if err != nil { // the renamed file may remain; the next call of make removes it
			return nil, errors.Join(err, spare.file.Close(), l.unlink(spare.path))
		}
		return newSegment(number, path, spare.file, spare.sectors), nil
	default:
		return l.make(number, l.sectorsOf(number))
	}
}

// sectorsOf returns the initial size of a segment in sectors.
func (l *Log) sectorsOf(number uint32) int {
	return min(l.sectors, segmentBytesFirst/sectorBytes<<min(number-1, 16))
}

// make creates the file of a segment, full of zeros.
func (l *Log) make(number uint32, sectors int) (*segment, error) {
	path := l.fs.PathJoin(l.dir, segmentName(number))
	if err := l.unlink(path); err != nil {
		return nil, err
	}
	file, err := l.fs.OpenReadWrite(path, vfsCategory)
	if err != nil {
		return nil, err
	}
	zeros := make([]byte, zeroBytes)
	for at, size := 0, sectors*sectorBytes; at < size && err == nil; at += zeroBytes {
		if _, err = file.WriteAt(zeros[:min(zeroBytes, size-at)], int64(at)); err == nil {
			err = file.SyncData()
		}
	}
	if err == nil {
		err = errors.Join(file.Sync(), l.syncDir(l.dir))
	}
	if err != nil { // remove the partial file, which occupies space on a full disk
		return nil, errors.Join(fmt.Errorf("segment %s: %w", path, err), file.Close(), l.fs.Remove(path))
	}
	return newSegment(number, path, file, sectors), nil
}

// unlink removes a file if it exists.
func (l *Log) unlink(path string) error {
	if err := l.fs.Remove(path); !isNotExist(err) {
		return err
	}
	return nil
}

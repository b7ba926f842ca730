package raftstore

import (
	"errors"
	"fmt"
)

const (
	// moveBytesMax bounds one write of the cleaner, because other writes wait while it runs.
	moveBytesMax = 256 << 10

	// The cleaner moves live entries once the dead bytes exceed both cleanSegments segments and
	// 1/cleanShare of the live bytes. So a large log has at most about half as many dead bytes as
	// live ones. Cleaning writes at most two bytes for each byte that callers write.
	cleanSegments = 2
	cleanShare    = 2
)

// errMovedMeanwhile is returned if an entry to move is no longer at the position where the cleaner
// found it.
var errMovedMeanwhile = errors.New("the entries were deleted or moved")

func (l *Log) wakeCleaner() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// runCleaner removes segments without live entries. If only a few live entries keep a segment
// alive, runCleaner first copies them to the end of the log.
func (l *Log) runCleaner() {
	for {
		select {
		case <-l.wake:
		case <-l.stop:
			return
		}
		for more := true; more; {
			var err error
			if more, err = l.clean(); errors.Is(err, ErrClosed) {
				return
			} else if errors.Is(err, ErrNoSegment) {
				break // the next rotation wakes the cleaner again
			} else if err != nil {
				_ = l.fail(fmt.Errorf("cannot clean the log: %w", err))
				return
			}
			select {
			case <-l.stop:
				return
			default:
			}
		}
	}
}

// clean removes one segment. It reports whether there was a segment to remove.
func (l *Log) clean() (bool, error) {
	s, live := l.toClean()
	if s == nil {
		return false, nil
	}
	if live {
		if err := l.moveEntries(s); err != nil {
			return false, err
		}
	}
	return true, l.remove(s)
}

// toClean returns the segment to remove next, which has the smallest share of live entries; nil
// for none. hasLive reports whether the segment has any live entry.
func (l *Log) toClean() (least *segment, hasLive bool) {
	l.mu.RLock()
	defer l.mu.RUnlock()
	var dead, live int64
	for number, s := range l.mu.segments {
		if number == l.mu.active {
			continue
		}
		if s.live == 0 {
			return s, false
		}
		live += s.liveBytes()
		dead += int64(s.sectors)*sectorBytes - s.liveBytes()
		if least == nil || s.live*least.entries < least.live*s.entries {
			least = s
		}
	}
	if dead <= max(live/cleanShare, cleanSegments*int64(l.sectors)*sectorBytes) {
		return nil, false
	}
	return least, true
}

// moveEntries copies the live entries of a segment to the end of the log.
func (l *Log) moveEntries(s *segment) error {
	raw := make([]byte, s.end*sectorBytes)
	if _, err := s.file.ReadAt(raw, 0); err != nil {
		return s.fail(fmt.Errorf("cannot read: %w", err))
	}
	var m mover
	_, err := scanSegment(raw, s.number, func(batch []byte, at uint32) error {
		return eachItem(batch, at, func(it *item, raw []byte, at uint32) error {
			if it.kind != itemEntry && it.kind != itemMove {
				return nil
			}
			m.moves = append(m.moves, moving{it.id, it.first, position{s.number, at}})
			m.items = append(m.items, raw)
			if m.bytes += len(raw); m.bytes < moveBytesMax {
				return nil
			}
			return m.move(l)
		})
	})
	if err == nil {
		err = m.move(l)
	}
	return s.fail(err)
}

// mover collects items to copy to the end of the log.
type mover struct {
	moves []moving
	items [][]byte
	bytes int
}

// move copies the collected items that are still live. If some of them were deleted meanwhile, move
// retries with the others.
func (m *mover) move(l *Log) error {
	for {
		r := &request{kind: itemMove}
		l.mu.RLock()
		for i, entry := range m.moves {
			if !l.mu.at(entry.id, entry.index, entry.from) {
				continue
			}
			r.moves = append(r.moves, entry)
			r.offsets = append(r.offsets, uint32(len(r.items)))
			r.items = append(append(r.items, itemMove), m.items[i][1:]...)
		}
		l.mu.RUnlock()
		var err error
		if len(r.moves) > 0 {
			err = l.submit(r)
		}
		if !errors.Is(err, errMovedMeanwhile) {
			*m = mover{moves: m.moves[:0], items: m.items[:0]}
			return err
		}
	}
}

// remove removes a segment from the log. When all reads of the segment have ended, remove keeps its
// file for a later segment or deletes the file.
func (l *Log) remove(s *segment) error {
	if err := l.submit(&request{kind: itemRemove, items: appendRemove(nil, s.number), segment: s.number}); err != nil {
		return err
	}
	s.release()
	<-s.unused
	if s.sectors == l.sectors {
		select {
		case l.spares <- s:
			return nil
		default:
		}
	}
	return errors.Join(s.file.Close(), l.fs.Remove(s.path))
}

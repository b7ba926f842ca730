package raftstore

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"
)

// request is one change of the log that waits to be written. submit waits for done.
type request struct {
	id    ReplicaID
	kind  byte
	items []byte // encoded items to store

	first, last uint64   // range of a cut; first is also the index of the first entry
	offsets     []uint32 // for entries and moves: the start of each item in items
	key, value  []byte   // set
	moves       []moving // move
	segment     uint32   // remove

	done chan error // capacity 1
}

// moving is an entry that the cleaner copies to the end of the log.
type moving struct {
	id    ReplicaID
	index uint64
	from  position
}

// submit blocks until a request is durable.
//
// If no goroutine writes and nothing waits, the caller writes its request itself, which saves two
// switches between goroutines. The caller yields first, so that entries which other groups propose
// at the same moment share the sync. The goroutine run writes the requests that arrive during that
// write.
func (l *Log) submit(r *request) error {
	if r.done == nil {
		r.done = make(chan error, 1)
	}
	q := &l.queue
	q.Lock()
	err := q.err
	if err == nil && q.closing {
		err = ErrClosed
	}
	if err != nil {
		q.Unlock()
		return err
	}
	alone := !q.busy && len(q.moves)+len(q.waiting) == 0
	if r.kind == itemMove {
		q.moves = append(q.moves, r)
	} else {
		q.waiting = append(q.waiting, r)
	}
	if r.kind == itemEntry && q.expected > 0 {
		q.expected--
	}
	if alone {
		l.yieldLocked()
		l.writeLocked()
	}
	if !q.busy && (len(q.moves)+len(q.waiting) > 0 || q.closing) {
		q.changed.Signal()
	}
	q.Unlock()
	return <-r.done
}

// run writes the requests that arrive during another write, until the log is closed.
func (l *Log) run() {
	q := &l.queue
	q.Lock()
	defer q.Unlock()
	for {
		switch {
		case q.busy:
			q.changed.Wait()
		case len(q.moves)+len(q.waiting) > 0:
			// Callers that were just answered may be about to write again. Yield, so that their
			// entries join this batch instead of the next one.
			l.yieldLocked()
			l.writeLocked()
		case q.closing:
			return
		default:
			q.changed.Wait()
		}
	}
}

const (
	// yieldsMax bounds how often a writer yields to goroutines that are about to submit expected
	// entries. Most entries arrive after one or two yields; more yields help only while the
	// processors are busy.
	yieldsMax = 30
	// yieldMaxDefault bounds the time of all yields before a batch.
	yieldMaxDefault = 200 * time.Microsecond
)

// Expect announces how many entries will be stored soon, each by a different replica. The next
// batch waits briefly for them, so that one sync makes all of them durable.
func (l *Log) Expect(entries int) {
	l.queue.Lock()
	defer l.queue.Unlock()
	l.queue.expected = entries
}

// yieldLocked yields to other goroutines once, and again while entries are expected. Meanwhile it
// releases the queue's lock and sets busy.
func (l *Log) yieldLocked() {
	q := &l.queue
	q.busy = true
	until := time.Now().Add(l.yieldMax)
	for range yieldsMax {
		q.Unlock()
		runtime.Gosched()
		q.Lock()
		if q.expected == 0 || time.Now().After(until) {
			break
		}
	}
	q.expected = 0
}

// writeLocked writes the waiting requests, as many as fit one batch, with one sync, and answers
// them. The caller holds the queue's lock. While writeLocked writes, it releases the lock and sets
// busy. Only the goroutine that set busy changes the index. The next batch begins after the sync of
// this one, so a crash leaves at most one incomplete batch.
func (l *Log) writeLocked() {
	q := &l.queue
	batch, bytes := l.takeLocked()
	if len(batch) == 0 {
		q.busy = false
		return
	}
	q.busy = true
	q.Unlock()
	err := l.write(batch, bytes)
	if err != nil && !errors.Is(err, ErrNoSegment) {
		err = l.fail(err)
	}
	for _, r := range batch {
		r.done <- err
	}
	clear(batch)
	q.Lock()
	q.busy = false
}

// fail records the first failure, and returns it to the waiting requests and to the caller. The
// log never retries a sync: the system may have dropped the data that it could not write.
func (l *Log) fail(err error) error {
	q := &l.queue
	q.Lock()
	defer q.Unlock()
	if q.err == nil {
		q.err = err
	}
	for _, r := range slices.Concat(q.moves, q.waiting) {
		r.done <- q.err
	}
	q.moves, q.waiting = nil, nil
	return q.err
}

// takeLocked returns the requests of the next batch and their size.
//
// takeLocked checks each request against the index, which covers only earlier batches. So a batch
// has at most one request of each replica, besides moves. Moves come first in a batch, so that no
// deletion precedes them.
func (l *Log) takeLocked() (batch []*request, bytes int) {
	q := &l.queue
	clear(l.taken)
	batch, bytes = l.batch[:0], batchHeadBytes
	for _, line := range []*[]*request{&q.moves, &q.waiting} {
		n := 0
		for ; n < len(*line) && (len(batch) == 0 || bytes < batchBytesMax); n++ {
			r := (*line)[n]
			ofReplica := r.kind != itemMove && r.kind != itemRemove
			if _, again := l.taken[r.id]; again && ofReplica {
				break
			}
			if err := l.check(r); err != nil {
				r.done <- err
				continue
			}
			if ofReplica {
				l.taken[r.id] = struct{}{}
			}
			batch = append(batch, r)
			bytes += len(r.items)
		}
		rest := copy(*line, (*line)[n:])
		clear((*line)[rest:])
		*line = (*line)[:rest]
	}
	l.batch = batch
	return batch, bytes
}

// check returns an error for a request that contradicts the index. It needs no lock, because only
// the goroutine that set busy changes the index.
func (l *Log) check(r *request) error {
	x := l.mu.index
	switch r.kind {
	case itemMove:
		for _, m := range r.moves {
			if !x.at(m.id, m.index, m.from) {
				return errMovedMeanwhile
			}
		}
		return nil
	case itemRemove:
		if s := x.segments[r.segment]; s == nil || s.live > 0 || r.segment == l.mu.active {
			return fmt.Errorf("segment %d is needed or does not exist", r.segment)
		}
		return nil
	}
	replica := x.replicas[r.id]
	if r.kind == itemCreate {
		if replica != nil {
			return fmt.Errorf("%s is in the log already", r.id)
		}
		return nil
	}
	if replica == nil {
		return fmt.Errorf("%s is not in the log", r.id)
	}
	switch {
	case r.kind == itemEntry && (r.first == 0 || len(replica.positions) > 0 && r.first != replica.last()+1):
		return fmt.Errorf("%w: entry %d would follow entry %d of %s", ErrGap, r.first, replica.last(), r.id)
	case r.kind == itemCut && (r.first > r.last || !replica.cuts(r.first, r.last)):
		return fmt.Errorf("%w: entries %d to %d would go out of %d to %d of %s",
			ErrGap, r.first, r.last, replica.first, replica.last(), r.id)
	}
	return nil
}

// at reports whether an entry is stored at a position.
func (x *index) at(id ReplicaID, entry uint64, at position) bool {
	r := x.replicas[id]
	return r != nil && r.has(entry) && r.positions[entry-r.first] == at
}

// write makes a batch durable, and then adds it to the index.
func (l *Log) write(batch []*request, bytes int) error {
	need := sectorsFor(bytes)
	if l.writing.end+need+endSectors > l.writing.sectors {
		if err := l.rotate(need); err != nil {
			return err
		}
	}
	s := l.writing
	l.framer.begin(bytes)
	for _, r := range batch {
		l.framer.write(r.items)
	}
	if err := s.write(l.framer.finish(s.number, s.end), s.end); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	address := uint32(s.end*sectorDataBytes + batchHeadBytes)
	s.end += need
	for _, r := range batch {
		if err := l.applyLocked(r, s, address); err != nil {
			return err
		}
		address += uint32(len(r.items))
	}
	return nil
}

// write writes sectors and syncs them.
func (s *segment) write(sectors []byte, place int) error {
	if _, err := s.file.WriteAt(sectors, int64(place)*sectorBytes); err != nil {
		return s.fail(fmt.Errorf("cannot write: %w", err))
	}
	if err := s.file.SyncData(); err != nil {
		return s.fail(fmt.Errorf("cannot sync: %w", err))
	}
	return nil
}

// applyLocked adds a durable request to the index.
func (l *Log) applyLocked(r *request, s *segment, address uint32) error {
	x := l.mu.index
	switch r.kind {
	case itemEntry:
		s.entries += len(r.offsets)
		for i, offset := range r.offsets {
			if err := x.add(r.id, r.first+uint64(i), position{s.number, address + offset}); err != nil {
				return err
			}
		}
		return nil
	case itemMove:
		s.entries += len(r.moves)
		for i, m := range r.moves {
			x.move(m.id, m.index, position{s.number, address + r.offsets[i]})
		}
		return nil
	case itemCut:
		defer l.wakeCleaner()
		return x.cut(r.id, r.first, r.last)
	case itemSet:
		return x.set(r.id, r.key, r.value)
	case itemCreate:
		return x.create(r.id, 0, 0)
	case itemDrop:
		defer l.wakeCleaner()
		return x.drop(r.id)
	case itemRemove:
		delete(x.segments, r.segment)
		return nil
	}
	return fmt.Errorf("a request of the unknown kind %d", r.kind)
}

package spill

import (
	"bytes"
	"errors"
	"math"
	"math/bits"
	"slices"

	"github.com/countd/countd/engine/cold"
)

// This file moves the bodies of idle keys out of memory.

// spillBytes is the size of one write: a few thousand bodies. That is enough for Pebble to write
// them directly to a file.
const spillBytes = 1 << 20

// removedAtOnce bounds the records that a round removes before it checks again whether it may go on. It takes some 10 ms.
const removedAtOnce = 10_000

// Tick sets the current time, in a unit that the owner chooses. A body loaded from a snapshot
// counts as read when it is loaded.
func (s *Shard) Tick(now uint32) { s.clock.Store(now) }

// Moved returns the numbers of bodies that have left memory and that have returned since the
// process started.
func (s *Shard) Moved() (spilled, returned uint64) {
	return s.moved.spilled.Load(), s.moved.returned.Load()
}

// Ages holds the size of the bodies in memory by idle time: element n is the size of the bodies
// that were idle for 2^(n-1) to 2^n-1 ticks.
type Ages [33]int64

// Ages adds the size of each body that may leave memory to the element for the body's idle time.
func (s *Shard) Ages(to *Ages) {
	held := s.Current()
	held.pages.eachPage(func(page *page) {
		for i := range page.keys() {
			if body := page.body(i); held.mayLeave(body) {
				to[bits.Len32(held.idleFor(page, i))] += int64(len(body))
			}
		}
	})
}

// Bytes returns the total size of the bodies.
func (a *Ages) Bytes() (total int64) {
	for _, bytes := range a {
		total += bytes
	}
	return total
}

// Oldest returns the longest time for which at least wanted bytes of bodies have been idle. It
// returns 0 if there are fewer bytes in all.
func (a *Ages) Oldest(wanted int64) (idle uint32) {
	for n := len(a) - 1; n > 0; n-- {
		if wanted -= a[n]; wanted <= 0 {
			return 1 << (n - 1)
		}
	}
	return 0
}

// mayLeave reports whether a body may leave memory. It is false for a mark.
func (b *Bodies) mayLeave(body []byte) bool {
	return !IsMark(body) && len(body) >= b.shard.cfg.BytesMin
}

// idleFor returns the number of ticks since the last read or write of key i of a page.
func (b *Bodies) idleFor(page *page, i int) uint32 {
	now, at := b.shard.clock.Load(), page.touchedAt(i)
	return now - min(now, at)
}

// Spill moves bodies that have been idle for the given number of ticks out of memory. It stops when
// it has checked all bodies, has moved about bytesMax bytes, or proceed returns false. The next
// call continues where this one stopped. Spill returns the number of moved bodies. It returns
// cold.ErrFull if the disk is full. After any error, the bodies that it was about to move stay in
// memory. While Place.Full returns true, Spill only removes useless records, which frees space.
func (s *Shard) Spill(idle uint32, bytesMax int64, proceed func() bool) (keys int, err error) {
	held := s.Current()
	if held.out == nil {
		return 0, nil
	}
	held.out.turn.Lock()
	defer held.out.turn.Unlock()
	if s.pauses.Load() > 0 || held.hasEnded() {
		return 0, nil
	}
	r := held.newRound(idle, bytesMax, func() bool { return s.pauses.Load() == 0 && proceed() }, s.cfg.full)
	start := held.out.turn.from
	if err = r.check(start, math.MaxUint64); err == nil && !r.ended && start > 0 {
		err = r.check(0, start-1)
	}
	if !r.ended {
		held.pages.mu.Lock()
		for _, tables := range held.pages.tables() {
			for _, t := range tables {
				t.halve()
			}
		}
		held.pages.mu.Unlock()
	}
	return r.moved, errors.Join(err, r.removeLeft())
}

// SpillLoaded moves bodies out of memory if memory is short. The caller loads bodies from a
// snapshot in the order of their keys' hashes, and has loaded those up to the hash last. If the
// disk is full, the bodies stay in memory.
func (b *Bodies) SpillLoaded(last uint64) error {
	if b.out == nil || !b.shard.cfg.short() {
		return nil
	}
	b.out.turn.Lock()
	defer b.out.turn.Unlock()
	r := b.newRound(0, math.MaxInt64, func() bool { return true }, func() bool { return false })
	if err := r.check(b.out.turn.loaded, math.MaxUint64); err != nil && !errors.Is(err, cold.ErrFull) {
		return err
	}
	b.out.turn.loaded = last
	return nil
}

// round is one round of moving bodies out of memory.
type round struct {
	*Bodies
	idle    uint32
	left    int64 // number of bytes that may still leave memory
	proceed func() bool
	full    func() bool // the round must write nothing
	cleared uint64      // value of spilled.cleared when the round began
	table   *pageTable  // the table that check checks: no key moves to another one meanwhile

	records []cold.Record // to be written
	bytes   int           // total size of records
	moved   int           // bodies

	ended bool // the round stopped before it had checked all keys
}

// newRound starts a round. The caller must have locked spilled.turn.
func (b *Bodies) newRound(idle uint32, bytesMax int64, proceed, full func() bool) *round {
	return &round{Bodies: b, idle: idle, left: bytesMax, proceed: proceed, full: full, cleared: b.out.cleared.Load()}
}

// isOver reports whether the bodies were cleared or closed since the round began.
func (r *round) isOver() bool { return r.out.closed.Load() || r.out.cleared.Load() != r.cleared }

// check checks the keys with hashes from first to last, and moves the idle bodies to disk.
func (r *round) check(first, last uint64) error {
	for _, tables := range r.pages.tables() {
		for _, r.table = range tables {
			if err := r.checkTable(first, last); err != nil || r.ended {
				return err
			}
		}
	}
	r.out.turn.from = 0
	return nil
}

func (r *round) checkTable(first, last uint64) (err error) {
	r.table.each(first, func(page *page) bool {
		for i := range page.keys() {
			hash := Hash(page.key(i))
			if hash > last {
				break
			}
			if body := page.body(i); hash >= first && r.mayLeave(body) && int64(r.bytes) < r.left && r.idleFor(page, i) >= r.idle {
				r.records = append(r.records, cold.Record{Key: hash, Body: body})
				r.bytes += len(body)
			}
		}
		if int64(r.bytes) >= min(spillBytes, r.left) {
			err = r.write()
		}
		if r.ended = r.ended || err != nil || r.left <= 0 || r.isOver() || r.full() || !r.proceed(); r.ended {
			return false
		}
		return page.keys() == 0 || Hash(page.key(page.keys()-1)) < last
	})
	if err == nil {
		err = r.write()
	}
	return err
}

// write writes the collected bodies, and puts marks in their place.
func (r *round) write() error {
	records := r.records
	r.records, r.bytes = nil, 0
	if all, err := r.removeGone(); err != nil || !all {
		r.ended = !all
		return err
	}
	if len(records) == 0 || r.isOver() || r.full() {
		return nil
	}
	r.out.turn.version++
	for i := range records {
		records[i].Version = r.out.turn.version
	}
	if err := r.out.records.Write(records); err != nil {
		return err
	}
	for rest := records; len(rest) > 0; {
		rest = r.mark(rest)
	}
	if r.out.closed.Load() { // remove the records of the Write above, because Dispose may have run before it
		return r.out.records.Delete(hashesOf(records))
	}
	r.out.turn.from = records[len(records)-1].Key + 1
	return nil
}

// mark replaces written bodies by marks, in the page of the first body in written. It skips bodies
// that have changed. It returns the records whose bodies are in other pages.
func (r *round) mark(written []cold.Record) (rest []cold.Record) {
	r.pages.mu.Lock()
	defer r.pages.mu.Unlock()
	if r.isOver() {
		r.out.gone = append(r.out.gone, hashesOf(written)...)
		return nil
	}
	page := r.table.page(written[0].Key)
	b := newPageBuilder(page.keys())
	marked, size := 0, 0
	rest = written
	for i := range page.keys() {
		hash := Hash(page.key(i))
		rest = r.skipLocked(rest, func(w *cold.Record) bool { return w.Key < hash })
		if len(rest) == 0 || rest[0].Key != hash || !bytes.Equal(rest[0].Body, page.body(i)) {
			b.addKey(page, i)
			continue
		}
		b.add(page.key(i), r.shard.appendMark(nil, rest[0].Version, rest[0].Body), page.touchedAt(i))
		size += len(rest[0].Body)
		marked++
		rest = rest[1:]
	}
	rest = r.skipLocked(rest, func(w *cold.Record) bool { return r.table.page(w.Key) == page })
	if marked > 0 {
		next := b.page(page.bits)
		r.table.count(sizes{bytes: next.bytes() - page.bytes(), marks: marked, marked: size})
		r.table.put(written[0].Key, next)
		r.table.merge(written[0].Key)
	}
	r.moved += marked
	r.left -= int64(size)
	r.shard.moved.spilled.Add(uint64(marked))
	return rest
}

// skipLocked removes records from the beginning of the slice as long as changed reports true, and
// returns the rest. It adds the removed records to spilled.gone.
func (r *round) skipLocked(records []cold.Record, changed func(*cold.Record) bool) []cold.Record {
	for len(records) > 0 && changed(&records[0]) {
		r.out.gone = append(r.out.gone, records[0].Key)
		records = records[1:]
	}
	return records
}

func hashesOf(records []cold.Record) []uint64 {
	hashes := make([]uint64, len(records))
	for i := range records {
		hashes[i] = records[i].Key
	}
	return hashes
}

// removeGone removes the records of the keys in spilled.gone, which have no marks. The caller must have locked
// spilled.turn, so that no key gets a mark meanwhile. It returns false if the round must end before all are removed.
// Then no body may be written, because a record of its key might be removed later.
func (r *round) removeGone() (all bool, err error) {
	for !all && err == nil {
		r.pages.mu.Lock()
		n := max(0, len(r.out.gone)-removedAtOnce)
		some := slices.Clone(r.out.gone[n:])
		if r.out.gone = r.out.gone[:n]; n == 0 {
			r.out.gone, all = nil, true // only keys of bodies that have returned since may be added now
		}
		r.pages.mu.Unlock()
		if len(some) > 0 {
			err = r.out.records.Delete(some)
		}
		if !all && !r.proceed() {
			return false, err
		}
	}
	return all, err
}

// removeLeft removes records of parts of the shard that have ended. Their keys are not in r's pages.
func (r *round) removeLeft() error {
	for {
		some := r.out.records.Left(removedAtOnce)
		if len(some) == 0 {
			return nil
		}
		if err := r.out.records.Delete(some); err != nil || !r.proceed() {
			return err
		}
	}
}

package raftfsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/bits"

	"github.com/countd/countd/engine/cold"
)

// This file moves the feeds of idle users out of memory. Each replica decides this for
// itself: reads, which make a user active, are not in the log.

// spillBytes is the size of one write: a few thousand feeds, and enough for Pebble to
// write them directly to a file.
const spillBytes = 1 << 20

// Tick sets the time, in a unit that the owner chooses. Feeds loaded from a snapshot
// count as read at that moment.
func (f *Feed) Tick(now uint32) { f.clock.Store(now) }

// Moved returns how many feeds left memory and returned since the process started.
func (f *Feed) Moved() (spilled, returned uint64) {
	return f.counts.spilled.Load(), f.counts.returned.Load()
}

// FeedAges is the bytes of feeds in memory by idle time: element n counts feeds idle
// for 2^(n-1) to 2^n-1 ticks.
type FeedAges [33]int64

// Ages adds the bytes of this shard's feeds.
func (f *Feed) Ages(to *FeedAges) {
	held := f.current.Load()
	held.pages.each(0, func(page *feedPage) bool {
		for i := range page.users() {
			if body := page.body(i); !isSpilled(body) {
				to[bits.Len32(held.idleFor(page, i))] += int64(len(body))
			}
		}
		return true
	})
}

// Bytes returns the total.
func (a *FeedAges) Bytes() (total int64) {
	for _, bytes := range a {
		total += bytes
	}
	return total
}

// Oldest returns an idle time such that the feeds that are idle for at least as long have
// at least that many bytes. If there are not so many bytes, it returns the lowest idle
// time.
func (a *FeedAges) Oldest(bytes int64) (idle uint32) {
	for n := len(a) - 1; n > 0; n-- {
		if bytes -= a[n]; bytes <= 0 {
			return 1 << (n - 1)
		}
	}
	return 0
}

// idleFor returns for how many ticks nobody has read or written user i of a page.
func (f *feed) idleFor(page *feedPage, i int) uint32 {
	now, at := f.pages.clock.Load(), page.touched[i].Load()
	return now - min(now, at)
}

// Spill moves feeds that were idle for the given number of ticks out of memory, until it
// has checked all, moved about bytesMax, or proceed returns false. The next call
// continues there. It returns how many feeds it moved. On an error, which is cold.ErrFull
// while the disk is full, the feeds that it was about to move stay in memory.
func (f *Feed) Spill(idle uint32, bytesMax int64, proceed func() bool) (users int, err error) {
	held := f.current.Load()
	if held.out == nil {
		return 0, nil
	}
	held.out.turn.Lock()
	defer held.out.turn.Unlock()
	s := held.spilling(idle, bytesMax, proceed)
	start := held.out.turn.from
	if err = s.from(start, math.MaxUint64); err == nil && !s.ended && start > 0 {
		err = s.from(0, start-1)
	}
	if !s.ended {
		held.pages.mu.Lock()
		held.pages.halve()
		held.pages.mu.Unlock()
	}
	return s.users, err
}

// spillLoaded moves loaded feeds out of memory if memory is short. If the disk is full,
// they stay.
func (f *feed) spillLoaded() error {
	if f.out == nil || !f.of.place.short() {
		return nil
	}
	f.out.turn.Lock()
	defer f.out.turn.Unlock()
	s := f.spilling(0, math.MaxInt64, func() bool { return true })
	if err := s.from(f.loading.from, math.MaxUint64); err != nil && !errors.Is(err, cold.ErrFull) {
		return err
	}
	f.loading.from = f.loading.reader.hash
	return nil
}

// spilling is one round of moving feeds out of memory.
type spilling struct {
	*feed
	idle    uint32
	left    int64 // bytes that may still leave memory
	proceed func() bool
	cleared uint64 // value of spilled.cleared when the round began

	records []cold.Record // to be written
	bytes   int           // total size of records
	users   int           // feeds moved
	ended   bool          // the round stopped before it had checked all
}

// spilling returns a new round. The caller holds the turn.
func (f *feed) spilling(idle uint32, bytesMax int64, proceed func() bool) *spilling {
	return &spilling{feed: f, idle: idle, left: bytesMax, proceed: proceed, cleared: f.out.cleared.Load()}
}

// over reports whether the feeds that the round began with were cleared or closed.
func (s *spilling) over() bool { return s.out.closed.Load() || s.out.cleared.Load() != s.cleared }

// from checks the users whose hashes are first … last.
func (s *spilling) from(first, last uint64) (err error) {
	s.pages.each(first, func(page *feedPage) bool {
		for i := range page.users() {
			hash := feedHash(page.key(i))
			if hash > last {
				break
			}
			if body := page.body(i); hash >= first && !isSpilled(body) && int64(s.bytes) < s.left && s.idleFor(page, i) >= s.idle {
				s.records = append(s.records, cold.Record{Key: hash, Body: body})
				s.bytes += len(body)
			}
		}
		if int64(s.bytes) >= min(spillBytes, s.left) {
			err = s.write()
		}
		if s.ended = err != nil || s.left <= 0 || s.over() || !s.proceed(); s.ended {
			return false
		}
		return page.users() == 0 || feedHash(page.key(page.users()-1)) < last
	})
	if err == nil {
		err = s.write()
	}
	if !s.ended {
		s.out.turn.from = 0
	}
	return err
}

// write writes the collected feeds, and puts marks in their place.
func (s *spilling) write() error {
	records := s.records
	s.records, s.bytes = nil, 0
	if err := s.removeGone(); err != nil {
		return err
	}
	if len(records) == 0 || s.over() {
		return nil
	}
	s.out.turn.version++
	for i := range records {
		records[i].Version = s.out.turn.version
	}
	if err := s.out.records.Write(records); err != nil {
		return err
	}
	if s.out.closed.Load() { // perhaps before they were written
		s.out.forget()
		return nil
	}
	for rest := records; len(rest) > 0; {
		rest = s.mark(rest)
	}
	s.out.turn.from = records[len(records)-1].Key + 1
	return nil
}

// mark puts marks in place of the first written feeds that share a page, unless they
// have changed. It returns the other records.
func (s *spilling) mark(written []cold.Record) (rest []cold.Record) {
	s.pages.mu.Lock()
	defer s.pages.mu.Unlock()
	if s.out.cleared.Load() != s.cleared {
		return nil // all records have gone
	}
	page := s.pages.page(written[0].Key)
	mark := binary.LittleEndian.AppendUint32([]byte{0}, written[0].Version)
	b := newPageBuilder(page.users())
	marked := 0
	rest = written
	for i := range page.users() {
		hash := feedHash(page.key(i))
		rest = s.skipLocked(rest, func(r *cold.Record) bool { return r.Key < hash })
		if len(rest) == 0 || rest[0].Key != hash || !bytes.Equal(rest[0].Body, page.body(i)) {
			b.addUser(page, i)
			continue
		}
		b.add(page.key(i), mark, page.touched[i].Load())
		s.out.bytes.Add(int64(len(rest[0].Body)))
		s.left -= int64(len(rest[0].Body))
		marked++
		rest = rest[1:]
	}
	rest = s.skipLocked(rest, func(r *cold.Record) bool { return s.pages.page(r.Key) == page })
	if marked > 0 {
		next := b.page(page.bits)
		s.pages.bytes.Add(next.bytes() - page.bytes())
		s.pages.put(written[0].Key, next)
		s.pages.merge(written[0].Key)
	}
	s.users += marked
	s.out.users.Add(int64(marked))
	s.of.counts.spilled.Add(uint64(marked))
	return rest
}

// skipLocked skips the first records as long as their feeds have changed.
func (s *spilling) skipLocked(records []cold.Record, changed func(*cold.Record) bool) []cold.Record {
	for len(records) > 0 && changed(&records[0]) {
		s.out.gone = append(s.out.gone, records[0].Key)
		records = records[1:]
	}
	return records
}

// removeGone removes the records of users without a mark. They get none before it is
// done, because the caller holds the turn.
func (s *spilling) removeGone() error {
	s.pages.mu.Lock()
	gone := s.out.gone
	s.out.gone = nil
	s.pages.mu.Unlock()
	if len(gone) == 0 {
		return nil
	}
	return s.out.records.Delete(gone)
}

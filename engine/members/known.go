package members

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/internal/scarce"
)

// A filter in memory recognises nearly every absent pair of a group. Most pairs that a page or an
// entry looks up are absent. Without the filter, each lookup would search Pebble's memtables and a
// file of each level.
//
// Invariant: knownPairs.now, if set, contains each pair of the group's generation that is on disk.
// A commit adds its pairs to the filter and then writes them, while it holds knownPairs.mu. The
// first filter of a group without pairs starts empty. Any other filter is filled in two steps.
// First, commits begin to add their pairs to the new filter too. Then fillFilter adds the pairs on
// disk. A removed pair stays in the filter until the next filter replaces it.

const (
	// filterBits is the size of a new filter in bits per pair. At this size, one of about 80
	// lookups of absent pairs reads the disk.
	filterBits = 10
	// filterBitsFull is the number of bits per pair below which a filter counts as full, if it was
	// made with filterBits. At this size, one of about 18 lookups of absent pairs reads the disk.
	filterBitsFull = 6
	// filterBitsMin is the number of bits per pair below which a filter counts as full, if memory
	// was too short for filterBits. At this size, one of about 6 lookups of absent pairs reads the
	// disk.
	filterBitsMin = 4
	// filterPairsMin is the capacity in pairs of the smallest filter.
	filterPairsMin = 1024
	// fillPairs is the number of pairs that are read from one iterator, before a pause. A new
	// iterator reads the next ones, because an open iterator keeps replaced memtables and files
	// alive.
	fillPairs = 4096
)

// filter is a Bloom filter of pairs: its method has returns true for every added pair, and seldom
// for another pair. It is safe for concurrent use.
type filter struct {
	lines   []filterLine
	made    uint64       // number of pairs for which it was sized
	room    int64        // number of pairs at which it is full
	pairs   atomic.Int64 // about how many pairs were added
	release func()       // frees the memory; called once
}

// filterLine contains all bits of some pairs. It is one cache line, so that a lookup waits for
// memory only once.
type filterLine [8]atomic.Uint64

const (
	lineBytes = 64
	lineBits  = 8 * lineBytes
	// pairBits is the number of bits that a pair sets.
	pairBits = 4
)

// at returns the line of a pair, and the pair's hash. The lowest nine bits of the hash select the
// pair's first bit in the line, the next nine bits its second, and so on.
func (f *filter) at(p Pair) (line *filterLine, hash uint64) {
	hash = mix(mix(p.Row*0x9e3779b97f4a7c15+uint64(p.Column)+1) ^ p.Member)
	return &f.lines[hash>>32*uint64(len(f.lines))>>32], hash
}

func (f *filter) has(p Pair) bool {
	line, h := f.at(p)
	for range pairBits {
		if line[h%lineBits/64].Load()&(1<<(h%64)) == 0 {
			return false
		}
		h >>= 9
	}
	return true
}

func (f *filter) add(p Pair) {
	line, h := f.at(p)
	added := false
	for range pairBits {
		bit := uint64(1) << (h % 64)
		if line[h%lineBits/64].Or(bit)&bit == 0 {
			added = true
		}
		h >>= 9
	}
	if added {
		f.pairs.Add(1)
	}
}

func (f *filter) full() bool { return f.pairs.Load() > f.room }

func (f *filter) bits() uint64 { return uint64(len(f.lines)) * lineBits }

// filters holds the filters of all groups of a store.
type filters struct {
	look  chan struct{} // makes fillFilters check all groups
	ended chan struct{}

	one      sync.Mutex    // held while a filter is filled: only one at a time
	released atomic.Uint64 // counts the times when memory for a group's filter may have become free

	// lackedAt is set when there is no memory for a filter, to a little less than the store's
	// number of pairs at that time. Once the store has fewer pairs than lackedAt, there may be
	// memory. lackedAt is 0 if no group lacks a filter.
	lackedAt atomic.Int64

	mu    sync.Mutex
	bytes int64 // memory of all filters
}

// filterMemory returns the memory for all filters. The rest is for blocks and memtables.
func (s *Store) filterMemory() int64 { return int64(s.cfg.MemoryBytes) / 3 * 2 }

// share returns the size in bits of the filter for a group with the given number of pairs: its
// share of the memory, but at most filterBits a pair. It leaves an eighth of the memory unassigned,
// because some filters exceed their share for a while (see shrinkFilters).
func (s *Store) share(pairs uint64) uint64 {
	all := uint64(max(s.pairs.Load(), 0))
	s.mu.Lock()
	for _, n := range s.mu.unopened {
		all += n
	}
	s.mu.Unlock()
	each := float64(s.filterMemory()) * 7 / float64(max(all, pairs, 1))
	return max(uint64(min(each, filterBits)*float64(pairs)), filterPairsMin*filterBitsMin)
}

// newFilter returns a filter for the given number of pairs, with room for two thirds more. If the
// memory is too short for that, the filter is smaller. If there is so little memory that the filter
// would soon be full, newFilter returns nil.
func (s *Store) newFilter(pairs uint64) *filter {
	bits := s.share(pairs)
	s.filters.mu.Lock()
	defer s.filters.mu.Unlock()
	bits = min(bits, uint64(s.filterMemory()-s.filters.bytes)*8)
	f := &filter{made: pairs, room: int64(bits / filterBitsMin)}
	if pairs > 0 && bits >= filterBits*pairs {
		f.room = int64(bits / filterBitsFull)
	}
	if bits < lineBits || f.room < int64(pairs+pairs/16) {
		return nil
	}
	f.lines = make([]filterLine, bits/lineBits)
	bytes := int64(len(f.lines)) * lineBytes
	s.filters.bytes += bytes
	unreserve := s.cache.Reserve(int(bytes))
	f.release = func() {
		unreserve()
		s.filters.mu.Lock()
		s.filters.bytes -= bytes
		s.filters.mu.Unlock()
		s.retryFilters()
	}
	return f
}

// retryFilters makes groups without a filter try again to get one. It is called when memory may
// have become free.
func (s *Store) retryFilters() {
	s.filters.released.Add(1)
	s.lookAtGroups()
}

// knownPairs contains the filters of a group.
type knownPairs struct {
	now    atomic.Pointer[filter] // nil if there is no filter
	wanted atomic.Bool            // another filter is wanted

	mu      sync.Mutex // held during each commit and while now changes; guards the fields below
	filling *filter    // nil if no filter is being filled
	closed  bool       // no more filters are made
	damaged bool       // the pairs could not be read
	lacks   bool       // the last attempt to make a filter found no memory
	since   uint64     // value of filters.released at that attempt
}

// mayHave reports whether a pair may be on disk. If f is nil, there is no filter and mayHave
// returns true.
func (f *filter) mayHave(p Pair) bool { return f == nil || f.has(p) }

// countLookups counts all lookups of pairs; onDisk is the number that the filter did not answer.
func (s *Store) countLookups(all, onDisk int) {
	s.filterHits.Add(int64(all - onDisk))
	s.filterMisses.Add(int64(onDisk))
}

func (k *knownPairs) setLocked(f *filter) {
	if before := k.now.Swap(f); before != nil {
		before.release()
	}
}

// forget drops all filters of a group. It is called when the group's pairs on disk are given up or
// were replaced.
func (k *knownPairs) forget() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.forgetLocked()
}

func (k *knownPairs) forgetLocked() {
	k.setLocked(nil)
	if k.filling != nil {
		k.filling.release()
		k.filling = nil
	}
	k.damaged, k.lacks = false, false
}

// refill stops the filling of a filter. The pairs on disk are fewer now.
func (k *knownPairs) refill() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.filling != nil {
		k.filling.release()
		k.filling = nil
	}
}

// addLocked adds a pair that is about to be written.
func (k *knownPairs) addLocked(p Pair) {
	if f := k.now.Load(); f != nil {
		f.add(p)
	}
	if k.filling != nil {
		k.filling.add(p)
	}
}

// wantFilter requests another filter for the group.
func (g *Group) wantFilter() {
	if !g.known.wanted.Swap(true) {
		g.store.lookAtGroups()
	}
}

// lookAtGroups makes fillFilters check all groups.
func (s *Store) lookAtGroups() {
	select {
	case s.filters.look <- struct{}{}:
	default: // a check is already due
	}
}

// fillFilters runs until Close. It fills the filters that groups want, and retries groups that lacked memory
// once memory is free.
func (s *Store) fillFilters() {
	defer close(s.filters.ended)
	for {
		select {
		case <-s.filters.look:
		case <-s.db.Stopping.Done():
			return
		}
		for _, g := range s.groups() {
			if !g.known.wanted.Swap(false) && !g.retries() {
				continue
			}
			if err := g.fillFilter(); err != nil && !errors.Is(err, scarce.ErrClosed) {
				s.db.Limited().Warn("members of a group are looked up on disk, which takes longer", "group", g.number, "err", err.Error())
			}
		}
	}
}

// retries reports whether the group has no filter because there was no memory, and memory may have
// become free since.
func (g *Group) retries() bool {
	g.known.mu.Lock()
	defer g.known.mu.Unlock()
	return g.known.lacks && g.known.since != g.store.filters.released.Load()
}

// fillFilter replaces the group's filter by one of the size that its pairs now need.
func (g *Group) fillFilter() error {
	g.store.filters.one.Lock()
	defer g.store.filters.one.Unlock()
	f, err := g.beginFilter()
	if f == nil {
		return err
	}
	var next []byte
	for err == nil {
		began := time.Now()
		if next, err = g.fillPart(f, next); next == nil {
			break
		}
		time.Sleep(time.Since(began)) // leave at least half of the processor to requests
	}
	k := &g.known
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.filling != f {
		return err // forget has released f
	}
	if k.filling = nil; err != nil {
		k.damaged = errors.Is(err, ErrDamaged)
		f.release()
		return err
	}
	k.setLocked(f)
	return nil
}

// beginFilter makes a new filter, to which commits add their pairs from now on. It returns nil if
// there is no memory.
func (g *Group) beginFilter() (*filter, error) {
	done, err := g.begin()
	if err != nil {
		return nil, err
	}
	defer done()
	k := &g.known
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed || k.damaged {
		return nil, nil
	}
	found, err := readState(g.store.present(), g.number)
	if err != nil {
		return nil, err
	}
	since := g.store.filters.released.Load()
	f := g.store.newFilter(found.state.Pairs)
	if f == nil {
		k.setLocked(nil) // the old filter is of little use; the new one may need its memory
		since = g.store.filters.released.Load()
		f = g.store.newFilter(found.state.Pairs)
	}
	if k.lacks, k.since = f == nil, since; k.lacks {
		g.store.filters.lackedAt.Store(g.store.pairs.Load() / 16 * 15)
		g.store.shrinkFilters(g)
	}
	k.filling = f
	k.wanted.Store(false) // this filter satisfies all earlier requests
	return f, nil
}

// fillAgain requests a filter if damage prevented the last one. It is called after a damaged file
// was removed.
func (g *Group) fillAgain() {
	g.known.mu.Lock()
	damaged := g.known.damaged
	g.known.damaged = false
	g.known.mu.Unlock()
	if damaged {
		g.wantFilter()
	}
}

// shrinkFilters replaces the filters that exceed their share of memory by smaller ones. This frees
// memory for the group lacking, which has no filter.
func (s *Store) shrinkFilters(lacking *Group) {
	for _, g := range s.groups() {
		if f := g.known.now.Load(); g != lacking && f != nil && f.bits() > s.share(f.made)/16*17 {
			g.wantFilter()
		}
	}
}

// fillPart adds the next fillPairs pairs on disk to a filter. It returns the last key that it read,
// or nil if there are no more pairs.
func (g *Group) fillPart(f *filter, behind []byte) (last []byte, err error) {
	done, err := g.begin()
	if err != nil {
		return nil, err
	}
	defer done()
	g.known.mu.Lock()
	wanted := g.known.filling == f && g.store.db.Stopping.Err() == nil
	g.known.mu.Unlock()
	if !wanted {
		return nil, scarce.ErrClosed
	}
	first := g.at.kind(keyMember)
	end := scarce.PrefixEnd(first)
	if behind != nil {
		first = append(behind, 0)
	}
	n := 0
	err = eachFrom(g.store.present(), first, end, func(key, _ []byte) (bool, error) {
		p, _, err := parsePair(key)
		if err != nil {
			return false, err
		}
		f.add(p)
		n++
		last = append(last[:0], key...)
		return n < fillPairs, nil
	})
	if n < fillPairs {
		last = nil
	}
	return last, err
}

package engine

import (
	"math/bits"
	"runtime"
	"slices"
	"sync/atomic"
	"unsafe"
)

const (
	wordColumns = 4      // 16-bit counts in a word
	inOverflow  = 0xFFFF // mark of a count that is in the overflow table

	// segmentBytes is the size of the allocator's class for the struct, plus the size of the
	// segment's directory entry.
	segmentBytes = 144 + 16
)

// segment is one hash array: the rows of one range of ids.
//
// The fields up to the length of buckets fill the first cache line. A lookup reads no
// other fields of the struct. Lookups are spread over thousands of segments, so a second
// line of each would evict other data from the cache.
//
// A slot's number is the index of its first word of counts: bucket*lineWords + slot in the bucket.
//
// The table's writer changes a segment in place until a snapshot captures it or a segment of
// another shape replaces it. From then on the struct never changes. A reader that still uses the
// struct sees the last state, which is not older than the start of the read.
type segment struct {
	geometry

	// seq is odd while rows are moved, removed, or changed in more than one word. Readers need no
	// lock for these reasons:
	//   - Every shared word is read and written with sync/atomic, so all goroutines see the
	//     accesses in one order.
	//   - A change of one word of an existing row is one store: a reader sees the row
	//     before or after it.
	//   - A new row's counts are stored before its tag, and its slot was empty.
	//   - Everything else (cuckoo moves, deletes, counts that enter or leave the overflow table,
	//     rows of several words) happens while seq is odd. A reader that ran during such a change
	//     finds seq odd or changed, and retries. Slots are emptied only in this way. So the counts
	//     that a reader reads after a tag belong to that tag, or seq has changed.
	seq      atomic.Uint32
	rowWords uint32 // 64-bit words of counts per row; never changes
	buckets  []bucket
	more     []uint64 // words()-1 words for each slot: the counts of column 4 and above
	over     atomic.Pointer[overflow]

	// cold is the segment's rows outside of the array, nil if there are none. It never changes. A
	// reader that does not find a row in the array searches for it in cold.
	cold *coldPart

	// Owned by the writer.
	rows    int     // number of rows in the array; with a cold part, rows of zeros count too
	epoch   uint64  // the table's epoch when this segment was made
	maxID   uint64  // no row has a larger id
	watched watcher // the tasks that watch the segment
	seal    sealState
}

// watcher is a set of tasks that watch whether anybody writes to a segment. The writer copies a
// watched segment before it changes it. The copy is not watched; so each task can see that somebody
// wrote to the segment.
type watcher uint8

const (
	toFreeze watcher = 1 << iota // Table.Watch
	toSeal                       // Table.Seal
	toPart                       // Parting.Step
)

// sealState is the state that Seal keeps for a segment. Table.mu guards it.
type sealState struct {
	looked bool  // since putOff, this segment or the original of this copy was watched
	rest   uint8 // number of following checks that skip the segment
	again  uint8 // the last value to which putOff set rest
}

// words returns the number of 64-bit words of counts per row.
func (s *segment) words() int { return int(s.rowWords) }

func newSegment(g geometry, buckets, words int, epoch uint64) *segment {
	s := &segment{geometry: g, buckets: make([]bucket, buckets), rowWords: uint32(words), epoch: epoch}
	if words > 1 {
		s.more = make([]uint64, buckets*slotsOf(g.wide)*(words-1))
	}
	return s
}

// reset empties a segment that has no readers, and gives it another geometry.
func (s *segment) reset(g geometry) {
	clear(s.buckets)
	clear(s.more)
	s.over.Store(nil)
	s.geometry, s.rows, s.maxID = g, 0, 0
}

// wordsUsed returns how many words the rows at slots need.
func (s *segment) wordsUsed(slots []slotID) int {
	for w := s.words() - 1; w > 0; w-- {
		for _, r := range slots {
			if r.slot >= 0 && *s.word(int(r.slot), w) != 0 {
				return w + 1
			}
		}
	}
	return 1
}

// clone returns a copy that the writer may change.
func (s *segment) clone(epoch uint64) *segment {
	c := &segment{geometry: s.geometry, rowWords: s.rowWords, epoch: epoch, rows: s.rows, maxID: s.maxID, cold: s.cold, seal: s.seal,
		buckets: append([]bucket(nil), s.buckets...),
		more:    append([]uint64(nil), s.more...),
	}
	c.over.Store(s.over.Load().clone())
	return c
}

// columns returns how many counts fit in a row.
func (s *segment) columns() int { return s.words() * wordColumns }

// widest returns an upper bound of the columns of the segment's rows, including cold ones.
func (s *segment) widest() int {
	if s.cold != nil {
		return max(s.columns(), s.cold.generation.Width())
	}
	return s.columns()
}

// rowsInMemory returns the number of rows in memory, including sealed rows that another
// row hides.
func (s *segment) rowsInMemory() int {
	if packed := s.cold.sealed(); packed != nil {
		return s.rows + packed.rows
	}
	return s.rows
}

// highest returns an upper bound of the ids of all rows. The segment must not have rows on disk.
func (s *segment) highest() uint64 {
	if packed := s.cold.sealed(); packed != nil {
		return max(s.maxID, min(packed.maxID, s.cold.last))
	}
	return s.maxID
}

func (s *segment) bytes() int {
	return lineWords*8*cap(s.buckets) + 8*cap(s.more) + s.over.Load().bytes() + segmentBytes
}

// place returns the two possible positions of a row of id.
func (s *segment) place(id uint64) place { return s.geometry.place(id, uint64(len(s.buckets))) }

// prefetch prefetches the two cache lines that a lookup of p may read.
func (s *segment) prefetch(p place) {
	Prefetch(uintptr(unsafe.Pointer(&s.buckets[p.first])), uintptr(unsafe.Pointer(&s.buckets[p.second])))
}

// find returns the slot of the row at p, or -1. The cache misses of the two buckets overlap,
// because the match function requests the second bucket before it waits for the first.
func (s *segment) find(p place) int {
	a, b := &s.buckets[p.first], &s.buckets[p.second]
	m, slot := uint64(0), firstSlot(s.wide)
	if s.wide {
		m = matchWide(a, b, p.tag)
	} else {
		m = matchNarrow(a, b, p.tag)
	}
	if m == 0 {
		return -1
	}
	i := uint64(bits.TrailingZeros64(m))
	bucket := p.first + (p.second-p.first)&-(i/lineWords)
	return int(bucket*lineWords+i%lineWords) + slot
}

// word returns the w-th word of the counts in a slot.
func (s *segment) word(slot, w int) *uint64 {
	if w == 0 {
		return &s.buckets[slot/lineWords][slot%lineWords]
	}
	row := slot/lineWords*slotsOf(s.wide) + slot%lineWords - firstSlot(s.wide)
	return &s.more[row*(s.words()-1)+w-1]
}

// readAt fills dst with the first len(dst) counts of the row at p, or zeros if the row is
// absent, and reports whether it exists.
func (s *segment) readAt(p place, dst []int64) bool {
	for spins := 1; ; spins++ {
		seq := s.seq.Load()
		slot := s.find(p)
		if slot >= 0 {
			s.load(slot, dst)
		} else {
			clear(dst)
		}
		if s.seq.Load() == seq && seq&1 == 0 {
			return slot >= 0
		}
		if spins%64 == 0 { // the writer was probably descheduled while seq was odd
			runtime.Gosched()
		}
	}
}

// load fills dst from a slot. Columns beyond the segment's words are 0.
func (s *segment) load(slot int, dst []int64) {
	word := atomic.LoadUint64(&s.buckets[uint(slot)/lineWords][uint(slot)%lineWords])
	if len(dst) != wordColumns || hasOverflow(word) {
		s.loadAny(slot, dst)
		return
	}
	// This is the fast path, for nearly every row.
	dst[0], dst[1] = int64(word&0xFFFF), int64(word>>16&0xFFFF)
	dst[2], dst[3] = int64(word>>32&0xFFFF), int64(word>>48)
}

func (s *segment) loadAny(slot int, dst []int64) {
	for w := 0; len(dst) > 0; w++ {
		if w >= s.words() {
			clear(dst)
			return
		}
		n := min(len(dst), wordColumns)
		word := atomic.LoadUint64(s.word(slot, w))
		for i := range dst[:n] {
			if v := word >> (16 * i) & 0xFFFF; v != inOverflow {
				dst[i] = int64(v)
			} else {
				dst[i] = s.over.Load().get(overflowKey(slot, w*wordColumns+i))
			}
		}
		dst = dst[n:]
	}
}

// hasOverflow reports whether one of the four counts of a word is inOverflow.
func hasOverflow(word uint64) bool {
	const ones = 0x0001_0001_0001_0001
	return (^word-ones)&word&(ones<<15) != 0
}

// each calls fn with every row's slot and id. Nothing may change the segment meanwhile.
func (s *segment) each(fn func(slot int, id uint64)) {
	buckets, inv := uint64(len(s.buckets)), s.inverse()
	for i := range s.buckets {
		for j := firstSlot(s.wide); j < lineWords; j++ {
			if tag := s.buckets[i].tag(j, s.wide); tag != 0 {
				fn(i*lineWords+j, s.idAt(uint64(i), tag, buckets, inv))
			}
		}
	}
}

// slotID is an occupied slot and the id of its row. The slot is noSlot for a row of zeros that has
// no slot yet.
type slotID struct {
	id   uint64
	slot int32
}

const noSlot = -1

func sortByID(slots []slotID) {
	slices.SortFunc(slots, func(a, b slotID) int {
		if a.id < b.id {
			return -1
		}
		return 1
	})
}

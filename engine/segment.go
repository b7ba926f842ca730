package engine

import (
	"math/bits"
	"runtime"
	"sync/atomic"
)

const (
	wordColumns  = 4        // 16-bit counts to a word
	inOverflow   = 0xFFFF   // a count that stands in the overflow table instead
	segmentBytes = 192 + 16 // the struct itself and its directory entry
)

// segment is one hash array: the rows of one range of ids.
//
// A segment is changed in place by the table's writer until a snapshot has
// captured it or it is replaced by a segment of another shape; from then on it
// never changes again, and readers that still hold it see the state of that
// moment, which is later than the moment they began.
type segment struct {
	geometry

	// seq is odd while rows move, go, or change in more than one word. Why
	// readers without a lock are right:
	//   - every shared word is read and written with sync/atomic, so in one
	//     order that all goroutines agree on;
	//   - a change of one word of a standing row is one store: a reader sees
	//     the row before or after it;
	//   - a new row's counts are stored before its tag, and its slot was empty;
	//   - everything else (cuckoo moves, deletes, counts that enter or leave
	//     the overflow table, rows of several words) happens while seq is odd.
	//     A reader that met such a change sees seq odd or changed, and reads
	//     again. A slot becomes empty only in this way, so a tag that a reader
	//     saw belongs to the counts it reads next, or seq has changed.
	seq   atomic.Uint32
	tags  []uint32 // a slot's tag, low half; 0 is empty
	vals  []uint64 // words to a slot
	over  atomic.Pointer[overflow]
	highs []uint32 // high halves of wide tags; nil when narrow

	// The writer's own.
	rows  int
	epoch uint64 // the table's epoch when this segment was made
	maxID uint64 // no row has a larger id

	_ [8]byte // to 192 B, an allocator class that is whole cache lines
}

func newSegment(g geometry, epoch uint64) *segment {
	slots := int(g.buckets) * bucketSlots
	s := &segment{geometry: g, epoch: epoch,
		tags: make([]uint32, slots), vals: make([]uint64, slots*int(g.words))}
	if g.wide {
		s.highs = make([]uint32, slots)
	}
	return s
}

// clone returns a copy that the writer may change.
func (s *segment) clone(epoch uint64) *segment {
	c := &segment{geometry: s.geometry, epoch: epoch, rows: s.rows, maxID: s.maxID,
		tags: append([]uint32(nil), s.tags...),
		vals: append([]uint64(nil), s.vals...),
	}
	if s.wide {
		c.highs = append([]uint32(nil), s.highs...)
	}
	c.over.Store(s.over.Load().clone())
	return c
}

// columns is how many counts a row has room for.
func (s *segment) columns() int { return int(s.words) * wordColumns }

func (s *segment) bytes() int {
	return 4*cap(s.tags) + 4*cap(s.highs) + 8*cap(s.vals) + s.over.Load().bytes() + segmentBytes
}

// find returns the slot of the row at p, or -1.
func (s *segment) find(p place) int {
	if slot := s.findIn(p.first, p.lo, p.hi); slot >= 0 {
		return slot
	}
	return s.findIn(p.second, p.lo|s.second, p.hi)
}

// findIn compares all tags of a bucket without a branch: which slot matches is
// as good as random, and a wrong guess would keep the processor from starting
// on the next row while it waits for this one's memory.
func (s *segment) findIn(bucket, lo, hi uint32) int {
	at := int(bucket) * bucketSlots
	t := (*[bucketSlots]uint32)(s.tags[at:])
	match := equal(&t[0], lo) | equal(&t[1], lo)<<1 | equal(&t[2], lo)<<2 | equal(&t[3], lo)<<3 |
		equal(&t[4], lo)<<4 | equal(&t[5], lo)<<5 | equal(&t[6], lo)<<6 | equal(&t[7], lo)<<7
	for ; match != 0; match &= match - 1 {
		slot := at + bits.TrailingZeros64(match)
		if !s.wide || atomic.LoadUint32(&s.highs[slot]) == hi {
			return slot
		}
	}
	return -1
}

// equal returns 1 if the tag is lo, else 0.
func equal(tag *uint32, lo uint32) uint64 { return (uint64(atomic.LoadUint32(tag)^lo) - 1) >> 63 }

// readAt fills dst with the first len(dst) counts of the row at p.
func (s *segment) readAt(p place, dst []int64) {
	for spins := 1; ; spins++ {
		seq := s.seq.Load()
		if seq&1 == 0 {
			if slot := s.find(p); slot >= 0 {
				s.load(slot, dst)
			} else {
				clear(dst)
			}
			if s.seq.Load() == seq {
				return
			}
		}
		if spins%64 == 0 { // the writer was descheduled inside
			runtime.Gosched()
		}
	}
}

// load fills dst from a slot. Columns that the segment has no word for are 0.
func (s *segment) load(slot int, dst []int64) {
	words := int(s.words)
	for w := 0; len(dst) > 0; w++ {
		n := min(len(dst), wordColumns)
		if w >= words {
			clear(dst)
			return
		}
		word := atomic.LoadUint64(&s.vals[slot*words+w])
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

// idOf returns the id of an occupied slot.
func (s *segment) idOf(slot int) uint64 {
	return s.idAt(uint64(slot/bucketSlots), s.tags[slot], s.high(slot))
}

func (s *segment) high(slot int) uint32 {
	if s.wide {
		return s.highs[slot]
	}
	return 0
}

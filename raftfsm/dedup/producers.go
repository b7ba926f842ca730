package dedup

import (
	"iter"
	"slices"
)

// producer is the record of a producer.
type producer struct {
	name       string
	floor      uint64 // lower numbers are too old, because the producer was forgotten before
	high       uint64 // highest number applied, at least floor
	window     uint64 // bit i: number high-i was judged
	refused    uint64 // bit i: number high-i was judged, and all its ops overflowed
	partly     uint64 // bit i: number high-i was judged, and some but not all ops overflowed
	used       int64
	next, prev uint32 // neighbours in the ring; in a free slot, next is another free slot or 0
}

// moveTo sets high to seq, which must be higher.
func (p *producer) moveTo(seq uint64) {
	by := min(seq-p.high, seqWindow)
	p.window <<= by
	p.refused <<= by
	p.partly <<= by
	p.high = seq
}

// judged reports whether a number is in the window and was judged before.
func (p *producer) judged(seq uint64) bool {
	return seq <= p.high && p.high-seq < seqWindow && p.window>>(p.high-seq)&1 != 0
}

// again returns the outcome of a repeat of a judged number in the window.
func (p *producer) again(seq uint64) Outcome {
	switch bit := uint64(1) << (p.high - seq); {
	case p.refused&bit != 0:
		return Refused
	case p.partly&bit != 0:
		return PartlyRefused
	}
	return Duplicate
}

// setAgain sets the outcome of repeats of a judged number in the window.
func (p *producer) setAgain(seq uint64, again Outcome) {
	bit := uint64(1) << (p.high - seq)
	p.refused, p.partly = p.refused&^bit, p.partly&^bit
	switch again {
	case Refused:
		p.refused |= bit
	case PartlyRefused:
		p.partly |= bit
	}
}

// producerPageLen is the number of producers on a page of 9 KiB. Pages are allocated whole, and
// copied whole after a capture.
const producerPageLen = 128

type producerPage [producerPageLen]producer

// producers contains the producers in numbered slots on pages. A captured page is copied before it
// changes, so a capture can be read while requests are judged.
//
// Slot 0 is the head of a ring in order of last use. The next of slot 0 is the least recently used
// producer, and its prev the most recently used one.
type producers struct {
	pages []*producerPage
	owned []bool            // for each page, whether no capture shares it
	slot  map[string]uint32 // by name; lacks names that find still finds in shared
	// shared are indexes from before splits. They also contain names that no longer are in their
	// slots. Nobody changes them or the slice.
	shared []map[string]uint32
	end    uint32 // slots from end on were never used
	free   uint32 // an unused slot before end, or 0
	len    int
}

func newProducers() producers {
	return producers{pages: []*producerPage{{}}, owned: []bool{true}, slot: map[string]uint32{}, end: 1}
}

// at returns the record in a slot. The caller may only read the record, and only until the next
// change of producers.
func (s *producers) at(slot uint32) *producer {
	return &s.pages[slot/producerPageLen][slot%producerPageLen]
}

// edit returns the record in a slot. The caller may change it until the next capture.
func (s *producers) edit(slot uint32) *producer {
	if i := slot / producerPageLen; !s.owned[i] {
		page := *s.pages[i]
		s.pages[i], s.owned[i] = &page, true
	}
	return s.at(slot)
}

// find returns the slot of a producer.
func (s *producers) find(name []byte) (slot uint32, ok bool) {
	if slot, ok = s.slot[string(name)]; ok || s.shared == nil {
		return slot, ok
	}
	return s.findShared(name)
}

// findShared searches the shared indexes. It copies what it finds into the own index, so that this
// index soon has all names.
func (s *producers) findShared(name []byte) (uint32, bool) {
	for _, older := range s.shared {
		if slot, ok := older[string(name)]; ok && s.at(slot).name == string(name) {
			s.slot[s.at(slot).name] = slot
			s.dropShared()
			return slot, true
		}
	}
	return 0, false
}

// dropShared drops the shared indexes if the own index has all names.
func (s *producers) dropShared() {
	if len(s.slot) == s.len {
		s.shared = nil
	}
}

// oldest returns the slot of the least recently used producer, or 0 if there is none.
func (s *producers) oldest() uint32 { return s.at(0).next }

// add adds a new producer as the most recently used one.
func (s *producers) add(p producer) {
	slot := s.free
	if slot != 0 {
		s.free = s.at(slot).next
	} else {
		slot = s.end
		s.end++
		if int(slot/producerPageLen) == len(s.pages) {
			s.pages, s.owned = append(s.pages, &producerPage{}), append(s.owned, true)
		}
	}
	*s.edit(slot) = p
	s.link(slot)
	s.slot[p.name] = slot
	s.len++
}

func (s *producers) remove(slot uint32) {
	s.unlink(slot)
	delete(s.slot, s.at(slot).name)
	*s.edit(slot) = producer{next: s.free}
	s.free = slot
	s.len--
	s.dropShared()
}

// touch makes a producer the most recently used one. It returns the record, which the caller may
// change until the next capture.
func (s *producers) touch(slot uint32, now int64) *producer {
	s.unlink(slot)
	s.link(slot)
	p := s.edit(slot)
	p.used = now
	return p
}

func (s *producers) link(slot uint32) {
	last := s.at(0).prev
	s.edit(last).next = slot
	p := s.edit(slot)
	p.prev, p.next = last, 0
	s.edit(0).prev = slot
}

func (s *producers) unlink(slot uint32) {
	p := *s.at(slot)
	s.edit(p.prev).next = p.next
	s.edit(p.next).prev = p.prev
}

// capture returns the producers as they are now. Any goroutine may call the method all of the
// result.
func (s *producers) capture() producers {
	clear(s.owned)
	return producers{pages: slices.Clone(s.pages), end: s.end, len: s.len}
}

// split returns the producers for a part of the shard. Both share all pages and the index, until they
// change a page.
func (s *producers) split() producers {
	part := s.capture()
	if len(s.slot) > 0 {
		s.shared, s.slot = append([]map[string]uint32{s.slot}, s.shared...), map[string]uint32{}
	}
	part.owned, part.free = make([]bool, len(part.pages)), s.free
	part.slot, part.shared = map[string]uint32{}, s.shared
	return part
}

// all yields the producers in order of last use, the least recently used first.
func (s *producers) all() iter.Seq[*producer] {
	return func(yield func(*producer) bool) {
		for slot := s.oldest(); slot != 0; slot = s.at(slot).next {
			if !yield(s.at(slot)) {
				return
			}
		}
	}
}

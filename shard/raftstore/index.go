package raftstore

import (
	"bytes"
	"cmp"
	"maps"
	"slices"
)

// position is the place where an entry's item begins. address is an offset into the data bytes of
// the segment's sectors, without the sectors' heads. Segment 0 means no position.
type position struct {
	segment uint32
	address uint32
}

// replicaIndex is the index of one replica: entries first to first+len(positions)-1 without a gap,
// and values by key.
type replicaIndex struct {
	first     uint64 // 0 while there are no entries
	positions []position
	values    map[string][]byte
}

func (r *replicaIndex) last() uint64 {
	if len(r.positions) == 0 {
		return 0
	}
	return r.first + uint64(len(r.positions)) - 1
}

func (r *replicaIndex) has(index uint64) bool {
	return len(r.positions) > 0 && index >= r.first && index <= r.last()
}

// index describes everything in the log, and counts the live entries of each segment. For a change
// that contradicts the index, its methods return ErrDamaged, because the log never writes such a
// change.
type index struct {
	replicas map[ReplicaID]*replicaIndex
	segments map[uint32]*segment
}

func newIndex() *index {
	return &index{replicas: map[ReplicaID]*replicaIndex{}, segments: map[uint32]*segment{}}
}

// live adds the argument entries, which may be negative, to the number of live entries of a
// segment.
func (x *index) live(segment uint32, entries int) {
	if s := x.segments[segment]; s != nil {
		s.live += entries
	}
}

func (x *index) replica(id ReplicaID) (*replicaIndex, error) {
	r := x.replicas[id]
	if r == nil {
		return nil, damage("%s is changed but does not exist", id)
	}
	return r, nil
}

// create adds a replica. The positions of its entries are not known yet.
func (x *index) create(id ReplicaID, first, last uint64) error {
	if x.replicas[id] != nil || first > last || (first == 0) != (last == 0) || last-first > entriesMax {
		return damage("%s is created with entries %d to %d", id, first, last)
	}
	r := &replicaIndex{first: first, values: map[string][]byte{}}
	if first > 0 {
		r.positions = make([]position, last-first+1)
	}
	x.replicas[id] = r
	return nil
}

// entriesMax bounds the entries of a replica. The index of more entries would take over 16 GiB of
// memory.
const entriesMax = 1 << 31

func (x *index) drop(id ReplicaID) error {
	r, err := x.replica(id)
	if err != nil {
		return err
	}
	for _, p := range r.positions {
		x.live(p.segment, -1)
	}
	delete(x.replicas, id)
	return nil
}

// add adds an entry at the end of a replica's log.
func (x *index) add(id ReplicaID, entry uint64, at position) error {
	r, err := x.replica(id)
	if err != nil {
		return err
	}
	if entry == 0 || len(r.positions) > 0 && entry != r.last()+1 {
		return damage("%s: entry %d follows entry %d", id, entry, r.last())
	}
	if len(r.positions) == 0 {
		r.first = entry
	}
	r.positions = append(r.positions, at)
	x.live(at.segment, 1)
	return nil
}

// move sets the new position of an entry. It ignores an entry that was deleted meanwhile.
func (x *index) move(id ReplicaID, entry uint64, at position) {
	r := x.replicas[id]
	if r == nil || !r.has(entry) {
		return
	}
	p := &r.positions[entry-r.first]
	x.live(p.segment, -1)
	x.live(at.segment, 1)
	*p = at
}

// cuts reports whether deleting entries first to last leaves no gap. There is no gap if the range
// covers no stored entry, all of them, only the oldest or only the newest.
func (r *replicaIndex) cuts(first, last uint64) bool {
	return len(r.positions) == 0 || last < r.first || first > r.last() || first <= r.first || last >= r.last()
}

func (x *index) cut(id ReplicaID, first, last uint64) error {
	r, err := x.replica(id)
	if err != nil {
		return err
	}
	if first > last || !r.cuts(first, last) {
		return damage("%s: entries %d to %d are deleted out of %d to %d", id, first, last, r.first, r.last())
	}
	if len(r.positions) == 0 || last < r.first || first > r.last() {
		return nil
	}
	from, to := max(first, r.first)-r.first, min(last, r.last())-r.first+1
	for _, p := range r.positions[from:to] {
		x.live(p.segment, -1)
	}
	deleted := to - from
	if to < uint64(len(r.positions)) {
		r.positions = r.positions[to:]
		r.first += to
	} else {
		r.positions = r.positions[:from]
	}
	if len(r.positions) == 0 {
		r.first = 0
	}
	// Release the memory of a large deletion now. After a small deletion, the next growth of the
	// slice releases the memory.
	if deleted > 1024 && deleted > uint64(len(r.positions)) {
		r.positions = slices.Clone(r.positions)
	}
	return nil
}

func (x *index) set(id ReplicaID, key, value []byte) error {
	r, err := x.replica(id)
	if err != nil {
		return err
	}
	r.values[string(key)] = bytes.Clone(value)
	return nil
}

// appendTo encodes the index, without positions, as create and set items.
func (x *index) appendTo(dst []byte) []byte {
	for _, id := range x.ids() {
		r := x.replicas[id]
		dst = appendRange(dst, itemCreate, id, r.first, r.last())
		for _, key := range slices.Sorted(maps.Keys(r.values)) {
			dst = appendSet(dst, id, []byte(key), r.values[key])
		}
	}
	return dst
}

func (x *index) ids() []ReplicaID {
	return slices.SortedFunc(maps.Keys(x.replicas), func(a, b ReplicaID) int {
		return cmp.Or(cmp.Compare(a.Group, b.Group), cmp.Compare(a.Number, b.Number))
	})
}

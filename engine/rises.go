package engine

import (
	"cmp"
	"math"
	"sync"
)

// Place is the place of a count in the order of all counts of a column: the largest first, and among equal
// counts the lowest id.
type Place struct {
	Count int64
	ID    uint64
}

// Before reports whether p comes before q.
func (p Place) Before(q Place) bool { return p.Count > q.Count || p.Count == q.Count && p.ID < q.ID }

// Compare is Before for slices.SortFunc.
func (p Place) Compare(q Place) int {
	return cmp.Or(cmp.Compare(q.Count, p.Count), cmp.Compare(p.ID, q.ID))
}

// Rise names a count that moved up before the place of its column.
type Rise struct {
	ID     uint64
	Column uint8
}

// risesMax bounds the rises that wait for Take, so that a caller who stops calling Take costs little
// memory.
const risesMax = 64 << 10

// placeFirst is the place of a column that nobody watches. No count is before it.
var placeFirst = Place{Count: math.MaxInt64}

// Rises remembers the counts that Apply moves up before a place of their column.
type Rises struct {
	mu      *sync.Mutex // the table's
	places  [ColumnsMax]Place
	waiting []Rise
	lost    bool // rises were dropped because risesMax waited; Take resets it
}

func (r *Rises) init(mu *sync.Mutex) {
	*r = Rises{mu: mu}
	for column := range r.places {
		r.places[column] = placeFirst
	}
}

// Watch makes Rises remember each count of a column that an Apply moves up before the given place. The place
// replaces the column's earlier place. To miss no count before the place, call Watch first and then read the
// counts.
func (r *Rises) Watch(column uint8, before Place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.places[column] = before
}

// Take appends the rises that no earlier call returned to dst. Some rises may be duplicates, may come from a
// refused op, or may belong to a replaced place. If rises were dropped because risesMax waited, Take returns
// false once. From the drop on, Rises watches only columns for which Watch was called again.
func (r *Rises) Take(dst []Rise) ([]Rise, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	whole := !r.lost
	dst = append(dst, r.waiting...)
	r.waiting, r.lost = r.waiting[:0], false
	return dst, whole
}

// note remembers a change of a count if it is a rise.
func (r *Rises) note(id uint64, column uint8, was, is int64) {
	before := r.places[column]
	if (Place{was, id}).Before(before) || !(Place{is, id}).Before(before) {
		return
	}
	if len(r.waiting) == risesMax {
		r.init(r.mu)
		r.lost = true
		return
	}
	r.waiting = append(r.waiting, Rise{id, column})
}

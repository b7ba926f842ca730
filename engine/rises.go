package engine

import (
	"cmp"
	"math"
	"sync"
)

// Place is the place of a count in the order of all counts of a column. The largest count comes
// first, and among equal counts the one with the lowest id.
type Place struct {
	Count int64
	ID    uint64
}

// Before reports whether p comes before q.
func (p Place) Before(q Place) bool { return p.Count > q.Count || p.Count == q.Count && p.ID < q.ID }

// Compare is a comparison function for slices.SortFunc.
func (p Place) Compare(q Place) int {
	return cmp.Or(cmp.Compare(q.Count, p.Count), cmp.Compare(p.ID, q.ID))
}

// Rise identifies a count that rose to a place before the watched place of its column.
type Rise struct {
	ID     uint64
	Column uint8
}

// risesMax bounds the rises that Take has not returned yet, and so their memory if nobody calls
// Take any more.
const risesMax = 64 << 10

// placeFirst is the watched place of a column that nobody watches. No count can rise above it.
var placeFirst = Place{Count: math.MaxInt64}

// Rises records the counts that Apply moves to a place before the watched place of their column.
type Rises struct {
	mu      *sync.Mutex // the table's mutex
	places  [ColumnsMax]Place
	waiting []Rise
	lost    bool // there were too many rises; Take resets it
}

func newRises(mu *sync.Mutex) *Rises {
	r := &Rises{}
	r.init(mu)
	return r
}

func (r *Rises) init(mu *sync.Mutex) {
	*r = Rises{mu: mu}
	for column := range r.places {
		r.places[column] = placeFirst
	}
}

// Watch sets the watched place of a column. From now on, Rises records each count of the column
// that Apply moves to a place before it. A caller that wants all counts before the place calls
// Watch first and then reads the counts.
func (r *Rises) Watch(column uint8, before Place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.places[column] = before
}

// Take appends to dst the rises that no earlier call returned. Some rises may be duplicates, may
// come from a refused op, or may be of an earlier watched place. If there were more than risesMax
// rises, they are lost: Take then returns false once, and Rises watches only columns for which
// Watch was called since.
func (r *Rises) Take(dst []Rise) ([]Rise, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	whole := !r.lost
	dst = append(dst, r.waiting...)
	r.waiting, r.lost = r.waiting[:0], false
	return dst, whole
}

// note records a change of a count if it is a rise.
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

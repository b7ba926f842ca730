package rankings

import (
	"iter"
	"math"
	"math/bits"
	"slices"
	"unsafe"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
)

const (
	ways    = 8 // cells of a set
	setsMin = 2
	setsMax = 1024
	// setsFair is the number of sets that every column may have. A column may have more if all
	// columns together then have at most setsOfAll.
	setsFair  = 64
	setsOfAll = 8 * setsMax

	setBytes = uint64(unsafe.Sizeof(front{}) + unsafe.Sizeof(set{}))
)

// front is the part of a set that each op on one of its keys reads. The fronts of a busy column
// take 16 KB, so they stay in the processor's first-level cache.
type front struct {
	tags   uint64 // one byte for each way: the top byte of the hash of its key
	others uint32 // sum of |delta| of the ops on keys without a way, since bound last changed
	gate   uint32 // once others would reach gate, the key of the op competes for a way
}

// set holds cells of keys whose hashes have equal low bits, like a set of a set-associative cache.
// A key of the set without a cell gained or lost at most bound + others.
type set struct {
	cells [ways]cell // a free way has the key keyNone
	bound uint64     // 0 while a way is free
}

// grid holds the gains of one column in the open bucket of the finest level. The number of its sets
// is a power of two, or 0 before the first op.
type grid struct {
	fronts []front
	sets   []set
}

// grids are the open bucket of the finest level. Equal calls make equal contents, except for the
// order of the ways in a set, which has no effect.
type grids struct {
	columns [engine.ColumnsMax]grid
	sets    int // of all columns
}

// keyNone returns a key that cannot belong to the set with the given number. For set 0, the key is
// 1, whose hash is odd. For any other set, the key is 0, whose hash is 0.
func keyNone(number uint64) uint64 {
	if number == 0 {
		return 1
	}
	return 0
}

// hashOf returns the hash of a key. It is the same on all replicas, because it decides which keys have a cell.
func hashOf(key uint64) uint64 { return wire.Mix(key) }

func tagOf(hash uint64) uint64 { return hash >> 56 }

// eachByte has the value 1 in each byte.
const eachByte = 0x0101010101010101

// add adds delta to the gain of a key. If the key has no cell, add usually reads and writes only
// the front of its set.
func (g *grids) add(key uint64, column uint8, delta int64) {
	of := &g.columns[column]
	hash := hashOf(key)
	number := hash & uint64(len(of.fronts)-1)
	if number >= uint64(len(of.fronts)) {
		g.addSlow(key, column, delta)
		return
	}
	h := &of.fronts[number]
	differ := h.tags ^ eachByte*tagOf(hash)
	equal := (differ - eachByte) &^ differ & (eachByte << 7) // the lowest bit is in the byte of the first equal tag
	if equal == 0 {
		size := uint64(max(delta, -delta)) // 1<<63 for math.MinInt64
		if sum := uint64(h.others) + size; sum < uint64(h.gate) {
			h.others = uint32(sum)
			return
		}
	} else if c := &of.sets[number].cells[bits.TrailingZeros64(equal)/8]; c.key == key {
		c.add(delta)
		return
	}
	g.addSlow(key, column, delta)
}

// addSlow is like add, but also handles free ways, full sets and equal tags.
func (g *grids) addSlow(key uint64, column uint8, delta int64) {
	of := &g.columns[column]
	if len(of.sets) == 0 {
		g.widen(of, setsMin)
	}
	for {
		number, n := of.numberOf(key), len(of.sets)
		if way := of.find(number, key); way >= 0 {
			of.sets[number].cells[way].add(delta)
			return
		}
		if way := of.find(number, keyNone(number)); way >= 0 {
			of.put(number, way, cell{key: key, gained: delta})
			return
		}
		h := &of.fronts[number]
		c := cell{key: key, gained: delta, doubt: of.boundOf(number)}
		switch size := min(math.MaxUint32, c.size()); {
		case uint64(h.others)+size < uint64(h.gate): // another key has an equal tag
			h.others += uint32(size)
			return
		case n == setsMax || n >= setsFair && g.sets+n > setsOfAll:
			of.enter(number, c)
			return
		}
		g.widen(of, 2*n)
	}
}

// widen doubles the sets of a column, or creates its first sets. The bounds of all sets must be 0.
func (g *grids) widen(of *grid, sets int) {
	was := len(of.sets)
	g.sets += sets - was
	of.fronts = slices.Grow(of.fronts, sets-was)[:sets]
	of.sets = slices.Grow(of.sets, sets-was)[:sets]
	for i := was; i < sets; i++ {
		of.empty(uint64(i))
	}
	for i := range uint64(was) {
		s := of.sets[i]
		of.empty(i)
		for c := range s.all(i) {
			number := of.numberOf(c.key)
			of.put(number, of.find(number, keyNone(number)), c)
		}
	}
}

func (of *grid) numberOf(key uint64) uint64 { return hashOf(key) & uint64(len(of.sets)-1) }

func (of *grid) empty(number uint64) {
	of.fronts[number], of.sets[number].bound = front{}, 0
	for way := range ways {
		of.put(number, way, cell{key: keyNone(number)})
	}
}

// find returns the way of a key in a set, or -1.
func (of *grid) find(number, key uint64) int {
	return slices.IndexFunc(of.sets[number].cells[:], func(c cell) bool { return c.key == key })
}

func (of *grid) put(number uint64, way int, c cell) {
	of.sets[number].cells[way] = c
	tags, at := &of.fronts[number].tags, 8*way
	*tags = *tags&^(0xff<<at) | tagOf(hashOf(c.key))<<at
}

// boundOf returns the most that a key without a cell in a set gained or lost.
func (of *grid) boundOf(number uint64) uint64 {
	return min(doubtMax, of.sets[number].bound+uint64(of.fronts[number].others))
}

// raise sets the bound of a set to a value that includes others, and sets others to 0. It also sets
// the gate, to about a quarter of the bound. So the cells of a set change seldom, and the field
// others costs little precision.
func (of *grid) raise(number, bound uint64) {
	h := &of.fronts[number]
	of.sets[number].bound, h.others, h.gate = bound, 0, 0
	if bound > 0 {
		h.gate = uint32(min(math.MaxUint32, bound/4+4))
	}
}

// enter replaces the lightest cell of a set by a new cell, if the new cell is heavier. The set must
// have no free way.
func (of *grid) enter(number uint64, c cell) {
	lightest, weight := 0, uint64(math.MaxUint64)
	cells := &of.sets[number].cells
	for way := range cells {
		if w := cells[way].weight(); w < weight || w == weight && cells[way].key > cells[lightest].key {
			lightest, weight = way, w
		}
	}
	if weight >= c.weight() {
		of.raise(number, c.weight())
		return
	}
	of.raise(number, max(c.doubt, weight))
	of.put(number, lightest, c)
}

// all calls yield with the cells of a set, in no order.
func (s *set) all(number uint64) iter.Seq[cell] {
	return func(yield func(cell) bool) {
		for _, c := range s.cells {
			if c.key != keyNone(number) && !yield(c) {
				return
			}
		}
	}
}

// cells appends the cells of the column, in no order.
func (of *grid) cells(dst []cell) []cell {
	for number := range of.sets {
		dst = slices.AppendSeq(dst, of.sets[number].all(uint64(number)))
	}
	return dst
}

// bound returns the most that a key without a cell gained or lost.
func (of *grid) bound() (bound uint64) {
	for number := range of.sets {
		bound = max(bound, of.boundOf(uint64(number)))
	}
	return bound
}

func (of *grid) clone() grid { return grid{slices.Clone(of.fronts), slices.Clone(of.sets)} }

// close returns the largest cells as the bucket with the given number, and empties the grids. It keeps the
// memory of the columns that had ops.
func (g *grids) close(number int64) bucket {
	var s summary
	for column := range g.columns {
		of := &g.columns[column]
		if len(of.sets) == 0 {
			*of = grid{}
			continue
		}
		s[column].cells, s[column].bound = of.cells(make([]cell, 0, ways*len(of.sets))), of.bound()
		of.fronts, of.sets = of.fronts[:0], of.sets[:0]
	}
	g.sets = 0
	s.cut(levels[0].cellsMax)
	for column := range s {
		sortByKey(s[column].cells)
	}
	return s.pack(number)
}

package engine

import "sync/atomic"

// overflow holds the counts of one segment that do not fit 16 bits, by slot and column,
// in an open-addressing table with linear probing.
//
// Only the table's writer changes it. The segment's seq is odd while the writer adds or removes
// keys, or changes several values; readers discard what they read meanwhile. A reader's probe ends
// even during such a change, because it visits each cell at most once.
type overflow struct {
	keys []uint32 // 0 is empty
	vals []int64
	used int
}

const overflowCellsMin = 8

// Compile-time check that the key of the last column of the last slot fits.
const _ = uint32(bucketsLimit * lineWords * ColumnsMax)

func overflowKey(slot, column int) uint32 { return uint32(slot*ColumnsMax+column) + 1 }

// home returns the first cell to probe. The number of cells is a power of two.
func (o *overflow) home(key uint32) int {
	return int(uint64(key)*mixA>>32) & (len(o.keys) - 1)
}

func (o *overflow) find(key uint32) int {
	if o == nil {
		return -1
	}
	for i, n := o.home(key), 0; n < len(o.keys); i, n = (i+1)&(len(o.keys)-1), n+1 {
		switch atomic.LoadUint32(&o.keys[i]) {
		case key:
			return i
		case 0:
			return -1
		}
	}
	return -1
}

// get returns the value of key, 0 if key is missing. A reader may miss an existing key, but only if
// seq changes meanwhile, and then it retries.
func (o *overflow) get(key uint32) int64 {
	i := o.find(key)
	if i < 0 {
		return 0
	}
	return atomic.LoadInt64(&o.vals[i])
}

// put stores the value of key and returns the table to use from now on: o, or a larger copy.
func (o *overflow) put(key uint32, value int64) *overflow {
	if i := o.find(key); i >= 0 {
		atomic.StoreInt64(&o.vals[i], value)
		return o
	}
	if o == nil || (o.used+1)*4 > len(o.keys)*3 {
		o = o.grown()
	}
	i := o.home(key)
	for o.keys[i] != 0 {
		i = (i + 1) & (len(o.keys) - 1)
	}
	atomic.StoreInt64(&o.vals[i], value)
	atomic.StoreUint32(&o.keys[i], key)
	o.used++
	return o
}

func (o *overflow) grown() *overflow {
	if o == nil {
		return o.sized(overflowCellsMin)
	}
	return o.sized(2 * len(o.keys))
}

// sized returns a copy of o with the given number of cells.
func (o *overflow) sized(cells int) *overflow {
	g := &overflow{keys: make([]uint32, cells), vals: make([]int64, cells)}
	if o == nil {
		return g
	}
	for i, key := range o.keys {
		if key != 0 {
			g.put(key, o.vals[i])
		}
	}
	return g
}

// remove deletes key, which must exist, and closes the gap (Knuth, TAOCP 6.4, algorithm R). Each
// following entry of the run moves into the gap unless its home is after the gap.
func (o *overflow) remove(key uint32) {
	gap := o.find(key)
	last := len(o.keys) - 1
	for i := (gap + 1) & last; o.keys[i] != 0; i = (i + 1) & last {
		if (i-o.home(o.keys[i]))&last >= (i-gap)&last {
			atomic.StoreInt64(&o.vals[gap], o.vals[i])
			atomic.StoreUint32(&o.keys[gap], o.keys[i])
			gap = i
		}
	}
	atomic.StoreUint32(&o.keys[gap], 0)
	o.used--
}

// clone returns a copy with no more cells than its entries need.
func (o *overflow) clone() *overflow {
	if o == nil || o.used == 0 {
		return nil
	}
	cells := len(o.keys)
	for cells > overflowCellsMin && (o.used+1)*4 <= cells/2*3 {
		cells /= 2
	}
	if cells < len(o.keys) {
		return o.sized(cells)
	}
	return &overflow{
		keys: append([]uint32(nil), o.keys...),
		vals: append([]int64(nil), o.vals...),
		used: o.used,
	}
}

func (o *overflow) bytes() int {
	if o == nil {
		return 0
	}
	return 12*len(o.keys) + 56
}

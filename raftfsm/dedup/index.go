package dedup

// index maps keys to the numbers of their later records in a fifo. After a split, the parts share the
// index of the undivided shard: see split.
type index[K comparable] struct {
	own    map[K]uint64
	shared []map[K]uint64 // older indexes, the newest first; nobody changes them or the slice
	end    uint64         // all numbers in shared are below end
}

func newIndex[K comparable]() index[K] { return index[K]{own: map[K]uint64{}} }

// find returns the number of a key's later record. first is the number of the oldest record in the
// fifo.
func (x *index[K]) find(key K, first uint64) (number uint64, ok bool) {
	if number, ok = x.own[key]; ok || x.shared == nil {
		return number, ok
	}
	return x.findShared(key, first)
}

// findShared searches the shared indexes, which still contain keys of popped records.
func (x *index[K]) findShared(key K, first uint64) (uint64, bool) {
	for _, older := range x.shared {
		if number, ok := older[key]; ok {
			return number, number >= first
		}
	}
	return 0, false
}

// popped notes that the oldest record was popped, which has this key and number.
func (x *index[K]) popped(key K, number uint64) {
	if x.own[key] == number {
		delete(x.own, key)
	}
	if number+1 >= x.end {
		x.shared = nil
	}
}

// split returns an index for a part of the shard. end is the end of the fifo. Afterwards both indexes
// share the previous entries and have no entries of their own.
func (x *index[K]) split(end uint64) index[K] {
	if len(x.own) > 0 {
		x.shared, x.own, x.end = append([]map[K]uint64{x.own}, x.shared...), map[K]uint64{}, end
	}
	return index[K]{own: map[K]uint64{}, shared: x.shared, end: x.end}
}

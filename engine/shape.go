package engine

// shape is the size of a segment's array and the window of ids that it covers.
type shape struct {
	buckets int
	wide    bool
	base    uint64 // first id of the window, if not wide
}

func (c Class) shapeOf(slots []slotID, first, last uint64) shape {
	id := first
	if len(slots) > 0 {
		id = slots[0].id
	}
	return c.shapeFor(len(slots), slots, id, first, last)
}

// shapeFor returns the smallest shape for the given number of rows, in a segment that owns ids
// first … last. The rows include that of id and those of slots. The shape is narrow if a narrow
// window can cover the ids of these rows. It may have more than bucketsMax buckets.
func (c Class) shapeFor(rows int, slots []slotID, id, first, last uint64) shape {
	low, high := id, id
	for _, r := range slots {
		low, high = min(low, r.id), max(high, r.id)
	}
	buckets := bucketsFor(rows, false)
	if base, ok := c.window(buckets, low, high, first, last); ok {
		return shape{buckets: buckets, base: c.floor(base)}
	}
	return shape{buckets: bucketsFor(rows, true), wide: true}
}

// window chooses the base of a narrow window for ids low … high, in a segment that owns first …
// last. It returns false if the segment must be wide. If the window cannot cover the whole range,
// it has spare ids above high and below low. In the last segment most of them are above, because
// ascending ids come there. In other segments, half are on either side. Without spare ids below,
// each id of a descending sequence would be outside of the window and cause a rebuild.
func (c Class) window(buckets int, low, high, first, last uint64) (uint64, bool) {
	// The shape begins up to a stride lower.
	span := (uint64(1)<<narrowBits(buckets)-1)*uint64(c.Stride) - uint64(c.Stride-1)
	switch {
	case last-first <= span:
		return first, true
	case last == 1<<64-1 && high-low <= span:
		return max(first, low-min(low, (span-(high-low))/4)), true
	case high-low <= span/2:
		slack := (span - (high - low)) / 2
		return max(first, low-min(low, slack)), true
	}
	return 0, false
}

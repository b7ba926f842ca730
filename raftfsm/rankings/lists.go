package rankings

import (
	"iter"
	"slices"
	"time"
	"unsafe"

	"github.com/countd/countd/engine"
)

const bucketBytes = uint64(unsafe.Sizeof(bucket{}))

// A level divides time into buckets of a unit. It keeps the closed buckets of its window, and one
// more, because a window may begin inside a bucket. A bucket of a coarser level is joined from the
// buckets of the next finer level.
var levels = [...]struct {
	unit     time.Duration
	keeps    int64
	cellsMax int // maximum number of cells of a closed bucket
}{
	{5 * time.Second, 12, 2048},
	{time.Minute, 60, 4096},
	{30 * time.Minute, 48, 4096},
}

// numberOn converts the number of a bucket of the level finer to the number of the bucket of the
// level that contains it. The levels may be equal.
func numberOn(level, finer int, number int64) int64 {
	return number / int64(levels[level].unit/levels[finer].unit)
}

// lists holds the gains of the ids of a shard. Equal changes at equal times make equal lists.
type lists struct {
	tick int64 // the number of the finest level's open bucket
	open grids // the gains in the open bucket
	// closed are the closed buckets by level, ascending by number. Empty ones are left out. After a Split,
	// until the open bucket ends, the last one of the finest level may have the number tick.
	closed [len(levels)][]bucket
}

// advance closes the buckets that end at or before the beginning of a tick.
func (l *lists) advance(tick int64) {
	b := l.open.close(l.tick)
	for level := range levels {
		ended := numberOn(level, 0, l.tick)
		if ended == numberOn(level, 0, tick) {
			break // if this bucket has not ended, those of coarser levels have not either
		}
		if level > 0 {
			b = joinBuckets(l.within(level-1, ended), ended, levels[level].cellsMax)
		}
		if len(b.packed) > 0 {
			l.add(level, b)
		}
	}
	for level := range levels { // drop expired buckets only after the joins above have read them
		first := numberOn(level, 0, tick) - levels[level].keeps
		l.closed[level] = slices.DeleteFunc(l.closed[level], func(b bucket) bool { return b.number < first })
	}
	l.tick = tick
}

// add adds a closed bucket. If there is one of that number, from before a Split, add joins both.
func (l *lists) add(level int, b bucket) {
	closed := l.closed[level]
	if n := len(closed); n > 0 && closed[n-1].number == b.number {
		b = joinBuckets(slices.Values([]bucket{closed[n-1], b}), b.number, levels[level].cellsMax)
		closed = closed[:n-1]
	}
	l.closed[level] = append(closed, b)
}

// within returns the closed buckets of a level that are part of bucket number of the next level.
func (l *lists) within(level int, number int64) iter.Seq[bucket] {
	return func(yield func(bucket) bool) {
		for _, b := range l.closed[level] {
			if numberOn(level+1, level, b.number) == number && !yield(b) {
				return
			}
		}
	}
}

// joinBuckets returns the sum of buckets as the bucket with the given number.
func joinBuckets(parts iter.Seq[bucket], number int64, cellsMax int) bucket {
	var s summary
	var columns [engine.ColumnsMax][]column
	for b := range parts {
		for at, of := range b.columns {
			columns[at] = append(columns[at], of)
		}
	}
	for at := range s {
		join, of := newJoin(columns[at]), &s[at]
		of.bound = min(doubtMax, join.bound)
		for c := range join.cells {
			c.doubt = min(doubtMax, c.doubt)
			of.cells = append(of.cells, c)
		}
	}
	s.cut(cellsMax)
	return s.pack(number)
}

// bytes returns how much memory the lists take.
func (l *lists) bytes() (total uint64) {
	for i := range l.open.columns {
		total += uint64(cap(l.open.columns[i].sets)) * setBytes
	}
	for _, closed := range l.closed {
		for i := range closed {
			total += uint64(cap(closed[i].packed)) + bucketBytes
		}
	}
	return total
}

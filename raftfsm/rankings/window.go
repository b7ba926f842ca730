package rankings

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"
)

// A Window is a span of time up to now.
type Window uint8

// The windows. The number of a window is the number of its level.
const (
	Minute Window = iota
	Hour
	Day
)

var windowNames = [...]string{Minute: "1m", Hour: "1h", Day: "24h"}

func (w Window) String() string { return windowNames[w] }

// ParseWindow returns the window of a name.
func ParseWindow(name string) (Window, error) {
	if i := slices.Index(windowNames[:], name); i >= 0 {
		return Window(i), nil
	}
	return 0, fmt.Errorf("not one of 1m, 1h and 24h")
}

// Gain is the gain of a column of a row in a window. The true gain differs from Gained by at most
// Error.
type Gain struct {
	Key    uint64
	Gained int64
	Error  int64 // math.MaxInt64 if the error is unknown
}

// compare orders gains from the largest to the smallest.
func (g Gain) compare(other Gain) int {
	return cmp.Or(cmp.Compare(other.Gained, g.Gained), cmp.Compare(g.Key, other.Key))
}

// Hottest are the largest gains of a window.
type Hottest struct {
	Since time.Time // the beginning of the first bucket of the window
	// Any key outside of Gains gained at most Error more than the last of Gains. If Gains has fewer
	// elements than the limit, such a key gained at most Error.
	Error int64
	Gains []Gain // largest first; all above 0
}

// OthersAtMost returns the most that a key outside of Gains may have gained. limit is the limit of the
// query.
func (h *Hottest) OthersAtMost(limit int) int64 {
	if len(h.Gains) < limit || h.Error == math.MaxInt64 {
		return h.Error
	}
	return min(math.MaxInt64-h.Error, h.Gains[limit-1].Gained) + h.Error
}

// span holds one column of each bucket of a window.
type span struct {
	since  time.Time
	closed []column
	open   grid // a copy of the open bucket, if the window contains it
}

// window returns a column of the buckets of a window that ends at now, in Unix milliseconds. If the
// log's time is later than now, the window ends at the log's time.
func (l *lists) window(w Window, of uint8, now int64) (s span) {
	level, unit := int(w), levels[w].unit.Milliseconds()
	first := max(now/unit, numberOn(level, 0, l.tick)) - levels[w].keeps
	s.since = time.UnixMilli(first * unit)
	for _, b := range l.closed[level] {
		if b.number >= first {
			s.closed = append(s.closed, b.of(of))
		}
	}
	if numberOn(level, 0, l.tick) < first {
		return s
	}
	for ; level > 0; level-- {
		for b := range l.within(level-1, numberOn(level, 0, l.tick)) {
			s.closed = append(s.closed, b.of(of))
		}
	}
	s.open = l.open.columns[of].clone()
	return s
}

// hottest returns the largest gains of the span.
func (s *span) hottest(limit int) (hottest Hottest) {
	open := s.open.cells(nil)
	sortByKey(open)
	join := newJoin(append(s.closed, column{s.open.bound(), appendCells(nil, open)}))
	hottest.Since, hottest.Error = s.since, errorOf(join.bound)
	for c := range join.cells {
		if c.gained <= 0 {
			continue
		}
		hottest.Gains = append(hottest.Gains, Gain{c.key, c.gained, errorOf(c.doubt)})
		if len(hottest.Gains) >= 2*limit+1000 {
			hottest.Gains = TopGains(hottest.Gains, limit)
		}
	}
	hottest.Gains = TopGains(hottest.Gains, limit)
	return hottest
}

func errorOf(doubt uint64) int64 {
	if doubt >= doubtMax {
		return math.MaxInt64
	}
	return int64(doubt)
}

// TopGains sorts gains and returns the largest of them, at most limit.
func TopGains(gains []Gain, limit int) []Gain {
	slices.SortFunc(gains, Gain.compare)
	return gains[:min(len(gains), limit)]
}

// join adds up a column of several buckets.
type join struct {
	bound uint64 // any key without a cell in the buckets gained or lost at most this
	heads heads
}

func newJoin(columns []column) (j join) {
	for _, c := range columns {
		j.bound += c.bound
		j.heads.push(c)
	}
	return j
}

// cells calls yield with the sums of the cells of each key, ascending by key. A doubt of doubtMax
// or more is unknown.
func (j *join) cells(yield func(cell) bool) {
	for len(j.heads) > 0 {
		sum, doubt := cell{key: j.heads[0].cell.key}, j.bound
		for len(j.heads) > 0 && j.heads[0].cell.key == sum.key {
			h := &j.heads[0]
			sum.add(h.cell.gained)
			doubt += h.cell.doubt - h.bound
			j.heads.next()
		}
		if sum.doubt += doubt; !yield(sum) {
			return
		}
	}
}

// heads is a heap of columns by the keys of their first cells.
type heads []head

type head struct {
	cell cell // first cell, which is removed from column
	column
}

func (h *heads) push(c column) {
	if len(c.cells) == 0 {
		return
	}
	*h = append(*h, head{c.next(), c})
	for i := len(*h) - 1; i > 0 && (*h)[i].cell.key < (*h)[(i-1)/2].cell.key; i = (i - 1) / 2 {
		(*h)[i], (*h)[(i-1)/2] = (*h)[(i-1)/2], (*h)[i]
	}
}

// next replaces the first cell of the heap by the next cell of the same column, or removes the
// column if it has no more cells.
func (h *heads) next() {
	all := *h
	if first := &all[0]; len(first.cells) > 0 {
		first.cell = first.column.next()
	} else {
		all[0] = all[len(all)-1]
		all = all[:len(all)-1]
		*h = all
	}
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(all); child++ {
			if all[child].cell.key < all[least].cell.key {
				least = child
			}
		}
		if least == i {
			return
		}
		all[i], all[least] = all[least], all[i]
		i = least
	}
}

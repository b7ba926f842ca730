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

// The windows. Each has the number of its level.
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

// Gain is what a column of a row gained in a window. The true gain is within Error of Gained.
type Gain struct {
	Key    uint64
	Gained int64
	Error  int64 // math.MaxInt64 if it is unknown
}

// compare orders the largest gain first.
func (g Gain) compare(other Gain) int {
	return cmp.Or(cmp.Compare(other.Gained, g.Gained), cmp.Compare(g.Key, other.Key))
}

// Hottest are the largest gains of a window.
type Hottest struct {
	Since time.Time // the buckets of the window begin here
	// Any key outside of Gains gained at most Error more than the last of Gains, or at most Error if Gains
	// has fewer than the limit.
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

// span is one column of the buckets of a window.
type span struct {
	since  time.Time
	closed []column
	open   grid // a copy of the open bucket, if the window contains it
}

// window returns a column of the buckets of a window that ends at a time, in Unix milliseconds. If the log is
// ahead of that time, the window ends at the log's time.
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

// TopGains sorts gains and returns the largest ones.
func TopGains(gains []Gain, limit int) []Gain {
	slices.SortFunc(gains, Gain.compare)
	return gains[:min(len(gains), limit)]
}

// join adds up a column of several buckets.
type join struct {
	bound uint64 // of a cell that is in no bucket
	heads heads
}

func newJoin(columns []column) (j join) {
	for _, c := range columns {
		j.bound += c.bound
		j.heads.push(c)
	}
	return j
}

// cells calls yield with the cells, ascending by key, until none is left. A doubt of doubtMax or more is unknown.
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
	cell cell // removed from the column
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

// next replaces the first cell by the next one of its column.
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

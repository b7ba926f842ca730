package rankings

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec"
)

// This is the section of hot lists in a snapshot. bucket.go describes the forms of a closed bucket
// and of a cell.
//
//	number of the open bucket of 5 s (uvarint) | columns of it (uvarint) | column …, ascending
//	| closed buckets of each level, the finest first
//	column:   number (1) | sets (uvarint), a power of two | set …
//	set:      cells (1), up to 8 | cell …, ascending by key | if there are 8: bound (uvarint) | sum of others (uvarint)
//	closed buckets:  their number (uvarint), each, ascending: number of the level's open bucket less its number (uvarint) | bucket
//
// After a Split, one more bucket of 5 s may have the number of the open bucket.

// HotView contains the lists of a shard as they were between two entries.
type HotView struct{ lists }

// Capture returns the lists as of the newest entry.
func (h *HotLists) Capture() *HotView {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := &HotView{h.mu.lists}
	for i := range v.open.columns {
		v.open.columns[i] = v.open.columns[i].clone()
	}
	for level := range v.closed {
		v.closed[level] = slices.Clone(v.closed[level])
	}
	return v
}

// Write writes the section. If no entry has changed the lists, it writes nothing.
func (v *HotView) Write(w *codec.StreamWriter) error {
	if v.tick == 0 && v.open.sets == 0 && len(v.closed[0]) == 0 {
		return nil
	}
	return w.Section(codec.StreamHot, v.appendTo)
}

func (l *lists) appendTo(b []byte) []byte {
	b = l.open.appendTo(binary.AppendUvarint(b, uint64(l.tick)))
	for level, closed := range l.closed {
		b = binary.AppendUvarint(b, uint64(len(closed)))
		for i := range closed {
			b = binary.AppendUvarint(b, uint64(numberOn(level, 0, l.tick)-closed[i].number))
			b = append(b, closed[i].packed...)
		}
	}
	return b
}

func (g *grids) appendTo(b []byte) []byte {
	columns := 0
	for i := range g.columns {
		if len(g.columns[i].sets) > 0 {
			columns++
		}
	}
	b = binary.AppendUvarint(b, uint64(columns))
	var cells []cell
	for i := range g.columns {
		of := &g.columns[i]
		if len(of.sets) == 0 {
			continue
		}
		b = binary.AppendUvarint(append(b, byte(i)), uint64(len(of.sets)))
		for number := range of.sets {
			s := &of.sets[number]
			cells = slices.AppendSeq(cells[:0], s.all(uint64(number)))
			sortByKey(cells)
			if b = appendCells(append(b, byte(len(cells))), cells); len(cells) == ways {
				b = binary.AppendUvarint(binary.AppendUvarint(b, s.bound), uint64(of.fronts[number].others))
			}
		}
	}
	return b
}

// Load loads the section of a snapshot into empty lists.
func (h *HotLists) Load(p []byte) error {
	all, err := parseLists(p)
	if err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.mu.loaded {
		return fmt.Errorf("%w: two sections of hot lists", codec.ErrSnapshot)
	}
	h.mu.lists, h.mu.loaded = *all, true
	return nil
}

// CheckHot returns an error if p is not a section of hot lists.
func CheckHot(p []byte) error {
	_, err := parseLists(p)
	return err
}

func parseLists(p []byte) (*lists, error) {
	r := wire.Reader{Rest: p}
	l := &lists{tick: int64(r.UintTo(math.MaxInt64 / uint64(levels[0].unit.Milliseconds())))}
	l.open.parse(&r)
	for level := range levels {
		at, open, before := &levels[level], numberOn(level, 0, l.tick), int64(-1)
		last := open - 1
		if level == 0 {
			last = open // a bucket from before a Split
		}
		for range r.CountTo(3, int(at.keeps+last+1-open)) {
			b := bucket{number: open - int64(r.UintTo(uint64(at.keeps)))}
			if b.packed = parsePacked(&r, at.cellsMax); r.Err == nil && (b.packed == nil || b.number <= before || b.number > last) {
				r.Fail(fmt.Sprintf("closed bucket %d after %d", b.number, before))
			}
			before = b.number
			l.closed[level] = append(l.closed[level], b)
		}
	}
	if err := r.End(); err != nil {
		return nil, fmt.Errorf("%w: hot lists: %w", codec.ErrSnapshot, err)
	}
	return l, nil
}

func (g *grids) parse(r *wire.Reader) {
	before := -1
	for range r.CountTo(3, engine.ColumnsMax) {
		column, sets := int(r.Byte()), r.CountTo(1, setsMax)
		if r.Err == nil && (column <= before || column >= engine.ColumnsMax || sets < setsMin || sets&(sets-1) != 0) {
			r.Fail(fmt.Sprintf("%d sets of column %d after %d", sets, column, before))
		}
		if r.Err != nil {
			return
		}
		before = column
		of := &g.columns[column]
		if g.widen(of, sets); g.sets > setsOfAll+setsFair*engine.ColumnsMax {
			r.Fail("too many sets")
		}
		for number := range of.sets {
			of.parse(uint64(number), r)
		}
	}
}

// parse reads one set of the grid.
func (of *grid) parse(number uint64, r *wire.Reader) {
	cells := r.CountTo(cellBytesMin, ways)
	for way := range cells {
		c := parseCell(r)
		if r.Err == nil && (of.numberOf(c.key) != number || way > 0 && c.key <= of.sets[number].cells[way-1].key) {
			r.Fail(fmt.Sprintf("key %d in set %d", c.key, number))
		}
		of.put(number, way, c)
	}
	if cells == ways {
		of.raise(number, r.UintTo(doubtMax))
		h := &of.fronts[number]
		h.others = uint32(r.UintTo(uint64(max(1, h.gate) - 1)))
	}
}

package client

import (
	"math"
	"slices"
)

// Sums collects increments of one keyspace as ops, and merges the increments of a row. The
// resulting ops depend only on what was added, not on time. The zero value is empty. Its methods
// must not be called concurrently.
//
// The ops lead to the same counts as if each increment was applied by itself, in the order of Add.
// This holds even if a column has a floor, because Sums merges only increments of one sign:
// max(floor, c-a-b) is max(floor, max(floor, c-a)-b). It does not merge increments of both signs.
// With a floor of 0 and a count of 5, -7 and then +3 give 3, but their sum, -4, gives 1.
type Sums struct {
	ops  []Op
	rows map[ID]sumsRow
	has  signs // signs of all ops
}

type sumsRow struct {
	newest int   // index of the newest op of the row
	has    signs // signs of all ops of the row
}

type signs uint8

const (
	positive signs = 1 << iota
	negative
	bothSigns = positive | negative
)

func signsOf(deltas Counts) (s signs) {
	for _, d := range deltas {
		switch {
		case d.Value > 0:
			s |= positive
		case d.Value < 0:
			s |= negative
		}
	}
	return s
}

// InOrder reports whether s must be applied before o is sent. Because of floors, the order matters
// for a row that is in s and in o and has deltas of both signs.
func (s *Sums) InOrder(o *Sums) bool {
	if s.has|o.has != bothSigns {
		return false
	}
	for id, row := range o.rows {
		if has := s.rows[id].has; has != 0 && has|row.has == bothSigns {
			return true
		}
	}
	return false
}

// Add adds deltas to a row, at most one for each column. Add begins another op if a sum would not
// fit int64, or would mix deltas of both signs.
func (s *Sums) Add(id ID, deltas Counts) {
	if !s.merge(id, deltas) {
		s.append(id, deltas)
	}
}

// Len returns the number of ops.
func (s *Sums) Len() int { return len(s.ops) }

// Ops returns the ops in the order in which Add began them. The caller must not change them.
func (s *Sums) Ops() []Op { return s.ops }

// merge adds either all deltas to the newest op of a row, or none. It reports whether it added
// them.
func (s *Sums) merge(id ID, deltas Counts) bool {
	row, ok := s.rows[id]
	if !ok {
		return false
	}
	op := &s.ops[row.newest]
	for _, d := range deltas {
		v, _ := op.Cells.Get(d.Column)
		if !sumFits(v, d.Value) || v > 0 && d.Value < 0 || v < 0 && d.Value > 0 {
			return false
		}
	}
	s.note(id, row.newest, deltas)
	for _, d := range deltas {
		at := slices.IndexFunc(op.Cells, func(c Count) bool { return c.Column == d.Column })
		if at < 0 {
			op.Cells = append(op.Cells, d)
			continue
		}
		op.Cells[at].Value += d.Value
	}
	return true
}

func (s *Sums) append(id ID, deltas Counts) {
	if s.rows == nil {
		s.rows = map[ID]sumsRow{}
	}
	s.note(id, len(s.ops), deltas)
	s.ops = append(s.ops, Op{ID: id, Cells: slices.Clone(deltas)})
}

// note records the newest op of a row and the signs of its deltas.
func (s *Sums) note(id ID, newest int, deltas Counts) {
	has := signsOf(deltas)
	s.has |= has
	s.rows[id] = sumsRow{newest, s.rows[id].has | has}
}

func sumFits(a, b int64) bool {
	if b > 0 {
		return a <= math.MaxInt64-b
	}
	return a >= math.MinInt64-b
}

package client

import (
	"math"
	"slices"
)

// Sums collects increments of one keyspace as ops, and merges those of the same row. The
// resulting ops depend only on what was added, not on time. The zero value is empty. Its
// methods must not be called concurrently.
type Sums struct {
	ops []Op
	at  map[ID]int // index of the row's newest op
}

// Add adds deltas, each of another column, to a row. Where a sum does not fit
// int64 the deltas become an op of their own.
func (s *Sums) Add(id ID, deltas Counts) {
	if !s.merge(id, deltas) {
		s.append(id, deltas)
	}
}

// Len returns the number of ops.
func (s *Sums) Len() int { return len(s.ops) }

// Ops returns the ops in the order in which their rows first came. They are
// s's own until it is dropped.
func (s *Sums) Ops() []Op { return s.ops }

// merge adds deltas to the existing op of a row, all of them or none.
func (s *Sums) merge(id ID, deltas Counts) bool {
	i, ok := s.at[id]
	if !ok {
		return false
	}
	op := &s.ops[i]
	for _, d := range deltas {
		if v, _ := op.Cells.Get(d.Column); !sumFits(v, d.Value) {
			return false
		}
	}
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
	if s.at == nil {
		s.at = map[ID]int{}
	}
	s.at[id] = len(s.ops)
	s.ops = append(s.ops, Op{ID: id, Cells: slices.Clone(deltas)})
}

func sumFits(a, b int64) bool {
	if b > 0 {
		return a <= math.MaxInt64-b
	}
	return a >= math.MinInt64-b
}

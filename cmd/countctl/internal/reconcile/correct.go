package reconcile

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"time"
)

// This file adds drifts to rows, each once, though runs are killed between any two writes, writes
// of a killed run arrive late, and two runs correct the same rows at once.
//
// The writes of a run have rising numbers, and all runs are one producer of each column. A shard
// refuses a write whose number is 64 or more below the highest that it took of the column. A run
// first adds 0 to each row that differs: the fence. Once all shards took it, the run compares the
// rows again, and adds what they lack. So a shard orders runs by when it took their fences:
//
//   - It takes the fence of an earlier run before that run sends its first correction. If it
//     takes the fence of a later run after that, this fence has a number above these corrections.
//     From then on it refuses the corrections that still arrive. The others had arrived before,
//     so the later run sees them when it compares the rows again.
//   - So the difference that this comparison finds stays until this run or a later one adds it.
//   - Once it took the fence of a later run, it refuses the next correction of this run, which
//     ends with ErrPassed. The later run sees what was corrected before.
//   - A row that does not differ gets no fence. A late correction of a killed run may still reach
//     it, if something else corrected the row in the meantime. The next run finds the difference.
//   - A write may reach only some of its shards. The next run finds the others.
//
// Numbers begin with the time in nanoseconds and rise by one a write, so they stay below the
// clock, and a later run begins above them. Where the clock of an earlier run was ahead, the fence
// is refused, and repeated with higher numbers until a shard takes it. The argument fails if a clock
// is so far behind that a fence gets one of the few thousand numbers of an earlier run.

// Writer adds to rows.
type Writer interface {
	// Add adds to a column of rows, in each shard once for a number. It returns ErrPassed if a
	// shard took a number of the column before that is far above.
	Add(ctx context.Context, column int, number uint64, adds []Drift) error
}

// ErrPassed is returned by Writer.Add, and where another run on the same rows began after this one.
var ErrPassed = errors.New("another run of reconcile has begun meanwhile")

const (
	// correctionMax bounds the columns of rows that are written together, except that a row is never
	// split. Other writes wait no longer for it than for one of their own kind.
	correctionMax = 500
	// fenceStep is by how much the number of a fence rises that was refused; it doubles each time.
	fenceStep = uint64(time.Second)
	fenceMax  = 32 // tries: over a hundred years
)

// Correction is the writing part of one run.
type Correction struct {
	writer Writer
	number uint64 // of the last write
}

// NewCorrection returns a correction that begins now.
func NewCorrection(w Writer, now time.Time) *Correction {
	return &Correction{writer: w, number: uint64(now.UnixNano())}
}

// Fence makes the shards of rows that differ refuse what earlier runs have sent them. The rows
// are to be compared again before they are corrected.
func (c *Correction) Fence(ctx context.Context, drifts []Drift) error {
	for part := range parts(drifts) {
		for column, adds := range byColumn(part) {
			for i := range adds {
				adds[i].Add = 0
			}
			if err := c.fence(ctx, column, adds); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Correction) fence(ctx context.Context, column int, adds []Drift) error {
	for try, step := 1, fenceStep; ; try, step = try+1, 2*step {
		c.number++
		err := c.writer.Add(ctx, column, c.number, adds)
		if err == nil || !errors.Is(err, ErrPassed) || try == fenceMax {
			return err
		}
		c.number += step
	}
}

// Correct adds what rows lack, and returns how many it corrected. Fence was called for the rows.
func (c *Correction) Correct(ctx context.Context, drifts []Drift) (rows int, err error) {
	for part := range parts(drifts) {
		for column, adds := range byColumn(part) {
			c.number++
			if err := c.writer.Add(ctx, column, c.number, adds); err != nil {
				return rows, err
			}
		}
		rows += Rows(part)
	}
	return rows, nil
}

// parts yields drifts, which are in order of their rows, in parts of whole rows.
func parts(drifts []Drift) iter.Seq[[]Drift] {
	return func(yield func([]Drift) bool) {
		for len(drifts) > 0 {
			n := min(correctionMax, len(drifts))
			for n < len(drifts) && drifts[n].ID == drifts[n-1].ID {
				n++
			}
			if !yield(drifts[:n]) {
				return
			}
			drifts = drifts[n:]
		}
	}
}

// byColumn yields copies of the drifts of each column.
func byColumn(drifts []Drift) iter.Seq2[int, []Drift] {
	columns := map[int][]Drift{}
	for _, d := range drifts {
		columns[d.Column] = append(columns[d.Column], d)
	}
	return func(yield func(int, []Drift) bool) {
		for _, column := range slices.Sorted(maps.Keys(columns)) {
			if !yield(column, columns[column]) {
				return
			}
		}
	}
}

// Rows returns how many rows drifts have, which are in order of their rows.
func Rows(drifts []Drift) (rows int) {
	for i, d := range drifts {
		if i == 0 || drifts[i-1].ID != d.ID {
			rows++
		}
	}
	return rows
}

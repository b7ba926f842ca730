package bulk

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"time"
)

// This file adds each drift to its row exactly once, even if a run is killed between any two
// writes, if its writes arrive late, or if two runs correct the same rows at once.
//
// The writes of a run have rising numbers, and all runs are one producer of each column. A shard
// refuses a write whose number is 64 or more below the highest that it has accepted for the column.
// A run first adds 0 to each row that differs: the fence. Once all shards have accepted the fence,
// the run compares the rows again, and adds the remaining drifts. So the order in which a shard
// accepts the fences is the order of the runs in that shard:
//
//   - A shard accepts the fence of an earlier run before that run sends its first correction. If it
//     then accepts the fence of a later run, that fence has a higher number than these corrections.
//     From then on, the shard refuses corrections of the earlier run. All corrections that it
//     applied came before, so the later run sees them when it compares the rows again.
//   - So a difference that a run finds in this second comparison stays until that run or a later
//     one corrects it.
//   - Once a shard has accepted the fence of a later run, it refuses the next correction of the
//     earlier run, and that run ends with ErrOvertaken. The later run sees the corrections that
//     were made before.
//   - A row that does not differ gets no fence. If something else corrected the row meanwhile, a
//     late correction of a killed run may still reach it. The next run finds that difference.
//   - A write may reach only some of its shards. The next run finds the drifts that remain in the
//    other shards.
//
// Numbers begin with the time in nanoseconds and rise by one for each write. So they stay below
// the clock, and a later run begins above them. If the clock of an earlier run was ahead, shards
// refuse the fence, and the run repeats it with higher numbers until they accept it. The argument
// fails if a clock is so far behind that a fence gets one of the few thousand numbers of an
// earlier run.

// DriftWriter adds to rows.
type DriftWriter interface {
	// Add adds to a column of rows. Each shard applies a number once. Add returns ErrOvertaken
	// if a shard has accepted a far higher number for the column.
	Add(ctx context.Context, column int, number uint64, adds []Drift) error
}

// ErrOvertaken is returned if another run on the same rows began after this one.
var ErrOvertaken = errors.New("another run of reconcile has begun meanwhile")

const (
	// correctionMax bounds the drifts in one write, except that a row is never split. With this
	// bound, a write of corrections delays other writes no longer than an ordinary write does.
	correctionMax = 500
	// A refused fence is repeated with a number that is higher by fenceStep. The step
	// doubles each time.
	fenceStep = uint64(time.Second)
	fenceMax  = 32 // number of tries; the sum of their steps exceeds a hundred years
)

// Correction is the writing part of one run.
type Correction struct {
	writer DriftWriter
	number uint64 // number of the last write
}

// NewCorrection returns a correction that begins now.
func NewCorrection(w DriftWriter, now time.Time) *Correction {
	return &Correction{writer: w, number: uint64(now.UnixNano())}
}

// Fence makes the shards of rows that differ refuse late writes of earlier runs. The caller must
// compare the rows again before it corrects them.
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
		if err == nil || !errors.Is(err, ErrOvertaken) || try == fenceMax {
			return err
		}
		c.number += step
	}
}

// Correct adds the drifts to their rows, and returns how many rows it corrected. The caller has
// called Fence for these rows.
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

// parts yields the drifts in parts of whole rows. The drifts are in the order of their
// rows.
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

// Rows returns the number of rows that have drifts. The drifts are in the order of their
// rows.
func Rows(drifts []Drift) (rows int) {
	for i, d := range drifts {
		if i == 0 || drifts[i-1].ID != d.ID {
			rows++
		}
	}
	return rows
}

package bulk

import (
	"context"
	"errors"
	"iter"
	"maps"
	"slices"
	"time"
)

// This file adds each drift to its row exactly once. This holds even if a run is killed between two
// writes, if its writes arrive late, or if two runs correct the same rows at once.
//
// The writes of a run have rising numbers, and all runs use the same producer for a column. A shard
// refuses a write whose number is 64 or more below the highest that it has accepted for the column.
// A run first adds 0 to each row that differs. This write is the fence of the run. Once all shards
// have accepted the fence, the run compares the rows again, and adds the remaining drifts. In each
// shard, the accepted fences define an order of the runs:
//
//   - A shard accepts the fence of an earlier run before that run sends its first correction. If it
//     then accepts the fence of a later run, that fence has a higher number than these corrections.
//     From then on, the shard refuses corrections of the earlier run. The shard applied all other
//     corrections of the earlier run before the fence of the later run. So the later run sees these
//     corrections when it compares the rows again.
//   - So a difference that a run finds in its second comparison stays until that run or a later one
//     corrects it.
//   - Once a shard has accepted the fence of a later run, it refuses the next correction of the
//     earlier run, and the earlier run ends with ErrOvertaken.
//   - A run does not fence a row without a drift. If a client corrected that row after an earlier
//     run was killed, a late correction of the killed run may still change it. The next run finds
//     that difference.
//   - A write may reach only some of its shards. The next run finds the drifts that remain in the
//    other shards.
//
// The numbers of a run begin with the time in nanoseconds and rise by one for each write. So they
// rise more slowly than the clock, and a later run begins above them. If the clock of an earlier
// run was ahead, shards refuse the fence, and the run repeats it with higher numbers until they
// accept it. The argument fails if a clock is so far behind that a fence gets one of the few
// thousand numbers of an earlier run.

// DriftWriter adds drifts to the rows of the server.
type DriftWriter interface {
	// Add adds the Add field of each drift to the given column of the drift's row. It sends all
	// drifts in one write with the given number. Each shard applies a number once. Add returns
	// ErrOvertaken if a shard has accepted a number for the column that is at least 64 higher.
	Add(ctx context.Context, column int, number uint64, adds []Drift) error
}

// ErrOvertaken is returned to a run if a later run has fenced its rows.
var ErrOvertaken = errors.New("another run of reconcile has begun meanwhile")

const (
	// correctionMax bounds the drifts in one write. The drifts of one row stay in one write, so a
	// write may have a few more. With this bound, a write of corrections delays other writes no
	// longer than an ordinary write does.
	correctionMax = 500
	// A refused fence is repeated with a number that is higher by fenceStep. The step
	// doubles each time.
	fenceStep = uint64(time.Second)
	fenceMax  = 32 // number of tries; the sum of their steps is more than a hundred years
)

// Correction writes the fence and the corrections of one run.
type Correction struct {
	writer DriftWriter
	number uint64 // number of the last write
}

// NewCorrection returns a Correction whose numbers begin with the time now.
func NewCorrection(w DriftWriter, now time.Time) *Correction {
	return &Correction{writer: w, number: uint64(now.UnixNano())}
}

// Fence writes the fence of the run: from then on, the shards of the rows in drifts refuse late
// writes of earlier runs. The caller must compare the rows again before it corrects them.
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

// Correct adds the drifts to their rows, and returns how many rows it corrected. The caller must
// have called Fence for these rows.
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

// parts splits the drifts into parts for one write each. All drifts of a row are in the same part.
// The drifts must be sorted by row.
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

// byColumn yields each column with a copy of its drifts.
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

// Rows returns the number of rows in drifts, which must be sorted by row.
func Rows(drifts []Drift) (rows int) {
	for i, d := range drifts {
		if i == 0 || drifts[i-1].ID != d.ID {
			rows++
		}
	}
	return rows
}

package bulk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/countd/countd/client"
)

// SourcePosition is the position of a message in a partition of a source.
type SourcePosition struct{ Hi, Lo uint64 }

// Less reports whether p is below q.
func (p SourcePosition) Less(q SourcePosition) bool {
	return cmp.Or(cmp.Compare(p.Hi, q.Hi), cmp.Compare(p.Lo, q.Lo)) < 0
}

// String returns "Lo" if Hi is 0, else "Hi-Lo".
func (p SourcePosition) String() string {
	if p.Hi == 0 {
		return strconv.FormatUint(p.Lo, 10)
	}
	return strconv.FormatUint(p.Hi, 10) + "-" + strconv.FormatUint(p.Lo, 10)
}

// ParsePosition parses the text of a SourcePosition in the format of String.
func ParsePosition(text string) (SourcePosition, error) {
	hi, lo, both := strings.Cut(text, "-")
	if !both {
		hi, lo = "0", text
	}
	h, err1 := strconv.ParseUint(hi, 10, 64)
	l, err2 := strconv.ParseUint(lo, 10, 64)
	if err1 != nil || err2 != nil {
		return SourcePosition{}, fmt.Errorf("%q is no position: it is a number, or two with a hyphen between them", text)
	}
	return SourcePosition{h, l}, nil
}

// Event is the effect of a message on one column of a row.
type Event struct {
	Position SourcePosition
	ID       client.ID
	Column   int // index of the column in the compared columns
	Set      bool
	Value    int64
	Floor    *int64 // floor of an increment; nil for none
}

// Window holds two positions of a shard in a partition: From before the rows were read, and To
// after.
type Window struct {
	Partition uint32
	From, To  SourcePosition
}

// Row is a row as the server has it.
type Row struct {
	ID     client.ID
	Counts []int64 // counts of the compared columns
	Shard  int
}

// DriftReader provides the rows and messages that Compare reads.
type DriftReader interface {
	// Past returns the effects of a partition's messages, in order, beginning at a position. next
	// is the position after these messages. If there are no messages yet, next equals the argument
	// from.
	Past(ctx context.Context, partition uint32, from SourcePosition) (events []Event, next SourcePosition, err error)
	// Rows returns rows in the order of ids, and the windows of their shards. Without ids
	// it returns the windows of all shards.
	Rows(ctx context.Context, ids []client.ID) (rows []Row, shards map[int][]Window, err error)
	// Wait waits a moment, or until ctx ends.
	Wait(ctx context.Context) error
}

// errBehind is returned if the shards do not count the source up to the position of the truth
// within triesMax tries.
var errBehind = errors.New("the source has not counted up to the position of the truth")

// errMovedBack is returned if a seek or a restore moved a shard back during the comparison.
var errMovedBack = errors.New("the source was moved back meanwhile: begin again")

// Drift is a column of a row that differs from the truth.
type Drift struct {
	ID     client.ID
	Column int
	Want   int64 // count that the row should have had when Row was read
	Row    int64
	Add    int64 // Want − Row
}

// Result is the result of Compare.
type Result struct {
	Compared  int         // rows
	Differ    int         // rows
	Drifts    []Drift     // sorted by id and column
	Unsettled []client.ID // rows that had a message in the window at every try, so that Compare could not judge them

	comparison *comparison
}

const (
	rowsMax  = 10_000 // rows in one call of DriftReader.Rows; each call appends two entries to the log of each shard
	triesMax = 30     // maximum number of tries to compare a row, and of waits for the source to reach a position
)

// Truth holds the counts that rows should have. Compare adds the effects of messages to these
// counts.
type Truth struct {
	columns int
	offsets map[client.ID]int // by id: index of the row's first column in counts
	counts  []int64
}

// NewTruth returns a truth without rows, for rows with this number of columns.
func NewTruth(columns int) *Truth { return &Truth{columns: columns, offsets: map[client.ID]int{}} }

// Row returns the counts of a row. It adds the row if it is missing.
func (t *Truth) Row(id client.ID) []int64 {
	i, there := t.offsets[id]
	if !there {
		i = len(t.counts)
		t.offsets[id] = i
		t.counts = append(t.counts, make([]int64, t.columns)...)
	}
	return t.counts[i : i+t.columns]
}

// Has reports whether the truth has a row.
func (t *Truth) Has(id client.ID) bool {
	_, there := t.offsets[id]
	return there
}

// Len returns the number of rows.
func (t *Truth) Len() int { return len(t.offsets) }

// comparison is one run of Compare.
type comparison struct {
	server DriftReader
	truth  *Truth
	next   map[uint32]SourcePosition // by partition: position from which Past reads next
	low    map[uint32]SourcePosition // by partition: the truth has all messages below this position
	late   map[client.ID][]late      // by row: messages that were read but are not in the truth
}

type late struct {
	partition uint32
	Event
}

// Why Compare is correct: The truth has the correct rows at a position P of a source: it counts all
// messages below P. Compare reads a row together with a window [From, To] of its shard. The row has
// counted all messages below From, and none at or above To. So if no message of the row lies in
// [From, To), the row should be
//
//	truth + messages of the row in [P, From)
//
// The drift of the row is this sum minus the row. If a message lies in the window, the row may or
// may not have counted it, so Compare reads the row again.
//
// Invariant: a drift is the difference between the truth and the row at one moment of the row's
// shard. A later increment changes both by the same amount. So the drift may be added to the row at
// any later time, but only once. Two kinds of messages break the invariant: one that sets a value,
// and one whose floor changes only one of the two counts. Therefore callers compare corrected rows
// once more.

// Compare compares all rows of truth, and the rows in messages above the positions. positions has
// the position of the truth in each partition. It is empty if the rows have no source; then
// server.Rows must return no windows.
func Compare(ctx context.Context, server DriftReader, truth *Truth, positions map[uint32]SourcePosition) (*Result, error) {
	c := &comparison{server: server, truth: truth, next: map[uint32]SourcePosition{}, low: map[uint32]SourcePosition{}, late: map[client.ID][]late{}}
	if err := c.begin(ctx, positions); err != nil {
		return nil, err
	}
	ids := make([]client.ID, 0, truth.Len())
	for id := range truth.offsets {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, client.ID.Compare)
	return c.all(ctx, ids)
}

// Again compares the rows of r.Drifts once more.
func (r *Result) Again(ctx context.Context) (*Result, error) {
	var ids []client.ID
	for _, d := range r.Drifts {
		ids = append(ids, d.ID)
	}
	return r.comparison.all(ctx, slices.Compact(ids))
}

// Still compares the rows of r.Drifts once more. It returns the drifts that have not changed.
func (r *Result) Still(ctx context.Context) ([]Drift, error) {
	again, err := r.Again(ctx)
	if err != nil {
		return nil, err
	}
	type lack struct {
		id     client.ID
		column int
	}
	before := make(map[lack]int64, len(r.Drifts))
	for _, d := range r.Drifts {
		before[lack{d.ID, d.Column}] = d.Add
	}
	return slices.DeleteFunc(again.Drifts, func(d Drift) bool { return before[lack{d.ID, d.Column}] != d.Add }), nil
}

// all compares rows. It compares a row again, up to triesMax times, if the row had a message in the
// window.
func (c *comparison) all(ctx context.Context, ids []client.ID) (*Result, error) {
	out := &Result{Compared: len(ids), comparison: c}
	for try := 0; len(ids) > 0 && try < triesMax; try++ {
		var again []client.ID
		for part := range slices.Chunk(ids, max(1, rowsMax>>try)) {
			unsettled, err := c.compare(ctx, part, out)
			if err != nil {
				return nil, err
			}
			again = append(again, unsettled...)
		}
		if ids = again; len(ids) > 0 {
			if err := c.server.Wait(ctx); err != nil {
				return nil, err
			}
		}
	}
	out.Unsettled = ids
	slices.SortFunc(out.Drifts, func(a, b Drift) int { return cmp.Or(a.ID.Compare(b.ID), cmp.Compare(a.Column, b.Column)) })
	return out, nil
}

// begin adds to the truth the messages below the lowest position of all shards.
func (c *comparison) begin(ctx context.Context, positions map[uint32]SourcePosition) error {
	if len(positions) == 0 {
		return nil
	}
	for try := 0; ; try++ {
		_, shards, err := c.server.Rows(ctx, nil)
		if err != nil {
			return err
		}
		clear(c.low)
		for _, windows := range shards {
			for _, w := range windows {
				if low, is := c.low[w.Partition]; !is || w.From.Less(low) {
					c.low[w.Partition] = w.From
				}
			}
		}
		behind := error(nil)
		for partition, low := range c.low {
			from, is := positions[partition]
			if !is {
				return fmt.Errorf("the truth has no position of partition %d", partition)
			}
			c.next[partition] = from
			if low.Less(from) {
				behind = fmt.Errorf("%w: partition %d is at %s, and the truth at %s", errBehind, partition, low, from)
			}
		}
		for partition := range positions {
			if _, is := c.low[partition]; !is {
				return fmt.Errorf("the source has no partition %d", partition)
			}
		}
		if behind == nil {
			break
		}
		if try == triesMax {
			return behind
		}
		if err := c.server.Wait(ctx); err != nil {
			return err
		}
	}
	for partition, low := range c.low {
		if err := c.readTo(ctx, partition, low); err != nil {
			return err
		}
	}
	return nil
}

// readTo reads the messages of a partition at least up to a position.
func (c *comparison) readTo(ctx context.Context, partition uint32, to SourcePosition) error {
	for try := 0; c.next[partition].Less(to); {
		events, next, err := c.server.Past(ctx, partition, c.next[partition])
		if err != nil {
			return err
		}
		for _, e := range events {
			if e.Position.Less(c.low[partition]) {
				row := c.truth.Row(e.ID)
				if row[e.Column], err = e.apply(row[e.Column]); err != nil {
					return err
				}
				continue
			}
			c.truth.Row(e.ID) // adds a missing row: if begin reads the message, Compare also compares this row
			c.late[e.ID] = append(c.late[e.ID], late{partition, e})
		}
		if !c.next[partition].Less(next) {
			if try++; try == triesMax {
				return fmt.Errorf("partition %d has no messages from %s on, though a shard has counted up to %s", partition, next, to)
			}
			if err := c.server.Wait(ctx); err != nil {
				return err
			}
		}
		c.next[partition] = next
	}
	return nil
}

// apply returns the count that results if the event is applied to count.
func (e *Event) apply(count int64) (int64, error) {
	if e.Set {
		return e.Value, nil
	}
	sum := count + e.Value
	if (sum > count) != (e.Value > 0) && e.Value != 0 {
		return 0, fmt.Errorf("row %s: the sum of its messages leaves 64 bits at position %s", e.ID, e.Position)
	}
	if e.Floor != nil && e.Value < 0 && sum < *e.Floor {
		return min(count, *e.Floor), nil
	}
	return sum, nil
}

// compare compares rows once, and adds the drifts to out. It returns the ids of rows that had a
// message within the window.
func (c *comparison) compare(ctx context.Context, ids []client.ID, out *Result) (unsettled []client.ID, err error) {
	rows, shards, err := c.server.Rows(ctx, ids)
	if err != nil {
		return nil, err
	}
	for _, windows := range shards {
		for _, w := range windows {
			if w.From.Less(c.low[w.Partition]) || w.To.Less(w.From) {
				return nil, errMovedBack
			}
			if err := c.readTo(ctx, w.Partition, w.To); err != nil {
				return nil, err
			}
		}
	}
	want := make([]int64, c.truth.columns)
	for _, row := range rows {
		settled, err := c.wanted(want, row.ID, shards[row.Shard])
		if err != nil {
			return nil, err
		}
		if !settled {
			unsettled = append(unsettled, row.ID)
			continue
		}
		differs := false
		for column, n := range row.Counts {
			if want[column] == n {
				continue
			}
			add := want[column] - n
			if (add > 0) != (want[column] > n) {
				return nil, fmt.Errorf("row %s: from %d to %d is no number of 64 bits", row.ID, n, want[column])
			}
			differs = true
			out.Drifts = append(out.Drifts, Drift{ID: row.ID, Column: column, Want: want[column], Row: n, Add: add})
		}
		if differs {
			out.Differ++
		}
	}
	return unsettled, nil
}

// wanted sets counts to the counts that a row should have at the beginning of its shard's windows.
// If a message of the row lies within a window, settled is false and counts is not valid.
func (c *comparison) wanted(counts []int64, id client.ID, windows []Window) (settled bool, err error) {
	copy(counts, c.truth.Row(id))
	for i := range c.late[id] {
		e := &c.late[id][i]
		w := windowOf(windows, e.partition)
		switch {
		case e.Position.Less(w.From):
			if counts[e.Column], err = e.apply(counts[e.Column]); err != nil {
				return false, err
			}
		case e.Position.Less(w.To):
			return false, nil
		}
	}
	return true, nil
}

func windowOf(windows []Window, partition uint32) Window {
	for _, w := range windows {
		if w.Partition == partition {
			return w
		}
	}
	return Window{}
}

// Bucket counts, by sign, the drifts whose size is From to To.
type Bucket struct {
	From  uint64 `json:"from"` // smallest absolute value of a drift
	To    uint64 `json:"to"`
	Above int    `json:"too_much"` // number of drifts where the row has more than the truth
	Below int    `json:"too_few"`
}

// Histogram returns a bucket for each number of decimal digits that a drift has.
func Histogram(drifts []Drift) []Bucket {
	all := map[int]*Bucket{} // by number of digits
	for _, d := range drifts {
		digits := len(strconv.FormatUint(size(d.Add), 10))
		if all[digits] == nil {
			from := uint64(math.Pow10(digits - 1))
			all[digits] = &Bucket{From: from, To: from*10 - 1}
		}
		if d.Add > 0 {
			all[digits].Below++
		} else {
			all[digits].Above++
		}
	}
	out := []Bucket{}
	for _, digits := range slices.Sorted(maps.Keys(all)) {
		out = append(out, *all[digits])
	}
	return out
}

func size(n int64) uint64 {
	if n < 0 {
		return -uint64(n)
	}
	return uint64(n)
}

// Largest returns the absolute value of the largest drift.
func Largest(drifts []Drift) (largest uint64) {
	for _, d := range drifts {
		largest = max(largest, size(d.Add))
	}
	return largest
}

// Worst returns the n largest drifts, or all if there are fewer.
func Worst(drifts []Drift, n int) []Drift {
	worst := slices.SortedStableFunc(slices.Values(drifts), func(a, b Drift) int { return cmp.Compare(size(b.Add), size(a.Add)) })
	return worst[:min(n, len(worst))]
}

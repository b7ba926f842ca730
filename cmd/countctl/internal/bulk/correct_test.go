package bulk

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/countd/countd/client"
)

// shards is a model of the shards of countd, which accept or refuse numbered writes. A shard
// accepts a number that is above the highest of its column. It also accepts each of the 63 numbers
// below the highest once.
type shards struct {
	t     *rapid.T
	rows  map[Drift]int64 // counts, by ID and Column; the other fields are zero
	taken []map[int][]uint64
	sent  []sent // writes that may still arrive, even a second time
	runs  int
}

// sent is the part of a write for one shard.
type sent struct {
	shard, column int
	number        uint64
	adds          []Drift
}

var errKilled = errors.New("killed")

func (s *shards) take(w sent) error {
	taken := &s.taken[w.shard]
	highest := uint64(0)
	if len((*taken)[w.column]) > 0 {
		highest = slices.Max((*taken)[w.column])
	}
	switch {
	case w.number+64 <= highest:
		return ErrOvertaken
	case slices.Contains((*taken)[w.column], w.number):
		return nil
	}
	(*taken)[w.column] = append((*taken)[w.column], w.number)
	for _, d := range w.adds {
		s.rows[Drift{ID: d.ID, Column: w.column}] += d.Add
	}
	return nil
}

// arrive delivers some of the sent writes.
func (s *shards) arrive() {
	for range rapid.IntRange(0, min(3, len(s.sent))).Draw(s.t, "late") {
		_ = s.take(s.sent[rapid.IntRange(0, len(s.sent)-1).Draw(s.t, "which")])
	}
}

// run executes one run of reconcile, whose truth is 0 for each row. If killed is set, the run may
// end at any write with errKilled.
func (s *shards) run(killed bool) error {
	s.runs++
	number := uint64(s.runs) << 10 // the numbers of two runs differ by more than 64, whatever their clocks
	if killed {
		number += uint64(rapid.IntRange(-3, 3).Draw(s.t, "clock")+3) << 32
	}
	run := &Correction{writer: &runWriter{s, killed}, number: number}
	all := s.drifts(nil)
	s.arrive()
	if err := run.Fence(s.t.Context(), all); err != nil {
		return err
	}
	s.arrive()
	still := s.drifts(append([]Drift{}, all...))
	_, err := run.Correct(s.t.Context(), still)
	return err
}

// drifts returns the drifts of all rows. If before is not nil, drifts leaves out each drift that
// before does not contain.
func (s *shards) drifts(before []Drift) (all []Drift) {
	for id := range uint64(6) {
		for column := range 2 {
			d := Drift{ID: client.Number(id), Column: column, Add: -s.rows[Drift{ID: client.Number(id), Column: column}]}
			if d.Add != 0 && (before == nil || slices.Contains(before, d)) {
				all = append(all, d)
			}
		}
	}
	return all
}

// runWriter is the DriftWriter of one run.
type runWriter struct {
	*shards
	killed bool // the run may end at any write
}

func (w *runWriter) Add(_ context.Context, column int, number uint64, adds []Drift) error {
	if w.runs < 6 && rapid.IntRange(0, 5).Draw(w.t, "another run") == 0 {
		_ = w.run(rapid.Bool().Draw(w.t, "killed too"))
	}
	w.arrive()
	passed := error(nil)
	for shard := range w.taken {
		part := sent{shard: shard, column: column, number: number}
		for _, d := range adds {
			if numberOf(d.ID)%len(w.taken) == shard {
				part.adds = append(part.adds, d)
			}
		}
		if len(part.adds) == 0 {
			continue
		}
		w.sent = append(w.sent, part)
		if w.killed && rapid.IntRange(0, 3).Draw(w.t, "kill") == 0 {
			return errKilled // the shards that follow get the write later or never
		}
		if err := w.take(part); err != nil {
			passed = err
		}
	}
	return passed
}

// Runs are killed at any write and overlap each other, and their writes arrive late or twice. Then
// two runs end without an error. After these, no drift is left, and late writes add nothing.
func TestCorrectionsOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &shards{t: t, rows: map[Drift]int64{}}
		for range rapid.IntRange(1, 3).Draw(t, "shards") {
			s.taken = append(s.taken, map[int][]uint64{})
		}
		for id := range uint64(6) {
			for column := range 2 {
				s.rows[Drift{ID: client.Number(id), Column: column}] = int64(rapid.IntRange(-2, 2).Draw(t, "drift"))
			}
		}
		for range rapid.IntRange(0, 4).Draw(t, "runs") {
			_ = s.run(true)
			if rapid.Bool().Draw(t, "drifts anew") {
				s.rows[Drift{ID: client.Number(uint64(rapid.IntRange(0, 5).Draw(t, "id")))}] += int64(rapid.IntRange(10, 12).Draw(t, "by")) // by at least 10, so that the row still has a drift: a row without a drift gets no fence
			}
		}
		s.runs = max(s.runs, 6)      // no other run begins during the last runs
		for ended := 0; ended < 2; { // a row may change after the first run compared it and before that run's fence; the second run corrects it
			switch err := s.run(false); {
			case err == nil:
				ended++
			case !errors.Is(err, ErrOvertaken) || s.runs > 100: // ErrOvertaken is allowed, because a late write of a killed run may have a number from a clock that was ahead
				t.Fatal(err)
			}
		}
		for range 2 {
			if left := s.drifts(nil); len(left) > 0 {
				t.Fatalf("left: %+v", left)
			}
			for _, late := range s.sent {
				_ = s.take(late)
			}
		}
	})
}

// numbers is a DriftWriter that refuses the numbers up to upTo. It records all numbers, and the
// drifts of accepted writes.
type numbers struct {
	upTo uint64
	took [][]Drift
	seen []uint64
}

func (n *numbers) Add(_ context.Context, _ int, number uint64, adds []Drift) error {
	if n.seen = append(n.seen, number); number <= n.upTo {
		return ErrOvertaken
	}
	n.took = append(n.took, adds)
	return nil
}

// If the clock of an earlier run was ahead, Fence finds a number above the numbers of that run.
// Correct uses higher numbers still, and returns the error of a refused write.
func TestClockAhead(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	w := &numbers{upTo: uint64(now.AddDate(5, 0, 0).UnixNano())}
	run := NewCorrection(w, now)
	drifts := []Drift{{ID: client.Number(1), Add: 5}, {ID: client.Number(1), Column: 1, Add: 2}, {ID: client.Number(2), Add: -1}}
	if err := run.Fence(t.Context(), drifts); err != nil {
		t.Fatal(err)
	}
	for _, adds := range w.took {
		for _, d := range adds {
			if d.Add != 0 {
				t.Errorf("a fence adds %+v", d)
			}
		}
	}
	if rows, err := run.Correct(t.Context(), drifts); err != nil || rows != 2 {
		t.Errorf("%d rows, %v", rows, err)
	}
	if !slices.IsSorted(w.seen) || len(slices.Compact(slices.Clone(w.seen))) != len(w.seen) {
		t.Errorf("numbers %v do not rise", w.seen)
	}
	w.upTo = ^uint64(0)
	if rows, err := run.Correct(t.Context(), drifts); !errors.Is(err, ErrOvertaken) || rows != 0 {
		t.Errorf("%d rows, %v", rows, err)
	}
}

// No row is split between two parts, and a part exceeds correctionMax by less than one row.
func TestParts(t *testing.T) {
	var drifts []Drift
	for id := range uint64(2*correctionMax + 7) {
		id++
		for column := range 3 {
			drifts = append(drifts, Drift{ID: client.Number(id), Column: column, Add: 1})
		}
	}
	found, last := 0, client.ID{}
	for part := range parts(drifts) {
		if part[0].ID == last || len(part) >= correctionMax+3 {
			t.Errorf("%d from row %s on", len(part), part[0].ID)
		}
		found, last = found+len(part), part[len(part)-1].ID
	}
	if found != len(drifts) {
		t.Errorf("%d of %d", found, len(drifts))
	}
}

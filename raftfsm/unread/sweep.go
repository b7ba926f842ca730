package unread

import (
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/rows"
)

// The sweep drops rows of cursors that have long been idle. It visits the table in steps,
// by ascending keys, and then starts again. A step is an op of an entry, without a result
// row.
//
// A snapshot stores its progress:
//
//	sweep:  day (8) | key (8) | done (1)
//
// A round drops rows that were last moved before the round's day. Rows that are moved
// meanwhile have a later day, so after a complete round no row is idle for longer.
const (
	sweepStateSize = 17

	// SweepRowsMax bounds the rows of one step, and so the delay of the entries after
	// it: a millisecond or two.
	SweepRowsMax = 4096
	// SweepPause is the time between two steps of sweepRows rows. A sweep of 25 million users takes
	// about 4 hours; there is one sweep a day.
	SweepPause = time.Second
	sweepRows  = 2048
	// CursorIdleMin and CursorIdleMax bound the idle time. Rows store only a day, so
	// less than two days could be less than one.
	CursorIdleMin = 48 * time.Hour
	CursorIdleMax = 10 * 365 * 24 * time.Hour
	// CursorIdleDefault is how long the cursors of a user stay without a move. A user who returns later
	// is like a new user.
	CursorIdleDefault = 30 * 24 * time.Hour
)

const dayMillis = int64(24 * time.Hour / time.Millisecond)

// dayOf returns the day of a time in Unix milliseconds, at least 1 so that a moved row
// is never empty.
func dayOf(ms int64) int64 { return max(1, ms/dayMillis) }

// SweepState is the progress of a shard's sweep.
type SweepState struct {
	Day  int64  // rows that were last moved before this day are dropped
	From uint64 // key that the next step begins at
	Done bool   // the round is complete
}

// Due reports whether a step at a time of the log may drop rows.
func (s SweepState) Due(now time.Time, idle time.Duration) bool {
	day := sweepDay(now.UnixMilli(), idle.Milliseconds())
	return day > s.Day || day == s.Day && !s.Done
}

// sweepDay returns the first day that is kept: rows that were last moved before it are idle.
func sweepDay(now, idle int64) int64 { return dayOf(max(0, now-idle)) }

type sweepStep struct {
	idle int64 // milliseconds
	rows int
}

// AppendSweep appends a step of the sweep over the given number of rows. It panics on
// a step that the format cannot express.
func AppendSweep(w *raftfsm.RequestWriter, idle time.Duration, rows int) {
	step := sweepStep{idle.Milliseconds(), rows}
	if !step.fits() {
		panic(fmt.Sprintf("a sweep of %d rows, idle for %v, has no form in a log entry", rows, idle))
	}
	buf := binary.AppendUvarint(append(w.Buffer(), byte(opSweep)), uint64(step.idle))
	w.Put(binary.AppendUvarint(buf, uint64(rows)), true)
}

func (s sweepStep) fits() bool {
	return s.idle >= CursorIdleMin.Milliseconds() && s.idle <= CursorIdleMax.Milliseconds() && s.rows >= 1 && s.rows <= SweepRowsMax
}

// sweepOp decodes a step, and adds an op without effect in its place.
func (u *contents) sweepOp(p []byte) ([]byte, error) {
	idle, n := binary.Uvarint(p[1:])
	rows, m := binary.Uvarint(p[1+max(n, 0):])
	step := sweepStep{int64(idle), int(rows)}
	if n <= 0 || m <= 0 || !step.fits() {
		return nil, fmt.Errorf("%w: sweep of %d rows, idle for %d ms", codec.ErrEntry, step.rows, step.idle)
	}
	u.sweeps = append(u.sweeps, step)
	u.batch.Add(engine.OpAdd, 0)
	return p[1+n+m:], nil
}

// skipSweeps turns the sweeps of an entry into ops without effect. The restore of a shard compares
// its cursors with the backup, so the cursors of users who are idle by now must stay until it ends.
func (u *contents) skipSweeps() {
	for i, table := range u.tables {
		if table == tableSweep {
			u.tables[i] = rows.Counts
		}
	}
	u.sweeps = u.sweeps[:0]
}

// sweep checks the next rows of the current round, or of a new one.
func (u *contents) sweep(step sweepStep, now int64) error {
	s := *u.swept.Load()
	if day := sweepDay(now, step.idle); day > s.Day {
		s = SweepState{Day: day}
	}
	if s.Done {
		return nil
	}
	var idle []engine.Op
	looked := 0
	s.Done = true
	err := u.cursors.Scan(s.From, 1, func(p *engine.Page) bool {
		for i, key := range p.IDs {
			if looked == step.rows {
				s.From, s.Done = key, false
				return false
			}
			looked++
			if p.Counts[i] < s.Day {
				idle = append(idle, engine.Op{ID: key, Kind: engine.OpDelete})
			}
		}
		return true
	})
	if err != nil {
		return err
	}
	if _, err := u.cursors.Apply(idle, 0, nil, nil); err != nil {
		return err
	}
	u.dropped.Add(uint64(len(idle)))
	u.swept.Store(&s)
	return nil
}

func (s *SweepState) appendTo(dst []byte) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(s.Day))
	return append(binary.LittleEndian.AppendUint64(dst, s.From), wire.Bit(s.Done))
}

func parseSweepState(p []byte) (SweepState, error) {
	if len(p) != sweepStateSize || p[16] > 1 || binary.LittleEndian.Uint64(p) > math.MaxInt64 {
		return SweepState{}, fmt.Errorf("%w: sweep % x", codec.ErrSnapshot, p[:min(len(p), sweepStateSize)])
	}
	return SweepState{
		Day: int64(binary.LittleEndian.Uint64(p)), From: binary.LittleEndian.Uint64(p[8:]), Done: p[16] == 1,
	}, nil
}

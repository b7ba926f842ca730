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

// The sweep drops rows of cursors that have long been idle. In a round, it visits all rows of the
// table in steps, by ascending keys. Then a new round begins. A step is an op of an entry, without
// a result row.
//
// A snapshot contains the progress of the sweep:
//
//	sweep:  day (8) | key (8) | done (1)
//
// A round drops rows that were last moved before the round's day. If a user moves a cursor
// meanwhile, the row gets a later day. So after a complete round, no row has an earlier day than
// the round.
const (
	sweepStateSize = 17

	// SweepRowsMax bounds the rows of one step, so that it delays later entries by at most a
	// millisecond or two.
	SweepRowsMax = 4096
	// SweepPause is the time between two steps of sweepRows rows. A round over 25 million users
	// takes about 4 hours. There is one round a day.
	SweepPause = time.Second
	sweepRows  = 2048
	// CursorIdleMin and CursorIdleMax bound the idle time. A row stores only the day of its last
	// move, so the sweep may drop it up to a day later than the idle time says.
	CursorIdleMin = 48 * time.Hour
	CursorIdleMax = 10 * 365 * 24 * time.Hour
	// CursorIdleDefault is the time for which the cursors of an idle user are kept. A user who
	// returns later is like a new user.
	CursorIdleDefault = 30 * 24 * time.Hour
)

const dayMillis = int64(24 * time.Hour / time.Millisecond)

// dayOf returns the day of a time in Unix milliseconds. It returns at least 1, so that a row with a
// moved cursor is never empty.
func dayOf(ms int64) int64 { return max(1, ms/dayMillis) }

// SweepState is the progress of a shard's sweep.
type SweepState struct {
	Day  int64  // the round drops rows that were last moved before this day
	From uint64 // key at which the next step begins
	Done bool   // the round is complete
}

// Due reports whether a step may drop rows. The argument now is the log's time when the step is
// applied.
func (s SweepState) Due(now time.Time, idle time.Duration) bool {
	day := sweepDay(now.UnixMilli(), idle.Milliseconds())
	return day > s.Day || day == s.Day && !s.Done
}

// sweepDay returns a day. Rows that were last moved before that day are idle.
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
// its cursors with the backup. So even cursors of idle users must stay until the restore ends.
func (u *contents) skipSweeps() {
	for i, table := range u.tables {
		if table == tableSweep {
			u.tables[i] = rows.Counts
		}
	}
	u.sweeps = u.sweeps[:0]
}

// sweep checks the next rows of the current round. If a new round is due, it begins the new round.
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

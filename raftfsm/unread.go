package raftfsm

import (
	"fmt"
	"sync/atomic"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// Unread is the state machine of one shard of the keyspace of unread numbers. It has two
// tables under the same keys, which are users. One has counters, like a shard of
// counters. The other has cursors: column 0 is the day of the log on which the row was
// last moved, and column n is the cursor of the channel or dot with number n. A stored
// cursor is one higher than its value, because an absent cursor reads as 0.
type Unread struct {
	machine
	current atomic.Pointer[unread] // replaced whole by Restore
	dropped atomic.Uint64
}

// The columns of a row of cursors.
const (
	// CursorDay is the column of days since 1970. It takes 16 bits until 2149.
	CursorDay = 0
	// CursorsMax bounds channels and dots together: each has a column in every row of
	// cursors.
	CursorsMax = engine.ColumnsMax - 1
)

// NewUnread returns the state machine before its first entry.
func NewUnread() *Unread {
	u := &Unread{}
	u.init(codec.KindUnread, func() contents { return newUnread(&u.dropped) }, func(held contents) { u.current.Store(held.(*unread)) })
	return u
}

// Table returns the counters. Restore replaces the table, so a caller calls Table for each request.
func (u *Unread) Table() *engine.Table { return u.current.Load().counts }

// Cursors returns the cursors. Restore replaces the table, so a caller calls Cursors for each
// request.
func (u *Unread) Cursors() *engine.Table { return u.current.Load().cursors }

// TableOf implements Machine.
func (u *Unread) TableOf(t Table) *engine.Table {
	if t == TableCounts {
		return u.Table()
	}
	return u.Cursors()
}

// Bytes implements Machine.
func (u *Unread) Bytes() uint64 { return u.current.Load().stats().Bytes }

// Sweep returns the progress of the sweep of idle cursors.
func (u *Unread) Sweep() SweepState { return *u.current.Load().swept.Load() }

// Dropped returns how many rows the sweep dropped since the machine was made.
func (u *Unread) Dropped() uint64 { return u.dropped.Load() }

// unread is the contents of a shard of unread numbers.
type unread struct {
	inMemory
	counts, cursors *engine.Table
	// Each step of the sweep replaces all of swept.
	swept   atomic.Pointer[SweepState]
	dropped *atomic.Uint64 // the machine's

	batch  batch
	tables []Table     // of each op in batch
	sweeps []sweepStep // of the ops for tableSweep
	page   engine.Page // of load
	set    []engine.Cell
}

// The kinds of ops on cursors. A restore also uses the kinds of counters that set and delete.
const (
	// CursorRaise moves each cell's cursor to its value, never back.
	CursorRaise = engine.OpAdd
	// CursorBegin sets each cell's cursor to its value, unless the cursor is set already.
	CursorBegin = engine.OpTake
)

func newUnread(dropped *atomic.Uint64) *unread {
	u := &unread{counts: engine.New(), cursors: engine.New(), dropped: dropped}
	u.swept.Store(&SweepState{})
	return u
}

func (u *unread) begin() {
	u.batch.begin()
	u.tables, u.sweeps = u.tables[:0], u.sweeps[:0]
}

func (u *unread) decode(_ *dedup.RequestID, p []byte, clocked bool) (int, error) {
	return parseOps(p, func(p []byte) ([]byte, error) { return u.op(p, clocked) })
}

// op decodes an op on one of the tables, or a step of the sweep.
func (u *unread) op(p []byte, clocked bool) ([]byte, error) {
	table, first := TableCounts, len(u.batch.cells)
	switch OpKind(p[0]) {
	case opAdd, opSet, opDelete, opTake:
	case opRaise, opBegin, opPlace, opForget:
		table = TableCursors
	case opSweep:
		table = tableSweep
	default:
		return nil, errOp(p, codec.KindUnread)
	}
	if table != TableCounts && !clocked {
		return nil, fmt.Errorf("%w: a cursor before the clock", codec.ErrEntry)
	}
	u.tables = append(u.tables, table)
	if table == tableSweep {
		return u.sweepOp(p)
	}
	rest, err := u.batch.tableOp(p)
	if err == nil && table == TableCursors && !isCursorOp(OpKind(p[0]).onTable(), u.batch.cells[first:]) {
		err = fmt.Errorf("%w: %s with such values", codec.ErrEntry, OpKind(p[0]))
	}
	return rest, err
}

// isCursorOp reports whether cells can belong to an op on cursors: no value is
// negative, and a moved cursor has a number and a value of 1 or more.
func isCursorOp(kind engine.OpKind, cells []engine.Cell) bool {
	for _, c := range cells {
		if c.Value < 0 || c.Column&engine.FloorMark != 0 || (kind == CursorRaise || kind == CursorBegin) && (c.Column == CursorDay || c.Value == 0) {
			return false
		}
	}
	return true
}

func (u *unread) void(ops int) {
	u.batch.void(ops)
	for i := len(u.tables) - ops; i < len(u.tables); i++ {
		if u.tables[i] == tableSweep {
			u.tables[i], u.sweeps = TableCounts, u.sweeps[:len(u.sweeps)-1]
		}
	}
}

// apply applies runs of ops on one table together.
func (u *unread) apply(now int64, r *Result) (err error) {
	u.batch.link()
	ops, sweeps, width := u.batch.ops, u.sweeps, r.Width
	for from := 0; from < len(ops); {
		to := from + 1
		for to < len(ops) && u.tables[to] == u.tables[from] {
			to++
		}
		dst := r.Rows[from*width : to*width]
		switch u.tables[from] {
		case TableCounts:
			first := len(r.Overflows)
			if r.Overflows, err = u.counts.Apply(ops[from:to], width, dst, r.Overflows); err != nil {
				return err
			}
			for i := first; i < len(r.Overflows); i++ {
				r.Overflows[i].Op += from
			}
			for _, c := range u.counts.Cuts() {
				c.Op += from
				r.Cuts = append(r.Cuts, c)
			}
		case TableCursors:
			for i := range ops[from:to] {
				if err := u.move(&ops[from+i], now, dst[i*width:(i+1)*width]); err != nil {
					return err
				}
			}
		case tableSweep:
			for _, step := range sweeps[:to-from] {
				if err := u.sweep(step, now); err != nil {
					return err
				}
			}
			sweeps = sweeps[to-from:]
		}
		from = to
	}
	return nil
}

// move applies an op on cursors and fills dst with its row. A voided op has no cells.
func (u *unread) move(op *engine.Op, now int64, dst []int64) error {
	if op.Kind == engine.OpDelete || op.Kind == engine.OpSet || len(op.Cells) == 0 {
		_, err := u.cursors.Apply([]engine.Op{*op}, len(dst), dst, nil)
		return err
	}
	var row [engine.ColumnsMax]int64
	u.cursors.Get(op.ID, row[:])
	u.set = append(u.set[:0], engine.Cell{Column: CursorDay, Value: dayOf(now)})
	for _, c := range op.Cells {
		if was := row[c.Column]; was == 0 || op.Kind == CursorRaise && c.Value > was {
			u.set = append(u.set, c)
			row[c.Column] = c.Value
		}
	}
	_, err := u.cursors.Apply([]engine.Op{{ID: op.ID, Kind: engine.OpSet, Cells: u.set}}, len(dst), dst, nil)
	return err
}

// cursorsWeight makes a count and an equal cursor of one user differ in the digest.
const cursorsWeight = 0x9e3779b97f4a7c15

// CursorsDigest returns the digest of a row of cursors, a term of the digest of its shard.
func CursorsDigest(key uint64, row []int64) uint64 {
	return unreadDigest(0, engine.RowDigest(key, row))
}

func unreadDigest(counts, cursors uint64) uint64 { return counts + cursors*cursorsWeight }

func (u *unread) digest() uint64 { return unreadDigest(u.counts.Digest(), u.cursors.Digest()) }

func (u *unread) stats() engine.Stats {
	s, cursors := u.counts.Stats(), u.cursors.Stats()
	s.Rows += cursors.Rows
	s.Segments += cursors.Segments
	s.Bytes += cursors.Bytes
	return s
}

func (u *unread) capture() captured {
	return &unreadSnapshot{counts: u.counts.Snapshot(), cursors: u.cursors.Snapshot(), swept: *u.swept.Load()}
}

func (u *unread) load(_ *codec.StreamReader, kind byte, p []byte) error {
	switch kind {
	case codec.StreamRows:
		return loadRows(u.counts, p, &u.page)
	case codec.StreamCursors:
		return loadRows(u.cursors, p, &u.page)
	case codec.StreamSweep:
		swept, err := parseSweepState(p)
		u.swept.Store(&swept)
		return err
	}
	return misplaced(kind)
}

// unreadSnapshot is a captured shard of unread numbers.
type unreadSnapshot struct {
	inMemory
	counts, cursors *engine.Snapshot
	swept           SweepState
}

func (s *unreadSnapshot) write(w *codec.StreamWriter) error {
	if err := writeRows(w, codec.StreamRows, s.counts); err != nil {
		return err
	}
	if err := writeRows(w, codec.StreamCursors, s.cursors); err != nil {
		return err
	}
	return w.Section(codec.StreamSweep, s.swept.appendTo)
}

func (s *unreadSnapshot) rows() uint64   { return uint64(s.counts.Rows() + s.cursors.Rows()) }
func (s *unreadSnapshot) digest() uint64 { return unreadDigest(s.counts.Digest(), s.cursors.Digest()) }

func (s *unreadSnapshot) release() {
	s.counts.Close()
	s.cursors.Close()
}

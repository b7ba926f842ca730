// Package unread owns the state machines of unread numbers. Shards of one kind contain counts of
// users, and the users' cursors in channels and at dots. The shard of the other kind, the board,
// contains the channels of notices and the dots, which all users share. The package never combines
// cursors and board: package inbox does.
//
// Invariant: replicas that applied the same entries have the same rows and the same board.
//
// Besides the ops of package rows, it defines the following ops. All except sweep have the form of
// an op on a row:
//
//	take:                  subtracts a value from a count, but not below 0
//	raise, begin, place:   cursors
//	forget:                deletes the row of cursors
//	sweep:                 kind (1) | idle time in milliseconds (uvarint) | rows (uvarint)
package unread

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/rows"
)

// Machine is the state machine of one shard of the keyspace of unread numbers. It has two tables,
// whose keys are users. One table contains counts, like a shard of counters. The other contains
// cursors. Column 0 is the day of the row's last move, by the log's time. Column n is the cursor of
// the channel or dot with number n. A stored cursor is 1 plus the last notice or firing that the
// user has seen, because 0 means that there is no cursor.
type Machine struct {
	raftfsm.Base
	current atomic.Pointer[contents] // Restore replaces the contents
	dropped atomic.Uint64
	parting rows.Parting
	closed  bool // guarded by parting.Lock
}

// The columns of a row of cursors.
const (
	// CursorDay is the column of the day of the last move, in days since 1970. It takes 16 bits
	// until 2149.
	CursorDay = 0
	// CursorsMax bounds the channels and dots together, because each has a column in the rows of
	// cursors.
	CursorsMax = engine.ColumnsMax - 1
)

// New returns the state machine before its first entry.
func New() *Machine {
	u := &Machine{parting: rows.Parting{Lock: new(sync.Mutex)}}
	u.Init(codec.KindUnread, func() raftfsm.Contents { return newContents(&u.dropped, &u.parting) }, func(held raftfsm.Contents) {
		u.current.Store(held.(*contents))
		u.parting.Lock.Lock()
		defer u.parting.Lock.Unlock()
		u.parting.Drop()
	})
	return u
}

// Close implements Machine.
func (u *Machine) Close() {
	u.parting.Lock.Lock()
	u.closed = true
	u.parting.Lock.Unlock()
	u.Base.Close()
}

// Table returns the table of counts. Call it for each request, because Restore replaces the table.
func (u *Machine) Table() *engine.Table { return u.current.Load().counts }

// Cursors returns the table of cursors. Call it for each request, because Restore replaces the
// table.
func (u *Machine) Cursors() *engine.Table { return u.current.Load().cursors }

// TableOf implements Machine.
func (u *Machine) TableOf(t raftfsm.Table) *engine.Table {
	switch t {
	case rows.Counts:
		return u.Table()
	case Cursors:
		return u.Cursors()
	}
	return nil
}

// Bytes implements Machine.
func (u *Machine) Bytes() uint64 { return u.current.Load().Stats().Bytes }

// SnapshotBytes implements Machine.
func (u *Machine) SnapshotBytes() uint64 { return u.Bytes() }

// Sweep returns the progress of the sweep of idle cursors.
func (u *Machine) Sweep() SweepState { return *u.current.Load().swept.Load() }

// Cleanup implements Machine. It returns a step of the sweep if one is due.
func (u *Machine) Cleanup(now time.Time, idle time.Duration) raftfsm.Cleanup {
	step := raftfsm.Cleanup{Pause: SweepPause}
	if u.Cursors().Stats().Rows > 0 && u.Sweep().Due(now, idle) {
		step.Append = func(w *raftfsm.RequestWriter) { AppendSweep(w, idle, sweepRows) }
	}
	return step
}

// Dropped implements Machine. Only the sweep drops rows.
func (u *Machine) Dropped() uint64 { return u.dropped.Load() }

type contents struct {
	raftfsm.InMemory
	counts, cursors *engine.Table
	// Each step of the sweep stores a new SweepState.
	swept   atomic.Pointer[SweepState]
	dropped *atomic.Uint64 // Machine.dropped
	parting *rows.Parting  // Machine.parting

	batch  rows.Batch
	tables []raftfsm.Table // table of each op in batch
	sweeps []sweepStep     // steps of the ops whose table is tableSweep, in order
	page   engine.Page     // memory that Load reuses
	set    []engine.Cell
}

// The tables of a shard besides rows.Counts.
const (
	Cursors raftfsm.Table = 1

	// tableSweep marks an op that is a step of the sweep: sweep.go.
	tableSweep raftfsm.Table = 2
)

// The kinds of ops on cursors. A restore also uses engine.OpSet and engine.OpDelete.
const (
	// Raise sets the cursor of each cell to the cell's value, if the value is higher.
	Raise = engine.OpAdd
	// Begin sets the cursor of each cell to the cell's value, unless the cursor is already set.
	Begin = engine.OpTake
)

func newContents(dropped *atomic.Uint64, parting *rows.Parting) *contents {
	u := &contents{counts: engine.New(), cursors: engine.New(), dropped: dropped, parting: parting}
	u.swept.Store(&SweepState{})
	return u
}

func (u *contents) Begin() {
	u.batch.Begin()
	u.tables, u.sweeps = u.tables[:0], u.sweeps[:0]
}

func (u *contents) Decode(_ *dedup.RequestID, p []byte, clocked bool) (int, error) {
	return raftfsm.ParseOps(p, func(p []byte) ([]byte, error) { return u.op(p, clocked) })
}

// op decodes an op on one of the tables, or a step of the sweep.
func (u *contents) op(p []byte, clocked bool) ([]byte, error) {
	number, first := opKind(p[0]), len(u.batch.Cells)
	if int(number) >= len(forms) || forms[number].name == "" {
		return nil, raftfsm.ErrOp(p, codec.KindUnread)
	}
	kind, table := forms[number].kind, forms[number].table
	if table != rows.Counts && !clocked {
		return nil, fmt.Errorf("%w: a cursor before the clock", codec.ErrEntry)
	}
	u.tables = append(u.tables, table)
	if table == tableSweep {
		return u.sweepOp(p)
	}
	rest, err := u.batch.Op(p, kind)
	if err == nil && table == Cursors && !isCursorOp(kind, u.batch.Cells[first:]) {
		err = fmt.Errorf("%w: %s with such values", codec.ErrEntry, number)
	}
	return rest, err
}

// isCursorOp reports whether cells can belong to an op on cursors. No value may be negative. Raise
// and Begin need a column other than CursorDay, and a value of at least 1.
func isCursorOp(kind engine.OpKind, cells []engine.Cell) bool {
	for _, c := range cells {
		if c.Value < 0 || c.IsBound() || (kind == Raise || kind == Begin) && (c.Column == CursorDay || c.Value == 0) {
			return false
		}
	}
	return true
}

func (u *contents) Void(ops int) {
	u.batch.Void(ops)
	for i := len(u.tables) - ops; i < len(u.tables); i++ {
		if u.tables[i] == tableSweep {
			u.tables[i], u.sweeps = rows.Counts, u.sweeps[:len(u.sweeps)-1]
		}
	}
}

// Apply applies consecutive ops on the same table together.
func (u *contents) Apply(now int64, restoring bool, r *raftfsm.Result) (err error) {
	if restoring {
		u.skipSweeps()
	}
	u.batch.Link()
	ops, sweeps, width := u.batch.Ops, u.sweeps, r.Width
	for from := 0; from < len(ops); {
		to := from + 1
		for to < len(ops) && u.tables[to] == u.tables[from] {
			to++
		}
		dst := r.Rows[from*width : to*width]
		switch u.tables[from] {
		case rows.Counts:
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
		case Cursors:
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

// move applies an op on cursors and fills dst with the resulting row. A voided op has no cells.
func (u *contents) move(op *engine.Op, now int64, dst []int64) error {
	if op.Kind == engine.OpDelete || op.Kind == engine.OpSet || len(op.Cells) == 0 {
		_, err := u.cursors.Apply([]engine.Op{*op}, len(dst), dst, nil)
		return err
	}
	var row [engine.ColumnsMax]int64
	u.cursors.Get(op.ID, row[:])
	u.set = append(u.set[:0], engine.Cell{Column: CursorDay, Value: dayOf(now)})
	for _, c := range op.Cells {
		if was := row[c.Column]; was == 0 || op.Kind == Raise && c.Value > was {
			u.set = append(u.set, c)
			row[c.Column] = c.Value
		}
	}
	_, err := u.cursors.Apply([]engine.Op{{ID: op.ID, Kind: engine.OpSet, Cells: u.set}}, len(dst), dst, nil)
	return err
}

// cursorsWeight is a factor of the digests of cursors, so that a count and an equal cursor of the
// same user change the digest differently.
const cursorsWeight = 0x9e3779b97f4a7c15

// CursorsDigest returns the term of a row of cursors in the digest of its shard.
func CursorsDigest(key uint64, row []int64) uint64 {
	return digestOf(0, engine.RowDigest(key, row))
}

func digestOf(counts, cursors uint64) uint64 { return counts + cursors*cursorsWeight }

func (u *contents) Digest() uint64 { return digestOf(u.counts.Digest(), u.cursors.Digest()) }

func (u *contents) Stats() engine.Stats {
	s, cursors := u.counts.Stats(), u.cursors.Stats()
	s.Rows += cursors.Rows
	s.Segments += cursors.Segments
	s.Bytes += cursors.Bytes
	return s
}

func (u *contents) Capture() raftfsm.Captured {
	return &captured{counts: u.counts.Snapshot(), cursors: u.cursors.Snapshot(), swept: *u.swept.Load()}
}

func (u *contents) Load(_ *codec.StreamReader, kind byte, p []byte) error {
	switch kind {
	case codec.StreamRows:
		return rows.LoadRows(u.counts, p, &u.page)
	case codec.StreamCursors:
		return rows.LoadRows(u.cursors, p, &u.page)
	case codec.StreamSweep:
		swept, err := parseSweepState(p)
		u.swept.Store(&swept)
		return err
	}
	return raftfsm.Misplaced(kind)
}

type captured struct {
	raftfsm.InMemory
	counts, cursors *engine.Snapshot
	swept           SweepState
}

func (s *captured) Write(w *codec.StreamWriter) error {
	if err := rows.WriteRows(w, codec.StreamRows, s.counts); err != nil {
		return err
	}
	if err := rows.WriteRows(w, codec.StreamCursors, s.cursors); err != nil {
		return err
	}
	return w.Section(codec.StreamSweep, s.swept.appendTo)
}

func (s *captured) Rows() uint64   { return uint64(s.counts.Rows() + s.cursors.Rows()) }
func (s *captured) Digest() uint64 { return digestOf(s.counts.Digest(), s.cursors.Digest()) }

func (s *captured) Release() {
	s.counts.Close()
	s.cursors.Close()
}

package counters

import (
	"math/big"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// model is a simple table with which the tests compare the state machine.
type model map[uint64]*[engine.ColumnsMax]int64

func (m model) row(id uint64) *[engine.ColumnsMax]int64 {
	if m[id] == nil {
		m[id] = &[engine.ColumnsMax]int64{}
	}
	return m[id]
}

// apply applies an op. If a column overflows, apply changes nothing and returns the column and
// false.
func (m model) apply(op *engine.Op) (uint8, bool) {
	row := *m.row(op.ID)
	for _, c := range op.Cells {
		v := big.NewInt(c.Value)
		if op.Kind == engine.OpAdd {
			v.Add(v, big.NewInt(row[c.Column]))
		}
		if !v.IsInt64() {
			return c.Column, false
		}
		row[c.Column] = v.Int64()
	}
	if op.Kind == engine.OpDelete {
		clear(row[:])
	}
	*m.row(op.ID) = row
	return 0, true
}

func (m model) mustEqual(t rapid.TB, table *engine.Table) {
	t.Helper()
	var row [engine.ColumnsMax]int64
	rows := uint64(0)
	for id, want := range m {
		if table.Get(id, row[:]); row != *want {
			t.Fatalf("row %d is %v, want %v", id, row, *want)
		}
		if *want != [engine.ColumnsMax]int64{} {
			rows++
		}
	}
	if got := table.Stats().Rows; got != rows {
		t.Fatalf("%d rows, want %d", got, rows)
	}
	if err := rafttest.CheckTable(table); err != nil {
		t.Fatal(err)
	}
}

// drawOps draws the ops of one request. It uses few ids, so that several ops change the same row.
func drawOps(t *rapid.T, label string) []engine.Op {
	value := rapid.OneOf(rapid.Int64Range(-3, 70_000), rapid.Int64(),
		rapid.SampledFrom([]int64{0, 1, -1, 65534, 65535, 65536, 1<<63 - 1, -1 << 63}))
	id := rapid.OneOf(rapid.Uint64Range(0, 20), rapid.SampledFrom([]uint64{1 << 32, 4467107636950632, 1<<64 - 1}), rapid.Uint64())
	cell := rapid.Custom(func(t *rapid.T) engine.Cell {
		column := rapid.OneOf(rapid.Uint8Range(0, 4), rapid.Uint8Range(0, engine.ColumnsMax-1)).Draw(t, "column")
		return engine.Cell{Column: column, Value: value.Draw(t, "value")}
	})
	op := rapid.Custom(func(t *rapid.T) engine.Op {
		kind := rapid.SampledFrom([]engine.OpKind{engine.OpAdd, engine.OpAdd, engine.OpSet, engine.OpDelete}).Draw(t, "kind")
		op := engine.Op{ID: id.Draw(t, "id"), Kind: kind}
		if kind != engine.OpDelete {
			op.Cells = rapid.SliceOfN(cell, 1, 64).Draw(t, "cells")
		}
		return op
	})
	return rapid.SliceOfN(op, 0, 40).Draw(t, label)
}

// appendRequest appends the section of a request with the given ops to an entry.
func appendRequest(entry []byte, ops []engine.Op) []byte {
	var w raftfsm.RequestWriter
	w.Reset(nil, codec.Whole, &dedup.RequestID{})
	for i := range ops {
		Ops(ops).AppendTo(&w, ops[i].ID, i)
	}
	return append(entry, w.Section()...)
}

func entryOf(width int, requests ...[]engine.Op) []byte {
	entry := codec.BeginEntry(nil, codec.KindCounters, width)
	for _, ops := range requests {
		entry = appendRequest(entry, ops)
	}
	return codec.AppendChecksum(entry)
}

func add(id uint64, column uint8, delta int64) engine.Op {
	return engine.Op{ID: id, Kind: engine.OpAdd, Cells: []engine.Cell{{Column: column, Value: delta}}}
}

// self is a set of kinds with only the kind of this package. Nobody changes it.
var self = raftfsm.Kinds{Kind{}}

// newCounters returns a new state machine. When the test ends, its whole table is checked.
func newCounters(t testing.TB) *Machine {
	c := New(raftfsm.Places{})
	t.Cleanup(func() {
		if err := rafttest.CheckTable(c.Table()); err != nil {
			t.Error(err)
		}
	})
	return c
}

func sameOps(a, b []engine.Op) bool {
	return slices.EqualFunc(a, b, func(a, b engine.Op) bool {
		return a.ID == b.ID && a.Kind == b.Kind && slices.Equal(a.Cells, b.Cells)
	})
}

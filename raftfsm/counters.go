package raftfsm

import (
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
)

// Counters is the state machine of one shard of a counter keyspace. Its methods
// but Table are Machine's.
type Counters struct {
	machine
	table atomic.Pointer[engine.Table] // replaced whole by Restore
}

var _ raft.BatchingFSM = (*Counters)(nil)

// NewCounters returns the state before the first entry.
func NewCounters() *Counters {
	c := &Counters{}
	c.init(KindCounters, func() contents { return &counts{table: engine.New()} },
		func(held contents) { c.table.Store(held.(*counts).table) })
	return c
}

// Table returns the rows as they are now. Restore replaces it, so a caller
// asks again for each request.
func (c *Counters) Table() *engine.Table { return c.table.Load() }

// Bytes is Machine's.
func (c *Counters) Bytes() uint64 { return c.Table().Stats().Bytes }

// counts is what a shard of a counter keyspace holds.
type counts struct {
	table *engine.Table
	batch batch
	page  engine.Page // of load
}

func (c *counts) begin() { c.batch.begin() }

func (c *counts) decode(_ *RequestID, p []byte, _ bool) (int, error) {
	return parseOps(p, opSizeMin, c.batch.op)
}

func (c *counts) void(ops int) { c.batch.void(ops) }

func (c *counts) apply(_ int64, width int, rows []int64) []engine.Overflow {
	c.batch.link()
	return c.table.Apply(c.batch.ops, width, rows, nil)
}

func (c *counts) digest() uint64      { return c.table.Digest() }
func (c *counts) stats() engine.Stats { return c.table.Stats() }

func (c *counts) capture() captured { return tableSnapshot{c.table.Snapshot()} }

func (c *counts) load(kind, last byte, p []byte) error {
	if kind != streamRows || last != streamHead && last != streamRows {
		return misplaced(kind, last)
	}
	return loadRows(c.table, p, &c.page)
}

// tableSnapshot is the rows of a table on their way into a snapshot.
type tableSnapshot struct{ *engine.Snapshot }

func (s tableSnapshot) write(w *streamWriter) error { return writeRows(w, streamRows, s.Snapshot) }
func (s tableSnapshot) rows() uint64                { return uint64(s.Rows()) }
func (s tableSnapshot) digest() uint64              { return s.Digest() }
func (s tableSnapshot) release()                    { s.Close() }

package raftfsm

import (
	"github.com/countd/countd/engine"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// contents is the state of a shard of one kind. Only raft's goroutine, or the goroutine that
// builds contents from a snapshot, calls its methods, except stats.
type contents interface {
	// begin discards the ops of the previous entry.
	begin()
	// decode appends a request's ops to those of the entry and returns their number.
	// clocked reports whether the entry stamped a time before the request.
	decode(id *dedup.RequestID, p []byte, clocked bool) (ops int, err error)
	// void makes the last ops change nothing. They then return the current row.
	void(ops int)
	// apply applies the decoded ops of the entry r.Index at a time of the log, in Unix
	// milliseconds. It fills r.Rows, which the caller makes, r.Overflows, r.Cuts and r.Changed.
	// On an error, rows outside of memory could not be read and nothing was applied.
	apply(now int64, r *Result) error

	digest() uint64
	stats() engine.Stats // safe for concurrent use
	capture() captured
	// load loads a section of a snapshot, and any sections behind it in s that belong to it.
	load(s *codec.StreamReader, kind byte, p []byte) error
	// loaded completes a snapshot whose end states these totals.
	loaded(told codec.Totals) error
	// adopt is called after loaded. On disk, it replaces the data of the earlier contents by the
	// data that load stored.
	adopt() error
	// dispose releases data on disk. It is the last call.
	dispose()
}

// captured holds contents as they were at one moment. Entries may be applied meanwhile.
type captured interface {
	// carried returns how many bytes carried cold rows add to a stream, or -1 if there are none.
	carried() int64
	write(*codec.StreamWriter) error
	// keep protects the rows and sets on disk that the stream names, for as long as a snapshot of
	// that name exists.
	keep(snapshot string) error
	rows() uint64
	digest() uint64
	release()
}

// inMemory is embedded by contents that are all in memory and all in their snapshots.
type inMemory struct{}

func (inMemory) loaded(codec.Totals) error { return nil }
func (inMemory) dispose()                  {}
func (inMemory) adopt() error              { return nil }
func (inMemory) carried() int64            { return -1 }
func (inMemory) keep(string) error         { return nil }

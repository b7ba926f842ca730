package raftfsm

import (
	"github.com/countd/countd/engine"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// contents is what a shard of one kind stores. Only raft's goroutine, or the owner that
// builds contents from a snapshot, calls its methods, except stats.
type contents interface {
	// begin discards the ops of the previous entry.
	begin()
	// decode appends a request's ops to those of the entry and returns their number.
	// clocked reports whether the entry stamped a time before the request.
	decode(id *dedup.RequestID, p []byte, clocked bool) (ops int, err error)
	// void turns the last ops into ones that change nothing and return the current row.
	void(ops int)
	// apply applies the decoded ops of the entry r.Index at a time of the log, in Unix
	// milliseconds, and fills the exported fields of r. On an error, rows outside of memory
	// could not be read and nothing was applied.
	apply(now int64, r *Result) error

	digest() uint64
	stats() engine.Stats // safe for concurrent use
	capture() captured
	// load loads a section of a snapshot, and any sections behind it in s that belong to it.
	load(s *codec.StreamReader, kind byte, p []byte) error
	// loaded completes a snapshot whose end section has the given totals.
	loaded(told codec.Totals) error
	// adopt makes what load stored outside of memory that of the replica. The caller holds
	// no earlier contents from then on. It follows loaded.
	adopt() error
	// dispose releases what is outside of memory. It is the last call.
	dispose()
}

// captured is contents as they were at one moment. Entries may be applied meanwhile.
type captured interface {
	// carried returns how many bytes a stream with cold rows grows by when it carries
	// them, or -1 for a stream without.
	carried() int64
	write(*codec.StreamWriter) error
	// keep keeps what the snapshot refers to outside of the stream, for as long as a
	// snapshot of that name exists.
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

package raftfsm

import (
	"github.com/countd/countd/engine"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// contents is what a shard of one kind holds. Its methods but stats are raft's
// goroutine's, and the owner's who builds one from a snapshot.
type contents interface {
	// begin forgets the ops of the entry before.
	begin()
	// decode takes a request's ops behind those that it has of the entry, and
	// returns how many. clocked says whether the entry stamped a time before it.
	decode(id *dedup.RequestID, p []byte, clocked bool) (ops int, err error)
	// void makes the last ops ones that change nothing and answer what is there.
	void(ops int)
	// apply applies what was taken, at a time of the log in Unix milliseconds. It
	// fills rows, width counts an op, and returns the ops that it refused, rising.
	// An error says that rows outside of memory could not be read, and nothing was
	// applied.
	apply(now int64, width int, rows []int64) ([]engine.Overflow, error)

	// cuts returns the deltas that the last apply cut short for their floors, by op.
	cuts() []engine.Cut

	digest() uint64
	stats() engine.Stats // from any goroutine
	capture() captured
	// load adds a section of a snapshot, that came behind one of kind last, with
	// those behind it in s that belong to it.
	load(s *codec.StreamReader, kind, last byte, p []byte) error
	// loaded ends a snapshot, of which that is told.
	loaded(told streamTotals) error
	// dispose lets go of what is held outside of memory, and comes last.
	dispose()
}

// captured is contents as they were at one moment, while entries go on.
type captured interface {
	// carried is what a stream with cold rows is longer by when it carries them, -1
	// for one without.
	carried() int64
	write(*codec.StreamWriter) error
	// keep has what was written, and is outside of the stream, kept for as long as
	// there is a snapshot of that name.
	keep(snapshot string) error
	rows() uint64
	digest() uint64
	release()
}

// inMemory is of contents that are all in memory, and in their snapshots.
type inMemory struct{}

func (inMemory) loaded(streamTotals) error { return nil }
func (inMemory) dispose()                  {}
func (inMemory) cuts() []engine.Cut        { return nil }
func (inMemory) carried() int64            { return -1 }
func (inMemory) keep(string) error         { return nil }

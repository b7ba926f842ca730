package raftfsm

import (
	"fmt"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// Contents is the state of a shard of one kind. Only raft's goroutine, or the goroutine that
// builds contents from a snapshot, calls its methods, except Stats.
type Contents interface {
	// Begin discards the ops of the previous entry.
	Begin()
	// Decode appends a request's ops to the entry's ops, and returns their number. clocked reports
	// whether the entry has a time stamp before the request.
	Decode(id *dedup.RequestID, p []byte, clocked bool) (ops int, err error)
	// Void makes the last ops change nothing. They then return the current row.
	Void(ops int)
	// Apply applies the decoded ops of the entry with index r.Index. The argument now is the log's
	// time in Unix milliseconds. restoring reports whether the shard is being restored. Apply fills
	// r.Rows, which the caller allocates, and sets r.Overflows, r.Cuts and r.Changed. An error
	// means that rows outside of memory could not be read and nothing was applied.
	Apply(now int64, restoring bool, r *Result) error

	Digest() uint64
	Stats() engine.Stats // safe for concurrent use
	Capture() Captured
	// Load loads a section of a snapshot. It reads from s any further sections that belong to this
	// one.
	Load(s *codec.StreamReader, kind byte, p []byte) error
	// Loaded completes a snapshot, whose end states the given totals.
	Loaded(told codec.Totals) error
	// Adopt is called after Loaded. It replaces the data of the earlier contents on disk by the
	// data that Load stored.
	Adopt() error
	// Dispose releases data on disk. It is the last call.
	Dispose()
	// Split copies the contents to the parts, which are empty contents of the same kind. It may
	// wait for the disk. The first part uses the places of this shard and will replace it. A kind
	// whose keyspaces always have one shard returns ErrUndivided.
	Split(s *Split, parts []Contents) error
}

// Captured holds contents as they were at one moment. Entries may be applied meanwhile.
type Captured interface {
	// Carried returns the size of the cold rows in a stream that carries them. It returns -1 if there
	// are none.
	Carried() int64
	Write(*codec.StreamWriter) error
	// Keep protects the rows and sets on disk that the stream refers to, until the snapshot with the
	// given name is deleted.
	Keep(snapshot string) error
	Rows() uint64
	Digest() uint64
	Release()
}

// Contents embed InMemory if all their data is in memory and in their snapshots.
type InMemory struct{}

func (InMemory) Loaded(codec.Totals) error { return nil }
func (InMemory) Dispose()                  {}
func (InMemory) Adopt() error              { return nil }
func (InMemory) Carried() int64            { return -1 }
func (InMemory) Keep(string) error         { return nil }

// ParseOps decodes the ops of a request, one after the other, and returns their number.
func ParseOps(p []byte, op func(p []byte) (rest []byte, err error)) (ops int, err error) {
	for ; len(p) > 0; ops++ {
		if p, err = op(p); err != nil {
			return 0, err
		}
	}
	return ops, nil
}

// ErrOp returns the refusal of an op that shards of a kind do not have.
func ErrOp(p []byte, of codec.Kind) error {
	return fmt.Errorf("%w: op %d in a shard of %s", codec.ErrEntry, p[0], of)
}

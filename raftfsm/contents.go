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
	// whether the entry has a clock section before the request.
	Decode(id *dedup.RequestID, p []byte, clocked bool) (ops int, err error)
	// Void turns the last decoded ops into reads, which return the current row and change nothing.
	// The argument ops is their number.
	Void(ops int)
	// Apply applies the decoded ops of the entry with index r.Index. The argument now is the log's
	// time in Unix milliseconds. restoring reports whether the shard is being restored. Apply fills
	// r.Rows, which the caller allocates, and sets r.Overflows, r.Cuts and r.Changed. An error
	// means that rows outside of memory could not be read and nothing was applied.
	Apply(now int64, restoring bool, r *Result) error

	Digest() uint64
	Stats() engine.Stats // safe for concurrent use
	Capture() Captured
	// Load loads a section of a snapshot. If further sections belong to this section, Load reads
	// them from s.
	Load(s *codec.StreamReader, kind byte, p []byte) error
	// Loaded is called after the last section of a snapshot. told holds the totals that the end of
	// the snapshot states.
	Loaded(told codec.Totals) error
	// Adopt is called after Loaded. It replaces the data of the earlier contents on disk by the
	// data that Load stored.
	Adopt() error
	// Dispose releases data on disk. It is the last call.
	Dispose()
	// Split copies the contents to the parts, which are empty contents of the same kind, or hands
	// tables over to them. Both may have the same tables afterwards, so after an error no op may be applied. It may
	// wait for the disk. The first part uses the Places of this shard, and later replaces this
	// shard. A kind whose keyspaces always have one shard returns ErrUndivided.
	Split(s *Split, parts []Contents) error
}

// Captured is the state of contents at one moment. Later entries do not change it.
type Captured interface {
	// Carried returns the number of bytes that the cold rows take in a stream that carries them. It
	// returns -1 if there are no cold rows.
	Carried() int64
	Write(*codec.StreamWriter) error
	// Keep protects the rows and sets on disk that the stream refers to, until the snapshot with the
	// given name is deleted.
	Keep(snapshot string) error
	Rows() uint64
	Digest() uint64
	Release()
}

// InMemory implements some methods of Contents and Captured, for kinds whose snapshots contain all
// data.
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

// ErrOp returns the error for an op that shards of a kind do not accept.
func ErrOp(p []byte, of codec.Kind) error {
	return fmt.Errorf("%w: op %d in a shard of %s", codec.ErrEntry, p[0], of)
}

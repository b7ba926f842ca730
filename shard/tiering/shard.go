package tiering

import (
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/spill"
	"github.com/countd/countd/shard/replica"
)

// Shard is this node's replica of one shard of counters. Its fields are set before it is listed
// and do not change afterwards.
type Shard struct {
	Group    uint32
	Keyspace string
	PerKey   uint64 // ids that share a key, over all shards of the keyspace
	Offset   uint64 // the id of a key is key*PerKey + Offset
	FSM      *counters.Machine
	Replica  *replica.Replica
	Damage   *Damage

	due   atomic.Int64 // rows due to leave memory, as of the last check by Run
	moved uint64       // rows that left memory since the last snapshot; only Run uses it
}

// Bodies are the feeds or outboxes of this node's replica of one shard. Its fields are set before
// it is listed.
type Bodies struct {
	*spill.Shard
	Of     codec.Kind   // of the shard
	Logger *slog.Logger // names the replica
}

// label returns the name of the bodies for logs.
func (b *Bodies) label() string {
	if b.Of == codec.KindFeed {
		return "feeds"
	}
	return "outboxes"
}

// Damage records that rows or bodies of a replica could not be read from disk. The record stays
// until the replica is opened again.
type Damage struct {
	Logger *slog.Logger // names the replica

	found   atomic.Bool
	rows    atomic.Bool // more than bodies is damaged; the replica's own snapshot and log hold its bodies
	closing atomic.Bool
}

// Note records err, and logs the first one. It does nothing after Close, because a replica that is
// being closed has released its rows.
func (d *Damage) Note(err error) {
	if d.closing.Load() {
		return
	}
	if !errors.Is(err, spill.ErrLost) {
		d.rows.Store(true)
	}
	if d.found.Swap(true) {
		return
	}
	d.Logger.Error("cannot read this replica's data on disk: other replicas answer its reads, and it is repaired", "err", err)
}

// Found reports whether Note was called.
func (d *Damage) Found() bool { return d.found.Load() }

// OfBodies reports whether only bodies were found to be damaged.
func (d *Damage) OfBodies() bool { return d.found.Load() && !d.rows.Load() }

// Close makes Note a no-op.
func (d *Damage) Close() { d.closing.Store(true) }

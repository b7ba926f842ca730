package tiering

import (
	"errors"
	"log/slog"
	"sync/atomic"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/spill"
	"github.com/countd/countd/shard/replica"
)

// Shard is this node's replica of one shard of counters. Its exported fields do not change after
// Config.Shards returns it.
type Shard struct {
	Group    uint32
	Keyspace string
	PerKey   uint64 // number of ids that share a key, over all shards of the keyspace
	Offset   uint64 // the id of a key is key*PerKey + Offset
	FSM      *counters.Machine
	Replica  *replica.Replica
	Damage   *Damage

	due   atomic.Int64 // number of rows due to leave memory, as of the last check by Run
	moved uint64       // number of rows that left memory since the last snapshot; only Run uses it
}

// Bodies are the feeds, outboxes or names of this node's replica of one shard. Its fields do not change
// after Spill.Bodies returns it.
type Bodies struct {
	*spill.Shard
	Of     codec.Kind   // kind of the shard
	Logger *slog.Logger // has the replica as an attribute
}

func (b *Bodies) label() string {
	switch b.Of {
	case codec.KindFeed:
		return "feeds"
	case codec.KindNames:
		return "blocks of names"
	}
	return "outboxes"
}

// Damage records that rows or bodies of a replica could not be read from disk. The record stays
// until the replica is opened again.
type Damage struct {
	Logger *slog.Logger // has the replica as an attribute

	found   atomic.Bool
	rows    atomic.Bool // rows on disk are damaged; anything else the replica can restore by itself
	closing atomic.Bool
}

// Note records damage, and logs the first error. It does nothing after Close, because a closing
// replica may have released its rows.
func (d *Damage) Note(err error) {
	if d.closing.Load() {
		return
	}
	if !errors.Is(err, spill.ErrLost) && !errors.Is(err, raftfsm.ErrUneven) {
		d.rows.Store(true)
	}
	if d.found.Swap(true) {
		return
	}
	d.Logger.Error("cannot read this replica's data on disk: other replicas answer its reads, and it is repaired", "err", err)
}

// Found reports whether damage was noted.
func (d *Damage) Found() bool { return d.found.Load() }

// OfMemory reports whether damage was noted only for what the replica restores from its own snapshot and log:
// bodies, which live only as long as the process, and copies for a split.
func (d *Damage) OfMemory() bool { return d.found.Load() && !d.rows.Load() }

// Close makes Note a no-op.
func (d *Damage) Close() { d.closing.Store(true) }

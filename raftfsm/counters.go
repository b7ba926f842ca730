package raftfsm

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/raftfsm/spill"
)

// Counters is the state machine of one shard of a counter keyspace.
type Counters struct {
	machine
	table atomic.Pointer[engine.Table] // Restore replaces the whole table
	// tiering is held while rows leave memory, return to it or are sealed, and by Restore
	// while it replaces the table.
	tiering  sync.Mutex
	closed   bool // guarded by tiering
	tiers    Tiers
	carried  atomic.Uint64 // returned by Carried
	outboxes *spill.Shard
}

// Tiers configures where rows of a table may be stored besides its segments. Each replica
// decides this for itself. The zero Tiers store rows only in segments.
type Tiers struct {
	Cold    *cold.Group    // rows on disk; nil for none
	Members *members.Group // sets of members, on disk; nil for none
	// Outboxes is where idle outboxes go.
	Outboxes spill.Place
	// Seal reports whether the rows of a snapshot with the keys first … last are sealed while they
	// are loaded. If Seal is nil, no rows are sealed.
	Seal func(first, last uint64) bool
}

var _ raft.BatchingFSM = (*Counters)(nil)

// NewCounters returns the state machine before its first entry.
func NewCounters(tiers Tiers) *Counters {
	c := &Counters{tiers: tiers, outboxes: newOutboxBodies(tiers.Outboxes)}
	c.init(codec.KindCounters, func() contents { return newCounts(tiers, c.outboxes.New()) }, func(held contents) {
		c.replace(held.(*counts).table)
		c.outboxes.Show(held.(*counts).out.bodies)
		c.carried.Store(held.(*counts).moved)
	})
	return c
}

// replace publishes another table to readers, and closes the previous one.
func (c *Counters) replace(table *engine.Table) {
	c.tiering.Lock()
	defer c.tiering.Unlock()
	if was := c.table.Swap(table); was != nil {
		was.Close()
	}
}

// Close implements Machine: it ends tiering and releases the cold rows.
func (c *Counters) Close() {
	c.tiering.Lock()
	defer c.tiering.Unlock()
	if !c.closed {
		c.closed = true
		c.Table().Close()
		c.outboxes.Close()
		if c.tiers.Members != nil {
			c.tiers.Members.Close()
		}
	}
}

// Carried returns how many rows and members the newest Restore has moved to disk, and resets that
// number to 0. The snapshot carried them, so it contained at least their bytes.
func (c *Counters) Carried() uint64 { return c.carried.Swap(0) }

// Table returns the current rows. Restore replaces the table, so a caller calls Table for
// each request.
func (c *Counters) Table() *engine.Table { return c.table.Load() }

// TableOf implements Machine.
func (c *Counters) TableOf(t Table) *engine.Table {
	if t != TableCounts {
		return nil
	}
	return c.Table()
}

// Bytes implements Machine.
func (c *Counters) Bytes() uint64 { return c.Table().Stats().Bytes + c.outboxes.Bytes() }

// SnapshotBytes returns Bytes plus the size of the outboxes on disk, which a snapshot includes.
func (c *Counters) SnapshotBytes() uint64 { return c.Bytes() + c.outboxes.Stats().SpilledBytes }

// Outboxes returns the outboxes as bodies that may leave memory, by author.
func (c *Counters) Outboxes() *spill.Shard { return c.outboxes }

// counts has the contents of a shard of a counter keyspace.
type counts struct {
	table   *engine.Table
	tiers   Tiers
	batch   *batch   // from begin to apply; nil or a small one between entries
	loading *loading // set from the first section to the end of a stream
	moved   uint64   // rows and members that loading has moved to disk

	out    *outboxes
	outs   outboxReader  // of load
	change outbox.Change // scratch of judge
	sets   sets
}

func newCounts(tiers Tiers, bodies *spill.Bodies) *counts {
	return &counts{table: engine.New(), tiers: tiers, out: &outboxes{bodies: bodies}, sets: sets{group: tiers.Members}}
}

// batches lets the shards of a process share the memory of large entries. The garbage
// collector frees it once no large entries come.
var batches = sync.Pool{New: func() any { return new(batch) }}

// batchOpsKept bounds the batch that a shard keeps for its next entry.
const batchOpsKept = 1024

func (c *counts) begin() {
	if c.batch == nil {
		c.batch = batches.Get().(*batch)
	}
	c.batch.begin()
}

func (c *counts) decode(_ *dedup.RequestID, p []byte, clocked bool) (int, error) {
	before := len(c.batch.members)
	ops, err := parseOps(p, c.batch.op)
	if err == nil && len(c.batch.members) > before && !clocked {
		err = fmt.Errorf("%w: an op on members before the clock", codec.ErrEntry)
	}
	return ops, err
}

func (c *counts) void(ops int) { c.batch.void(ops) }

func (c *counts) digest() uint64 { return c.table.Digest() + c.out.sum + c.sets.at.Digest }

func (c *counts) stats() engine.Stats {
	s := c.table.Stats()
	s.Bytes += c.out.bodies.Stats().Bytes
	return s
}

func (c *counts) capture() captured {
	return tableSnapshot{c.table.Snapshot(), c.tiers.Cold, c.out.capture(), c.sets.capture()}
}

func (c *counts) load(s *codec.StreamReader, kind byte, p []byte) error {
	if c.loading == nil {
		c.loading = &loading{table: c.table, cold: c.tiers.Cold, old: c.tiers.Seal}
	}
	switch kind {
	case codec.StreamMembers:
		return c.sets.loadNamed(p)
	case codec.StreamCarriedMembers:
		return c.sets.loadCarried(s, p)
	case codec.StreamRows:
		return c.loading.loadRows(p)
	case codec.StreamCold:
		return c.loading.loadNamed(p)
	case codec.StreamCarried:
		return c.loading.loadCarried(s, p)
	case codec.StreamOutboxes:
		return c.loadOutboxes(p)
	}
	return misplaced(kind)
}

func (c *counts) loaded(told codec.Totals) error {
	if c.loading == nil {
		return nil
	}
	told.Digest -= c.out.sum + c.sets.at.Digest
	err := c.loading.end(told)
	c.moved = uint64(c.loading.moved)
	c.loading = nil
	return err
}

func (c *counts) adopt() error {
	c.moved += c.sets.found.Pairs // count the carried members, like rows
	return c.sets.adopt()
}

func (c *counts) dispose() {
	c.table.Close()
	c.out.bodies.Dispose()
}

// tableSnapshot is a captured table.
type tableSnapshot struct {
	*engine.Snapshot
	cold     *cold.Group
	outboxes capturedOutboxes
	sets     setsCapture
}

func (s tableSnapshot) carried() int64 { return carriedBytes(s.Snapshot) }

func (s tableSnapshot) write(w *codec.StreamWriter) error {
	if err := s.sets.write(w); err != nil {
		return err
	}
	rows := rowSections{s: w, kind: codec.StreamRows}
	err := s.Parts(func(p *engine.Part) error {
		if p.Cold == nil {
			return rows.add(p.Page)
		}
		if err := rows.flush(); err != nil {
			return err
		}
		return w.Section(codec.StreamCold, func(b []byte) []byte { return appendCold(b, p) })
	})
	if err == nil {
		err = rows.flush()
	}
	if err != nil {
		return err
	}
	return s.outboxes.write(w)
}

func (s tableSnapshot) keep(snapshot string) error {
	if err := s.sets.keep(); err != nil || s.cold == nil {
		return err
	}
	var named []uint64
	s.Cold(func(g engine.Generation, _, _ uint64) { named = append(named, g.Number()) })
	return s.cold.Pin(snapshot, slices.Compact(named))
}

func (s tableSnapshot) rows() uint64   { return uint64(s.Rows()) }
func (s tableSnapshot) digest() uint64 { return s.Digest() + s.outboxes.sum + s.sets.at.Digest }
func (s tableSnapshot) release() {
	s.Close()
	s.outboxes.view.Close()
}

// Package counters owns the state machine of shards of counters: counts of rows, the sets of their
// members, and the outboxes of authors. Package engine/members stores the sets.
//
// An op on a row, a set or an outbox takes effect after all earlier ops of the log. An op on a set
// or an outbox changes both that and its count, or neither. The effect of an op never depends on
// which rows and outboxes a replica has moved to its disk.
//
// Invariant: an op on a set or an outbox changes a count only together with the set or outbox that
// is counted.
package counters

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/rankings"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/spill"
)

// Machine is the state machine of one shard of a counter keyspace.
type Machine struct {
	raftfsm.Base
	table atomic.Pointer[engine.Table] // Restore replaces the whole table
	// tiering is held while rows leave memory, return to memory or are sealed. Restore holds it
	// while it replaces the table.
	tiering  sync.Mutex
	closed   bool // guarded by tiering
	parting  rows.Parting
	places   raftfsm.Places
	carried  atomic.Uint64 // returned by Carried
	hot      atomic.Pointer[rankings.HotLists]
	largest  atomic.Pointer[rankings.LargestLists] // of table
	outboxes *spill.Shard
}

// New returns a state machine that has not applied any entry.
func New(places raftfsm.Places) *Machine {
	c := &Machine{places: places, outboxes: newOutboxBodies(places.Bodies)}
	c.parting.Lock = &c.tiering
	c.Init(codec.KindCounters, func() raftfsm.Contents { return newContents(places, c.outboxes.New(), &c.parting) }, func(held raftfsm.Contents) {
		now := held.(*contents)
		c.replace(now)
		c.outboxes.Show(now.out.bodies)
		c.hot.Store(now.hot)
		c.carried.Store(now.moved)
	})
	return c
}

// replace makes readers use another table and its lists, and closes the previous ones.
func (c *Machine) replace(now *contents) {
	c.tiering.Lock()
	defer c.tiering.Unlock()
	c.parting.Drop()
	lists := c.largest.Swap(now.largest)
	if was := c.table.Swap(now.table); was != nil {
		lists.Close()
		was.Close()
	}
}

// Close implements Machine. It waits until tiering ends, and releases the cold rows.
func (c *Machine) Close() {
	c.tiering.Lock()
	defer c.tiering.Unlock()
	if !c.closed {
		c.closed = true
		c.largest.Load().Close()
		c.Table().Close()
		c.outboxes.Close()
		if c.places.Members != nil {
			c.places.Members.Close()
		}
	}
}

// Carried returns the number of rows and members that the newest Restore wrote directly to disk,
// and resets the number to 0. The caller should soon take a snapshot, which names these rows on
// disk.
func (c *Machine) Carried() uint64 { return c.carried.Swap(0) }

// Table returns the current rows. Restore replaces the table, so a caller must call Table for each
// request.
func (c *Machine) Table() *engine.Table { return c.table.Load() }

// TableOf implements Machine.
func (c *Machine) TableOf(t raftfsm.Table) *engine.Table {
	if t != rows.Counts {
		return nil
	}
	return c.Table()
}

// Bytes implements Machine.
func (c *Machine) Bytes() uint64 {
	return c.Table().Stats().Bytes + c.outboxes.Bytes() + c.Hot().Bytes()
}

// SnapshotBytes implements Machine: Bytes plus the size of the outboxes on disk, which a snapshot includes.
func (c *Machine) SnapshotBytes() uint64 { return c.Bytes() + c.outboxes.Stats().SpilledBytes }

// Bodies implements Machine. The bodies are the outboxes, by author.
func (c *Machine) Bodies() *spill.Shard { return c.outboxes }

// contents is the state of a shard of a counter keyspace.
type contents struct {
	table   *engine.Table
	parting *rows.Parting          // Machine.parting
	largest *rankings.LargestLists // of table
	places  raftfsm.Places
	batch   *batch   // ops of the current entry; between entries nil, or small
	loading *loading // not nil while a stream is loaded
	moved   uint64   // rows and members that loading has moved to disk

	out    *outboxes
	outs   outboxReader // scratch memory of load
	change outboxChange // scratch memory of judge
	sets   sets
	hot    *rankings.HotLists
}

func newContents(places raftfsm.Places, bodies *spill.Bodies, parting *rows.Parting) *contents {
	table := engine.New()
	return &contents{
		table: table, parting: parting, largest: rankings.NewLargestLists(table), places: places,
		out: &outboxes{bodies: bodies}, sets: sets{group: places.Members}, hot: rankings.NewHotLists(),
	}
}

// batches lets the shards of a process share the memory for decoding large entries. If no more
// large entries come, the garbage collector frees that memory.
var batches = sync.Pool{New: func() any { return new(batch) }}

// batchOpsKept bounds the ops for which a shard keeps the memory of its batch.
const batchOpsKept = 1024

func (c *contents) Begin() {
	if c.batch == nil {
		c.batch = batches.Get().(*batch)
	}
	c.batch.begin()
}

func (c *contents) Decode(_ *dedup.RequestID, p []byte, clocked bool) (int, error) {
	before := len(c.batch.members)
	ops, err := raftfsm.ParseOps(p, c.batch.op)
	if err == nil && len(c.batch.members) > before && !clocked {
		err = fmt.Errorf("%w: an op on members before the clock", codec.ErrEntry)
	}
	return ops, err
}

func (c *contents) Void(ops int) { c.batch.void(ops) }

func (c *contents) Digest() uint64 {
	return c.table.Digest() + c.out.bodies.Digest() + c.sets.at.Digest
}

func (c *contents) Stats() engine.Stats {
	s := c.table.Stats()
	s.Bytes += c.out.bodies.Stats().Bytes
	return s
}

func (c *contents) Capture() raftfsm.Captured {
	return captured{Snapshot: c.table.Snapshot(), cold: c.places.Cold, outboxes: c.out.capture(), sets: c.sets.capture(), hot: c.hot.Capture()}
}

func (c *contents) Load(s *codec.StreamReader, kind byte, p []byte) error {
	if c.loading == nil {
		c.loading = &loading{table: c.table, cold: c.places.Cold, old: c.places.Seal}
	}
	switch kind {
	case codec.StreamMembers:
		return c.sets.loadNamed(p)
	case codec.StreamCarriedMembers:
		return c.sets.loadCarried(s, p)
	case codec.StreamRows:
		return c.loading.loadRows(p)
	case codec.StreamCold, codec.StreamShare:
		return c.loading.loadNamed(kind, p)
	case codec.StreamCarried, codec.StreamCarriedShare:
		return c.loading.loadCarried(s, kind, p)
	case codec.StreamOutboxes:
		return c.loadOutboxes(p)
	case codec.StreamHot:
		return c.hot.Load(p)
	}
	return raftfsm.Misplaced(kind)
}

func (c *contents) Loaded(told codec.Totals) error {
	if c.loading == nil {
		return nil
	}
	told.Digest -= c.out.bodies.Digest() + c.sets.at.Digest
	err := c.loading.end(told)
	c.moved = uint64(c.loading.moved)
	c.loading = nil
	return err
}

func (c *contents) Adopt() error {
	c.moved += c.sets.found.Pairs // members in the stream count like rows
	return c.sets.adopt()
}

func (c *contents) Dispose() {
	c.table.Close()
	c.out.bodies.Dispose()
}

type captured struct {
	*engine.Snapshot
	cold     *cold.Group
	outboxes capturedOutboxes
	sets     setsCapture
	hot      *rankings.HotView
}

func (s captured) Carried() int64 { return carriedBytes(s.Snapshot) }

func (s captured) Write(w *codec.StreamWriter) error {
	if err := s.sets.write(w); err != nil {
		return err
	}
	inMemory := rows.Sections{W: w, Kind: codec.StreamRows}
	err := s.Parts(func(p *engine.Part) error {
		if p.Cold == nil {
			return inMemory.Add(p.Page)
		}
		if err := inMemory.Flush(); err != nil {
			return err
		}
		return w.Section(coldKind(p), func(b []byte) []byte { return appendCold(b, p) })
	})
	if err == nil {
		err = inMemory.Flush()
	}
	if err != nil {
		return err
	}
	if err := s.outboxes.write(w); err != nil {
		return err
	}
	return s.hot.Write(w)
}

func (s captured) Keep(snapshot string) error {
	if err := s.sets.keep(); err != nil || s.cold == nil {
		return err
	}
	var named []*cold.Generation
	s.Cold(func(p *engine.Part) { named = append(named, p.Cold.(*cold.Generation)) })
	return s.cold.Pin(snapshot, named)
}

func (s captured) Rows() uint64   { return uint64(s.Snapshot.Rows()) }
func (s captured) Digest() uint64 { return s.Snapshot.Digest() + s.outboxes.sum + s.sets.at.Digest }
func (s captured) Release() {
	s.Close()
	s.outboxes.view.Close()
}

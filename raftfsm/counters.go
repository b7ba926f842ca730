package raftfsm

import (
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
)

// Counters is the state machine of one shard of a counter keyspace. raft calls
// Apply, ApplyBatch, Snapshot and Restore from one goroutine; the other methods
// may be called from any.
type Counters struct {
	table atomic.Pointer[engine.Table] // replaced whole by Restore
	cold  *cold.Group                  // where rows of table may be too; nil for nowhere
	// tiering is held while rows move out of memory or back, and by Restore while
	// it replaces the table.
	tiering sync.Mutex

	// applied is the index of the last entry of which everything is in table.
	// It rises, and only raft's goroutine moves it.
	applied atomic.Uint64

	mu struct {
		sync.Mutex
		// moved is closed when applied moves; nil while nobody waits for that.
		moved chan struct{}
	}
	// whole is held while an entry is applied, so that State sees a table and
	// an index that belong together. Reads of rows do not take it.
	whole sync.Mutex
	marks marks // under whole

	// seen is of the memory of requests, for who asks from elsewhere.
	seen struct{ logTime, keys, producers atomic.Int64 }

	// raft's goroutine's own
	batch batch
	once  *once
}

var _ raft.BatchingFSM = (*Counters)(nil)

// NewCounters returns the state before the first entry.
func NewCounters() *Counters { return NewCountersOver(nil) }

// NewCountersOver is NewCounters for a table whose rows may be cold: outside of
// memory, which is this replica's own affair. rows may be nil.
func NewCountersOver(rows *cold.Group) *Counters {
	c := &Counters{once: newOnce(), cold: rows}
	c.table.Store(engine.New())
	return c
}

// Result is what Apply answers for an entry of counter ops. It belongs to the
// proposer.
type Result struct {
	Index     uint64
	Width     int               // columns of a row
	Rows      []int64           // of all ops of the entry in their order, each right after its op
	Overflows []engine.Overflow // by op of the entry, rising
	outcomes  []Outcome         // by request of the entry; nil if all were applied
}

// NewResult returns the result of an entry of one request, as another node told
// it.
func NewResult(index uint64, width int, rows []int64, overflows []engine.Overflow, outcome Outcome) *Result {
	r := &Result{Index: index, Width: width, Rows: rows, Overflows: overflows}
	if outcome != Applied {
		r.outcomes = []Outcome{outcome}
	}
	return r
}

// Outcome returns what became of the entry's request of that number.
func (r *Result) Outcome(request int) Outcome {
	if r.outcomes == nil {
		return Applied
	}
	return r.outcomes[request]
}

// Table returns the rows as they are now. Restore replaces it, so a caller
// asks again for each request.
func (c *Counters) Table() *engine.Table { return c.table.Load() }

// Applied returns the index of the last entry that reads of Table see whole.
func (c *Counters) Applied() uint64 { return c.applied.Load() }

// LogTime returns the latest time that a leader stamped into the log, as of the
// last entry that was applied; 1970 before there is one.
func (c *Counters) LogTime() time.Time { return time.UnixMilli(c.seen.logTime.Load()) }

// Remembered returns how many keys and producers the memory of requests holds,
// likewise. Some may be out of their time and not yet dropped.
func (c *Counters) Remembered() (keys, producers int) {
	return int(c.seen.keys.Load()), int(c.seen.producers.Load())
}

// tellSeen follows a change of the memory.
func (c *Counters) tellSeen() {
	c.seen.logTime.Store(c.once.now)
	c.seen.keys.Store(int64(c.once.keyRecords()))
	c.seen.producers.Store(int64(c.once.producers.len))
}

// State is a table's summary and the index that it belongs to.
type State struct {
	Index  uint64
	Digest uint64
	engine.Stats
}

// State returns a summary taken between two entries.
func (c *Counters) State() State {
	c.whole.Lock()
	defer c.whole.Unlock()
	return State{Index: c.applied.Load(), Digest: c.Table().Digest(), Stats: c.Table().Stats()}
}

// WaitApplied returns true once Applied has reached index, and false if it has
// not by the deadline.
func (c *Counters) WaitApplied(index uint64, deadline time.Time) bool {
	if c.applied.Load() >= index {
		return true
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for {
		c.mu.Lock()
		if c.mu.moved == nil {
			c.mu.moved = make(chan struct{})
		}
		moved := c.mu.moved
		c.mu.Unlock()
		if c.applied.Load() >= index {
			return true
		}
		select {
		case <-moved:
		case <-timer.C:
			return c.applied.Load() >= index
		}
	}
}

// advance moves applied and wakes those who wait for it.
func (c *Counters) advance(index uint64) {
	c.applied.Store(index)
	c.mu.Lock()
	if c.mu.moved != nil {
		close(c.mu.moved)
		c.mu.moved = nil
	}
	c.mu.Unlock()
}

// Apply applies one entry. It panics with an *EntryError if it cannot.
func (c *Counters) Apply(entry *raft.Log) any {
	return c.ApplyBatch([]*raft.Log{entry})[0]
}

// ApplyBatch applies committed entries and answers a *Result for each entry of
// ops, nil for changes of the group's members.
func (c *Counters) ApplyBatch(entries []*raft.Log) []any {
	answers := make([]any, len(entries))
	for i, entry := range entries {
		if entry.Type == raft.LogCommand {
			answers[i] = c.apply(entry)
		} else {
			c.advance(entry.Index)
		}
	}
	return answers
}

func (c *Counters) apply(entry *raft.Log) *Result {
	kind, width, sections, err := openEntry(entry.Data)
	if err == nil && kind != entryCounters {
		err = fmt.Errorf("%w: kind %d in a group of counters", errEntry, kind)
	}
	if err == nil {
		err = c.batch.decode(sections, c.once)
	}
	if err != nil {
		panic(&EntryError{Index: entry.Index, Err: err})
	}
	c.tellSeen()
	r := &Result{Index: entry.Index, Width: width}
	if width > 0 {
		r.Rows = make([]int64, len(c.batch.ops)*width)
	}
	c.whole.Lock()
	if r.Overflows, err = c.Table().Apply(c.batch.ops, width, r.Rows, nil); err != nil {
		panic(&EntryError{Index: entry.Index, Err: err})
	}
	c.advance(entry.Index)
	c.marks.note(entry.Index, c.Table().Digest())
	c.whole.Unlock()
	if len(r.Overflows) > 0 {
		c.batch.noteRefused(c.once, r.Overflows)
	}
	if slices.ContainsFunc(c.batch.outcomes, func(o Outcome) bool { return o != Applied }) {
		r.outcomes = slices.Clone(c.batch.outcomes)
	}
	return r
}

// Snapshot captures the state between two entries; raft persists it while
// entries go on being applied.
func (c *Counters) Snapshot() (raft.FSMSnapshot, error) {
	return &countersSnapshot{index: c.applied.Load(), once: c.once.capture(), table: c.Table().Snapshot(), cold: c.cold}, nil
}

type countersSnapshot struct {
	index uint64
	once  *onceView
	table *engine.Snapshot
	cold  *cold.Group
}

// Persist streams the snapshot to sink. It names the generations of cold rows, and
// has them kept for as long as there is a snapshot of the sink's name. The caller
// closes or cancels the sink on an error, as raft does.
func (s *countersSnapshot) Persist(sink raft.SnapshotSink) error {
	if err := writeCounters(sink, s.index, s.table, s.once); err != nil {
		return err
	}
	if s.cold != nil {
		var named []uint64
		s.table.Cold(func(g engine.Generation, _, _ uint64) { named = append(named, g.Number()) })
		if err := s.cold.Pin(sink.ID(), slices.Compact(named)); err != nil {
			return err
		}
	}
	return sink.Close()
}

func (s *countersSnapshot) Release() { s.table.Close() }

// Restore replaces the state by a snapshot's. On an error the state stays what
// it was.
func (c *Counters) Restore(snapshot io.ReadCloser) error {
	defer snapshot.Close()
	index, table, once, err := readCounters(snapshot, c.cold)
	if err != nil {
		return fmt.Errorf("cannot restore counters: %w", err)
	}
	c.tiering.Lock()
	defer c.tiering.Unlock()
	c.whole.Lock()
	defer c.whole.Unlock()
	c.table.Swap(table).Close()
	c.marks = marks{}
	c.once = once
	c.tellSeen()
	c.advance(index)
	return nil
}

package raftfsm

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/spill"
)

// Machine is the state machine of one shard, of any kind. raft calls Apply, ApplyBatch, Snapshot
// and Restore from one goroutine. Unless their comments say otherwise, any goroutine may call the
// other methods.
type Machine interface {
	raft.BatchingFSM

	// Applied returns the index of the last entry whose effects are all visible to reads.
	Applied() uint64
	// WaitApplied waits until Applied reaches index. It returns false if Applied is still lower at
	// the deadline.
	WaitApplied(index uint64, deadline time.Time) bool
	// LogTime returns the latest time that a leader stamped into the log, as of the last applied
	// entry; 1970 if there was none.
	LogTime() time.Time
	// Remembered returns the number of keys and producers in the request memory, as of the last
	// applied entry. Some of them may have expired.
	Remembered() (keys, producers int)
	// State returns a summary taken between two entries.
	State() State
	// Sources returns the numbers of the sources that have positions here, ascending, as of the
	// last applied entry. The caller must not change the slice.
	Sources() []uint64
	// Bytes returns how much memory the contents take.
	Bytes() uint64
	// TableOf returns the current table with the number t, or nil if shards of this kind have no
	// such table.
	TableOf(t Table) *engine.Table
	// SnapshotBytes estimates the size of a snapshot.
	SnapshotBytes() uint64
	// Members returns the sets of members, or nil if shards of this kind have none.
	Members() *members.Group
	// Bodies returns the bodies of keys, in memory and on disk. It returns nil if shards of this
	// kind have no bodies.
	Bodies() *spill.Shard
	// Besides returns the number of keys with a body, and the number of members in the sets of all
	// rows. If State already counts these keys as rows, bodies is 0.
	Besides() (bodies, pairs uint64)
	// Grows reports whether an op that Visitor.Body received may make the body of its key larger.
	Grows(key uint64, op any) bool
	// Cleanup returns the next step that removes useless state. A cursor is useless if its user has
	// not moved it for the duration idle. kinds.CheckCursorIdle checks the bounds of idle.
	Cleanup(now time.Time, idle time.Duration) Cleanup
	// Dropped returns how many idle rows the machine has dropped since it was made.
	Dropped() uint64
	// Close releases data on disk. Call it after raft has stopped. Later reads of that data may
	// fail.
	Close()
	// Stuck returns an ErrStuck if this replica applies no more entries, and otherwise nil.
	Stuck() error
	// Marks returns this replica's newest marks, by index. Restore discards them.
	Marks() []Mark
	// SetRoute sets the route that the shard has before its first entry. Without a call, the shard
	// is the only shard of its keyspace. Restore refuses a snapshot whose route such a shard can
	// never have.
	SetRoute(route codec.Route)
	// Route returns the route of the contents. Split and Restore change the route together with the
	// contents.
	Route() codec.Route
	// Routed reports whether the contents have the given route. If it returns true before and after
	// a read, the read saw only contents of this route. It returns false while contents of another
	// route replace the present contents.
	Routed(route codec.Route) bool
	// Part moves some rows of the tables in memory to tables of the parts of a coming split, concurrently
	// with entries and reads. It returns false once no row is left to move. Split by an equal Partition then
	// takes the same time for any number of rows. No row changes, so a parting may end at any time, and goes on
	// with the next call. Calls must not run concurrently. Part returns ErrReplaced if the shard does not have
	// the route by.From, or is closed. It returns engine.ErrParted like engine.Parting.
	Part(by Partition) (more bool, err error)
	// Split keeps the first part of the shard and moves the others to new machines of the same
	// kind, one for each. raft's goroutine calls it while it applies the entry at s.Index. After an
	// error this machine is unchanged, and the other machines must be discarded. A kind whose
	// keyspaces always have one shard returns ErrUndivided. Split returns ErrVoid unless the shard has the
	// route s.From and the attempt was not abandoned.
	Split(s *Split, others []Machine) error
	// Abandon makes an attempt to split the shard void, and all earlier attempts too. If the shard
	// no longer has the route from, it returns ErrVoid. Only raft's goroutine may call it.
	Abandon(from codec.Route, attempt uint64) error
	// SetGrowth configures how the shard grows. Call it after SetRoute and before the first entry. Without a
	// call, the machine panics at an entry by which a shard grows.
	SetGrowth(Growth)
	Growing
	base() *Base
}

// Cleanup is a step that removes useless state by an op without a result.
type Cleanup struct {
	Append func(*RequestWriter) // appends the op; nil if the shard has no useless state
	Pause  time.Duration        // wait at least this long before the next step
}

// State summarises a shard's contents at an index.
type State struct {
	Index  uint64
	Digest uint64
	engine.Stats
}

// ErrStuck is returned by a replica that applies no more entries, because it cannot read cold rows,
// bodies or sets that it needs. The contents of such a replica stay as the last applied entry left
// them. They are empty if the replica could not load its own snapshot. It takes no snapshots and
// answers no proposals until Restore loads another replica's snapshot.
var ErrStuck = errors.New("the replica applies no more entries")

// Base is embedded in the state machines of all kinds. It keeps the index and time of the log, and
// the request memory. For each entry, it decodes the requests, finds the repeated ones, and applies
// the others.
type Base struct {
	kind  codec.Kind
	first codec.Route     // route before the first entry; a snapshot has this route, or a route to which it grows
	fresh func() Contents // creates empty contents
	show  func(Contents)  // publishes contents to readers

	// applied is the index of the last entry whose effects are all in contents. It never
	// falls. Only raft's goroutine writes it.
	applied atomic.Uint64

	// route is the packed route of the contents that show has published. The bit showing is set
	// while contents of another route replace them. Only raft's goroutine writes route. Its modulus
	// never falls. So if a reader loads the same route, without the bit, before and after it reads
	// contents, these contents have that route.
	route atomic.Uint64

	stuck atomic.Pointer[codec.EntryError] // nil while entries are applied; only raft's goroutine writes it

	mu struct {
		sync.Mutex
		// moved is closed when applied increases. It is nil while nobody waits.
		moved chan struct{}
	}
	// whole is locked while an entry is applied. So the contents and the index that State reads
	// belong together. Reads of rows do not lock whole.
	whole    sync.Mutex
	contents Contents // replaced under whole
	marks    marks    // guarded by whole
	// positions is the digest of the sources' positions, as of applied. whole guards it.
	positions uint64

	// sizes holds copies of the request memory's sizes, for other goroutines.
	sizes struct {
		logTime, keys, producers atomic.Int64
		sources                  atomic.Pointer[[]uint64]
		closed                   atomic.Bool // dedup.Memory.Closed
	}

	growth Growth // set before the first entry
	growing

	// Owned by raft's goroutine.
	requests requests
	memory   *dedup.Memory
}

// Init initialises a machine of a kind, before its first entry. fresh returns empty contents. show
// makes contents visible to readers. Restore calls it with the restored contents.
func (m *Base) Init(kind codec.Kind, fresh func() Contents, show func(Contents)) {
	m.kind, m.fresh, m.show = kind, fresh, show
	m.SetRoute(codec.Whole)
	m.memory, m.contents = dedup.New(), fresh()
	show(m.contents)
}

// Sources implements Machine.
func (m *Base) Sources() []uint64 {
	if all := m.sizes.sources.Load(); all != nil {
		return *all
	}
	return nil
}

// Applied implements Machine.
func (m *Base) Applied() uint64 { return m.applied.Load() }

// The methods below implement Machine for kinds without tables or data on disk.

func (m *Base) TableOf(Table) *engine.Table { return nil }
func (m *Base) Members() *members.Group     { return nil }
func (m *Base) Bodies() *spill.Shard        { return nil }
func (m *Base) Besides() (_, _ uint64)      { return 0, 0 }
func (m *Base) Grows(uint64, any) bool      { return false }
func (m *Base) Dropped() uint64             { return 0 }

func (m *Base) Part(Partition) (_ bool, _ error) { return }

func (m *Base) Cleanup(time.Time, time.Duration) (_ Cleanup) { return }
func (m *Base) Close()                                       {}

// SetRoute implements Machine.
func (m *Base) SetRoute(route codec.Route) {
	m.first = route
	m.route.Store(packed(route))
}

// Route implements Machine.
func (m *Base) Route() codec.Route {
	r := m.route.Load()
	return codec.Route{Modulus: uint32(r &^ showing >> 32), Residue: uint32(r)}
}

// Routed implements Machine.
func (m *Base) Routed(route codec.Route) bool { return m.route.Load() == packed(route) }

// Stuck implements Machine.
func (m *Base) Stuck() error {
	if err := m.stuck.Load(); err != nil {
		return err
	}
	return nil
}

// stopAt makes the replica stuck from the entry with this index on.
func (m *Base) stopAt(index uint64, err error) {
	m.stuck.Store(&codec.EntryError{Index: index, Err: fmt.Errorf("%w: %w", ErrStuck, err)})
}

// LogTime implements Machine.
func (m *Base) LogTime() time.Time { return time.UnixMilli(m.sizes.logTime.Load()) }

// Remembered implements Machine.
func (m *Base) Remembered() (keys, producers int) {
	return int(m.sizes.keys.Load()), int(m.sizes.producers.Load())
}

// remember replaces the request memory. The caller must have locked whole, unless nobody else uses the
// machine yet.
func (m *Base) remember(memory *dedup.Memory) {
	m.memory, m.positions = memory, memory.PositionsDigest()
	m.publishSizes()
}

// publishSizes copies the sizes of the request memory for other goroutines.
func (m *Base) publishSizes() {
	keys, producers := m.memory.Sizes()
	m.sizes.logTime.Store(m.memory.Now())
	m.sizes.keys.Store(int64(keys))
	m.sizes.producers.Store(int64(producers))
	if closed := m.memory.Closed(); closed != m.sizes.closed.Load() {
		m.sizes.closed.Store(closed)
	}
	if !slices.Equal(m.memory.Sources(), m.Sources()) {
		all := m.memory.Sources()
		m.sizes.sources.Store(&all)
	}
}

// State implements Machine.
func (m *Base) State() State {
	m.whole.Lock()
	defer m.whole.Unlock()
	return State{Index: m.applied.Load(), Digest: m.digest(), Stats: m.contents.Stats()}
}

// digest returns the digest of contents and positions. The caller must have locked whole.
func (m *Base) digest() uint64 { return m.contents.Digest() + m.positions }

// Between calls visit with the contents. No entry is applied until visit returns.
func (m *Base) Between(visit func(Contents)) {
	m.whole.Lock()
	defer m.whole.Unlock()
	visit(m.contents)
}

// Marks implements Machine.
func (m *Base) Marks() []Mark {
	m.whole.Lock()
	defer m.whole.Unlock()
	return slices.Clone(m.marks)
}

// WaitApplied implements Machine.
func (m *Base) WaitApplied(index uint64, deadline time.Time) bool {
	if m.applied.Load() >= index {
		return true
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	for {
		m.mu.Lock()
		if m.mu.moved == nil {
			m.mu.moved = make(chan struct{})
		}
		moved := m.mu.moved
		m.mu.Unlock()
		if m.applied.Load() >= index {
			return true
		}
		select {
		case <-moved:
		case <-timer.C:
			return m.applied.Load() >= index
		}
	}
}

func (m *Base) advance(index uint64) {
	m.applied.Store(index)
	m.mu.Lock()
	if m.mu.moved != nil {
		close(m.mu.moved)
		m.mu.moved = nil
	}
	m.mu.Unlock()
}

// Apply applies one entry. It panics with a *codec.EntryError if the entry is invalid.
func (m *Base) Apply(entry *raft.Log) any {
	return m.ApplyBatch([]*raft.Log{entry})[0]
}

// ApplyBatch applies committed entries. It returns a *Result for each entry of ops, and nil for
// each change of the group's members. For an entry by which the shard grows, it returns nil or an
// error such as ErrVoid. For each entry that it does not apply, it returns an ErrStuck.
func (m *Base) ApplyBatch(entries []*raft.Log) []any {
	answers := make([]any, len(entries))
	for i, entry := range entries {
		if err := m.Stuck(); err != nil {
			answers[i] = err
		} else if entry.Type == raft.LogCommand {
			answers[i] = m.apply(entry)
		} else {
			m.advance(entry.Index)
		}
	}
	return answers
}

func (m *Base) apply(entry *raft.Log) any {
	kind, width, sections, err := codec.OpenEntry(entry.Data)
	if err == nil && kind != byte(m.kind) {
		err = fmt.Errorf("%w: kind %d in a group of %s", codec.ErrEntry, kind, m.kind)
	}
	if err == nil && codec.Grows(sections) {
		return m.grow(entry.Index, entry.Term, sections)
	}
	route := m.Route()
	if m.Unborn() {
		route = codec.Route{} // no section has this route
	}
	if err == nil {
		err = m.requests.decode(sections, route, m.memory, m.contents)
	}
	if err != nil {
		panic(&codec.EntryError{Index: entry.Index, Err: err})
	}
	m.publishSizes()
	r := &Result{Index: entry.Index, Width: width, Modulus: route.Modulus}
	if width > 0 {
		r.Rows = make([]int64, m.requests.ops()*width)
	}
	m.whole.Lock()
	if err = m.contents.Apply(m.memory.Now(), m.memory.Closed(), r); err != nil {
		m.whole.Unlock()
		m.stopAt(entry.Index, err)
		return m.Stuck()
	}
	m.positions = m.memory.PositionsDigest()
	m.advance(entry.Index)
	m.marks.note(entry.Index, m.digest)
	m.whole.Unlock()
	if len(r.Overflows) > 0 {
		m.requests.noteRefused(m.memory, r.Overflows)
	}
	if slices.ContainsFunc(m.requests.outcomes, func(o dedup.Outcome) bool { return o != dedup.Applied }) {
		r.outcomes, r.met = slices.Clone(m.requests.outcomes), slices.Clone(m.requests.met)
	}
	r.use, r.judge = m.memory.NewUse(), m.memory.JudgeNames()
	r.positions = m.requests.positions
	return r
}

// Table is the number of a table of a shard. Calls between nodes carry this number.
type Table uint8

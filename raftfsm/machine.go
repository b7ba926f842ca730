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
)

// Machine is the state machine of one shard, of any kind. raft calls Apply,
// ApplyBatch, Snapshot and Restore from one goroutine; the other methods may be
// called from any.
type Machine interface {
	raft.BatchingFSM

	// Applied returns the index of the last entry that reads see whole.
	Applied() uint64
	// WaitApplied returns true once Applied has reached index, and false if it has
	// not by the deadline.
	WaitApplied(index uint64, deadline time.Time) bool
	// LogTime returns the latest time that a leader stamped into the log, as of the
	// last entry that was applied; 1970 before there is one.
	LogTime() time.Time
	// Remembered returns how many keys and producers the memory of requests holds,
	// likewise. Some may be out of their time and not yet dropped.
	Remembered() (keys, producers int)
	// State returns a summary taken between two entries.
	State() State
	// Bytes returns the memory of what is held.
	Bytes() uint64
	// Marks returns the newest marks of this replica, by index. They begin anew
	// with Restore.
	Marks() []Mark
}

// State is a summary of what a shard holds and the index that it belongs to.
type State struct {
	Index  uint64
	Digest uint64
	engine.Stats
}

// contents is what a shard of one kind holds. Its methods but stats are raft's
// goroutine's, and the owner's who builds one from a snapshot.
type contents interface {
	// begin forgets the ops of the entry before.
	begin()
	// decode takes a request's ops behind those that it has of the entry, and
	// returns how many. clocked says whether the entry stamped a time before it.
	decode(id *RequestID, p []byte, clocked bool) (ops int, err error)
	// void makes the last ops ones that change nothing and answer what is there.
	void(ops int)
	// apply applies what was taken, at a time of the log in Unix milliseconds. It
	// fills rows, width counts an op, and returns the ops that it refused, rising.
	apply(now int64, width int, rows []int64) []engine.Overflow

	digest() uint64
	stats() engine.Stats // from any goroutine
	capture() captured
	// load adds a section of a snapshot, that came behind one of kind last.
	load(kind, last byte, p []byte) error
}

// captured is contents as they were at one moment, while entries go on.
type captured interface {
	write(*streamWriter) error
	rows() uint64
	digest() uint64
	release()
}

// machine is what the state machines of all kinds share: the log's index and
// time, the memory of requests, the turn of decoding, judging and applying.
type machine struct {
	kind Kind
	make func() contents // empty ones
	show func(contents)  // gives readers those that are held from now on

	// applied is the index of the last entry of which everything is held. It
	// rises, and only raft's goroutine moves it.
	applied atomic.Uint64

	mu struct {
		sync.Mutex
		// moved is closed when applied moves; nil while nobody waits for that.
		moved chan struct{}
	}
	// whole is held while an entry is applied, so that State sees contents and an
	// index that belong together. Reads do not take it.
	whole sync.Mutex
	held  contents // replaced under whole
	marks marks    // under whole

	// seen is of the memory of requests, for who asks from elsewhere.
	seen struct{ logTime, keys, producers atomic.Int64 }

	// raft's goroutine's own
	requests requests
	once     *once
}

func (m *machine) init(kind Kind, fresh func() contents, show func(contents)) {
	m.kind, m.make, m.show = kind, fresh, show
	m.once, m.held = newOnce(), fresh()
	show(m.held)
}

// Result is what Apply answers for an entry of a shard's ops. It belongs to the
// proposer.
type Result struct {
	Index     uint64
	Width     int               // columns of a row
	Rows      []int64           // of all ops of the entry in their order, each right after its op
	Overflows []engine.Overflow // refused ops, by op of the entry, rising
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

// Applied is Machine's.
func (m *machine) Applied() uint64 { return m.applied.Load() }

// LogTime is Machine's.
func (m *machine) LogTime() time.Time { return time.UnixMilli(m.seen.logTime.Load()) }

// Remembered is Machine's.
func (m *machine) Remembered() (keys, producers int) {
	return int(m.seen.keys.Load()), int(m.seen.producers.Load())
}

// tellSeen follows a change of the memory.
func (m *machine) tellSeen() {
	m.seen.logTime.Store(m.once.now)
	m.seen.keys.Store(int64(m.once.keyRecords()))
	m.seen.producers.Store(int64(m.once.producers.len))
}

// State is Machine's.
func (m *machine) State() State {
	m.whole.Lock()
	defer m.whole.Unlock()
	return State{Index: m.applied.Load(), Digest: m.held.digest(), Stats: m.held.stats()}
}

// Marks is Machine's.
func (m *machine) Marks() []Mark {
	m.whole.Lock()
	defer m.whole.Unlock()
	return m.marks.rising()
}

// WaitApplied is Machine's.
func (m *machine) WaitApplied(index uint64, deadline time.Time) bool {
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

// advance moves applied and wakes those who wait for it.
func (m *machine) advance(index uint64) {
	m.applied.Store(index)
	m.mu.Lock()
	if m.mu.moved != nil {
		close(m.mu.moved)
		m.mu.moved = nil
	}
	m.mu.Unlock()
}

// Apply applies one entry. It panics with an *EntryError if it cannot.
func (m *machine) Apply(entry *raft.Log) any {
	return m.ApplyBatch([]*raft.Log{entry})[0]
}

// ApplyBatch applies committed entries and answers a *Result for each entry of
// ops, nil for changes of the group's members.
func (m *machine) ApplyBatch(entries []*raft.Log) []any {
	answers := make([]any, len(entries))
	for i, entry := range entries {
		if entry.Type == raft.LogCommand {
			answers[i] = m.apply(entry)
		} else {
			m.advance(entry.Index)
		}
	}
	return answers
}

func (m *machine) apply(entry *raft.Log) *Result {
	kind, width, sections, err := openEntry(entry.Data)
	if err == nil && kind != byte(m.kind) {
		err = fmt.Errorf("%w: kind %d in a group of %s", errEntry, kind, m.kind)
	}
	if err == nil {
		err = m.requests.decode(sections, m.once, m.held)
	}
	if err != nil {
		panic(&EntryError{Index: entry.Index, Err: err})
	}
	m.tellSeen()
	r := &Result{Index: entry.Index, Width: width}
	if width > 0 {
		r.Rows = make([]int64, m.requests.ops()*width)
	}
	m.whole.Lock()
	r.Overflows = m.held.apply(m.once.now, width, r.Rows)
	m.advance(entry.Index)
	m.marks.note(entry.Index, m.held.digest)
	m.whole.Unlock()
	if len(r.Overflows) > 0 {
		m.requests.noteRefused(m.once, r.Overflows)
	}
	if slices.ContainsFunc(m.requests.outcomes, func(o Outcome) bool { return o != Applied }) {
		r.outcomes = slices.Clone(m.requests.outcomes)
	}
	return r
}

// Snapshot captures the state between two entries; raft persists it while
// entries go on being applied.
func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	return &machineSnapshot{kind: m.kind, index: m.applied.Load(), once: m.once.capture(), held: m.held.capture()}, nil
}

type machineSnapshot struct {
	kind  Kind
	index uint64
	once  *onceView
	held  captured
}

// Persist streams the snapshot to sink. The caller closes or cancels the sink
// on an error, as raft does.
func (s *machineSnapshot) Persist(sink raft.SnapshotSink) error {
	if err := writeShard(sink, s.kind, s.index, s.held, s.once); err != nil {
		return err
	}
	return sink.Close()
}

func (s *machineSnapshot) Release() { s.held.release() }

// Restore replaces the state by a snapshot's. On an error the state stays what
// it was.
func (m *machine) Restore(snapshot io.ReadCloser) error {
	defer snapshot.Close()
	held := m.make()
	index, once, err := readShard(snapshot, m.kind, held)
	if err != nil {
		return fmt.Errorf("cannot restore %s: %w", m.kind, err)
	}
	m.whole.Lock()
	defer m.whole.Unlock()
	m.held = held
	m.show(held)
	m.marks = marks{}
	m.once = once
	m.tellSeen()
	m.advance(index)
	return nil
}

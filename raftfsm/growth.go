package raftfsm

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
)

// This file applies the entries by which a shard grows: see shard/GROWTH.md.

// Growth configures how the shard of a Machine grows.
type Growth struct {
	Parking *Parking       // of this node
	NewPart func() Machine // returns an empty machine of the same kind, without Places
	// Unborn means that the shard was created as a part of another one. Until it has adopted the
	// part or restored a snapshot, it refuses all requests and reads, and takes no snapshots.
	Unborn bool
	// Grew is called after the shard has split or adopted its part; nil for no call. It must not wait, because
	// raft's goroutine calls it.
	Grew func()
}

// Growing is the part of Machine that package replica uses. Any goroutine may call its methods.
type Growing interface {
	// Unborn reports whether the shard is still unborn: see Growth.
	Unborn() bool
	// Barred reports whether the replica has applied a Split whose parts have not all begun.
	Barred() bool
	// Begun records that all parts of an attempt to split this shard have begun, and also of all
	// earlier attempts. The replica need not have applied that Split yet.
	Begun(attempt uint32)
	// GrewAt returns the index of the last Split or Adopt that this machine has applied, unless the
	// parts have not all begun yet. It returns 0 if there is none. Restore sets it to 0.
	GrewAt() uint64
	// AdoptedAt returns the index of the Adopt that this machine has applied, or 0. Restore sets it
	// to 0.
	AdoptedAt() uint64
	// Abandoned returns the highest attempt to split the shard that the log has abandoned, or 0.
	Abandoned() uint64
	// Restores returns how often Restore has replaced the contents.
	Restores() uint64
}

// ErrNotNow is returned by Snapshot for a shard that grows. The replica is undamaged, and a later snapshot
// succeeds.
var ErrNotNow = errors.New("no snapshot can be taken until the growth has gone on")

var (
	// ErrBarred is an ErrNotNow: the shard has split, and its parts have not all begun.
	ErrBarred = fmt.Errorf("%w: the parts of this shard have not all begun", ErrNotNow)
	// ErrUnborn is an ErrNotNow: the shard has not adopted its part.
	ErrUnborn = fmt.Errorf("%w: this shard has not adopted its part", ErrNotNow)
)

var (
	// ErrNoPart makes a replica stuck: the part that it must adopt was not on this node in time.
	ErrNoPart = errors.New("the part to adopt is not on this node")
	// ErrNotStaged is an ErrNoPart: the part was on this node, but without its members.
	ErrNotStaged = fmt.Errorf("%w with its members", ErrNoPart)
	// ErrOtherPart makes a replica stuck: the part on this node, or the copy of it, differs from the leader's. The part is
	// discarded.
	ErrOtherPart = errors.New("the part on this node differs from the leader's")
)

// ErrLate is the answer to a Split that a later term than its leader's has in the log. It changes nothing.
var ErrLate = errors.New("the split is of an earlier term")

// partWaitMax bounds how long Apply waits for a part. A longer wait would count as a hang of the state machine.
const partWaitMax = time.Second

// growing is the state of a machine that splits or adopts. Only raft's goroutine writes the fields
// other than begun.
type growing struct {
	unborn    atomic.Bool
	splitAt   atomic.Uint64 // index of the last applied Split, 0 for none
	attempt   atomic.Uint32 // number of that Split's attempt
	begun     atomic.Uint32 // the highest attempt whose parts have all begun
	adoptedAt atomic.Uint64
	abandoned atomic.Uint64 // the highest void attempt to split the shard
	restores  atomic.Uint64
}

// Unborn implements Growing.
func (g *growing) Unborn() bool { return g.unborn.Load() }

// Barred implements Growing.
func (g *growing) Barred() bool { return g.attempt.Load() > g.begun.Load() }

// Begun implements Growing.
func (g *growing) Begun(attempt uint32) {
	for {
		was := g.begun.Load()
		if attempt <= was || g.begun.CompareAndSwap(was, attempt) {
			return
		}
	}
}

// GrewAt implements Growing.
func (g *growing) GrewAt() uint64 {
	if g.Barred() {
		return 0
	}
	return max(g.splitAt.Load(), g.adoptedAt.Load())
}

// AdoptedAt implements Growing.
func (g *growing) AdoptedAt() uint64 { return g.adoptedAt.Load() }

// Abandoned implements Growing.
func (g *growing) Abandoned() uint64 { return g.abandoned.Load() }

// Restores implements Growing.
func (g *growing) Restores() uint64 { return g.restores.Load() }

// notNow returns why the machine must not take a snapshot, or nil. The check is on raft's goroutine. An
// earlier check could pass before a Split that the snapshot then contains.
func (g *growing) notNow() error {
	switch {
	case g.Unborn():
		return ErrUnborn
	case g.Barred():
		return ErrBarred
	}
	return nil
}

// restored resets the state after Restore. A snapshot exists, so it is not of an unborn shard. If it
// is from before a Split, the replay of that Split bars the next snapshot again.
func (g *growing) restored() {
	g.unborn.Store(false)
	g.attempt.Store(0)
	g.splitAt.Store(0)
	g.adoptedAt.Store(0)
	g.restores.Add(1)
}

// SetGrowth implements Machine.
func (m *Base) SetGrowth(g Growth) {
	m.growth = g
	m.unborn.Store(g.Unborn)
	if g.Unborn {
		m.route.Store(packed(m.first) | showing) // refuse reads
	}
}

// grow applies an entry by which the shard grows.
func (m *Base) grow(index, term uint64, sections []byte) any {
	entry, err := parseGrowth(sections)
	if err == nil && m.growth.Parking == nil {
		err = errors.New("this replica was opened without a place for parts")
	}
	if err != nil {
		panic(&codec.EntryError{Index: index, Err: err})
	}
	done := func() { // whole is locked
		m.advance(index)
		m.marks.note(index, m.digest)
	}
	switch e := entry.(type) {
	case *SplitEntry:
		if err = ErrLate; e.Term == term {
			err = m.splitBy(e, index, done)
		}
	case *AdoptEntry:
		if m.Unborn() {
			err = m.adopt(e, index, done)
		}
	case *AbandonEntry:
		err = m.Abandon(e.From, uint64(e.Attempt))
	}
	switch {
	case m.Applied() >= index: // it has split or adopted its part
		if m.growth.Grew != nil {
			m.growth.Grew()
		}
		return nil
	case err != nil && !errors.Is(err, ErrVoid) && !errors.Is(err, ErrUndivided) && !errors.Is(err, ErrLate):
		m.stopAt(index, err)
		return m.Stuck()
	}
	m.whole.Lock()
	defer m.whole.Unlock()
	done()
	if err != nil {
		return err
	}
	return nil
}

// splitBy applies a Split, and parks the other parts. If the parts do not add up, it copies them once
// more.
func (m *Base) splitBy(e *SplitEntry, index uint64, done func()) (err error) {
	others := make([]Machine, len(e.Children))
	for try := range 2 {
		for i := range others {
			others[i] = m.growth.NewPart()
		}
		s := e.split(index)
		s.Copies = try > 0
		s.applied = func() {
			m.attempt.Store(e.Attempt)
			m.splitAt.Store(index)
			done()
		}
		if err = m.Split(s, others); !errors.Is(err, ErrUneven) {
			break
		}
	}
	if err != nil {
		for _, part := range others {
			part.Close()
		}
		return err
	}
	for i, part := range others {
		state := part.State()
		m.growth.Parking.park(&Parked{Machine: part, AdoptEntry: AdoptEntry{
			Parent: e.Group, Split: index, Part: i + 1, Group: e.Children[i], Rows: state.Rows, Digest: state.Digest,
		}})
	}
	return nil
}

// adopt makes a parked part the contents of this shard, and discards it. It waits for the part, at most partWaitMax.
func (m *Base) adopt(e *AdoptEntry, index uint64, done func()) error {
	until := time.After(partWaitMax)
	for {
		changed := m.growth.Parking.changes()
		err := ErrNoPart
		if part := m.growth.Parking.claim(e.Group); part != nil {
			if part.Split == e.Split && part.Parent == e.Parent {
				err = m.take(part, e, index, done)
			}
			m.growth.Parking.unclaim(part)
			if err == nil || errors.Is(err, ErrOtherPart) {
				m.growth.Parking.Discard(part)
				return err
			}
		}
		if !errors.Is(err, ErrNoPart) && !errors.Is(err, members.ErrNotStaged) {
			return err
		}
		select {
		case <-changed:
		case <-until:
			if !errors.Is(err, ErrNoPart) {
				err = fmt.Errorf("%w: %w", ErrNotStaged, err)
			}
			return err
		}
	}
}

func (m *Base) take(part *Parked, e *AdoptEntry, index uint64, done func()) error {
	if part.AdoptEntry != *e || part.Machine.Route() != m.first {
		return fmt.Errorf("%w: here %+v of %s, there %+v of %s", ErrOtherPart, part.AdoptEntry, part.Machine.Route(), *e, m.first)
	}
	held, from := m.fresh(), part.Machine.base()
	all := &Split{Index: index, Adopts: e, Parts: make([]dedup.Part, 1), PartOf: func(uint64) int { return 0 }}
	if err := from.contents.Split(all, []Contents{held}); err != nil {
		held.Dispose()
		return err
	}
	part.taken = true // its rows on disk are those of held
	if held.Stats().Rows != e.Rows || held.Digest()+from.positions != e.Digest {
		held.Dispose()
		return fmt.Errorf("%w: its copy does not add up to it", ErrOtherPart)
	}
	m.whole.Lock()
	m.publish(held, m.first)
	m.remember(from.memory)
	m.unborn.Store(false)
	m.adoptedAt.Store(index)
	done()
	m.whole.Unlock()
	return nil
}

// A shard splits only up to this bound, because Apply copies so much: see R5 of shard/GROWTH.md.
const (
	// SplitRowsMax bounds the rows of a shard that cannot be parted before, because it was parted in another way. Other
	// data has no bound: it can always be parted before.
	SplitRowsMax = 500_000

	// rememberedBytes estimates the memory of a key or producer in the request memory.
	rememberedBytes = 112
)

// ErrTooLarge is returned by CheckSplit for a shard that is above a bound.
var ErrTooLarge = errors.New("the shard is too large to split")

// ErrRestoring is returned by CheckSplit for a shard that a restore has closed.
var ErrRestoring = errors.New("a restore has closed the shard; wait for its end, or repeat it")

// CheckSplit returns why a shard cannot split now, as this replica knows it, or nil. by may be without Parts, if they
// are not known.
func CheckSplit(m Machine, by Partition) error {
	state := m.State()
	if m.TableOf(0) == nil {
		state.Rows = 0 // they are bodies
	}
	var parted error
	for t := Table(0); by.Parts > 0 && m.TableOf(t) != nil; t++ {
		parted = errors.Join(parted, engine.CheckParting(m.TableOf(t), by))
	}
	switch {
	case m.base().sizes.closed.Load():
		return ErrRestoring
	case state.Rows > SplitRowsMax && parted != nil:
		return fmt.Errorf("%w: %d rows, the most that may be copied are %d, and %w (by a growth that was withdrawn, until this node restarts)",
			ErrTooLarge, state.Rows, SplitRowsMax, parted)
	}
	return nil
}

// RememberedBytes estimates the size of the request memory in bytes. The parts share it. The first
// snapshot of each has all of it.
func RememberedBytes(m Machine) uint64 {
	keys, producers := m.Remembered()
	return uint64(keys+producers) * rememberedBytes
}

// Parked is a part that a Split has made on this node, until its group adopts it. The entry names it.
// A replica that adopts the part takes over its request memory. So nobody changes the part before that, and no
// second replica of the group may be open on this node.
type Parked struct {
	AdoptEntry
	Machine Machine

	claimed bool // a replica tries to adopt the part; guarded by Parking.mu
	removed bool // from Parking.mu.parts; guarded by Parking.mu
	taken   bool // the replica has the rows; only the replica that has claimed the part changes it
}

// Parking holds the parked parts of a node, in memory. Its methods are safe for concurrent use.
type Parking struct {
	mu struct {
		sync.Mutex
		parts map[uint32]*Parked // by the group of the part
		// changed is closed when a part is parked. It is nil while nobody waits.
		changed chan struct{}
	}
}

// release releases the data on disk of a part that is not parked any more. A shard that has taken the part has its rows,
// and a share in its bodies.
func (p *Parked) release() {
	if !p.taken {
		p.Machine.Close()
	} else if bodies := p.Machine.Bodies(); bodies != nil {
		bodies.Close()
	}
}

// park adds a part. It replaces an earlier copy of the part, which a replay has made again.
func (p *Parking) park(part *Parked) {
	p.mu.Lock()
	was := p.mu.parts[part.Group]
	unneeded := p.removeLocked(was)
	if p.mu.parts == nil {
		p.mu.parts = map[uint32]*Parked{}
	}
	p.mu.parts[part.Group] = part
	if p.mu.changed != nil {
		close(p.mu.changed)
		p.mu.changed = nil
	}
	p.mu.Unlock()
	if unneeded {
		was.release()
	}
}

// removeLocked removes a part, which may be nil, and reports whether the caller must release it, without the lock.
func (p *Parking) removeLocked(part *Parked) (unneeded bool) {
	if part == nil || p.mu.parts[part.Group] != part {
		return false
	}
	delete(p.mu.parts, part.Group)
	part.removed = true
	return !part.claimed
}

// claim returns the part that is parked for a group, or nil. Until unclaim, nobody releases it.
func (p *Parking) claim(group uint32) *Parked {
	p.mu.Lock()
	defer p.mu.Unlock()
	part := p.mu.parts[group]
	if part != nil {
		part.claimed = true
	}
	return part
}

// unclaim ends a claim. If the part was removed meanwhile, it releases the part.
func (p *Parking) unclaim(part *Parked) {
	p.mu.Lock()
	part.claimed = false
	unneeded := part.removed
	p.mu.Unlock()
	if unneeded {
		part.release()
	}
}

// changes returns a channel that is closed when a part is parked after the call.
func (p *Parking) changes() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.changed == nil {
		p.mu.changed = make(chan struct{})
	}
	return p.mu.changed
}

// Of returns the part that is parked for a group, or nil.
func (p *Parking) Of(group uint32) *Parked {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.parts[group]
}

// All returns all parked parts.
func (p *Parking) All() (all []*Parked) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, part := range p.mu.parts {
		all = append(all, part)
	}
	return all
}

// Discard removes a part, and releases its rows on disk. It does nothing if another copy of the part has replaced it.
func (p *Parking) Discard(part *Parked) {
	p.mu.Lock()
	unneeded := p.removeLocked(part)
	p.mu.Unlock()
	if unneeded {
		part.release()
	}
}

// Bytes returns the memory of all parked parts.
func (p *Parking) Bytes() (total uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, part := range p.mu.parts {
		total += part.Machine.Bytes()
	}
	return total
}

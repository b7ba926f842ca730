package tiering

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/spill"
	"github.com/countd/countd/shard/replica"
)

// Preparations prepares this node's replicas for the splits of their shards: see R2 of shard/GROWTH.md.
// A replica that is ready has read all data on its disk that Split copies, and has parted its rows, bodies and members.
// It moves no rows between memory and disk. It has disk space for the copies of members and the first snapshots.
//
// Each preparation reads in a goroutine, which ends with the data. Close waits for all of them. One of them parts rows,
// bodies and members at a time, so that all together take half a core.
type Preparations struct {
	Space *SnapshotSpace

	reading  sync.WaitGroup
	stepping sync.Mutex // held for a step of parting and the rest after it
	mu       struct {
		sync.Mutex
		of     map[uint32]*preparation // by group of the parent
		closed bool
	}
}

// copiedBytes estimates the disk space of the copy of a member, until the database has merged its files: a pair has
// three keys.
const copiedBytes = 200

// Parent is this node's replica of a shard that is to split.
type Parent struct {
	Group         uint32
	Machine       *Machine
	Cold          *cold.Group  // nil for none
	SnapshotBytes uint64       // size of the next snapshot
	Save          func() error // takes a snapshot
	By            raftfsm.Partition
}

// preparation is the preparation of one replica for one attempt, or for several of one growth.
type preparation struct {
	attempt  uint32 // the last one; guarded by Preparations.mu, as kept is
	machine  *Machine
	restores uint64 // Machine.Restores: another snapshot has other data
	by       raftfsm.Partition
	kept     *KeptSpace
	steps    atomic.Uint64 // steps of parting so far
	ended    chan struct{} // closed when nobody needs the preparation any more
	done     chan struct{} // closed once the data is read and parted, or cannot be
	// These fields are set before done is closed.
	err  error            // why it failed
	sets *members.Parting // of the members; nil for a kind without
}

// ErrPreparing is returned by Prepare while a replica is being prepared.
var ErrPreparing = errors.New("the replica is being prepared for the split")

// PreparingError is an ErrPreparing that tells how far the preparation is.
type PreparingError struct {
	Steps uint64 // it rises while rows, bodies and members are parted
}

func (e *PreparingError) Error() string {
	return fmt.Sprintf("%v: %d steps of parting are done", ErrPreparing, e.Steps)
}
func (e *PreparingError) Unwrap() error { return ErrPreparing }

// ErrClosed is returned by Prepare after Close.
var ErrClosed = errors.New("this node is closing, and prepares no replica for a split")

// Prepare returns nil if the replica is ready for an attempt to split its shard. The first call begins
// the preparation. A failed preparation begins again with the next call.
func (p *Preparations) Prepare(attempt uint32, of Parent) error {
	err := raftfsm.CheckSplit(of.Machine.Machine, of.By)
	if err != nil {
		return err
	}
	parts, copies := of.diskBytes() // before the lock, because this may wait for Apply
	x, err := p.prepared(attempt, &of, parts, copies)
	if err != nil {
		return err
	}
	if err = x.err; err == nil && x.sets != nil {
		err = x.sets.Whole() // the removal of a damaged file ends it; without the lock, because it may wait for the disk
		if errors.Is(err, members.ErrPartingEnded) && of.Machine.Route() != of.By.From {
			err = nil // Split, which changes the route first, has taken the parts
		}
	}
	if err != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.mu.of[of.Group] == x {
			p.endLocked(of.Group)
		}
	}
	return err
}

// prepared returns the preparation of a replica once it is done. It begins the preparation if there is none. parts and
// copies are what diskBytes returned.
func (p *Preparations) prepared(attempt uint32, of *Parent, parts, copies uint64) (*preparation, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return nil, ErrClosed
	}
	x := p.mu.of[of.Group]
	if x != nil && (x.by != of.By || x.machine != of.Machine || x.restores != of.Machine.Restores()) {
		p.endLocked(of.Group)
		x = nil
	}
	if x == nil {
		return nil, p.beginLocked(attempt, of, parts+copies)
	}
	if attempt < x.attempt { // the question of a former leader was late
		return nil, ErrPreparing
	}
	if x.attempt < attempt { // the earlier one was abandoned, and what it has prepared is left
		x.kept.End()
		kept, err := p.Space.Keep(parts + x.uncopied(copies))
		if err != nil {
			p.endLocked(of.Group)
			return nil, err
		}
		x.attempt, x.kept = attempt, kept
	}
	select {
	case <-x.done:
		return x, nil
	default:
		return nil, &PreparingError{Steps: x.steps.Load()}
	}
}

// uncopied returns how much of the space for copies of members the disk still lacks.
func (x *preparation) uncopied(copies uint64) uint64 {
	select {
	case <-x.done:
		return 0
	default:
		return copies
	}
}

// diskBytes estimates the disk space that the split takes: for the snapshots of the parts, and for copies of members.
func (of *Parent) diskBytes() (parts, copies uint64) {
	_, pairs := of.Machine.Besides()
	return 2*of.SnapshotBytes + uint64(of.By.Parts)*raftfsm.RememberedBytes(of.Machine.Machine), pairs * copiedBytes
}

func (p *Preparations) beginLocked(attempt uint32, of *Parent, bytes uint64) error {
	m := of.Machine
	kept, err := p.Space.Keep(bytes)
	if err != nil {
		return err
	}
	x := &preparation{
		attempt: attempt, machine: m, restores: m.Restores(), by: of.By, kept: kept, ended: make(chan struct{}), done: make(chan struct{}),
	}
	if p.mu.of == nil {
		p.mu.of = map[uint32]*preparation{}
	}
	p.mu.of[of.Group] = x
	p.reading.Go(func() {
		if c := x.rows(); c != nil {
			c.Pause() // may wait for a step of tiering
		}
		if x.err = readCold(x.rows(), of.Cold); x.err == nil {
			x.err = x.part(&p.stepping, of.By, of.Cold)
		}
		switch {
		case errors.Is(x.err, errStored):
			x.err = errors.Join(x.err, of.Save())
		case IsDamage(x.err) || errors.Is(x.err, spill.ErrLost):
			m.Damage.Note(x.err)
		}
		close(x.done)
	})
	return ErrPreparing
}

// Kept returns the space that the preparation of a parent keeps for its parts, or nil.
func (p *Preparations) Kept(parent uint32) *KeptSpace {
	p.mu.Lock()
	defer p.mu.Unlock()
	if x := p.mu.of[parent]; x != nil {
		return x.kept
	}
	return nil
}

// Over ends the preparation of a replica for an attempt below the given one, after Begun or Abandon. A replica that has
// applied neither Split nor Abandon stays prepared until it has: else its Split would copy. If grows is set, the
// keyspace goes on to grow, so after Abandon the replica stays prepared for the next attempt. It keeps no space, and its
// copies go once the disk lacks room for them and the node would refuse writes.
func (p *Preparations) Over(parent, below uint32, grows bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := p.mu.of[parent]
	if x == nil || x.attempt >= below {
		return
	}
	route := x.machine.Route()
	split := route != x.by.From && x.machine.Routed(route) // not while Split withdraws the route, because it may fail
	switch {
	case !split && x.machine.Abandoned() < uint64(x.attempt):
	case split || !grows:
		p.endLocked(parent)
	default:
		x.kept.End()
		if none, err := p.Space.Keep(0); err == nil {
			none.End()
		} else if errors.Is(err, replica.ErrNoRoom) {
			p.endLocked(parent)
		}
	}
}

// End ends the preparation of a replica that closes.
func (p *Preparations) End(parent uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endLocked(parent)
}

func (p *Preparations) endLocked(parent uint32) {
	x := p.mu.of[parent]
	if x == nil {
		return
	}
	delete(p.mu.of, parent)
	close(x.ended)
	x.kept.End()
	if p.mu.closed {
		return
	}
	p.reading.Go(func() {
		<-x.done
		if x.sets != nil {
			x.sets.End()
		}
		if c := x.rows(); c != nil {
			c.Resume()
		}
	})
}

// Wait waits until no preparation reads.
func (p *Preparations) Wait() { p.reading.Wait() }

// Close ends all preparations, waits until none reads, and refuses further ones. Another node's question may arrive late,
// or wait for Apply until then.
func (p *Preparations) Close() {
	p.mu.Lock()
	p.mu.closed = true
	for parent := range p.mu.of {
		p.endLocked(parent)
	}
	p.mu.Unlock()
	p.Wait()
}

// part parts the bodies, and reads those on disk, the rows in memory, and then the members. If the shard has split,
// nothing is left to do.
func (x *preparation) part(stepping *sync.Mutex, by raftfsm.Partition, rows *cold.Group) error {
	err := x.partRows(stepping, by, rows)
	if err == nil && x.machine.Route() == by.From {
		err = x.partSets(stepping, by)
	}
	return err
}

// partRows parts the bodies and the rows. Once the preparation has ended, they stay half parted. If the rows cannot be
// parted, Split copies them, and partRows reads those on disk.
func (x *preparation) partRows(stepping *sync.Mutex, by raftfsm.Partition, rows *cold.Group) error {
	for {
		more, err := x.step(stepping, func() (bool, error) { return x.machine.Part(by) })
		if errors.Is(err, raftfsm.ErrReplaced) && x.machine.Route() != by.From {
			return nil
		}
		if errors.Is(err, engine.ErrParted) {
			if rows := x.machine.State().Rows; rows > raftfsm.SplitRowsMax {
				return fmt.Errorf("%w: %d rows, the most that may be copied are %d, and %w (after an attempt of another growth, until this node restarts)",
					raftfsm.ErrTooLarge, rows, raftfsm.SplitRowsMax, err)
			}
			return readUsed(x.rows(), rows)
		}
		if err != nil || !more {
			return err
		}
	}
}

// partSets parts the members, also if there are none yet: the next writes may add many. The steps read all members, so
// damage is found before Split. Once the preparation has ended, the copies are removed.
func (x *preparation) partSets(stepping *sync.Mutex, by raftfsm.Partition) (err error) {
	sets := x.machine.Members()
	if sets == nil {
		return nil
	}
	if x.sets, err = sets.Part(by, int(by.Parts)); err != nil {
		return fmt.Errorf("cannot part members: %w", err)
	}
	for more := true; more && err == nil; {
		more, err = x.step(stepping, x.sets.Step)
	}
	if errors.Is(err, members.ErrPartingEnded) && x.machine.Route() != by.From {
		return nil
	}
	if err != nil && !errors.Is(err, ErrPreparing) {
		err = fmt.Errorf("cannot part members: %w", err)
	}
	return err
}

// restMin is the least rest after a step, because a step does nothing while a round moves bodies to disk.
const restMin = time.Millisecond

// step makes a step of parting, and rests as long as the step took, while no other preparation does. A step that does
// nothing counts too: the round that it meets ends, so the leader may wait for it.
func (x *preparation) step(stepping *sync.Mutex, part func() (more bool, err error)) (more bool, err error) {
	stepping.Lock()
	defer stepping.Unlock()
	select {
	case <-x.ended:
		return false, ErrPreparing
	default:
	}
	began := time.Now()
	if more, err = part(); err != nil || !more {
		return false, err
	}
	x.steps.Add(1)
	select {
	case <-x.ended:
		return false, ErrPreparing
	case <-time.After(max(restMin, time.Since(began))):
		return true, nil
	}
}

// rows returns the machine that moves rows between memory and disk, or nil. Bodies go on to move (raftfsm/spill/DESIGN.md).
func (x *preparation) rows() *counters.Machine {
	c, _ := x.machine.Machine.(*counters.Machine)
	return c
}

// errStored is returned by readCold if only stored snapshots use damaged cold rows. The replica has lost no row,
// but a replay of Split from such a snapshot would need them. Each new snapshot replaces the oldest stored one.
var errStored = errors.New("damaged cold rows of a stored snapshot are replaced by a new snapshot")

// readCold reads the cold rows that only stored snapshots of a replica name. part reads those of the table, bodies and
// members. Either may be nil.
func readCold(c *counters.Machine, rows *cold.Group) error {
	if c == nil || rows == nil {
		return nil
	}
	pinned, used := rows.Pinned(), c.Used()
	for _, name := range rows.Names() {
		if !pinned[name] || used[name] {
			continue
		}
		err := rows.Scrub(name, func(int) error { return nil })
		if errors.Is(err, cold.ErrDamaged) {
			return fmt.Errorf("%w: %s", errStored, err.Error())
		}
		if err != nil {
			return fmt.Errorf("cannot read cold rows: %w", err)
		}
	}
	return nil
}

// readUsed reads the cold rows of the table. Either may be nil.
func readUsed(c *counters.Machine, rows *cold.Group) error {
	if c == nil || rows == nil {
		return nil
	}
	for name := range c.Used() {
		if err := rows.Scrub(name, func(int) error { return nil }); err != nil {
			return fmt.Errorf("cannot read cold rows: %w", err)
		}
	}
	return nil
}

package shard

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/spill"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/tiering"
)

// parentSplit is the split for which preparedParent is prepared.
var parentSplit = raftfsm.Partition{From: codec.Whole, Divisor: 1, Parts: 2}

// preparedParent is a replica with rows and outboxes, some of them on disk.
func preparedParent(t *testing.T) (tiering.Parent, *counters.Machine) {
	t.Helper()
	store := openColdStore(t, t.TempDir())
	t.Cleanup(func() { mustDo(t, store.Close()) })
	return preparedIn(t, store)
}

func openColdStore(t *testing.T, dir string) *cold.Store {
	t.Helper()
	store, err := cold.Open(cold.Config{Dir: dir, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { t.Error(err) }})
	mustDo(t, err)
	return store
}

// preparedIn is preparedParent with its rows on disk in the store.
func preparedIn(t *testing.T, store *cold.Store) (tiering.Parent, *counters.Machine) {
	t.Helper()
	rows, err := store.Group(1)
	mustDo(t, err)
	m := counters.New(raftfsm.Places{Cold: rows, Bodies: spill.Place{Store: store, Group: 1}})
	t.Cleanup(m.Close)
	write := func(ops raftfsm.Ops) {
		var w raftfsm.RequestWriter
		w.Reset(nil, codec.Whole, &dedup.RequestID{})
		for i := range ops.Len() {
			ops.AppendTo(&w, ops.ID(i), i)
		}
		entry := append(codec.BeginEntry(nil, codec.KindCounters, 1), w.Section()...)
		if _, ok := m.Apply(&raft.Log{Index: m.Applied() + 1, Type: raft.LogCommand, Data: codec.AppendChecksum(entry)}).(*raftfsm.Result); !ok {
			t.Fatal(m.Stuck())
		}
	}
	var adds counters.Ops
	for key := range uint64(60_000) {
		adds = append(adds, engine.Op{ID: key, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 1}}})
	}
	write(adds)
	write(counters.OutboxOps{{Author: 1, PostOp: counters.PostOp{Kind: counters.PutOutbox, Outbox: counters.Outbox{IDs: []uint64{9000, 8000, 7000, 6000, 5000, 4000, 3000, 2000}}}}})
	damage := &tiering.Damage{Logger: slog.New(slog.DiscardHandler)}
	return tiering.Parent{Group: 1, Machine: &tiering.Machine{Machine: m, Damage: damage}, Cold: rows, SnapshotBytes: 1000, By: parentSplit}, m
}

// leaveMemory moves all idle rows and bodies to disk, and returns how many moved.
func leaveMemory(t *testing.T, m *counters.Machine) (rows, bodies int) {
	t.Helper()
	all := func(_, _ uint64) bool { return true }
	m.Watch(all, true)
	idle := m.Watch(all, true)
	rows, err := m.FreezeSome(idle, max(1, idle.Segments()))
	mustDo(t, err)
	bodies, err = m.Bodies().Spill(0, math.MaxInt64, func() bool { return true })
	mustDo(t, err)
	return rows, bodies
}

// A replica that is prepared has read its data on disk, has parted its rows, keeps space on the disk, and moves no rows
// to the disk, but bodies. After End it moves rows once it has restored a snapshot.
func TestPreparation(t *testing.T) {
	t.Parallel()
	parent, m := preparedParent(t)
	p := &tiering.Preparations{Space: &tiering.SnapshotSpace{Free: func() (uint64, error) { return 10_000, nil }}}
	if err := p.Prepare(3, parent); !errors.Is(err, tiering.ErrPreparing) {
		t.Errorf("at once: %v", err)
	}
	eventually(t, "the replica is ready", func() bool { return p.Prepare(3, parent) == nil })
	if parts, err := engine.Split(m.Table(), parentSplit); len(parts) != 2 || err != nil {
		t.Errorf("%d parts: %v", len(parts), err)
	}
	if p.Space.Kept() < 2000 || p.Kept(1) == nil {
		t.Errorf("%d bytes are kept", p.Space.Kept())
	}
	if rows, bodies := leaveMemory(t, m); rows > 0 || bodies != 1 {
		t.Errorf("%d rows and %d bodies leave memory", rows, bodies)
	}
	mustDo(t, m.Abandon(codec.Whole, 3))
	if p.Over(1, 4, true); p.Space.Kept() > 0 {
		t.Errorf("%d bytes are kept between two attempts", p.Space.Kept())
	}
	mustDo(t, p.Prepare(4, parent)) // nothing is parted or read again
	if err := p.Prepare(3, parent); !errors.Is(err, tiering.ErrPreparing) {
		t.Errorf("asked late for the first attempt: %v", err)
	}
	mustDo(t, p.Prepare(4, parent))
	if p.Space.Kept() < 2000 {
		t.Errorf("%d bytes are kept for the second attempt", p.Space.Kept())
	}
	if rows, bodies := leaveMemory(t, m); rows+bodies > 0 {
		t.Errorf("%d rows and %d bodies leave memory in the second attempt", rows, bodies)
	}
	mustDo(t, rafttest.Restore(m, rafttest.Persisted(t, m)))
	if err := p.Prepare(4, parent); !errors.Is(err, tiering.ErrPreparing) {
		t.Errorf("with another snapshot: %v", err)
	}
	eventually(t, "the replica is ready again", func() bool { return p.Prepare(4, parent) == nil })
	p.Over(1, 4, false)
	mustDo(t, p.Prepare(4, parent))
	p.Over(1, 5, false) // this replica has applied neither Split nor Abandon
	mustDo(t, p.Prepare(4, parent))
	mustDo(t, m.Abandon(codec.Whole, 4))
	p.Over(1, 5, false)
	p.Over(1, 5, false)
	p.Wait()
	if p.Space.Kept() > 0 || p.Kept(1) != nil {
		t.Errorf("%d bytes are kept after the end", p.Space.Kept())
	}
	if rows, bodies := leaveMemory(t, m); rows > 0 || bodies != 1 {
		t.Errorf("%d parted rows and %d bodies leave memory", rows, bodies)
	}
	mustDo(t, rafttest.Restore(m, rafttest.Persisted(t, m)))
	if rows, bodies := leaveMemory(t, m); rows == 0 || bodies != 1 {
		t.Errorf("%d rows and %d bodies leave memory", rows, bodies)
	}
	eventually(t, "a replica with data on disk is ready", func() bool { return p.Prepare(5, parent) == nil })
	p.End(1)
	p.Wait()
}

// After Close, no preparation begins, because the replica and its store may be closed.
func TestPreparationAfterClose(t *testing.T) {
	t.Parallel()
	parent, _ := preparedParent(t)
	p := &tiering.Preparations{Space: &tiering.SnapshotSpace{Free: func() (uint64, error) { return 10_000, nil }}}
	eventually(t, "the replica is ready", func() bool { return p.Prepare(3, parent) == nil })
	p.Close()
	other := parent
	other.Group = 2
	for name, err := range map[string]error{
		"the same attempt": p.Prepare(3, parent), "another attempt": p.Prepare(4, parent), "another replica": p.Prepare(3, other),
	} {
		if !errors.Is(err, tiering.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	p.End(1)
	if p.Space.Kept() > 0 {
		t.Errorf("%d bytes are kept", p.Space.Kept())
	}
	p.Wait()
}

// stepped is a machine whose steps of parting a test observes.
type stepped struct {
	*counters.Machine
	step  func(by raftfsm.Partition) (more bool, err error)
	route codec.Route
}

func (s *stepped) Part(by raftfsm.Partition) (more bool, err error) { return s.step(by) }
func (s *stepped) Route() codec.Route                               { return s.route }

// Only one preparation parts rows at a time.
func TestPreparationsTakeTurns(t *testing.T) {
	t.Parallel()
	p := &tiering.Preparations{Space: &tiering.SnapshotSpace{Free: func() (uint64, error) { return 100_000, nil }}}
	var running, most, all atomic.Int32
	for group := range uint32(3) {
		parent, m := preparedParent(t)
		left := 5
		parent.Group = group
		parent.Machine.Machine = &stepped{Machine: m, route: codec.Whole, step: func(raftfsm.Partition) (bool, error) {
			most.Store(max(most.Load(), running.Add(1)))
			time.Sleep(5 * time.Millisecond)
			running.Add(-1)
			all.Add(1)
			left--
			return left > 0, nil
		}}
		if err := p.Prepare(3, parent); !errors.Is(err, tiering.ErrPreparing) {
			t.Error(err)
		}
	}
	p.Wait()
	if most.Load() != 1 || all.Load() != 15 {
		t.Errorf("%d of %d steps at a time", most.Load(), all.Load())
	}
	p.Close()
}

// While a round moves the bodies of one replica to disk, the preparations of others go on.
func TestPreparationBesideARound(t *testing.T) {
	t.Parallel()
	busy, m := preparedParent(t)
	other, _ := preparedParent(t)
	other.Group = 2
	p := &tiering.Preparations{Space: &tiering.SnapshotSpace{Free: func() (uint64, error) { return 10_000, nil }}}
	running, end, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() { // ends with the round
		first := true
		_, err := m.Bodies().Spill(0, math.MaxInt64, func() bool {
			if first {
				first = false
				close(running)
				<-end
			}
			return true
		})
		ended <- err
	}()
	<-running
	eventually(t, "a step has met the round", func() bool {
		var preparing *tiering.PreparingError
		return errors.As(p.Prepare(3, busy), &preparing) && preparing.Steps > 0
	})
	eventually(t, "the other replica is ready", func() bool { return p.Prepare(3, other) == nil })
	if err := p.Prepare(3, busy); !errors.Is(err, tiering.ErrPreparing) {
		t.Errorf("during the round: %v", err)
	}
	close(end)
	mustDo(t, <-ended)
	eventually(t, "the replica is ready after the round", func() bool { return p.Prepare(3, busy) == nil })
	p.Close()
}

// A question that arrives after the shard has split does not end the preparation, which keeps space until Begun. A
// replica that is closed is not ready.
func TestPreparationAfterSplit(t *testing.T) {
	t.Parallel()
	for _, route := range []codec.Route{{Modulus: 2}, codec.Whole} {
		parent, m := preparedParent(t)
		parent.Machine.Machine = &stepped{Machine: m, route: route, step: func(raftfsm.Partition) (bool, error) { return false, raftfsm.ErrReplaced }}
		p := &tiering.Preparations{Space: &tiering.SnapshotSpace{Free: func() (uint64, error) { return 10_000, nil }}}
		err := p.Prepare(3, parent)
		for errors.Is(err, tiering.ErrPreparing) {
			p.Wait()
			err = p.Prepare(3, parent)
		}
		if split := route != codec.Whole; split != (err == nil) || split != (p.Kept(1) != nil) || !split && !errors.Is(err, raftfsm.ErrReplaced) {
			t.Errorf("%s: %v, space %v", route, err, p.Kept(1))
		}
		p.Close()
	}
}

// Close ends a preparation after its step, so a node that closes does not wait until all rows are parted.
func TestCloseEndsPreparations(t *testing.T) {
	t.Parallel()
	parent, m := preparedParent(t)
	steps := make(chan struct{})
	parent.Machine.Machine = &stepped{Machine: m, route: codec.Whole, step: func(raftfsm.Partition) (bool, error) {
		steps <- struct{}{}
		return true, nil
	}}
	p := &tiering.Preparations{Space: &tiering.SnapshotSpace{Free: func() (uint64, error) { return 10_000, nil }}}
	if err := p.Prepare(3, parent); !errors.Is(err, tiering.ErrPreparing) {
		t.Error(err)
	}
	<-steps
	closed := make(chan struct{})
	go func() { p.Close(); close(closed) }()
	for late := time.After(eventuallyMax); ; {
		select {
		case <-steps:
			continue
		case <-closed:
		case <-late:
			t.Fatal("Close waits for all rows")
		}
		break
	}
	if p.Space.Kept() > 0 {
		t.Errorf("%d bytes are kept", p.Space.Kept())
	}
}

// A shard with more rows than may be copied splits only if they are not parted in another way. They may be on disk. A
// preparation that ends leaves the rows half parted, and the next one goes on.
func TestPreparationOfManyRows(t *testing.T) {
	t.Parallel()
	parent, m := preparedParent(t)
	for first := uint64(1 << 20); first < 1<<20+raftfsm.SplitRowsMax; first += 50_000 {
		var w raftfsm.RequestWriter
		w.Reset(nil, codec.Whole, &dedup.RequestID{})
		for key := first; key < first+50_000; key++ {
			counters.Ops{{ID: key, Kind: engine.OpAdd, Cells: []engine.Cell{{Value: 1}}}}.AppendTo(&w, key, 0)
		}
		entry := append(codec.BeginEntry(nil, codec.KindCounters, 0), w.Section()...)
		m.Apply(&raft.Log{Index: m.Applied() + 1, Type: raft.LogCommand, Data: codec.AppendChecksum(entry)})
	}
	p := &tiering.Preparations{Space: &tiering.SnapshotSpace{Free: func() (uint64, error) { return 10_000, nil }}}
	eventually(t, "some rows are parted", func() bool {
		var preparing *tiering.PreparingError
		err := p.Prepare(3, parent)
		return err == nil || errors.As(err, &preparing) && preparing.Steps > 0
	})
	p.End(1)
	p.Wait()
	other := parent
	other.By.Parts = 3
	eventually(t, "rows that are parted in another way are refused", func() bool {
		err := p.Prepare(4, other)
		return errors.Is(err, raftfsm.ErrTooLarge) && errors.Is(err, engine.ErrParted)
	})
	eventually(t, "the first parting goes on", func() bool { return p.Prepare(5, parent) == nil })
	if _, err := engine.Split(m.Table(), parentSplit); err != nil {
		t.Error(err)
	}
	p.End(1)
	p.Wait()
	mustDo(t, rafttest.Restore(m, rafttest.Persisted(t, m)))
	if rows, _ := leaveMemory(t, m); rows == 0 {
		t.Error("no row is on disk")
	}
	eventually(t, "rows on disk are parted", func() bool { return p.Prepare(6, parent) == nil })
	if parts, err := engine.Split(m.Table(), parentSplit); err != nil || parts[0].Stats().ColdRows == 0 || parts[1].Stats().ColdRows == 0 {
		t.Errorf("the parts share no rows on disk: %v", err)
	}
	p.End(1)
	p.Wait()
}

// A replica that cannot read its data is not ready, and the damage is noted for its repair.
func TestPreparationOfADamagedReplica(t *testing.T) {
	t.Parallel()
	store := openColdStore(t, t.TempDir())
	t.Cleanup(func() { mustDo(t, store.Close()) })
	parent, m := preparedIn(t, store)
	leaveMemory(t, m)
	mustDo(t, store.Drop(1)) // behind its back
	p := &tiering.Preparations{Space: &tiering.SnapshotSpace{Free: func() (uint64, error) { return 10_000, nil }}}
	eventually(t, "the replica cannot be prepared", func() bool { return errors.Is(p.Prepare(3, parent), spill.ErrLost) })
	p.Wait()
	if !parent.Machine.Damage.Found() || p.Space.Kept() > 0 {
		t.Errorf("noted %v, %d bytes kept", parent.Machine.Damage.Found(), p.Space.Kept())
	}
}

// damaged closes a store, damages the blocks of cold rows, and opens it again.
func damaged(t *testing.T, dir string, store *cold.Store) *cold.Store {
	t.Helper()
	mustDo(t, store.Close())
	store, files := openColdStore(t, dir), filepath.Join(dir, "*.sst")
	eventually(t, "the rows that were in Pebble's log are in its files", func() bool {
		found, err := filepath.Glob(files)
		return err == nil && len(found) > 0
	})
	mustDo(t, store.Close())
	flipLargest(t, files)
	store = openColdStore(t, dir)
	t.Cleanup(func() { mustDo(t, store.Close()) })
	return store
}

// If the rows are parted in another way, no step of parting reads those on disk, and Split would copy them. The replica is
// not ready if they are damaged.
func TestPreparationReadsRowsThatSplitCopies(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	written := openColdStore(t, dir)
	_, m := preparedIn(t, written)
	leaveMemory(t, m)
	snapshot := rafttest.Persisted(t, m)
	m.Close()
	store := damaged(t, dir, written)
	parent, m := preparedIn(t, store)
	mustDo(t, rafttest.Restore(m, snapshot))
	another := parent.By
	another.Parts = 3
	_, err := engine.NewParting(m.Table(), another)
	mustDo(t, err)
	p := &tiering.Preparations{Space: &tiering.SnapshotSpace{Free: func() (uint64, error) { return 10_000, nil }}}
	eventually(t, "the replica cannot be prepared", func() bool { return errors.Is(p.Prepare(3, parent), cold.ErrDamaged) })
	p.Wait()
	if !parent.Machine.Damage.Found() {
		t.Error("the damage is not noted")
	}
}

// Damage of cold rows that only a stored snapshot names is no damage of the replica. The replica is not ready, and
// takes another snapshot.
func TestPreparationReplacesADamagedSnapshot(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	written := openColdStore(t, dir)
	_, m := preparedIn(t, written)
	leaveMemory(t, m)
	rafttest.Persisted(t, m) // a stored snapshot names the cold rows
	m.Close()
	store := damaged(t, dir, written)
	parent, _ := preparedIn(t, store)
	var saves atomic.Int64
	parent.Save = func() error {
		if saves.Add(1) == 1 {
			return replica.ErrNoRoom
		}
		return nil
	}
	p := &tiering.Preparations{Space: &tiering.SnapshotSpace{Free: func() (uint64, error) { return 10_000, nil }}}
	eventually(t, "the replica is not ready", func() bool { return errors.Is(p.Prepare(3, parent), replica.ErrNoRoom) })
	eventually(t, "the replica takes a snapshot", func() bool {
		err := p.Prepare(3, parent)
		return err != nil && !errors.Is(err, tiering.ErrPreparing) && !errors.Is(err, replica.ErrNoRoom)
	})
	p.Wait()
	if parent.Machine.Damage.Found() || saves.Load() != 2 {
		t.Errorf("damage noted %v, %d snapshots", parent.Machine.Damage.Found(), saves.Load())
	}
	p.End(1)
	p.Wait()
}

// A replica restores by itself what lives only in memory.
func TestDamageOfMemory(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		errs []error
		want bool
	}{
		{nil, false},
		{[]error{spill.ErrLost}, true},
		{[]error{fmt.Errorf("%w: %w", raftfsm.ErrStuck, raftfsm.ErrUneven)}, true},
		{[]error{raftfsm.ErrUneven, cold.ErrDamaged}, false},
		{[]error{raftfsm.ErrStuck}, false},
	} {
		d := &tiering.Damage{Logger: slog.New(slog.DiscardHandler)}
		for _, err := range c.errs {
			d.Note(err)
		}
		if d.OfMemory() != c.want {
			t.Errorf("%v: %v", c.errs, d.OfMemory())
		}
	}
}

// Between two attempts, a full disk ends the preparation, so that its copies go.
func TestPreparationEndsOnAFullDisk(t *testing.T) {
	t.Parallel()
	parent, m := preparedParent(t)
	free := atomic.Uint64{}
	free.Store(10_000)
	p := &tiering.Preparations{Space: &tiering.SnapshotSpace{
		Free:  func() (uint64, error) { return free.Load(), nil },
		Needs: func() uint64 { return 1000 },
	}}
	eventually(t, "the replica is ready", func() bool { return p.Prepare(3, parent) == nil })
	mustDo(t, m.Abandon(codec.Whole, 3))
	p.Over(1, 4, true)
	if p.Kept(1) == nil {
		t.Error("with room, the preparation ended")
	}
	free.Store(1000)
	p.Over(1, 4, true)
	if p.Kept(1) != nil {
		t.Error("the preparation goes on")
	}
	p.Wait()
}

// Without space on the disk, a replica is not ready.
func TestPreparationOnAFullDisk(t *testing.T) {
	t.Parallel()
	parent, _ := preparedParent(t)
	p := &tiering.Preparations{Space: &tiering.SnapshotSpace{Free: func() (uint64, error) { return 1999, nil }}}
	if err := p.Prepare(3, parent); !errors.Is(err, replica.ErrNoRoom) {
		t.Error(err)
	}
}

// A replica that is prepared has parted its members. If the parting ends before the preparation, as when a damaged file
// is removed, the replica is not ready until it has parted them again. If Split has taken the parts, the replica stays
// prepared, and keeps the space for the first snapshots.
func TestPreparationOfMembers(t *testing.T) {
	t.Parallel()
	store, err := members.Open(members.Config{Dir: t.TempDir(), Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { t.Error(err) }})
	mustDo(t, err)
	defer func() { mustDo(t, store.Close()) }()
	sets, err := store.Group(1)
	mustDo(t, err)
	m := counters.New(raftfsm.Places{Members: sets})
	defer m.Close()
	join := func(first, n uint64) {
		var w raftfsm.RequestWriter
		w.Reset(nil, codec.Whole, &dedup.RequestID{})
		for member := first; member < first+n; member++ {
			counters.Ops{engine.Join(member%10, 0, member)}.AppendTo(&w, member%10, 0)
		}
		entry := dedup.AppendClock(codec.BeginEntry(nil, codec.KindCounters, 2), time.Now(), dedup.Limits{KeyHorizon: time.Hour, KeysMax: 50, ProducerIdle: time.Hour, ProducersMax: 5})
		if r, ok := m.Apply(rafttest.Next(m, codec.AppendChecksum(append(entry, w.Section()...)))).(*raftfsm.Result); !ok {
			t.Fatal(r, m.Stuck())
		}
	}
	routed := &routedMachine{Machine: m}
	parent := tiering.Parent{Group: 1, Machine: &tiering.Machine{Machine: routed, Damage: &tiering.Damage{Logger: slog.New(slog.DiscardHandler)}}, By: parentSplit}
	p := &tiering.Preparations{Space: &tiering.SnapshotSpace{Free: func() (uint64, error) { return 1 << 30, nil }}}
	parted := func() error {
		of, err := sets.Part(parentSplit, 2)
		mustDo(t, err)
		return of.Whole()
	}
	eventually(t, "the replica is ready without members", func() bool { return p.Prepare(2, parent) == nil })
	join(0, 5000)
	mustDo(t, parted())
	p.End(1)
	p.Wait()
	attempt := uint32(3)
	if err := p.Prepare(attempt, parent); !errors.Is(err, tiering.ErrPreparing) {
		t.Errorf("at once: %v", err)
	}
	if p.Space.Kept() < 5000*100 {
		t.Errorf("%d bytes are kept for the copies of 5000 members", p.Space.Kept())
	}
	ready := func() bool { return p.Prepare(attempt, parent) == nil }
	eventually(t, "the replica is ready", ready)
	mustDo(t, parted())
	mustDo(t, m.Abandon(codec.Whole, 3))
	p.Over(1, 4, true)
	attempt = 4
	if mustDo(t, parted()); !ready() {
		t.Error("the second attempt does not go on with the members that are parted")
	}
	p.Wait()
	mustDo(t, parted())
	// afterTheEnd returns the answer of Prepare after the end of its parting. It calls then while Prepare waits for a
	// step of another one, as it may for a disk.
	afterTheEnd := func(then func()) error {
		slow := slowPartition{make(chan struct{}, 5000), make(chan struct{})}
		other, err := sets.Part(slow, 2)
		mustDo(t, err)
		stepped, answered := make(chan error, 1), make(chan error, 1)
		go func() {
			_, err := other.Step()
			stepped <- err
		}()
		<-slow.asked
		go func() { answered <- p.Prepare(attempt, parent) }()
		time.Sleep(50 * time.Millisecond) // until Prepare waits
		then()
		close(slow.goOn)
		mustDo(t, <-stepped)
		other.End()
		return <-answered
	}
	err = afterTheEnd(func() {
		kept := make(chan struct{})
		go func() { p.Kept(2); close(kept) }()
		select {
		case <-kept:
		case <-time.After(time.Minute):
			t.Error("a question about another replica waits for the step")
		}
	})
	if !errors.Is(err, members.ErrPartingEnded) {
		t.Errorf("after the end of its parting: %v", err)
	}
	eventually(t, "the replica is ready again", ready)
	mustDo(t, parted())
	mustDo(t, m.Abandon(codec.Whole, 4))
	p.Over(1, 5, false)
	p.Wait()
	if parted() == nil {
		t.Error("the members are still parted after the growth was withdrawn")
	}
	attempt = 5
	eventually(t, "the replica is ready once more", ready)
	if err := afterTheEnd(func() { routed.split.Store(true) }); err != nil || p.Kept(1) == nil {
		t.Errorf("a Split takes the parts while Prepare waits: %v, space %v", err, p.Kept(1))
	}
	routed.changes.Store(true)
	if p.Over(1, 6, true); p.Kept(1) == nil {
		t.Error("the preparation ends during the Split")
	}
	routed.changes.Store(false)
	if p.Over(1, 6, true); p.Kept(1) != nil {
		t.Error("the preparation goes on after the Split")
	}
	p.Wait()
}

// routedMachine has another route once split is set, and none while changes is set.
type routedMachine struct {
	*counters.Machine
	split, changes atomic.Bool
}

func (m *routedMachine) Routed(r codec.Route) bool { return !m.changes.Load() && r == m.Route() }

func (m *routedMachine) Route() codec.Route {
	if m.split.Load() {
		return codec.Route{Modulus: 2}
	}
	return codec.Whole
}

// slowPartition answers once goOn is closed.
type slowPartition struct{ asked, goOn chan struct{} }

func (p slowPartition) Of(uint64) int {
	p.asked <- struct{}{}
	<-p.goOn
	return 0
}

package replica

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/storage"
)

func TestWatchedFSM(t *testing.T) {
	watched := func(fsm raft.BatchingFSM, stop *storage.FailStop, damaged func(error)) watchedFSM {
		return watchedFSM{
			BatchingFSM: fsm, group: 7, stop: stop, entries: new(entryWindow), members: new(committedMembers), applies: new(storage.StallGauge),
			damaged: damaged, refused: damaged,
		}
	}
	empty := func() io.ReadCloser { return io.NopCloser(bytes.NewReader(nil)) }
	t.Run("a failed restore stops the group", func(t *testing.T) {
		stop, told := countFatal(t)
		fsm := watched(&sumFSM{restoreErr: errBrokenDisk}, stop, nil)
		if err := fsm.Restore(empty()); !errors.Is(err, errBrokenDisk) || *told != 1 {
			t.Errorf("%v, told %d times", err, *told)
		}
	})
	t.Run("no restore is tried after a failure", func(t *testing.T) {
		stop, _ := countFatal(t)
		fsm := watched(&sumFSM{}, stop, nil)
		stop.Fail(errBrokenDisk)
		if err := fsm.Restore(empty()); !errors.Is(err, errBrokenDisk) {
			t.Errorf("restore: %v", err)
		}
		if _, err := fsm.Snapshot(); !errors.Is(err, errBrokenDisk) {
			t.Errorf("snapshot: %v", err)
		}
	})
	for _, damage := range []error{cold.ErrDamaged, members.ErrDamaged} {
		t.Run("of what is damaged on disk, no snapshot stops the group: "+damage.Error(), func(t *testing.T) {
			stop, told := countFatal(t)
			var noted error
			snapshot, err := watched(damagedFSM{err: damage}, stop, func(err error) { noted = err }).Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			if err := snapshot.Persist(nil); !errors.Is(err, damage) || !errors.Is(noted, damage) || *told != 0 {
				t.Errorf("%v, noted %v, stopped %d times", err, noted, *told)
			}
		})
	}
	for _, why := range []error{raftfsm.ErrBarred, raftfsm.ErrUnborn, raftfsm.ErrStuck} {
		t.Run("a snapshot that is not taken now does not stop the group: "+why.Error(), func(t *testing.T) {
			stop, told := countFatal(t)
			var noted error
			_, err := watched(refusingFSM{err: why}, stop, func(err error) { noted = err }).Snapshot()
			if !errors.Is(err, why) || !errors.Is(noted, why) || *told != 0 {
				t.Errorf("%v, noted %v, stopped %d times", err, noted, *told)
			}
		})
	}
	t.Run("a panic in Apply is not swallowed", func(t *testing.T) {
		defer func() {
			if p := recover(); p != "cannot apply" {
				t.Errorf("recovered %v", p)
			}
		}()
		watched(panickingFSM{}, noFatal(t), nil).ApplyBatch([]*raft.Log{testEntry(1, "")})
	})
}

// damagedFSM has snapshots that cannot be written.
type damagedFSM struct {
	raft.BatchingFSM
	raft.FSMSnapshot
	err error
}

func (f damagedFSM) Snapshot() (raft.FSMSnapshot, error) { return f, nil }
func (f damagedFSM) Persist(raft.SnapshotSink) error     { return f.err }

// refusingFSM takes no snapshots.
type refusingFSM struct {
	raft.BatchingFSM
	err error
}

func (f refusingFSM) Snapshot() (raft.FSMSnapshot, error) { return nil, f.err }

type panickingFSM struct{ raft.BatchingFSM }

func (panickingFSM) ApplyBatch([]*raft.Log) []any { panic("cannot apply") }

// A snapshot pauses for as long as it has computed, except at the close.
func TestSnapshotsPause(t *testing.T) {
	for _, closing := range []bool{false, true} {
		sink := pacedSink{SnapshotSink: discardSink{}, turns: NewSnapshotTurns(never), closing: func() bool { return closing }, began: time.Now().Add(-snapshotPauseMax)}
		asked := time.Now()
		if _, err := sink.Write([]byte("rows")); err != nil {
			t.Fatal(err)
		}
		if paused := time.Since(asked) >= snapshotPauseMax; paused == closing {
			t.Errorf("closing %v: paused %v", closing, paused)
		}
	}
}

// One snapshot of a node computes at a time. While one waits without an end, the others and a close go on.
func TestSnapshotsTakeTurns(t *testing.T) {
	closing := false
	turns := NewSnapshotTurns(func() bool { return closing })
	sinks := [2]*pacedSink{}
	for i := range sinks {
		sinks[i] = &pacedSink{SnapshotSink: discardSink{}, turns: turns, closing: never}
	}
	sinks[0].begin()
	asked := time.Now()
	sinks[1].begin()
	if sinks[1].has || time.Since(asked) < snapshotTurnWaitMax {
		t.Errorf("a turn while another has it: %v", sinks[1].has)
	}
	sinks[1].end()
	sinks[0].end()
	sinks[1].begin()
	if !sinks[1].has {
		t.Error("no turn while none has it")
	}
	if _, err := sinks[1].Write([]byte("rows")); err != nil || !sinks[1].has {
		t.Errorf("a turn after Write: %v, %v", sinks[1].has, err)
	}
	if err := sinks[1].Close(); err != nil || sinks[1].has {
		t.Errorf("a turn while the disk is synced: %v, %v", sinks[1].has, err)
	}
	sinks[1].begin()
	closing = true
	sinks[0].begin() // does not wait
	sinks[0].end()
	sinks[1].end()
	if len(turns.taken) > 0 {
		t.Error("a turn is left")
	}
}

func never() bool { return false }

// A replica waits until no other takes a snapshot that is due, but not once it has ended.
func TestSnapshotsThatAreDueWait(t *testing.T) {
	turns, ended := NewSnapshotTurns(never), make(chan struct{})
	leave, _ := turns.wait(ended)
	next := make(chan func())
	go func() { // ends once it may take a snapshot
		leave, _ := turns.wait(ended)
		next <- leave
	}()
	select {
	case <-next:
		t.Error("two take a snapshot")
	case <-time.After(20 * time.Millisecond):
	}
	leave()
	leave = <-next
	close(ended)
	if _, ok := turns.wait(ended); ok {
		t.Error("a replica that has ended takes a snapshot")
	}
	leave()
	if len(turns.due)+len(turns.first) > 0 {
		t.Error("somebody is left in the queue")
	}
}

type discardSink struct{ raft.SnapshotSink }

func (discardSink) Write(p []byte) (int, error) { return len(p), nil }
func (discardSink) Close() error                { return nil }

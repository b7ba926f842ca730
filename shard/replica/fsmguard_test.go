package replica

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
)

func TestGuardFSM(t *testing.T) {
	empty := func() io.ReadCloser { return io.NopCloser(bytes.NewReader(nil)) }
	t.Run("a failed restore stops the group", func(t *testing.T) {
		stop, told := countFatal(t)
		fsm := guardFSM(&sumFSM{restoreErr: errBrokenDisk}, 7, stop, nil)
		if err := fsm.Restore(empty()); !errors.Is(err, errBrokenDisk) || *told != 1 {
			t.Errorf("%v, told %d times", err, *told)
		}
	})
	t.Run("no restore is tried after a failure", func(t *testing.T) {
		stop, _ := countFatal(t)
		fsm := guardFSM(&sumFSM{}, 7, stop, nil)
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
			snapshot, err := guardFSM(damagedFSM{err: damage}, 7, stop, func(err error) { noted = err }).Snapshot()
			if err != nil {
				t.Fatal(err)
			}
			if err := snapshot.Persist(nil); !errors.Is(err, damage) || !errors.Is(noted, damage) || *told != 0 {
				t.Errorf("%v, noted %v, stopped %d times", err, noted, *told)
			}
		})
	}
	t.Run("batches are handed through", func(t *testing.T) {
		fsm, ok := guardFSM(&sumFSM{}, 7, noFatal(t), nil).(raft.BatchingFSM)
		if !ok {
			t.Fatal("not a BatchingFSM")
		}
		answers := fsm.ApplyBatch([]*raft.Log{testEntry(1, string(number(2))), testEntry(2, string(number(3)))})
		if len(answers) != 2 || answers[1] != uint64(5) {
			t.Errorf("answers %v", answers)
		}
	})
	t.Run("what does not batch stays so", func(t *testing.T) {
		if _, ok := guardFSM(panickingFSM{}, 7, noFatal(t), nil).(raft.BatchingFSM); ok {
			t.Error("a BatchingFSM")
		}
	})
	t.Run("a panic in Apply is not swallowed", func(t *testing.T) {
		defer func() {
			if p := recover(); p != "cannot apply" {
				t.Errorf("recovered %v", p)
			}
		}()
		guardFSM(panickingFSM{}, 7, noFatal(t), nil).Apply(testEntry(1, ""))
	})
}

// damagedFSM has snapshots that cannot be written.
type damagedFSM struct {
	raft.FSM
	raft.FSMSnapshot
	err error
}

func (f damagedFSM) Snapshot() (raft.FSMSnapshot, error) { return f, nil }
func (f damagedFSM) Persist(raft.SnapshotSink) error     { return f.err }

type panickingFSM struct{ raft.FSM }

func (panickingFSM) Apply(*raft.Log) any { panic("cannot apply") }

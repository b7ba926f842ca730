package replica

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/hashicorp/raft"
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

type panickingFSM struct{ raft.FSM }

func (panickingFSM) Apply(*raft.Log) any { panic("cannot apply") }

package members

import (
	"errors"
	"io/fs"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// While the disk is full or the process has no free file descriptor, entries wait. Neither
// condition ends the process or counts as damage.
func TestEntriesWaitForTheMachine(t *testing.T) {
	for _, failure := range []error{syscall.ENOSPC, syscall.EMFILE, syscall.ENFILE} {
		t.Run(failure.Error(), func(t *testing.T) {
			var failing atomic.Bool
			var failed atomic.Int64
			files := &roomyFS{}
			files.FS = errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
				opens := op.Kind == errorfs.OpCreate || op.Kind == errorfs.OpOpen
				if !failing.Load() || !errors.Is(failure, syscall.ENOSPC) && !opens || op.Kind.ReadOrWrite() != errorfs.OpIsWrite && !opens {
					return nil
				}
				failed.Add(1)
				return &fs.PathError{Op: "write", Path: op.Path, Err: failure}
			}))
			files.room = func() uint64 {
				if failing.Load() {
					return 0
				}
				return 1 << 40
			}
			s := storeOf(t, files) // the test fails if the store gives up
			d := &disk{T: t, store: s}
			d.group = d.open(1)
			d.give(joins(10, 10)...)
			failing.Store(true)
			go func() { // ends after the first failures
				for failed.Load() == 0 {
					time.Sleep(time.Millisecond)
				}
				time.Sleep(2 * time.Second)
				failing.Store(false)
			}()
			d.give(joins(20, 20)...)
			d.flush()
			if failing.Load() || failed.Load() == 0 {
				t.Error("nothing has waited")
			}
			if n := s.Stats().Damaged; n != 0 {
				t.Errorf("%d times taken for damaged", n)
			}
			d.group.Close()
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// roomyFS is a file system whose free space is the result of room.
type roomyFS struct {
	vfs.FS
	room func() uint64
}

func (d *roomyFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: d.room(), TotalBytes: 1 << 40}, nil
}

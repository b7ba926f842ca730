package cold

import (
	"errors"
	"io/fs"
	"log/slog"
	"path"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"

	"github.com/countd/countd/internal/scarce"
)

// While free space is low, writes of generations fail; afterwards they succeed again.
func TestWritesWithoutRoom(t *testing.T) {
	files := vfs.NewMem()
	s := openStore(t, files)
	defer s.Close()
	g := mustGroup(t, s, 1)
	before := mustWrite(t, g, syntheticRows(100))[0]
	files.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: scarce.RoomMin - 1, TotalBytes: 1 << 40})
	if _, err := g.Write([]*engine.Page{syntheticRows(100)}); !errors.Is(err, ErrFull) {
		t.Errorf("written without room: %v", err)
	}
	if err := before.Load(0, 1<<64-1, &engine.Page{Width: 4}); err != nil {
		t.Errorf("rows of before: %v", err)
	}
	files.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: scarce.RoomMin, TotalBytes: 1 << 40})
	mustWrite(t, g, syntheticRows(100))
}

// failingFS fails writes to files with a given suffix while failure is set, and reports a given free space.
type failingFS struct {
	vfs.FS
	failure atomic.Pointer[fs.PathError]
	room    func() uint64
}

func newFailingFS(ending string) *failingFS {
	f := &failingFS{room: func() uint64 { return scarce.RoomMin }}
	f.FS = errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		failure := f.failure.Load()
		if failure == nil || op.Kind.ReadOrWrite() != errorfs.OpIsWrite || path.Ext(op.Path) != ending {
			return nil
		}
		return failure
	}))
	return f
}

func (f *failingFS) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: f.room()}, nil
}

// The disk becomes full during a write. The write completes once there is space again.
func TestWritesWaitForRoom(t *testing.T) {
	files := newFailingFS(".log")
	s := openStore(t, files) // the test fails if the store gives up
	defer s.Close()
	g := mustGroup(t, s, 1)
	asked := 0
	files.room = func() uint64 {
		switch asked++; asked {
		case 1:
			return scarce.RoomMin
		case 2, 3:
			return 0
		}
		files.failure.Store(nil)
		return scarce.RoomMin
	}
	files.failure.Store(&fs.PathError{Op: "write", Path: "cold", Err: syscall.ENOSPC})
	n := mustWrite(t, g, syntheticRows(100))[0]
	if asked != 4 {
		t.Errorf("room was looked for %d times", asked)
	}
	if err := n.Load(0, 1<<64-1, &engine.Page{Width: 4}); err != nil {
		t.Error(err)
	}
}

// Open on a full disk returns an error and does not wait.
func TestOpenOnAFullDisk(t *testing.T) {
	files := newFailingFS(".log")
	files.room = func() uint64 { return 0 }
	files.failure.Store(&fs.PathError{Op: "create", Path: "cold", Err: syscall.ENOSPC})
	_, err := Open(Config{Dir: "cold", FS: files, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { t.Error(err) }})
	if !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
}

// If the disk fails all writes, the store ends the process: Pebble would retry forever and without
// a pause.
func TestFilesThatCannotBeWritten(t *testing.T) {
	files := newFailingFS(".sst")
	told := make(chan error, 1000)
	s, err := Open(Config{Dir: "cold", FS: files, Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) {
		files.failure.Store(nil) // the process would have ended
		told <- err
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	files.failure.Store(&fs.PathError{Op: "create", Path: "cold", Err: syscall.EIO})
	mustWrite(t, mustGroup(t, s, 1), syntheticRows(100))
	if _, err := s.db.AsyncFlush(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-told:
		if !errors.Is(err, syscall.EIO) {
			t.Error(err)
		}
	case <-time.After(must.BecomeMax):
		t.Error("nobody is told")
	}
}

// If the process has no free file descriptor, Pebble's files wait for one. This neither ends the
// process nor counts as damage.
func TestFilesWaitForADescriptor(t *testing.T) {
	files := newFailingFS(".sst")
	s := openStore(t, files) // the test fails if the store gives up
	defer s.Close()
	g := mustGroup(t, s, 1)
	files.failure.Store(&fs.PathError{Op: "open", Path: "cold", Err: syscall.EMFILE})
	time.AfterFunc(2*time.Second, func() { files.failure.Store(nil) })
	n := mustWrite(t, g, syntheticRows(100))[0]
	if err := s.db.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := n.Load(0, 1<<64-1, &engine.Page{Width: 4}); err != nil {
		t.Error(err)
	}
	if files.failure.Load() != nil {
		t.Error("nothing has waited")
	}
}

package scarce

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/countd/countd/internal/must"
)

// A call that fails several times with an error of scarcity waits until it succeeds. It does so
// even if the disk has free bytes, because inodes or a user's quota may be used up. Any other error
// is returned at once.
func TestCallsWait(t *testing.T) {
	for _, failure := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.EIO} {
		t.Run(failure.Error(), func(t *testing.T) {
			t.Parallel()
			disk := vfs.NewMem()
			disk.TestingSetDiskUsage(vfs.DiskUsage{AvailBytes: 1 << 40})
			left := 0
			started := &atomic.Bool{}
			wait := Wait{Dir: "", What: "a test", Logger: slog.New(slog.DiscardHandler), Started: started, Closing: make(chan struct{})}
			fs := wait.Over(errorfs.Wrap(disk, errorfs.InjectorFunc(func(errorfs.Op) error {
				if left == 0 {
					return nil
				}
				left--
				return failure
			})))
			file, err := fs.Create("a", vfs.WriteCategoryUnspecified)
			must.Do(t, err)
			started.Store(true)
			for name, call := range map[string]func() error{
				"write":    func() error { _, err := file.Write([]byte("abc")); return err },
				"write at": func() error { _, err := file.WriteAt([]byte("x"), 1); return err },
				"create":   func() error { _, err := fs.Create("b", vfs.WriteCategoryUnspecified); return err },
				"open":     func() error { _, err := fs.Open("a"); return err },
				"list":     func() error { _, err := fs.List(""); return err },
				"link": func() error {
					_ = disk.Remove("c")
					return fs.Link("a", "c")
				},
				"rename": func() error { return errors.Join(disk.Link("a", "d"), fs.Rename("d", "e"), disk.Remove("e")) },
				"reuse": func() error {
					_, err := fs.ReuseForWrite("a", "a", vfs.WriteCategoryUnspecified)
					return err
				},
			} {
				left = 3
				err := call()
				if waits := Is(failure); waits && (err != nil || left != 0) || !waits && !errors.Is(err, failure) {
					t.Errorf("%s: %v, %d failures are left", name, err, left)
				}
				left = 0
				_ = disk.Remove("d")
			}
		})
	}
}

// A call that waits returns its error once Closing is closed.
func TestCloseEndsWaits(t *testing.T) {
	started := &atomic.Bool{}
	started.Store(true)
	closing := make(chan struct{})
	wait := Wait{Logger: slog.New(slog.DiscardHandler), Started: started, Closing: closing}
	fs := wait.Over(errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(errorfs.Op) error { return syscall.ENOSPC })))
	ended := make(chan error)
	go func() { _, err := fs.Create("a", vfs.WriteCategoryUnspecified); ended <- err }()
	close(closing)
	if err := <-ended; !errors.Is(err, syscall.ENOSPC) {
		t.Error(err)
	}
}

// ReuseForWrite succeeds even if a try renames the file but has no descriptor to open it.
func TestReuseWithoutADescriptor(t *testing.T) {
	disk := vfs.NewMem()
	file, err := disk.Create("from", vfs.WriteCategoryUnspecified)
	must.Do(t, errors.Join(err, file.Close()))
	started := &atomic.Bool{}
	started.Store(true)
	wait := Wait{Logger: slog.New(slog.DiscardHandler), Started: started, Closing: make(chan struct{})}
	fs := wait.Over(&renamedFS{FS: disk, left: 2})
	file, err = fs.ReuseForWrite("from", "to", vfs.WriteCategoryUnspecified)
	must.Do(t, err)
	must.Do(t, file.Close())
	if names, err := disk.List(""); err != nil || len(names) != 1 || names[0] != "to" {
		t.Errorf("files %v, %v", names, err)
	}
}

// renamedFS fails the first left calls of OpenReadWrite, because no descriptor is free.
type renamedFS struct {
	vfs.FS
	left int
}

func (f *renamedFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	if err := f.Rename(from, to); err != nil {
		return nil, err
	}
	return f.OpenReadWrite(to, c)
}

func (f *renamedFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	if f.left--; f.left >= 0 {
		return nil, syscall.EMFILE
	}
	return f.FS.OpenReadWrite(name, c, opts...)
}

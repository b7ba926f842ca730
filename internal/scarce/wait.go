package scarce

import (
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// RoomMin is the free space that writes wait for once the disk was full: Pebble rewrites
	// files of some megabytes at a time.
	RoomMin  = 64 << 20
	waitPoll = 200 * time.Millisecond
)

// Wait is a file system whose calls wait while the disk is full or no file descriptor is left,
// instead of failing. Pebble ends the process for such errors, or takes a file for damaged.
type Wait struct {
	Dir     string // on the disk that must have room
	What    string // that is written, for the log
	Logger  *slog.Logger
	Started *atomic.Bool    // until it is set, errors are returned at once: so Open fails
	Closing <-chan struct{} // from when it is closed, the same
}

// Over returns fs with calls that wait.
func (w Wait) Over(fs vfs.FS) vfs.FS {
	return vfs.OnDiskFull(&waitingFS{fs, w}, func() {
		w.until("the disk is full: writes wait for room", func() bool {
			usage, err := fs.GetDiskUsage(w.Dir)
			return err != nil || usage.AvailBytes >= RoomMin
		})
	})
}

// until waits until ready returns true, and reports whether it did.
func (w Wait) until(why string, ready func() bool) bool {
	select {
	case <-w.Closing:
		return false
	default:
	}
	if !w.Started.Load() {
		return false
	}
	w.Logger.Error(why, "what", w.What, "dir", w.Dir)
	tick := time.NewTicker(waitPoll)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-w.Closing:
			return false
		}
		if ready() {
			w.Logger.Info("what waited for the machine goes on", "what", w.What, "dir", w.Dir)
			return true
		}
	}
}

// waitingFS waits for file descriptors.
type waitingFS struct {
	vfs.FS
	wait Wait
}

// Unwrap implements vfs.FS.
func (fs *waitingFS) Unwrap() vfs.FS { return fs.FS }

// opened repeats a call while no file descriptor is left.
func opened[T any](fs *waitingFS, open func() (T, error)) (T, error) {
	file, err := open()
	if NoFiles(err) {
		fs.wait.until("no file descriptor is left: files wait for one", func() bool {
			file, err = open()
			return !NoFiles(err)
		})
	}
	return file, err
}

// Create implements vfs.FS.
func (fs *waitingFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return opened(fs, func() (vfs.File, error) { return fs.FS.Create(name, c) })
}

// Open implements vfs.FS.
func (fs *waitingFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return opened(fs, func() (vfs.File, error) { return fs.FS.Open(name, opts...) })
}

// OpenReadWrite implements vfs.FS.
func (fs *waitingFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return opened(fs, func() (vfs.File, error) { return fs.FS.OpenReadWrite(name, c, opts...) })
}

// OpenDir implements vfs.FS.
func (fs *waitingFS) OpenDir(name string) (vfs.File, error) {
	return opened(fs, func() (vfs.File, error) { return fs.FS.OpenDir(name) })
}

// ReuseForWrite implements vfs.FS. It fails for want of a descriptor once the file has its new
// name.
func (fs *waitingFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	file, err := fs.FS.ReuseForWrite(from, to, c)
	if NoFiles(err) {
		return fs.OpenReadWrite(to, c)
	}
	return file, err
}

// List implements vfs.FS.
func (fs *waitingFS) List(dir string) ([]string, error) {
	return opened(fs, func() ([]string, error) { return fs.FS.List(dir) })
}

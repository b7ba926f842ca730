package scarce

import (
	"errors"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
)

const (
	// RoomMin is how many bytes must be free before a write that failed on a full disk is tried
	// again. It is high because Pebble rewrites files of several megabytes.
	RoomMin  = 64 << 20
	waitPoll = 200 * time.Millisecond
)

// Wait configures a file system whose calls wait, instead of failing, while the disk is full or no
// file descriptor is left. Without it, Pebble would end the process on such an error, or treat a
// file as damaged.
//
// vfs.OnDiskFull is not enough: it tries a call only twice, and does not recognise a user's quota
// (EDQUOT). Wait never repeats a sync, because the system may have dropped the data that it could
// not write. A repeat is not needed either, because a full file system refuses the write before the
// sync.
type Wait struct {
	Dir     string // a directory on the disk whose free space is checked
	What    string // what the files contain, for the log
	Logger  *slog.Logger
	Started *atomic.Bool    // while false, for example during Open, calls fail at once
	Closing <-chan struct{} // once closed, calls fail at once
}

// Over returns a file system that calls fs, with waits.
func (w Wait) Over(fs vfs.FS) vfs.FS { return &waitingFS{fs, w} }

// retry calls try until it succeeds, it fails with an error for which Is returns false, or Closing
// is closed. Before Started, it calls try only once.
func (fs *waitingFS) retry(try func() error) error {
	w := &fs.wait
	err := try()
	if !Is(err) || !w.Started.Load() {
		return err
	}
	w.Logger.Error("the machine lacks disk or file descriptors: writes wait for it", "what", w.What, "dir", w.Dir, "err", err)
	tick := time.NewTicker(waitPoll)
	defer tick.Stop()
	for Is(err) {
		select {
		case <-tick.C:
		case <-w.Closing:
			return err
		}
		if usage, unknown := fs.GetDiskUsage(w.Dir); NoFiles(err) || unknown != nil || usage.AvailBytes >= RoomMin {
			err = try()
		}
	}
	w.Logger.Info("what waited for the machine goes on", "what", w.What, "dir", w.Dir)
	return err
}

// waitingFS implements Wait.
type waitingFS struct {
	vfs.FS
	wait Wait
}

// Unwrap implements vfs.FS.
func (fs *waitingFS) Unwrap() vfs.FS { return fs.FS }

// tried is like retry, but for a call that also returns a value.
func tried[T any](fs *waitingFS, call func() (T, error)) (result T, err error) {
	err = fs.retry(func() (err error) { result, err = call(); return err })
	return result, err
}

// opened is like tried, but for a call that opens a file for writing. Writes to this file wait too.
func opened(fs *waitingFS, open func() (vfs.File, error)) (vfs.File, error) {
	file, err := tried(fs, open)
	if err != nil {
		return nil, err
	}
	return waitingFile{file, fs}, nil
}

// Create implements vfs.FS.
func (fs *waitingFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return opened(fs, func() (vfs.File, error) { return fs.FS.Create(name, c) })
}

// Open implements vfs.FS.
func (fs *waitingFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	return tried(fs, func() (vfs.File, error) { return fs.FS.Open(name, opts...) })
}

// OpenReadWrite implements vfs.FS.
func (fs *waitingFS) OpenReadWrite(name string, c vfs.DiskWriteCategory, opts ...vfs.OpenOption) (vfs.File, error) {
	return opened(fs, func() (vfs.File, error) { return fs.FS.OpenReadWrite(name, c, opts...) })
}

// OpenDir implements vfs.FS.
func (fs *waitingFS) OpenDir(name string) (vfs.File, error) {
	return tried(fs, func() (vfs.File, error) { return fs.FS.OpenDir(name) })
}

// ReuseForWrite implements vfs.FS. A failed try may already have renamed the file, so the next try
// opens it by its new name.
func (fs *waitingFS) ReuseForWrite(from, to string, c vfs.DiskWriteCategory) (vfs.File, error) {
	return opened(fs, func() (vfs.File, error) {
		file, err := fs.FS.ReuseForWrite(from, to, c)
		if errors.Is(err, os.ErrNotExist) {
			return fs.FS.OpenReadWrite(to, c)
		}
		return file, err
	})
}

// List implements vfs.FS.
func (fs *waitingFS) List(dir string) ([]string, error) {
	return tried(fs, func() ([]string, error) { return fs.FS.List(dir) })
}

// Link implements vfs.FS.
func (fs *waitingFS) Link(from, to string) error {
	return fs.retry(func() error { return fs.FS.Link(from, to) })
}

// Rename implements vfs.FS.
func (fs *waitingFS) Rename(from, to string) error {
	return fs.retry(func() error { return fs.FS.Rename(from, to) })
}

// Remove implements vfs.FS.
func (fs *waitingFS) Remove(name string) error {
	return fs.retry(func() error { return fs.FS.Remove(name) })
}

// waitingFile is a file whose writes wait like the calls of its file system.
type waitingFile struct {
	vfs.File
	fs *waitingFS
}

// Write implements vfs.File.
func (f waitingFile) Write(p []byte) (n int, err error) {
	err = f.fs.retry(func() error {
		some, err := f.File.Write(p[n:])
		n += some
		return err
	})
	return n, err
}

// WriteAt implements vfs.File.
func (f waitingFile) WriteAt(p []byte, at int64) (n int, err error) {
	err = f.fs.retry(func() error {
		some, err := f.File.WriteAt(p[n:], at+int64(n))
		n += some
		return err
	})
	return n, err
}

package progressfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/gofrs/flock"
)

// lockTriesMax bounds how often Lock meets a lock file that its holder is just
// removing.
const lockTriesMax = 100

// ErrLocked is returned by Lock while another run holds the progress file.
var ErrLocked = errors.New("another run holds the progress file")

// Lock locks a progress file against other runs until unlock is called or the process ends.
// It locks a file next to it, because every write replaces the progress file. It does not
// wait.
func Lock(path string) (unlock func(), err error) {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved // two links to one file are one run's
	}
	path += ".lock"
	for range lockTriesMax {
		l := flock.New(path)
		got, err := l.TryLock()
		if err != nil {
			return nil, fmt.Errorf("cannot lock the progress file: %w", err)
		}
		if !got {
			return nil, fmt.Errorf("%w: %s is locked", ErrLocked, path)
		}
		if isAt(l, path) {
			return func() {
				_ = os.Remove(path) // while it is locked: a run that opened it before finds by isAt that it is gone
				_ = l.Unlock()
			}, nil
		}
		_ = l.Unlock()
	}
	return nil, fmt.Errorf("%w: %s comes and goes", ErrLocked, path)
}

// isAt reports whether the locked file is still at path.
func isAt(l *flock.Flock, path string) bool {
	locked, err1 := l.Stat()
	there, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(locked, there)
}

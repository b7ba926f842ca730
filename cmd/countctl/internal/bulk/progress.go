package bulk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/countd/countd/internal/program"
	"github.com/gofrs/flock"
)

// bytesMax bounds the bytes that readProgress reads. A real progress file is much smaller, even for
// 64 columns with long names.
const bytesMax = 1 << 20

// readProgress reads a progress file and decodes it. exists is false if there is no file.
func readProgress[S any](path string, decode func(text []byte) (S, error)) (s S, exists bool, err error) {
	var none S
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return none, false, nil
	}
	if err != nil {
		return none, false, fmt.Errorf("cannot read the progress file: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, bytesMax))
	if err != nil {
		return none, false, fmt.Errorf("cannot read the progress file: %w", err)
	}
	if s, err = decode(text); err != nil {
		return none, false, fmt.Errorf("cannot read %s: %w", path, err)
	}
	return s, true, nil
}

// writeProgress writes state to a progress file, or replaces an existing file.
func writeProgress(path string, state any) error {
	return writeWith(path, state, (*program.AtomicFile).Commit)
}

// createProgress writes a progress file that must not exist yet. If the file exists, createProgress
// leaves it unchanged and returns fs.ErrExist.
func createProgress(path string, state any) error {
	return writeWith(path, state, (*program.AtomicFile).CommitNew)
}

func writeWith(path string, state any, commit func(*program.AtomicFile) error) error {
	if err := program.WriteJSON(path, state, commit); err != nil {
		return fmt.Errorf("cannot write the progress file: %w", err)
	}
	return nil
}

// lockTriesMax bounds the tries of LockProgress. A try fails if another process removes the lock
// file between the open and the lock.
const lockTriesMax = 100

// ErrLocked is returned by LockProgress while another run holds the progress file.
var ErrLocked = errors.New("another run holds the progress file")

// LockProgress locks a progress file against other runs until unlock is called or the process ends.
// It locks a separate file next to it, because every write replaces the progress file. If another
// run has the lock, it returns ErrLocked at once.
func LockProgress(path string) (unlock func(), err error) {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved // all links to one file use the same lock
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
				_ = os.Remove(path) // remove before Unlock, so that isAt returns false to a run that then locks the removed file
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

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gofrs/flock"
)

const (
	lockFile = "LOCK"
	// pidBytesMax bounds how much is read of the lock file: a pid has at most 19 digits.
	pidBytesMax = 32
)

// dirLock is an advisory lock of the operating system on DIR/LOCK. It is released when the
// process ends in any way. The file holds the pid of the process for people only; the lock
// does not depend on it.
type dirLock struct{ file *flock.Flock }

func lockDir(dir string) (*dirLock, error) {
	path := filepath.Join(dir, lockFile)
	l := &dirLock{file: flock.New(path)}
	got, err := l.file.TryLock()
	if err != nil {
		return nil, fmt.Errorf("cannot lock %q: %w", path, err)
	}
	if !got {
		if pid := holderPID(path); pid > 0 {
			return nil, fmt.Errorf("%q is held by pid %d: %w", dir, pid, ErrLocked)
		}
		return nil, fmt.Errorf("%q: %w", dir, ErrLocked)
	}
	// The same file is written in place: a rename would leave the lock on an
	// inode that the next process cannot see.
	if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		_ = l.file.Unlock()
		return nil, fmt.Errorf("cannot write pid to %q: %w", path, err)
	}
	return l, nil
}

// holderPID returns the pid noted in the lock file, or 0.
func holderPID(path string) int {
	raw, err := os.ReadFile(path)
	if err != nil || len(raw) > pidBytesMax {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || pid <= 0 {
		return 0
	}
	return pid
}

func (l *dirLock) release() error {
	if err := l.file.Unlock(); err != nil {
		return fmt.Errorf("cannot unlock %q: %w", l.file.Path(), err)
	}
	return nil
}

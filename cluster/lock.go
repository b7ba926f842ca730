package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gofrs/flock"
)

const lockFile = "LOCK"

// lockDir acquires an advisory lock of the operating system on DIR/LOCK. The system releases the
// lock when the process ends in any way. The file contains the pid of the process, for error
// messages.
func lockDir(dir string) (*flock.Flock, error) {
	path := filepath.Join(dir, lockFile)
	lock := flock.New(path)
	got, err := lock.TryLock()
	if err != nil {
		return nil, fmt.Errorf("cannot lock %q: %w", path, err)
	}
	if !got {
		raw, _ := os.ReadFile(path)
		if pid, err := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 32); err == nil {
			return nil, fmt.Errorf("%q is held by pid %d: %w", dir, pid, ErrLocked)
		}
		return nil, fmt.Errorf("%q: %w", dir, ErrLocked)
	}
	// Write in place, because after a rename the lock would be on a file that the next process
	// does not open.
	if err := os.WriteFile(path, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		_ = lock.Unlock()
		return nil, fmt.Errorf("cannot write pid to %q: %w", path, err)
	}
	return lock, nil
}

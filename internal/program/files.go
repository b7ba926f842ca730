package program

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

const (
	newFileMode = 0o666 // before the umask
	// createTriesMax bounds the search for a free temporary name.
	createTriesMax = 100
)

// AtomicFile is a file that appears whole or not at all: until Commit, its bytes are in a temporary
// file beside the target. If the target exists but is not a regular file, such as a device or a
// pipe, AtomicFile writes to it directly.
//
// Invariant: after a crash at any point, the target contains either its old bytes or all of the new
// ones. The methods must not be called concurrently.
type AtomicFile struct {
	f      *os.File
	target string // "" if f is the target itself
}

// CreateFile opens a temporary file beside path. The caller must call Commit or Abort.
func CreateFile(path string) (*AtomicFile, error) {
	if resolved, err := filepath.EvalSymlinks(path); err == nil {
		path = resolved // replace the target of a link, not the link
	}
	mode := fs.FileMode(newFileMode)
	if info, err := os.Stat(path); err == nil {
		if !info.Mode().IsRegular() {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			return &AtomicFile{f: f}, err
		}
		mode = info.Mode().Perm()
	}
	dir, name := filepath.Split(path)
	for try := range createTriesMax {
		temp := filepath.Join(dir, fmt.Sprintf(".%s.%d.%d.tmp", name, os.Getpid(), try))
		f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		return &AtomicFile{f: f, target: path}, nil
	}
	return nil, fmt.Errorf("cannot create %s: %d temporary files of it are in the way", path, createTriesMax)
}

func (f *AtomicFile) Write(p []byte) (int, error) { return f.f.Write(p) }

// Commit makes the bytes durable and renames the file to its target. After an error, the temporary
// file is removed.
func (f *AtomicFile) Commit() error { return f.commit(os.Rename) }

// CommitNew is like Commit, but for a target that must not exist. If it exists, CommitNew does not
// change it and returns fs.ErrExist.
func (f *AtomicFile) CommitNew() error {
	return f.commit(func(temp, target string) error {
		err := os.Link(temp, target)
		if err == nil {
			return os.Remove(temp)
		}
		if errors.Is(err, fs.ErrExist) {
			return err
		}
		// The file system does not support hard links: check for the name instead.
		if _, err := os.Lstat(target); err == nil {
			return fs.ErrExist
		}
		return os.Rename(temp, target)
	})
}

func (f *AtomicFile) commit(name func(temp, target string) error) error {
	if f.target == "" {
		return f.f.Close()
	}
	err := f.f.Sync()
	if closeErr := f.f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = name(f.f.Name(), f.target)
	}
	if err != nil {
		os.Remove(f.f.Name())
		return err
	}
	return SyncDir(filepath.Dir(f.target))
}

// WriteJSON writes v as indented JSON. commit is AtomicFile.Commit or AtomicFile.CommitNew.
func WriteJSON(path string, v any, commit func(*AtomicFile) error) error {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	f, err := CreateFile(path)
	if err != nil {
		return err
	}
	defer f.Abort() // does nothing after commit
	if _, err := f.Write(append(text, '\n')); err != nil {
		return err
	}
	return commit(f)
}

// SyncFile makes a file's contents and its name durable.
func SyncFile(f *os.File) error {
	if err := f.Sync(); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(f.Name()))
}

// Abort removes the temporary file. It does nothing after Commit.
func (f *AtomicFile) Abort() {
	if f.f.Close() == nil && f.target != "" {
		os.Remove(f.f.Name())
	}
}

// ReplaceFile durably and atomically replaces the contents of the file at path by data. Only the
// file's owner can read it. A crash may leave the temporary file path.tmp, which the next call
// overwrites. Calls for the same path must not be concurrent.
func ReplaceFile(path string, data []byte) error {
	temp := path + ".tmp"
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err = errors.Join(err, f.Sync(), f.Close()); err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}

// MkdirAll creates a directory and its missing parents, and makes their names durable.
func MkdirAll(path string, mode os.FileMode) error {
	path = filepath.Clean(path)
	var changed []string
	for at := path; ; at = filepath.Dir(at) {
		if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		changed = append(changed, filepath.Dir(at))
	}
	err := os.MkdirAll(path, mode)
	for _, parent := range changed {
		if err == nil {
			err = SyncDir(parent)
		}
	}
	return err
}

// SyncDir makes the names in a directory durable.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err == nil {
		err = errors.Join(d.Sync(), d.Close())
	}
	if err != nil {
		return fmt.Errorf("cannot sync directory: %w", err)
	}
	return nil
}

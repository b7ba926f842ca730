package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// readBounded returns the content of a file, and of a longer one than bytesMax
// just so much that it can be seen to be too long.
func readBounded(path string, bytesMax int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, bytesMax+1))
}

// replaceSynced gives the file at path a new content, durably: after a crash it
// is the old one or the new one, and after a nil error the new one.
func replaceSynced(path string, raw []byte) error {
	tmp := path + ".tmp"
	if err := writeSynced(tmp, raw); err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return fmt.Errorf("cannot sync its directory: %w", err)
	}
	if err := errors.Join(dir.Sync(), dir.Close()); err != nil {
		return fmt.Errorf("cannot sync its directory: %w", err)
	}
	return nil
}

func writeSynced(path string, raw []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(raw)
	return errors.Join(err, f.Sync(), f.Close())
}

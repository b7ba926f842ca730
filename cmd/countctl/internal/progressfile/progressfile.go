// Package progressfile reads and writes the progress files of runs, so that a run can
// continue after an interruption. It owns their encoding, JSON, the bound on their size, and
// their locks. It never knows what a run is. Invariant: an existing file was written
// completely.
package progressfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/countd/countd/internal/atomicfile"
)

// bytesMax bounds how much is read of a progress file: a mapping of 64 columns with long
// names is many times smaller.
const bytesMax = 1 << 20

// Read reads a progress file with decode; found is false if there is none.
func Read[S any](path string, decode func(text []byte) (S, error)) (s S, found bool, err error) {
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

// Write replaces a progress file by one of state.
func Write(path string, state any) error { return write(path, state, (*atomicfile.File).Commit) }

// Create writes a progress file that must not exist yet. If it exists, Create leaves it
// alone and returns fs.ErrExist.
func Create(path string, state any) error { return write(path, state, (*atomicfile.File).CommitNew) }

func write(path string, state any, commit func(*atomicfile.File) error) error {
	text, err := json.MarshalIndent(state, "", "  ")
	if err != nil {
		return err
	}
	f, err := atomicfile.Create(path)
	if err == nil {
		defer f.Abort() // does nothing after commit
		if _, err = f.Write(append(text, '\n')); err == nil {
			err = commit(f)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot write the progress file: %w", err)
	}
	return nil
}

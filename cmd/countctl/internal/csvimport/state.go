package csvimport

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/countd/countd/cmd/countctl/internal/atomicfile"
	"github.com/countd/countd/cmd/countctl/internal/csvfile"
)

const (
	stateVersion = 1
	// stateBytesMax bounds what is read of a progress file: a mapping of 64
	// columns with long names fits many times.
	stateBytesMax = 1 << 20
)

// ErrBadState is returned for a progress file that this program did not write.
var ErrBadState = errors.New("not a progress file of countctl import")

// State is the progress file of an import: what was imported where, and how
// far it came.
type State struct {
	Version  int              `json:"version"`
	Input    csvfile.Identity `json:"input"`
	Addr     string           `json:"addr"`    // of the server, for a person to read
	Cluster  string           `json:"cluster"` // id of the cluster that the address led to
	Keyspace string           `json:"keyspace"`
	IDColumn string           `json:"id_column"`
	Columns  []Column         `json:"columns"`
	Position Position         `json:"position"`
}

// NewState describes an import that has not begun.
func NewState(input csvfile.Identity, addr, cluster, keyspace, idColumn string, columns []Column) State {
	return State{stateVersion, input, addr, cluster, keyspace, idColumn, columns, Position{}}
}

// SameImport tells whether both are about one import, wherever they stand. A
// cluster that was made anew under the same address is another one; a cluster
// without an id is known by its address.
func (s State) SameImport(other State) bool {
	return s.Input.Same(other.Input) && s.Cluster == other.Cluster &&
		(s.Cluster != "" || s.Addr == other.Addr) &&
		s.Keyspace == other.Keyspace && s.IDColumn == other.IDColumn &&
		slices.Equal(s.Columns, other.Columns)
}

// ReadState reads a progress file; found is false when there is none.
func ReadState(path string) (s State, found bool, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return State{}, false, nil
	}
	if err != nil {
		return State{}, false, fmt.Errorf("cannot read the progress file: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, stateBytesMax))
	if err != nil {
		return State{}, false, fmt.Errorf("cannot read the progress file: %w", err)
	}
	if s, err = decodeState(text); err != nil {
		return State{}, false, fmt.Errorf("cannot read %s: %w", path, err)
	}
	return s, true, nil
}

func decodeState(text []byte) (State, error) {
	var s State
	if err := json.Unmarshal(text, &s); err != nil {
		return State{}, ErrBadState
	}
	if s.Version != stateVersion || s.Position.Line < 0 || s.Position.Rows < 0 || s.Position.Rows > s.Position.Line {
		return State{}, ErrBadState
	}
	return s, nil
}

// write replaces the progress file.
func (s State) write(path string) error {
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := atomicfile.WriteFile(path, append(text, '\n')); err != nil {
		return fmt.Errorf("cannot write the progress file: %w", err)
	}
	return nil
}

package shard

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// walMetaName is the file of a log's list of segments, and of term and vote.
const walMetaName = "meta.db"

// keySegments holds the list of segments: JSON, sealed as a stable value.
var keySegments = []byte("Segments")

// walMeta keeps the list of a log's segments in the bolt file that holds the
// group's term and vote, and makes each segment's file before it is listed. So
// a segment in the list that has no file, or a short one, was lost: raft-wal
// lists first, and then has to take it for one that was never made.
type walMeta struct {
	dir  string
	bolt *boltFile

	mu struct {
		sync.Mutex
		err error // the first error of CommitState, see walStore.StoreLogs
	}
}

var _ types.MetaStore = (*walMeta)(nil)

// Load is types.MetaStore's.
func (m *walMeta) Load(string) (types.PersistentState, error) {
	state, _, err := m.load()
	return state, err
}

// load returns the list, and whether there is one.
func (m *walMeta) load() (state types.PersistentState, listed bool, err error) {
	stored, err := m.bolt.Get(keySegments)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return state, false, nil
	}
	if err == nil {
		stored, err = unsealStable(keySegments, stored)
	}
	if err != nil {
		return state, false, fmt.Errorf("cannot read the list of segments: %w", err)
	}
	if err := json.Unmarshal(stored, &state); err != nil {
		return state, false, fmt.Errorf("cannot read the list of segments: %w: %w", errDamaged, err)
	}
	return state, true, nil
}

// CommitState is types.MetaStore's.
func (m *walMeta) CommitState(state types.PersistentState) error {
	err := m.commit(state)
	if err != nil {
		err = fmt.Errorf("cannot store the list of segments: %w", err)
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.mu.err == nil {
			m.mu.err = err
		}
	}
	return err
}

func (m *walMeta) commit(state types.PersistentState) error {
	if last := len(state.Segments) - 1; last >= 0 {
		if err := m.makeSegment(state.Segments[last]); err != nil {
			return err
		}
	}
	list, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return m.bolt.Set(keySegments, sealStable(nil, keySegments, list))
}

// makeSegment makes the file of a segment, of its full size and durable,
// unless it is there.
func (m *walMeta) makeSegment(info types.SegmentInfo) error {
	name := segment.FileName(info)
	if _, err := os.Stat(filepath.Join(m.dir, name)); !errors.Is(err, os.ErrNotExist) {
		return err
	}
	file, err := fs.New().Create(m.dir, name, uint64(info.SizeLimit))
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close()) // the first Sync is of the directory too
}

// failure returns the first error of CommitState.
func (m *walMeta) failure() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.err
}

// GetStable is types.MetaStore's. Nobody calls it: walStore reads term and
// vote from the bolt file itself.
func (m *walMeta) GetStable(key []byte) ([]byte, error) { return m.bolt.Get(key) }

// SetStable is types.MetaStore's, and GetStable's twin.
func (m *walMeta) SetStable(key, value []byte) error { return m.bolt.Set(key, value) }

// Close is types.MetaStore's.
func (m *walMeta) Close() error { return m.bolt.close() }

// walFiles is raft-wal's file system over files that walMeta has made.
type walFiles struct{ *fs.FS }

// Create is types.VFS's.
func (f walFiles) Create(dir, name string, _ uint64) (types.WritableFile, error) {
	return f.OpenWriter(dir, name)
}

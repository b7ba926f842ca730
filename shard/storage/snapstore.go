package storage

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

const (
	// snapshotsKept is how many snapshots stay on disk. Only the newest is
	// ever used; the one before is there for the operator.
	snapshotsKept = 2

	snapshotsDir      = "snapshots" // raft.FileSnapshotStore's
	snapshotTmpSuffix = ".tmp"      // of a snapshot that was not finished
)

// A snapshot's state begins with a checksum of what raft keeps beside it in
// meta.json, where raft has none:
//
//	┌────────────────┬──────────────────────┬─────────────────┐
//	│ magic "CSN" 01 │ crc32c little endian │ the FSM's bytes │
//	│    4 bytes     │       4 bytes        │                 │
//	└────────────────┴──────────────────────┴─────────────────┘
//
// crc32c covers index, term, configuration index (8 bytes each) and, for each
// server, suffrage (1), length and bytes of its id, length and bytes of its
// address (lengths of 8). All of it is covered by raft's CRC-64 of the state.
const snapshotHeadBytes = 8

var snapshotMagic = [4]byte{'C', 'S', 'N', 1}

func snapshotHead(index, term, configurationIndex uint64, servers []raft.Server) [snapshotHeadBytes]byte {
	b := binary.LittleEndian.AppendUint64(nil, index)
	b = binary.LittleEndian.AppendUint64(b, term)
	b = binary.LittleEndian.AppendUint64(b, configurationIndex)
	for _, s := range servers {
		b = append(b, byte(s.Suffrage))
		b = append(binary.LittleEndian.AppendUint64(b, uint64(len(s.ID))), s.ID...)
		b = append(binary.LittleEndian.AppendUint64(b, uint64(len(s.Address))), s.Address...)
	}
	var head [snapshotHeadBytes]byte
	copy(head[:], snapshotMagic[:])
	binary.LittleEndian.PutUint32(head[4:], crc32.Checksum(b, castagnoli))
	return head
}

// Snapshots keeps a group's snapshots in raft's FileSnapshotStore, and never
// lets raft fall back from the newest to an older one: the log that would lead
// on from the older one may be gone, and what this replica acknowledged with
// it. Any error, and a newest snapshot that is damaged, stops the group.
type Snapshots struct {
	files *raft.FileSnapshotStore
	dir   string // holds one directory a snapshot
	group uint32
	stop  *FailStop

	// All are stored by noteWhole, under noting.
	wholeIndex atomic.Uint64          // log index of the newest whole snapshot, 0 for none
	wholeBytes atomic.Int64           // size of its state
	wholeID    atomic.Pointer[string] // raft's name of it, nil for none
	noting     sync.Mutex
}

var _ raft.SnapshotStore = (*Snapshots)(nil)

// OpenSnapshots opens the snapshots below dir and removes what unfinished ones
// left. It does not read the newest one's state: Open does.
func OpenSnapshots(dir string, group uint32, logger hclog.Logger, stop *FailStop) (*Snapshots, error) {
	s := &Snapshots{dir: filepath.Join(dir, snapshotsDir), group: group, stop: stop}
	var err error
	if s.files, err = raft.NewFileSnapshotStoreWithLogger(dir, snapshotsKept, logger); err != nil {
		return nil, fmt.Errorf("cannot open snapshots in %s: %w", dir, err)
	}
	if err := s.removeUnfinished(); err != nil {
		return nil, fmt.Errorf("cannot remove unfinished snapshots in %s: %w", s.dir, err)
	}
	metas, err := s.List()
	if err != nil {
		return nil, err
	}
	if len(metas) > 0 {
		s.noteWhole(metas[0].ID, metas[0].Index, metas[0].Size)
	}
	return s, nil
}

// NewestIndex returns the log index of the newest whole snapshot, 0 for none.
func (s *Snapshots) NewestIndex() uint64 { return s.wholeIndex.Load() }

// IsNewest reports whether a snapshot is the newest whole one. Snapshots may be of the same entry,
// as what they name on disk changes without one: cold rows do.
//
// What only older snapshots name is removed after a newer one was noted. So nothing of this one was
// removed before IsNewest returned true.
func (s *Snapshots) IsNewest(id string) bool {
	newest := s.wholeID.Load()
	return newest != nil && *newest == id
}

// NewestBytes returns the size of the newest whole snapshot's state.
func (s *Snapshots) NewestBytes() int64 { return s.wholeBytes.Load() }

func (s *Snapshots) removeUnfinished() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasSuffix(e.Name(), snapshotTmpSuffix) {
			if err := os.RemoveAll(filepath.Join(s.dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// Names returns the names of all snapshots, those that are being written too.
func (s *Snapshots) Names() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = strings.TrimSuffix(e.Name(), snapshotTmpSuffix)
	}
	return names, nil
}

// snapshotName is a snapshot directory's name: term-index-milliseconds.
type snapshotName struct {
	term, index, msec uint64
}

func parseSnapshotName(name string) (snapshotName, error) {
	var n [3]uint64
	parts := strings.Split(name, "-")
	if len(parts) != len(n) {
		return snapshotName{}, fmt.Errorf("%w: unknown directory %q", ErrDamaged, name)
	}
	for i, p := range parts {
		var err error
		if n[i], err = strconv.ParseUint(p, 10, 64); err != nil {
			return snapshotName{}, fmt.Errorf("%w: unknown directory %q", ErrDamaged, name)
		}
	}
	return snapshotName{n[0], n[1], n[2]}, nil
}

func (a snapshotName) compare(b snapshotName) int {
	return cmp.Or(cmp.Compare(a.term, b.term), cmp.Compare(a.index, b.index), cmp.Compare(a.msec, b.msec))
}

// newest returns the name of the newest finished snapshot, whatever its state,
// and false when there is none.
func (s *Snapshots) newest() (snapshotName, bool, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return snapshotName{}, false, err
	}
	var newest snapshotName
	found := false
	for _, e := range entries {
		if !e.IsDir() || strings.HasSuffix(e.Name(), snapshotTmpSuffix) {
			continue
		}
		name, err := parseSnapshotName(e.Name())
		if err != nil {
			return snapshotName{}, false, err
		}
		if !found || newest.compare(name) < 0 {
			newest, found = name, true
		}
	}
	return newest, found, nil
}

// Newest returns index and term of the newest finished snapshot, whatever its state,
// and false when there is none.
func (s *Snapshots) Newest() (index, term uint64, found bool, err error) {
	name, found, err := s.newest()
	return name.index, name.term, found, err
}

// List is raft.SnapshotStore's. raft's own leaves out what it cannot read; a
// list that does not begin with the newest directory is refused here.
//
// Snapshots may be finished meanwhile, and each removes one that snapshotsKept later ones have
// replaced. If raft's list does not begin with the directory that was the newest before it was
// read, that one was removed, and then a newer one is there. So the newest is damaged if it is
// still the newest. Otherwise List begins again.
func (s *Snapshots) List() ([]*raft.SnapshotMeta, error) {
	if err := s.stop.Failure(); err != nil {
		return nil, err
	}
	newest, found, err := s.newest()
	if err != nil {
		return nil, s.fail(fmt.Errorf("cannot list snapshots: %w", err))
	}
	metas, err := s.files.List()
	if err != nil {
		return nil, s.fail(fmt.Errorf("cannot list snapshots: %w", err))
	}
	if !found {
		return nil, nil
	}
	if len(metas) > 0 {
		// One that was finished since the directory was read is fine.
		first, err := parseSnapshotName(metas[0].ID)
		if err == nil && first.compare(newest) >= 0 {
			for _, m := range metas { // the sizes of what Open returns
				m.Size = max(0, m.Size-snapshotHeadBytes)
			}
			return metas, nil
		}
	}
	later, _, err := s.newest()
	if err != nil {
		return nil, s.fail(fmt.Errorf("cannot list snapshots: %w", err))
	}
	if newest.compare(later) < 0 {
		return s.List()
	}
	return nil, s.fail(fmt.Errorf("cannot use the newest snapshot %d-%d-%d: %w: its meta.json",
		newest.term, newest.index, newest.msec, ErrDamaged))
}

// Opened is the state of a snapshot that Open returned. raft gives its transport the state of a
// snapshot without its name.
type Opened struct {
	io.ReadCloser
	ID string // raft's name of the snapshot
}

// Open is raft.SnapshotStore's. It reads the whole state once to check it. The state is Opened.
func (s *Snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	if err := s.stop.Failure(); err != nil {
		return nil, nil, err
	}
	meta, state, err := s.openChecked(id)
	if err == nil {
		return meta, Opened{state, id}, nil
	}
	err = fmt.Errorf("cannot open snapshot %s: %w", id, err)
	if errors.Is(err, os.ErrNotExist) && s.superseded(id) {
		return nil, nil, err // it was removed after it was listed
	}
	return nil, nil, s.fail(err)
}

// noteWhole notes a snapshot that is whole, unless a newer one is: a leader's, a repair's
// and one of raft's own may be written at the same time, and end in any order.
func (s *Snapshots) noteWhole(id string, index uint64, bytes int64) {
	s.noting.Lock()
	defer s.noting.Unlock()
	if index >= s.wholeIndex.Load() {
		s.wholeIndex.Store(index)
		s.wholeBytes.Store(bytes)
		s.wholeID.Store(&id)
	}
}

// superseded reports whether a newer snapshot than id is there.
func (s *Snapshots) superseded(id string) bool {
	name, err := parseSnapshotName(id)
	if err != nil {
		return false
	}
	newest, found, err := s.newest()
	return err == nil && found && name.compare(newest) < 0
}

func (s *Snapshots) openChecked(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	name, err := parseSnapshotName(id)
	if err != nil {
		return nil, nil, err
	}
	meta, state, err := s.files.Open(id)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	if err != nil { // raft's own check of the state has no sentinel
		return nil, nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if meta.Version != 1 || meta.ID != id || meta.Term != name.term || meta.Index != name.index || meta.Size < snapshotHeadBytes {
		state.Close()
		return nil, nil, fmt.Errorf("%w: its meta.json tells of another snapshot", ErrDamaged)
	}
	var head [snapshotHeadBytes]byte
	if _, err := io.ReadFull(state, head[:]); err != nil {
		state.Close()
		return nil, nil, fmt.Errorf("%w: the state has no head: %w", ErrDamaged, err)
	}
	if head != snapshotHead(meta.Index, meta.Term, meta.ConfigurationIndex, meta.Configuration.Servers) {
		state.Close()
		return nil, nil, fmt.Errorf("%w: meta.json does not match the state", ErrDamaged)
	}
	meta.Size -= snapshotHeadBytes
	return meta, state, nil
}

// Create is raft.SnapshotStore's.
func (s *Snapshots) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, trans raft.Transport) (raft.SnapshotSink, error) {
	if err := s.stop.Failure(); err != nil {
		return nil, err
	}
	files, err := s.files.Create(version, index, term, configuration, configurationIndex, trans)
	if err != nil {
		return nil, s.fail(fmt.Errorf("cannot create a snapshot: %w", err))
	}
	sink := &snapSink{SnapshotSink: files, store: s, index: index, bytes: -snapshotHeadBytes}
	head := snapshotHead(index, term, configurationIndex, configuration.Servers)
	if _, err := sink.Write(head[:]); err != nil {
		return nil, errors.Join(err, files.Cancel())
	}
	return sink, nil
}

func (s *Snapshots) fail(err error) error {
	return s.stop.Fail(fmt.Errorf("group %d: snapshots %s: %w", s.group, s.dir, err))
}

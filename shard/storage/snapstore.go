package storage

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"golang.org/x/sync/singleflight"

	"github.com/countd/countd/internal/scarce"
	"github.com/countd/countd/shard/errs"
)

const (
	// snapshotsKept is the number of snapshots kept on disk. Restarts use only the newest. The
	// previous one remains for readers that have already chosen it, and for operators.
	snapshotsKept = 2

	snapshotsDir = "snapshots" // in the replica's directory

	// snapBufferBytes is the size of one read or write.
	snapBufferBytes = 64 << 10

	// After every snapSyncBytes bytes, the sink starts to flush the file to disk. So the final
	// sync, which cannot be interrupted, is short, and syncs of the log do not wait for the whole
	// snapshot.
	snapSyncBytes = 4 << 20
)

// Snapshots stores a replica's snapshots, and shows raft only the newest. Otherwise raft could fall
// back to an older snapshot, although acknowledged entries after that one may already be deleted.
// DESIGN.md proves that the newest is always intact.
type Snapshots struct {
	fs     vfs.FS
	dir    string
	group  uint32
	logger hclog.Logger
	stop   *FailStop

	checks singleflight.Group // of files, by id: concurrent calls of Open share a check

	newest atomic.Pointer[raft.SnapshotMeta] // the newest finished snapshot; nil for none; set under mu

	mu struct {
		sync.Mutex // never held during a file operation
		number     uint64
		finished   []snapName            // ascending; includes replaced ones until they are removed
		writing    map[snapName]struct{} // snapshots that have begun and are neither finished nor discarded
	}
}

var _ raft.SnapshotStore = (*Snapshots)(nil)

// OpenSnapshots opens the snapshots in dir. It removes unfinished and replaced ones. It does not
// read the FSM's bytes of the newest one: Open does.
func OpenSnapshots(dir string, group uint32, logger hclog.Logger, stop *FailStop) (*Snapshots, error) {
	return openSnapshots(vfs.Default, dir, group, logger, stop)
}

func openSnapshots(fs vfs.FS, dir string, group uint32, logger hclog.Logger, stop *FailStop) (*Snapshots, error) {
	s := &Snapshots{fs: fs, dir: fs.PathJoin(dir, snapshotsDir), group: group, logger: logger, stop: stop}
	s.mu.writing = map[snapName]struct{}{}
	if err := s.recover(dir); err != nil {
		return nil, fmt.Errorf("cannot open snapshots in %s: %w", s.dir, err)
	}
	return s, nil
}

// recover reads the directory and makes its names durable: the previous process may have been
// killed between a rename and the sync of the directory.
func (s *Snapshots) recover(parent string) error {
	if err := s.fs.MkdirAll(s.dir, 0o750); err != nil {
		return err
	}
	files, err := s.fs.List(s.dir)
	if err != nil {
		return err
	}
	for _, file := range files {
		if strings.HasPrefix(file, ".") { // this program makes no such names; some network file systems do
			continue
		}
		base, unfinished := strings.CutSuffix(file, snapTmpSuffix)
		base, ours := strings.CutSuffix(base, snapSuffix)
		name, err := parseSnapName(base)
		if !ours || err != nil {
			return fmt.Errorf("%w: %s is not the file of a snapshot", ErrDamaged, file)
		}
		s.mu.number = max(s.mu.number, name.number)
		if !unfinished {
			s.mu.finished = append(s.mu.finished, name)
		} else if err := s.fs.Remove(s.fs.PathJoin(s.dir, file)); err != nil {
			return err
		}
	}
	slices.SortFunc(s.mu.finished, snapName.compare)
	if err := errors.Join(s.syncDir(parent), s.syncDir(s.dir)); err != nil {
		return err
	}
	if len(s.mu.finished) == 0 {
		return nil
	}
	newest := s.mu.finished[len(s.mu.finished)-1]
	file, err := openSnapFile(s.fs, s.path(newest), newest)
	if err != nil {
		return fmt.Errorf("cannot use the newest snapshot %s: %w", s.path(newest), err)
	}
	s.newest.Store(file.meta)
	s.removeReplaced()
	return file.Close()
}

func (s *Snapshots) syncDir(dir string) error {
	d, err := s.fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func (s *Snapshots) path(name snapName) string {
	return s.fs.PathJoin(s.dir, name.String()+snapSuffix)
}

// Newest returns the log index and term of the newest finished snapshot; zeros if there is none.
func (s *Snapshots) Newest() (index, term uint64) {
	if m := s.newest.Load(); m != nil {
		return m.Index, m.Term
	}
	return 0, 0
}

// NewestIndex returns the log index of the newest finished snapshot; 0 if there is none.
func (s *Snapshots) NewestIndex() uint64 {
	index, _ := s.Newest()
	return index
}

// NewestBytes returns the number of the FSM's bytes in the newest finished snapshot.
func (s *Snapshots) NewestBytes() int64 {
	if m := s.newest.Load(); m != nil {
		return m.Size
	}
	return 0
}

// IsNewest reports whether a snapshot is the newest finished one. Several snapshots may have the
// same log index, because the cold rows that they name can change without a log entry.
//
// Cold rows that only older snapshots name are removed only after a newer snapshot was recorded.
// So if IsNewest returns true, all cold rows of this snapshot still exist.
func (s *Snapshots) IsNewest(id string) bool {
	m := s.newest.Load()
	return m != nil && m.ID == id
}

// OldestIndex returns the log index of the oldest snapshot on disk; 0 if there is none.
func (s *Snapshots) OldestIndex() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.mu.finished) == 0 {
		return 0
	}
	return s.mu.finished[0].index
}

// Names returns the names of all snapshots on disk, including unfinished ones.
func (s *Snapshots) Names() ([]string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, name := range s.mu.finished {
		names = append(names, name.String())
	}
	for name := range s.mu.writing {
		names = append(names, name.String())
	}
	return names, nil
}

// List implements raft.SnapshotStore. It returns only the newest snapshot.
func (s *Snapshots) List() ([]*raft.SnapshotMeta, error) {
	if err := s.stop.Failure(); err != nil {
		return nil, err
	}
	newest := s.newest.Load()
	if newest == nil {
		return nil, nil
	}
	meta := *newest
	return []*raft.SnapshotMeta{&meta}, nil
}

// Opened is the state of a snapshot, as returned by Open. raft passes the state to its transport
// without the snapshot's name, so Opened carries it.
type Opened struct {
	io.ReadCloser
	ID string // raft's name of the snapshot
}

// Open implements raft.SnapshotStore. It reads the whole file once to check it, and returns the
// state as Opened. Concurrent calls share a check: raft opens the snapshot anew for each follower
// and term, although an earlier check may still take minutes. If no file descriptor is free, Open waits for one, until FailStop.Interrupt. It
// must not return an error instead, because raft would continue as if the snapshot did not exist.
func (s *Snapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	for {
		meta, state, err := s.open(id)
		if err == nil {
			return meta, Opened{state, id}, nil
		}
		if usable := s.stop.Usable(); usable != nil {
			return nil, nil, usable
		}
		err = fmt.Errorf("cannot open snapshot %s: %w", id, err)
		switch {
		case s.replaced(id): // newer snapshots replaced this one after List returned it
			return nil, nil, err
		case !scarce.NoFiles(err):
			return nil, nil, s.fail(err)
		}
		if err := s.stop.Wait(err); err != nil {
			return nil, nil, err
		}
	}
}

func (s *Snapshots) open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	if err := s.stop.Usable(); err != nil {
		return nil, nil, err
	}
	name, err := parseSnapName(id)
	if err != nil {
		return nil, nil, err
	}
	file, err := openSnapFile(s.fs, s.path(name), name)
	if err != nil {
		return nil, nil, err
	}
	_, err, _ = s.checks.Do(id, func() (any, error) { return nil, file.verify(s.stop.Usable) })
	if err != nil {
		return nil, nil, errors.Join(err, file.Close())
	}
	state := interruptible{bufio.NewReaderSize(file.state(), snapBufferBytes), s.stop.Usable}
	return file.meta, struct {
		io.Reader
		io.Closer
	}{state, file}, nil
}

func (s *Snapshots) replaced(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	kept := s.mu.finished[max(0, len(s.mu.finished)-snapshotsKept):]
	return len(kept) > 0 && !slices.ContainsFunc(kept, func(n snapName) bool { return n.String() == id })
}

// Create implements raft.SnapshotStore.
func (s *Snapshots) Create(version raft.SnapshotVersion, index, term uint64, configuration raft.Configuration,
	configurationIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	if err := s.stop.Usable(); err != nil {
		return nil, err
	}
	if version != raft.SnapshotVersionMax {
		return nil, fmt.Errorf("cannot create a snapshot of version %d, only of %d", version, raft.SnapshotVersionMax)
	}
	s.mu.Lock()
	s.mu.number++
	name := snapName{index, term, s.mu.number}
	s.mu.writing[name] = struct{}{}
	s.mu.Unlock()
	k := &snapSink{store: s, name: name, meta: &raft.SnapshotMeta{
		Version: version, ID: name.String(), Index: index, Term: term,
		Configuration: configuration.Clone(), ConfigurationIndex: configurationIndex,
	}}
	if err := k.begin(); err != nil {
		k.discard()
		return nil, s.judge(fmt.Errorf("cannot create a snapshot: %w", err))
	}
	return k, nil
}

// finish records a snapshot whose file name is durable, and removes the snapshots that it replaces.
// Snapshots from a leader, from a repair and of raft itself may be written at the same time, and
// finish in any order.
func (s *Snapshots) finish(name snapName, meta *raft.SnapshotMeta) {
	s.mu.Lock()
	delete(s.mu.writing, name)
	s.mu.finished = append(s.mu.finished, name)
	slices.SortFunc(s.mu.finished, snapName.compare)
	if s.mu.finished[len(s.mu.finished)-1] == name {
		s.newest.Store(meta)
	}
	s.mu.Unlock()
	s.removeReplaced()
}

// removeReplaced removes all but the newest snapshotsKept snapshots. If it cannot remove one, the
// next finished snapshot or the next start retries.
func (s *Snapshots) removeReplaced() {
	s.mu.Lock()
	old := slices.Clone(s.mu.finished[:max(0, len(s.mu.finished)-snapshotsKept)])
	s.mu.Unlock()
	for _, name := range old {
		if err := s.fs.Remove(s.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			s.logger.Error("cannot remove a replaced snapshot", "file", s.path(name), "error", err)
			continue
		}
		s.mu.Lock()
		s.mu.finished = slices.DeleteFunc(s.mu.finished, func(n snapName) bool { return n == name })
		s.mu.Unlock()
	}
}

// judge stops the group unless the error is transient. After a transient error the group can go on
// without the snapshot.
func (s *Snapshots) judge(err error) error {
	if scarce.Is(err) || errors.Is(err, errs.ErrGroupClosed) {
		return err
	}
	return s.fail(err)
}

func (s *Snapshots) fail(err error) error {
	return s.stop.Fail(fmt.Errorf("group %d: snapshots %s: %w", s.group, s.dir, err))
}

package replica

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/scarce"
	"github.com/countd/countd/shard/storage"
)

// A crash at any point leaves no files of a deleted replica, and the node never begins a replica
// with that number again.
func TestDeletedReplica(t *testing.T) {
	for _, number := range []uint64{0, 7} {
		for name, crash := range map[string]bool{"whole": false, "crash between": true} {
			t.Run(fmt.Sprintf("%d, %s", number, name), func(t *testing.T) {
				record := memoryRecord{}
				must.Do(t, record.GroupOpened(5))
				d := Dirs{Path: t.TempDir(), Opened: record}
				must.Do(t, d.FinishGivenUp())
				dir := d.Dir(5, number)
				must.Do(t, os.MkdirAll(filepath.Join(dir, "snapshots"), 0o750))
				must.Do(t, os.WriteFile(filepath.Join(dir, "raft.db"), []byte("x"), 0o600))
				if crash {
					must.Do(t, d.MoveAside(5, number))
					must.Do(t, d.FinishGivenUp())
				} else {
					must.Do(t, giveUp(&d, 5, number))
				}
				left, err := filepath.Glob(filepath.Join(d.Path, "*", "*"))
				if err != nil || len(left) > 0 || record.WasOpened(5) {
					t.Errorf("left %v, %v; recorded %v", left, err, record.WasOpened(5))
				}
				mayBegin := func(group uint32, number uint64) bool { may, _ := d.MayBegin(group, number); return may }
				if mayBegin(5, number) || !mayBegin(5, number+1) || !mayBegin(50, 0) {
					t.Error("a number that was deleted may begin again, or another may not")
				}
				// The next replica is recorded, but its files are lost. FinishGivenUp must not
				// remove the record.
				must.Do(t, record.GroupOpened(5))
				if err := d.FinishGivenUp(); err != nil || !record.WasOpened(5) {
					t.Errorf("recorded %v, %v", record.WasOpened(5), err)
				}
				must.Do(t, os.Mkdir(d.Dir(5, number+3), 0o750))
				must.Do(t, giveUp(&d, 5, number+3))
				must.Do(t, d.FinishGivenUp())
				if record.WasOpened(5) || mayBegin(5, number+3) || !mayBegin(5, number+4) {
					t.Errorf("deleted again: recorded %v", record.WasOpened(5))
				}
				if left, err := os.ReadDir(d.Path); err != nil || len(left) != 1 {
					t.Errorf("left %v, %v, want the mark of the last one", left, err)
				}
			})
		}
	}
}

// Load refuses a combination of directories that no node leaves. It arises if somebody restores an
// older copy.
func TestReplicaDirsThatContradict(t *testing.T) {
	for name, dirs := range map[string][]string{
		"two replicas":                    {"00005", "00005.3"},
		"deleted and there":               {"00005.3", "00005.3.removed"},
		"older than it":                   {"00005", "00005.3.removed"},
		"both, beside others that do not": {"00004", "00004.removed", "00005", "00005.3"},
	} {
		t.Run(name, func(t *testing.T) {
			d := Dirs{Path: t.TempDir()}
			for _, dir := range dirs {
				must.Do(t, os.Mkdir(filepath.Join(d.Path, dir), 0o750))
			}
			if err := d.Load(); !errors.Is(err, storage.ErrDamaged) || !strings.Contains(err.Error(), "00005") {
				t.Errorf("loaded with %v", err)
			}
		})
	}
}

// The data directory's name is a path, not a glob pattern.
func TestDeletedReplicaInAnyDirectory(t *testing.T) {
	d := Dirs{Path: filepath.Join(t.TempDir(), "a[*")}
	for _, number := range []uint64{3, 4} {
		must.Do(t, os.MkdirAll(filepath.Join(d.Dir(5, number), "snapshots"), 0o750))
		must.Do(t, d.Load())
		must.Do(t, d.MoveAside(5, number))
		must.Do(t, d.clear(5, number))
	}
	if left, err := os.ReadDir(d.Path); err != nil || len(left) != 1 {
		t.Errorf("left %v, %v, want the mark of the last one", left, err)
	}
}

// memoryRecord implements Opened in memory.
type memoryRecord map[uint32]bool

func (m memoryRecord) WasOpened(group uint32) bool     { return m[group] }
func (m memoryRecord) GroupOpened(group uint32) error  { m[group] = true; return nil }
func (m memoryRecord) GroupRemoved(group uint32) error { delete(m, group); return nil }

// fullRecord is a record on a disk that is full.
type fullRecord struct{ memoryRecord }

func (fullRecord) GroupRemoved(uint32) error { return syscall.ENOSPC }

// A deletion that lacked disk space is completed later. No other replica of the group begins before
// that.
func TestDeletionOnAFullDisk(t *testing.T) {
	record := memoryRecord{5: true, 6: true}
	d := Dirs{Path: t.TempDir(), Opened: fullRecord{record}}
	for _, group := range []uint32{5, 6} {
		must.Do(t, os.MkdirAll(filepath.Join(d.Dir(group, 1), "snapshots"), 0o750))
	}
	must.Do(t, d.Load())
	for range 2 {
		for _, group := range []uint32{5, 6} {
			if _, here := d.Number(group); !here {
				continue
			}
			if err := giveUp(&d, group, 1); !scarce.Is(err) {
				t.Fatalf("deleted with %v", err)
			}
		}
		if _, here := d.Number(5); here || !d.Unfinished(5) || !d.Unfinished(6) {
			t.Fatalf("here %v, unfinished %v and %v", here, d.Unfinished(5), d.Unfinished(6))
		}
	}
	d.Opened = record
	must.Do(t, d.Finish())
	if may, _ := d.MayBegin(5, 2); !may || d.Unfinished(5) || d.Unfinished(6) || len(record) > 0 {
		t.Errorf("may begin %v, unfinished %v and %v, recorded %v", may, d.Unfinished(5), d.Unfinished(6), record)
	}
	if left, err := filepath.Glob(filepath.Join(d.Path, "*", "*")); err != nil || len(left) > 0 {
		t.Errorf("left %v, %v", left, err)
	}
}

// giveUp deletes the files of a closed replica.
func giveUp(d *Dirs, group uint32, number uint64) error {
	if err := d.MoveAside(group, number); err != nil {
		return err
	}
	return d.Finish()
}

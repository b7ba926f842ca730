// Package dirs owns the directories of this node's replicas: it opens a replica, deletes
// one, and remembers which numbers were deleted.
//
// It never decides which replicas a node holds.
//
// Invariant: a replica whose files are lost is refused, and a number that was deleted is
// never begun again, whatever crashes.
package dirs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/atomicfile"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/storage"
)

// Dirs keeps the directories of a node's replicas, one for each group that the
// node has a replica of:
//
//	00012            the replica of group 12 with number 0
//	00012.5          the replica with number 5, which came after it
//	00012.5.removed  the replica with number 5 was deleted
//
// The last one stays, empty, until a replica with a higher number is deleted. It
// outlives what the catalog here says: a catalog that was restored from an older
// snapshot may still name a replica whose votes this node has forgotten. So a number
// that was deleted is never begun again.
//
// A replica is deleted in two parts: its directory gets its other name (moveAside), and then all
// that the node has of it is removed (Finish). If the machine lacks disk or file descriptors for the
// second, it is tried again, and until then no other replica of the group begins: what is
// removed goes by the group's number.
//
// mu guards the maps and what is renamed, made or removed in path; no replica is opened or
// closed under it. finishing is held by Finish, and acquired before mu.
type Dirs struct {
	Path     string
	Opened   Opened         // the durable record; nil for none
	Log      *raftstore.Log // of all groups; nil for a node whose groups have logs of their own
	Cold     *cold.Store    // nil before it is opened
	Members  *members.Store // likewise
	OnlyNode func() bool    // this node is known to be the only one of its cluster

	finishing sync.Mutex

	mu struct {
		sync.Mutex
		here       map[uint32]uint64                // by group: the number of the replica
		deleted    map[uint32]uint64                // by group: the highest number of those deleted
		refused    map[uint32]bool                  // by group: whether MayBegin reported false last
		unfinished map[raftstore.ReplicaID]struct{} // moved aside, and not finished
	}
}

// RemovedSuffix marks the directory of a replica that was deleted, or is to be.
const RemovedSuffix = ".removed"

// Load reads which directories are there. What a crash left half deleted is for Finish.
func (d *Dirs) Load() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.here, d.mu.deleted, d.mu.refused = map[uint32]uint64{}, map[uint32]uint64{}, map[uint32]bool{}
	d.mu.unfinished = map[raftstore.ReplicaID]struct{}{}
	entries, err := os.ReadDir(d.Path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name, removed := strings.CutSuffix(e.Name(), RemovedSuffix)
		r, ok := parseReplicaDir(name)
		if !ok || !e.IsDir() {
			continue
		}
		if removed {
			if number, has := d.mu.deleted[r.Group]; !has || r.Number > number {
				d.mu.deleted[r.Group] = r.Number
			}
			if left, err := os.ReadDir(filepath.Join(d.Path, e.Name())); err != nil || len(left) > 0 {
				d.mu.unfinished[r] = struct{}{}
			}
			continue
		}
		if other, has := d.mu.here[r.Group]; has {
			return fmt.Errorf("%w: %s and %s both hold a replica of group %d, and a node has one; bring the directory back as it was",
				storage.ErrDamaged, d.Dir(r.Group, other), d.Dir(r.Group, r.Number), r.Group)
		}
		d.mu.here[r.Group] = r.Number
	}
	for group, number := range d.mu.here {
		deleted, has := d.mu.deleted[group]
		if has && number <= deleted {
			return fmt.Errorf("%w: replica %d of group %d was deleted, and %s is there; bring the directory back as it was",
				storage.ErrDamaged, number, group, d.Dir(group, number))
		}
	}
	return nil
}

// Dir returns the directory of a replica.
func (d *Dirs) Dir(group uint32, number uint64) string {
	name := fmt.Sprintf("%05d", group)
	if number > 0 {
		name += "." + strconv.FormatUint(number, 10)
	}
	return filepath.Join(d.Path, name)
}

// parseReplicaDir reads the name of a directory that dir returned.
func parseReplicaDir(name string) (r raftstore.ReplicaID, ok bool) {
	group, number, numbered := strings.Cut(name, ".")
	g, err := strconv.ParseUint(group, 10, 32)
	if err == nil && numbered {
		r.Number, err = strconv.ParseUint(number, 10, 64)
	}
	r.Group = uint32(g)
	return r, err == nil
}

// Number returns the number of the group's replica, and whether there is one.
func (d *Dirs) Number(group uint32) (number uint64, here bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	number, here = d.mu.here[group]
	return number, here
}

// Replicas returns the replicas here of the groups for which of returns true.
func (d *Dirs) Replicas(of func(group uint32) bool) (all []raftstore.ReplicaID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for group, number := range d.mu.here {
		if of(group) {
			all = append(all, raftstore.ReplicaID{Group: group, Number: number})
		}
	}
	return all
}

// Forget removes the empty directories that tell of deleted replicas of some groups. It is
// for groups that no catalog of this node can name any more.
func (d *Dirs) Forget(of func(group uint32) bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for group, number := range d.mu.deleted {
		if _, here := d.mu.here[group]; here || !of(group) {
			continue
		}
		if err := os.Remove(d.Dir(group, number) + RemovedSuffix); err != nil {
			return fmt.Errorf("cannot forget a deleted replica of group %d: %w", group, err)
		}
		delete(d.mu.deleted, group)
	}
	return nil
}

// AnyShard returns the directory of a replica of any group but the catalog's, "" for
// none.
func (d *Dirs) anyShard() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	for group, number := range d.mu.here {
		if group != catalog.Group {
			return d.Dir(group, number)
		}
	}
	return ""
}

// MayBegin reports whether no replica of the group with this or a higher number was
// deleted. firstNo is set for the first call for a group that reports false.
func (d *Dirs) MayBegin(group uint32, number uint64) (may, firstNo bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	deleted, has := d.mu.deleted[group]
	may = !has || number > deleted
	firstNo = !may && !d.mu.refused[group]
	d.mu.refused[group] = !may
	return may, firstNo
}

// noteBegun notes a replica whose directory is being made, and unnoteBegun one whose directory
// could not be made.
func (d *Dirs) noteBegun(group uint32, number uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.mu.here[group] = number
}

func (d *Dirs) unnoteBegun(group uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.mu.here, group)
}

// moveAside gives the directory of a closed replica its other name. Finish makes that durable.
// After an error the directory is as it was.
func (d *Dirs) moveAside(group uint32, number uint64) error {
	dir := d.Dir(group, number)
	if err := os.RemoveAll(dir + RemovedSuffix); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := os.Rename(dir, dir+RemovedSuffix); err != nil {
		return err
	}
	delete(d.mu.here, group)
	d.mu.deleted[group] = number
	d.mu.unfinished[raftstore.ReplicaID{Group: group, Number: number}] = struct{}{}
	return nil
}

// Unfinished reports whether a replica of the group was moved aside, and Finish has not removed
// all of it. No other replica of the group may begin until then.
func (d *Dirs) Unfinished(group uint32) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	for r := range d.mu.unfinished {
		if r.Group == group {
			return true
		}
	}
	return false
}

// clear deletes what moveAside moved, and leaves the empty directory.
func (d *Dirs) clear(group uint32, number uint64) error {
	dir := d.Dir(group, number) + RemovedSuffix
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	all, readErr := os.ReadDir(d.Path)
	err = errors.Join(err, readErr, atomicfile.SyncDir(dir))
	for _, e := range all {
		name, removed := strings.CutSuffix(e.Name(), RemovedSuffix)
		r, ok := parseReplicaDir(name)
		if removed && ok && r.Group == group && r.Number < number {
			err = errors.Join(err, os.Remove(filepath.Join(d.Path, e.Name()))) // empty: it was finished before
		}
	}
	return err
}

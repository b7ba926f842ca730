package replica

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
	"github.com/countd/countd/internal/program"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/storage"
)

// Dirs owns the directories of a node's replicas, one for each replica:
//
//	00012            the replica of group 12 with number 0
//	00012.5          the replica with number 5, which came after it
//	00012.5.removed  the replica with number 5 was deleted
//
// The empty directory .removed stays as a marker until a replica of the group with a higher number
// is deleted. The local catalog cannot serve as the marker: after a restore from an older snapshot,
// the catalog may still name a replica whose votes this node has deleted. The marker keeps the node
// from starting a replica with that number again.
//
// A replica is deleted in two steps. MoveAside renames its directory, then Finish removes
// everything that the node stores for it. If the second step lacks disk space or file descriptors,
// the node retries it. Until then no other replica of the group starts, because Finish removes data
// by the group's number.
type Dirs struct {
	Path     string
	Opened   Opened         // durable record of groups; nil for none
	Log      *raftstore.Log // the log shared by all groups; nil if each group has its own
	Cold     *cold.Store    // nil before it is opened
	Members  *members.Store // nil before it is opened
	OnlyNode func() bool    // reports whether this node is known to be the only one of its cluster

	// Finish holds the lock finishing. Acquire it before mu.
	finishing sync.Mutex

	// mu guards the maps. It is held while MoveAside renames a directory and Forget removes a
	// marker, so that the maps match the directories. No replica is opened or closed under it.
	mu struct {
		sync.Mutex
		here       map[uint32]uint64                // number of the replica, by group
		deleted    map[uint32]uint64                // highest deleted number, by group
		refused    map[uint32]bool                  // whether the last MayBegin returned false, by group
		unfinished map[raftstore.ReplicaID]struct{} // replicas moved aside, and not yet removed by Finish
	}
}

// RemovedSuffix ends the name of the directory of a replica that was deleted or is being deleted.
const RemovedSuffix = ".removed"

// Load reads the names of the directories. Finish will remove replicas whose deletion a crash
// interrupted.
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

// parseReplicaDir parses the last element of a path of Dir.
func parseReplicaDir(name string) (r raftstore.ReplicaID, ok bool) {
	group, number, numbered := strings.Cut(name, ".")
	g, err := strconv.ParseUint(group, 10, 32)
	if err == nil && numbered {
		r.Number, err = strconv.ParseUint(number, 10, 64)
	}
	r.Group = uint32(g)
	return r, err == nil
}

// Number returns the number of this node's replica of the group, and whether it has one.
func (d *Dirs) Number(group uint32) (number uint64, here bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	number, here = d.mu.here[group]
	return number, here
}

// Replicas returns this node's replicas of the groups for which match returns true.
func (d *Dirs) Replicas(match func(group uint32) bool) (all []raftstore.ReplicaID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for group, number := range d.mu.here {
		if match(group) {
			all = append(all, raftstore.ReplicaID{Group: group, Number: number})
		}
	}
	return all
}

// Forget removes the marker of each group for which match returns true, unless the node has a
// replica of the group. Use it only for groups that this node's catalog can never name again.
func (d *Dirs) Forget(match func(group uint32) bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	for group, number := range d.mu.deleted {
		if _, here := d.mu.here[group]; here || !match(group) {
			continue
		}
		if err := os.Remove(d.Dir(group, number) + RemovedSuffix); err != nil {
			return fmt.Errorf("cannot forget a deleted replica of group %d: %w", group, err)
		}
		delete(d.mu.deleted, group)
	}
	return nil
}

// anyShard returns the directory of some replica that is not the catalog's, or "".
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

// MayBegin reports whether a replica with this number may start. It may not if a replica of the
// group with this or a higher number was deleted. firstNo is true for the first of several refusals
// in a row.
func (d *Dirs) MayBegin(group uint32, number uint64) (may, firstNo bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	deleted, has := d.mu.deleted[group]
	may = !has || number > deleted
	firstNo = !may && !d.mu.refused[group]
	d.mu.refused[group] = !may
	return may, firstNo
}

// MoveAside renames the directory of a closed replica. Finish makes the rename durable. After an
// error the directory is unchanged.
func (d *Dirs) MoveAside(group uint32, number uint64) error {
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

// AnyUnfinished reports whether Finish has replicas to remove.
func (d *Dirs) AnyUnfinished() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.mu.unfinished) > 0
}

// Unfinished reports whether Finish still has to remove a replica of the group. Until then, no
// other replica of the group may start.
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

// clear deletes the contents of a directory that MoveAside renamed, and the group's older markers.
// The empty directory stays as the marker.
func (d *Dirs) clear(group uint32, number uint64) error {
	dir := d.Dir(group, number) + RemovedSuffix
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	all, readErr := os.ReadDir(d.Path)
	err = errors.Join(err, readErr, program.SyncDir(dir))
	for _, e := range all {
		name, removed := strings.CutSuffix(e.Name(), RemovedSuffix)
		r, ok := parseReplicaDir(name)
		if removed && ok && r.Group == group && r.Number < number {
			err = errors.Join(err, os.Remove(filepath.Join(d.Path, e.Name()))) // the directory is empty, because an earlier Finish cleared it
		}
	}
	return err
}

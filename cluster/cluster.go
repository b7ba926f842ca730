// Package cluster owns what a node is and whom it knows: the data directory that
// makes it that node and no other, gossip about which nodes live and where, and
// how a node without a cluster comes to one. It never touches the data of a
// group, which is the business of package shard, and what gossip says is a hint:
// who is a member, only the catalog says.
//
// Invariant: a data directory has one process at a time and, from its first
// start on, one key, and from the moment that it has one, one cluster id.
package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// The errors of OpenDataDir that a caller may tell apart.
var (
	// ErrLocked is returned when another process holds the data directory.
	ErrLocked = errors.New("the data directory is in use by another process")
	// ErrNodeIDDiffers is returned when the asked node id contradicts the one
	// that the directory was made with.
	ErrNodeIDDiffers = errors.New("the data directory belongs to another node id")
	// ErrIdentityLost is returned when a directory holds groups but no identity:
	// a new one would make its logs those of a stranger.
	ErrIdentityLost = errors.New("the data directory holds groups but no " + identityFile)
	// ErrGroupsLost is returned when a node's directory has no record of the
	// groups that it holds: one whose files are gone could not be told from one
	// that never was.
	ErrGroupsLost = errors.New("the data directory has a " + identityFile + " but no " + openedFile)
	// ErrBadIdentity is returned when the identity cannot be understood.
	ErrBadIdentity = errors.New("the identity file is damaged or of another version")
	// ErrBadChecksum is returned when a small file of the directory is not what was
	// written.
	ErrBadChecksum = errors.New("its checksum does not match: the file is damaged or was edited")
	// ErrHasCluster is returned when a node that has a cluster is to get one.
	ErrHasCluster = errors.New("the node has a cluster already")
	// ErrBadNodeID is returned for an asked node id out of bounds.
	ErrBadNodeID = errors.New("a node id is 1 to 64 of the characters A-Z a-z 0-9 . _ -")
)

const (
	groupsDir = "groups"
	coldDir   = "cold"
)

// DataDir is a locked data directory. It is this process's until Close.
type DataDir struct {
	// Identity is as it stands on disk. SetPromised, SetJoining and SetCluster
	// change it; whoever calls them sees to it that nobody reads it meanwhile.
	Identity Identity

	path   string
	lock   *dirLock
	opened *openedGroups
	fresh  bool // Identity is not on the disk yet
	plain  bool // a file on the disk has no checksum
}

// OpenDataDir locks the directory at path, making it if need be, and reads the
// node's identity there. For a new directory it makes one up, with nodeID or, if
// that is empty, an id of its own, which lasts once KeepIdentity has written it.
// An existing identity must agree with a nodeID that is not empty.
func OpenDataDir(path, nodeID string) (*DataDir, error) {
	if nodeID != "" && !ValidNodeID(nodeID) {
		return nil, fmt.Errorf("%q: %w", nodeID, ErrBadNodeID)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("cannot resolve data directory %q: %w", path, err)
	}
	path = abs
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create data directory %q: %w", path, err)
	}
	lock, err := lockDir(path)
	if err != nil {
		return nil, err
	}
	d := &DataDir{path: path, lock: lock}
	if err := d.load(nodeID); err != nil {
		return nil, errors.Join(err, lock.release())
	}
	return d, nil
}

// KeepIdentity writes an identity that is not on the disk yet, or not with a checksum.
// It is called when nothing that often fails is left to do: a start that failed leaves
// a directory that may still become any node's.
func (d *DataDir) KeepIdentity() error {
	if !d.fresh && !d.plain {
		return nil
	}
	if err := d.opened.write(); err != nil {
		return err
	}
	// Last: it says that all else is there.
	if err := writeIdentity(filepath.Join(d.path, identityFile), d.Identity); err != nil {
		return err
	}
	d.fresh, d.plain = false, false
	return nil
}

// Path returns the absolute path of the directory.
func (d *DataDir) Path() string { return d.path }

// GroupsDir returns the directory for the groups' data. It need not exist.
func (d *DataDir) GroupsDir() string { return filepath.Join(d.path, groupsDir) }

// ColdDir returns the directory for rows that are not in memory. It need not exist.
func (d *DataDir) ColdDir() string { return filepath.Join(d.path, coldDir) }

// Close gives the directory up to the next process. Nothing of this process may
// write there any more.
func (d *DataDir) Close() error { return d.lock.release() }

// GroupOpened records, durably, that this node has a replica of the group. It
// comes once the group's log is on disk, and before the node votes in it.
func (d *DataDir) GroupOpened(number uint32) error { return d.opened.set(number, true) }

// WasOpened tells whether this node has a replica of the group. If it has and
// the group's log is gone, that was removed by hand, and the group must
// not be started empty.
func (d *DataDir) WasOpened(number uint32) bool { return d.opened.has(number) }

// GroupRemoved records, durably, that this node has no replica of the group any
// more. It comes once the group's directory is renamed, before its files are deleted.
func (d *DataDir) GroupRemoved(number uint32) error { return d.opened.set(number, false) }

// SetPromised records the set of keys that the node has agreed to form a cluster
// with, as they stand in Identity.Promised.
func (d *DataDir) SetPromised(set string) error {
	return d.change(func(id *Identity) { id.Promised = set })
}

// SetJoining records the cluster that the node is about to ask to admit it.
func (d *DataDir) SetJoining(clusterID string) error {
	return d.change(func(id *Identity) { id.Joining = clusterID })
}

// SetCluster records the node's cluster, once and for ever. founder says that
// this node made it.
func (d *DataDir) SetCluster(clusterID string, founder bool) error {
	return d.change(func(id *Identity) {
		id.ClusterID, id.Founder = clusterID, founder
		id.Joining, id.Promised = "", ""
	})
}

// change makes one durable change to the identity of a node without a cluster.
func (d *DataDir) change(edit func(*Identity)) error {
	if d.Identity.ClusterID != "" {
		return fmt.Errorf("%q: %w", d.Identity.ClusterID, ErrHasCluster)
	}
	id := d.Identity
	edit(&id)
	raw, err := json.Marshal(id)
	if err != nil {
		return fmt.Errorf("cannot encode identity: %w", err)
	}
	if _, err := parseIdentity(raw); err != nil { // what could not be read is not written
		return fmt.Errorf("cannot write identity: %w", err)
	}
	if err := writeIdentity(filepath.Join(d.path, identityFile), id); err != nil {
		return err
	}
	d.Identity = id
	return nil
}

// load reads the identity and the record of groups, or makes both up.
func (d *DataDir) load(nodeID string) error {
	id, checked, err := readIdentity(filepath.Join(d.path, identityFile))
	d.fresh = errors.Is(err, fs.ErrNotExist)
	switch {
	case err == nil && nodeID != "" && nodeID != id.NodeID:
		return fmt.Errorf("%q is node %q, not %q: %w", d.path, id.NodeID, nodeID, ErrNodeIDDiffers)
	case err != nil && !d.fresh:
		return err
	}
	if d.fresh {
		if _, err := os.Stat(d.GroupsDir()); err == nil {
			return fmt.Errorf("%q: %w", d.path, ErrIdentityLost)
		} else if !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("cannot look for groups: %w", err)
		}
		id = newIdentity(nodeID)
	}
	if d.opened, err = loadOpened(d.path, !d.fresh); err != nil {
		return err
	}
	if d.fresh && d.opened.count() > 0 {
		return fmt.Errorf("%q: %w", d.path, ErrIdentityLost)
	}
	d.Identity, d.plain = id, !d.fresh && (!checked || !d.opened.checked)
	return nil
}

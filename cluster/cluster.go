// Package cluster owns what a node is: the data directory that makes it that
// node and no other, and the identity kept there. It never touches the data of
// a group, which is the business of package shard.
//
// Invariant: a data directory has one process at a time and, from its first
// start on, one node id and one cluster id.
package cluster

import (
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
	// ErrBadIdentity is returned when the identity cannot be understood.
	ErrBadIdentity = errors.New("the identity file is damaged or of another version")
	// ErrBadNodeID is returned for an asked node id out of bounds.
	ErrBadNodeID = errors.New("a node id is 1 to 64 of the characters A-Z a-z 0-9 . _ -")
)

const groupsDir = "groups"

// DataDir is a locked data directory. It is this process's until Close.
type DataDir struct {
	Identity Identity

	path  string
	lock  *dirLock
	fresh bool // Identity is not on the disk yet
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
	if d.Identity, d.fresh, err = d.loadOrMakeIdentity(nodeID); err != nil {
		return nil, errors.Join(err, lock.release())
	}
	return d, nil
}

// KeepIdentity writes an identity that is not on the disk yet. It is called when
// nothing that often fails is left to do: a start that failed leaves a directory
// that may still become any node's.
func (d *DataDir) KeepIdentity() error {
	if !d.fresh {
		return nil
	}
	if err := writeIdentity(filepath.Join(d.path, identityFile), d.Identity); err != nil {
		return err
	}
	d.fresh = false
	return nil
}

// Path returns the absolute path of the directory.
func (d *DataDir) Path() string { return d.path }

// GroupsDir returns the directory for the groups' data. It need not exist.
func (d *DataDir) GroupsDir() string { return filepath.Join(d.path, groupsDir) }

// Close gives the directory up to the next process. Nothing of this process may
// write there any more.
func (d *DataDir) Close() error { return d.lock.release() }

func (d *DataDir) loadOrMakeIdentity(nodeID string) (id Identity, fresh bool, err error) {
	id, err = readIdentity(filepath.Join(d.path, identityFile))
	switch {
	case err == nil:
		if nodeID != "" && nodeID != id.NodeID {
			return Identity{}, false, fmt.Errorf("%q is node %q, not %q: %w", d.path, id.NodeID, nodeID, ErrNodeIDDiffers)
		}
		return id, false, nil
	case !errors.Is(err, fs.ErrNotExist):
		return Identity{}, false, err
	}
	if _, err := os.Stat(d.GroupsDir()); err == nil {
		return Identity{}, false, fmt.Errorf("%q: %w", d.path, ErrIdentityLost)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Identity{}, false, fmt.Errorf("cannot look for groups: %w", err)
	}
	return newIdentity(nodeID), true, nil
}

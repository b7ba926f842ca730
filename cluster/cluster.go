// Package cluster owns the identity of a node and its view of other nodes. The package owns the
// data directory and gossip, forms or joins a cluster, and plans which nodes hold replicas. Only
// package shard reads and writes the data of groups. Gossip is only a hint: the catalog alone
// decides which nodes are members.
//
// Invariant: only one process at a time uses a data directory. The node's key never changes after
// the first start, and its cluster id never changes after the node has joined a cluster.
package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/gofrs/flock"

	"github.com/countd/countd/internal/program"
)

// The errors of OpenDataDir that a caller may distinguish.
var (
	// ErrLocked is returned when another process holds the data directory.
	ErrLocked = errors.New("the data directory is in use by another process")
	// ErrNodeIDDiffers is returned when the requested node id differs from the node id of the
	// directory.
	ErrNodeIDDiffers = errors.New("the data directory belongs to another node id")
	// ErrIdentityLost is returned when a directory holds groups but no identity. A new
	// identity would not match the logs of those groups.
	ErrIdentityLost = errors.New("the data directory holds groups but no " + identityFile)
	// ErrGroupsLost is returned when a node's directory has no record of its groups. Without the
	// record, a group whose files were removed looks like a group that never existed.
	ErrGroupsLost = errors.New("the data directory has a " + identityFile + " but no " + openedFile)
	// ErrBadIdentity is returned when the identity file or the record of groups cannot be decoded.
	ErrBadIdentity = errors.New("the identity file is damaged or of another version")
	// ErrBadChecksum is returned when the checksum of one of these two files does not match.
	ErrBadChecksum = errors.New("its checksum does not match: the file is damaged or was edited")
	// ErrUnreleased is returned for a file in the format of an unreleased program.
	ErrUnreleased = errors.New("it is of a version of countd that was never released, which this one cannot read: name a new data directory")
	// ErrForeignDir is returned when a directory holds files, but no files of a node.
	ErrForeignDir = errors.New("the directory holds other files and no node: --data-dir needs a new or an empty directory")
	// ErrHasCluster is returned when a node that has a cluster is asked to form or join one.
	ErrHasCluster = errors.New("the node has a cluster already")
	// ErrBadNodeID is returned when the requested node id is not valid.
	ErrBadNodeID = errors.New("a node id is 1 to 64 of the characters A-Z a-z 0-9 . _ -")
)

const (
	groupsDir  = "groups"
	coldDir    = "cold"
	membersDir = "members"
)

// DataDir is a locked data directory. This process owns it until Close.
type DataDir struct {
	// Identity is the identity on disk or, for a new directory, the one that KeepIdentity writes.
	// SetPromised, SetJoining and SetCluster change it; their callers must prevent concurrent
	// reads.
	Identity Identity

	path  string
	lock  *flock.Flock
	fresh bool // Identity is not on the disk yet
	*openedGroups
}

// OpenDataDir locks the directory at path, creates it if necessary, and reads the node's identity.
// For a new directory, it creates an identity with nodeID, or with a random id if nodeID is empty.
// KeepIdentity writes the new identity to disk. If nodeID is not empty, an existing identity must
// match it.
func OpenDataDir(path, nodeID string) (*DataDir, error) { return openDataDir(path, nodeID, false) }

// openDataDir is OpenDataDir. Unless recovering is set, it refuses a directory whose recovery is not
// complete.
func openDataDir(path, nodeID string, recovering bool) (*DataDir, error) {
	if nodeID != "" && !ValidNodeID(nodeID) {
		return nil, fmt.Errorf("%q: %w", nodeID, ErrBadNodeID)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("cannot resolve data directory %q: %w", path, err)
	}
	path = abs
	if err := program.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create data directory %q: %w", path, err)
	}
	if err := checkForeign(path); err != nil { // check before this node creates a file in the directory
		return nil, err
	}
	lock, err := lockDir(path)
	if err != nil {
		return nil, err
	}
	d := &DataDir{path: path, lock: lock}
	err = d.load(nodeID)
	if _, none := os.Stat(filepath.Join(path, recoveryFile)); err == nil && !recovering && (!errors.Is(none, fs.ErrNotExist) || d.Identity.Format == identityRecovering) {
		err = fmt.Errorf("%q: %w", path, ErrRecovering)
	}
	if err != nil {
		return nil, errors.Join(err, lock.Unlock())
	}
	return d, nil
}

// ownFiles holds the names that mark a directory as the data directory of a node.
var ownFiles = map[string]bool{
	identityFile: true, lockFile: true, openedFile: true, groupsDir: true, coldDir: true, membersDir: true,
}

// checkForeign returns ErrForeignDir if a directory holds files but no files of a node. It ignores
// lost+found and hidden files, because file systems create these in the root of a new volume.
func checkForeign(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("cannot read data directory %q: %w", path, err)
	}
	foreign := ""
	for _, e := range entries {
		switch name := e.Name(); {
		case ownFiles[strings.TrimSuffix(name, ".tmp")]: // a start that was cut short leaves a .tmp file
			return nil
		case name != "lost+found" && !strings.HasPrefix(name, "."):
			foreign = name
		}
	}
	if foreign == "" {
		return nil
	}
	return fmt.Errorf("%q has %q: %w", path, foreign, ErrForeignDir)
}

// KeepIdentity writes the identity unless it is on disk. Call it after the steps of a start that
// often fail, because from then on the directory belongs to a node.
func (d *DataDir) KeepIdentity() error {
	if !d.fresh {
		return nil
	}
	if err := d.openedGroups.write(); err != nil {
		return err
	}
	// Write the identity last, because it marks the directory as complete.
	if err := writeIdentity(filepath.Join(d.path, identityFile), d.Identity); err != nil {
		return err
	}
	d.fresh = false
	return nil
}

// Path returns the absolute path of the directory.
func (d *DataDir) Path() string { return d.path }

// GroupsDir returns the directory for the groups' data. The directory may not exist yet.
func (d *DataDir) GroupsDir() string { return filepath.Join(d.path, groupsDir) }

// ColdDir returns the directory for rows that are not in memory. The directory may not exist yet.
func (d *DataDir) ColdDir() string { return filepath.Join(d.path, coldDir) }

// MembersDir returns the directory for sets of members. The directory may not exist yet.
func (d *DataDir) MembersDir() string { return filepath.Join(d.path, membersDir) }

// Close releases the directory to the next process. The process must not write to it
// afterwards.
func (d *DataDir) Close() error { return d.lock.Unlock() }

// SetPromised records the nodes with which this node has agreed to form a cluster. set has the
// form of Identity.Promised.
func (d *DataDir) SetPromised(set string) error {
	return d.change(func(id *Identity) { id.Promised = set })
}

// SetJoining records the cluster to which the node is about to send a JoinRequest.
func (d *DataDir) SetJoining(clusterID string) error {
	return d.change(func(id *Identity) { id.Joining = clusterID })
}

// SetCluster records the node's cluster for good. founder is set if this node founded it.
func (d *DataDir) SetCluster(clusterID string, founder bool) error {
	return d.change(func(id *Identity) {
		id.ClusterID, id.Founder = clusterID, founder
		id.Joining, id.Promised = "", ""
	})
}

// change durably edits the identity of a node without a cluster.
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
	if _, err := parseIdentity(raw); err != nil { // never write an identity that load would refuse
		return fmt.Errorf("cannot write identity: %w", err)
	}
	if err := writeIdentity(filepath.Join(d.path, identityFile), id); err != nil {
		return err
	}
	d.Identity = id
	return nil
}

// load reads the identity and the record of groups, or creates both.
//
// It syncs the directory first, because an earlier process may have been killed between a rename
// and the sync of the directory. Without this sync, a crash of the machine could undo the rename
// after this node has acted on the file. For example, the node may have voted under the new
// identity.
func (d *DataDir) load(nodeID string) error {
	if err := program.SyncDir(d.path); err != nil {
		return fmt.Errorf("cannot open data directory %q: %w", d.path, err)
	}
	id, err := readIdentity(filepath.Join(d.path, identityFile))
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
	if d.openedGroups, err = loadOpened(d.path, !d.fresh); err != nil {
		return err
	}
	if d.fresh && d.count() > 0 {
		return fmt.Errorf("%q: %w", d.path, ErrIdentityLost)
	}
	d.Identity = id
	return nil
}

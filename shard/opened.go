package shard

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Opened is the durable record of the groups that this node has a replica of. It
// lies outside of their directories, so that a replica whose files are lost is
// told from one that is to begin: begun anew it would serve zeros for what it
// acknowledged, and vote again on what it has voted on.
//
// A group is recorded once its log is on disk and before this node votes or
// acknowledges anything in it, and taken out once its directory is given up. So
// one in the record has a log, and one that is not has promised nothing.
type Opened interface {
	WasOpened(group uint32) bool
	GroupOpened(group uint32) error
	GroupRemoved(group uint32) error
}

// openHere opens this node's replica of a group, or begins one if there is none
// and never was.
func (n *Node) openHere(cfg groupConfig) (*group, error) {
	path := cfg.LogStore.votePath(cfg.Dir)
	blank, err := isBlank(path)
	if err == nil && blank {
		err = n.mayBegin(cfg.Group, path)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open group %d: %w", cfg.Group, err)
	}
	if record := n.cfg.Opened; record != nil {
		cfg.Begun = func() error { return record.GroupOpened(cfg.Group) }
	}
	return openGroup(cfg)
}

// mayBegin returns errDamaged for a replica whose log is blank and was not. It
// removes what a crash left of a log that was just being made.
func (n *Node) mayBegin(group uint32, path string) error {
	advice := n.afterLoss()
	record := n.cfg.Opened
	if record != nil && record.WasOpened(group) {
		return fmt.Errorf("%w: this node had a replica of the group, and %s is missing or empty; %s", errDamaged, path, advice)
	}
	if group == catalogGroup {
		others, err := n.groupDirs()
		if err != nil {
			return err
		}
		if len(others) > 0 {
			return fmt.Errorf("%w: %s is missing or empty, and groups that only the catalog knows are there (%s); %s",
				errDamaged, path, others[0], advice)
		}
	}
	if record == nil {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// afterLoss says what to do about a log that is gone. Wiping the only node of a
// cluster would destroy what is left.
func (n *Node) afterLoss() string {
	const restore = "bring this node's directory back from a copy"
	if n.meta != nil && n.meta.soleVoter() && n.alone() {
		return restore + ": it is the only node of its cluster, nobody else has what it held"
	}
	return restore + ", or, only in a larger cluster, wipe it: then it joins again as a new node"
}

// groupDirs returns the directories of the groups but the catalog's.
func (n *Node) groupDirs() ([]string, error) {
	entries, err := os.ReadDir(n.cfg.Dir)
	if err != nil {
		return nil, err
	}
	var dirs []string
	for _, e := range entries {
		if number, err := strconv.ParseUint(e.Name(), 10, 32); err == nil && number != catalogGroup {
			dirs = append(dirs, filepath.Join(n.cfg.Dir, e.Name()))
		}
	}
	return dirs, nil
}

// isBlank reports whether a file is not there, empty, or nothing but zeros, as a
// crash leaves one that was just being made.
func isBlank(path string) (bool, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	defer file.Close()
	block := make([]byte, 64<<10)
	for {
		n, err := file.Read(block)
		if len(bytes.TrimLeft(block[:n], "\x00")) > 0 {
			return false, nil
		}
		if errors.Is(err, io.EOF) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
	}
}

// removedSuffix marks what is left of a replica that was given up: an empty
// directory, which stays. Its group began long ago, so this node does not begin
// it with its first members again when it is to hold it once more, but waits for
// the leader.
const removedSuffix = ".removed"

// giveUp deletes a closed replica's directory. A crash leaves all of it or, under
// another name, what finishGivingUp deletes.
func (n *Node) giveUp(group uint32) error {
	dir := n.groupDir(group)
	dead := dir + removedSuffix
	if err := errors.Join(os.RemoveAll(dead), os.Rename(dir, dead), syncDir(n.cfg.Dir)); err != nil {
		return err
	}
	return n.finishGivingUp(group)
}

// finishGivingUp deletes what giveUp moved aside, and takes the group out of the
// record.
func (n *Node) finishGivingUp(group uint32) error {
	if n.cfg.Opened != nil {
		if err := n.cfg.Opened.GroupRemoved(group); err != nil {
			return err
		}
	}
	if n.cold != nil {
		if err := n.cold.Drop(group); err != nil {
			return err
		}
	}
	dead := n.groupDir(group) + removedSuffix
	entries, err := os.ReadDir(dead)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dead, e.Name())))
	}
	return err
}

// wasGivenUp reports whether this node once had a replica of the group that it
// gave up.
func (n *Node) wasGivenUp(group uint32) bool {
	_, err := os.Stat(n.groupDir(group) + removedSuffix)
	return err == nil
}

// finishGivenUp ends what a crash cut short of giveUp.
func (n *Node) finishGivenUp() error {
	dirs, err := filepath.Glob(filepath.Join(n.cfg.Dir, "[0-9]*"+removedSuffix))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		number, err := strconv.ParseUint(strings.TrimSuffix(filepath.Base(dir), removedSuffix), 10, 32)
		if err != nil {
			continue // none of ours
		}
		rest, err := os.ReadDir(dir)
		if err == nil && len(rest) == 0 {
			continue // it was finished, and the node may have a replica again
		}
		if err := errors.Join(err, n.finishGivingUp(uint32(number))); err != nil {
			return fmt.Errorf("cannot delete the replica of group %d: %w", number, err)
		}
	}
	return nil
}

package replica

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/countd/countd/internal/program"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/storage"
)

// Opened is the durable record of the groups of which this node has a replica. It is stored outside
// of the replicas' directories, so that the node can distinguish a replica with lost files from a
// new one. If the node started the lost replica as a new one, that replica would return zeros for
// acknowledged writes, and could vote a second time in a term.
//
// Dirs calls GroupOpened when the replica's log is on disk, before the replica votes or
// acknowledges anything. It calls GroupRemoved after the replica's directory has been moved aside.
// So every recorded group has a log. A group without a record never had a replica here, or its
// replica was deleted. A deleted number is not used again, so the next replica has another Raft id
// (see Dirs).
type Opened interface {
	WasOpened(group uint32) bool
	GroupOpened(group uint32) error
	GroupRemoved(group uint32) error
}

// Open opens this node's replica of a group, or creates one. It returns ErrDamaged if Opened
// records the replica but its files are lost.
func (d *Dirs) Open(cfg Config) (*Replica, error) {
	blank, err := isBlank(&cfg)
	if err == nil && blank {
		err = d.checkBlank(&cfg)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open group %d: %w", cfg.Group, err)
	}
	d.mu.Lock()
	d.mu.here[cfg.Group] = cfg.Replica
	d.mu.Unlock()
	if record := d.Opened; record != nil {
		cfg.Begun = func() error { return record.GroupOpened(cfg.Group) }
	}
	r, err := Open(cfg)
	if _, none := os.Stat(cfg.Dir); err != nil && errors.Is(none, os.ErrNotExist) {
		d.mu.Lock()
		delete(d.mu.here, cfg.Group)
		d.mu.Unlock()
	}
	return r, err
}

// checkBlank returns ErrDamaged if a replica without a log had one before: the record shows that,
// and for the catalog's replica also the directory of any shard. Otherwise it removes an incomplete
// log file that a crash has left.
func (d *Dirs) checkBlank(cfg *Config) error {
	advice := d.afterLoss()
	record := d.Opened
	what := cfg.LogPath()
	if cfg.NodeLog != nil {
		what += ", of the replica in " + cfg.Dir + ","
	}
	if record != nil && record.WasOpened(cfg.Group) {
		return fmt.Errorf("%w: this node had a replica of the group, and %s is missing or empty; %s", storage.ErrDamaged, what, advice)
	}
	if cfg.Group == catalog.Group {
		if other := d.anyShard(); other != "" {
			return fmt.Errorf("%w: %s is missing or empty, and groups that only the catalog knows are there (%s); %s",
				storage.ErrDamaged, what, other, advice)
		}
	}
	if record == nil || cfg.NodeLog != nil {
		return nil
	}
	if err := os.Remove(cfg.LogPath()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// afterLoss returns the advice for an operator after the loss of a log. It must not advise wiping
// the only node of a cluster, because that would destroy the remaining data.
func (d *Dirs) afterLoss() string {
	const restore = "bring this node's directory back from a copy"
	if d.OnlyNode() {
		return restore + ": it is the only node of its cluster, nobody else has what it held"
	}
	return restore + ", or, only in a larger cluster, wipe it: then it joins again as a new node"
}

// isBlank reports whether a replica has no log. Either the node's log lacks the replica, or the
// replica's log file is missing, empty or full of zeros. A crash during the creation of the file
// can leave such a file.
func isBlank(cfg *Config) (bool, error) {
	if cfg.NodeLog != nil {
		return !cfg.NodeLog.Has(cfg.LogID()), nil
	}
	file, err := os.Open(cfg.LogPath())
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

// Finish deletes every replica that was moved aside. After a transient error (scarce.Is) the next
// call continues; after a crash, FinishGivenUp does.
func (d *Dirs) Finish() error {
	d.finishing.Lock()
	defer d.finishing.Unlock()
	d.mu.Lock()
	unfinished := slices.Collect(maps.Keys(d.mu.unfinished))
	d.mu.Unlock()
	for _, r := range unfinished {
		if err := d.finish(r.Group, r.Number); err != nil {
			return fmt.Errorf("cannot delete replica %d of group %d: %w", r.Number, r.Group, err)
		}
		d.mu.Lock()
		delete(d.mu.unfinished, r)
		d.mu.Unlock()
	}
	return nil
}

// finish removes the group from the record, and then deletes the replica's log, cold rows, sets and
// the content of its renamed directory. First it makes the rename durable, even if an earlier
// process renamed the directory. Otherwise a crash after the removal of the record and the log
// could undo the rename, and the replica would start again.
func (d *Dirs) finish(group uint32, number uint64) error {
	if err := program.SyncDir(d.Path); err != nil {
		return err
	}
	if d.Opened != nil {
		if err := d.Opened.GroupRemoved(group); err != nil {
			return err
		}
	}
	if d.Log != nil {
		if err := d.Log.Drop(raftstore.ReplicaID{Group: group, Number: number}); err != nil {
			return err
		}
	}
	if d.Cold != nil {
		if err := d.Cold.Drop(group); err != nil {
			return err
		}
	}
	if d.Members != nil {
		if err := d.Members.Drop(group); err != nil {
			return err
		}
	}
	return d.clear(group, number)
}

// FinishGivenUp calls Load, and completes every deletion that a crash interrupted.
func (d *Dirs) FinishGivenUp() error {
	if err := d.Load(); err != nil {
		return err
	}
	return d.Finish()
}

package storage

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/atomicfile"
)

// snapSink writes one snapshot. Its errors stop the group.
type snapSink struct {
	raft.SnapshotSink
	store  *Snapshots
	index  uint64
	bytes  int64 // written, the head aside
	closed bool
}

func (k *snapSink) Write(p []byte) (int, error) {
	if err := k.store.stop.Failure(); err != nil {
		return 0, err
	}
	n, err := k.SnapshotSink.Write(p)
	k.bytes += int64(n)
	if err != nil {
		return n, k.store.fail(fmt.Errorf("cannot write snapshot %s: %w", k.ID(), err))
	}
	return n, nil
}

// Close finishes the snapshot. When it returns nil the snapshot is on disk and
// is the newest. raft and the FSM may both call it.
func (k *snapSink) Close() error {
	if k.closed {
		return nil
	}
	k.closed = true
	if err := k.store.stop.Failure(); err != nil {
		return errors.Join(err, k.SnapshotSink.Cancel())
	}
	err := k.SnapshotSink.Close()
	if err == nil {
		// raft syncs both files and the directory above, not this one.
		err = atomicfile.SyncDir(filepath.Join(k.store.dir, k.ID()))
	}
	if err != nil {
		return k.store.fail(fmt.Errorf("cannot finish snapshot %s: %w", k.ID(), err))
	}
	k.store.noteWhole(k.ID(), k.index, k.bytes)
	return nil
}

// Cancel removes the snapshot. A leader that goes away while it sends one is
// no failure of this node, so a cancelled snapshot alone stops nothing.
func (k *snapSink) Cancel() error {
	if k.closed {
		return nil
	}
	k.closed = true
	if err := k.SnapshotSink.Cancel(); err != nil {
		return k.store.fail(fmt.Errorf("cannot remove snapshot %s: %w", k.ID(), err))
	}
	return nil
}

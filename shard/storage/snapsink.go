package storage

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"hash/crc64"
	"os"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
)

// snapSink writes one snapshot. After a transient error (scarce.Is) it discards the snapshot; any
// other error stops the group.
type snapSink struct {
	store  *Snapshots
	name   snapName
	meta   *raft.SnapshotMeta // Size is the number of state bytes written so far
	file   vfs.File
	dir    vfs.File // kept open, so that Close needs no file descriptor
	named  bool     // the file may have its final name
	out    *bufio.Writer
	sum    hash.Hash64
	err    error // the first failure
	closed bool
}

func (k *snapSink) tmp() string { return k.store.path(k.name) + snapTmpSuffix }

// begin creates the file and writes its head.
func (k *snapSink) begin() error {
	var err error
	if k.dir, err = k.store.fs.OpenDir(k.store.dir); err != nil {
		return err
	}
	file, err := k.store.fs.Create(k.tmp(), vfs.WriteCategoryUnspecified)
	if err != nil {
		return err
	}
	k.file = vfs.NewSyncingFile(file, vfs.SyncingFileOptions{NoSyncOnClose: true, BytesPerSync: snapSyncBytes})
	k.out, k.sum = bufio.NewWriterSize(k.file, snapBufferBytes), crc64.New(snapSums)
	return k.write(appendSnapHead(nil, k.meta))
}

func (k *snapSink) write(p []byte) error {
	k.sum.Write(p)
	_, err := k.out.Write(p)
	return err
}

// ID implements raft.SnapshotSink.
func (k *snapSink) ID() string { return k.name.String() }

func (k *snapSink) Write(p []byte) (int, error) {
	if err := k.store.stop.Usable(); err != nil {
		return 0, err
	}
	if k.err == nil {
		if err := k.write(p); err != nil {
			k.err = k.store.judge(fmt.Errorf("cannot write snapshot %s: %w", k.ID(), err))
		}
	}
	if k.err != nil {
		return 0, k.err
	}
	k.meta.Size += int64(len(p))
	return len(p), nil
}

// Close completes the snapshot. If it returns nil, the snapshot is on disk. raft and the FSM may
// both call it.
func (k *snapSink) Close() error {
	if k.closed {
		return k.err
	}
	k.closed = true
	if err := k.store.stop.Usable(); err != nil && k.err == nil {
		k.err = err
	}
	if k.err == nil {
		if err := k.complete(); err != nil {
			k.err = k.store.judge(fmt.Errorf("cannot finish snapshot %s: %w", k.ID(), err))
		}
	}
	if k.err != nil {
		k.discard()
		return k.err
	}
	// From here on a crash may or may not leave the final name on disk. So the snapshot must
	// become durable, or the group stops.
	err := k.dir.Sync()
	if err = errors.Join(err, k.dir.Close()); err != nil {
		k.err = k.store.fail(fmt.Errorf("cannot finish snapshot %s: %w", k.ID(), err))
		return k.err
	}
	k.store.finish(k.name, k.meta)
	return nil
}

// complete writes the rest of the file, makes it durable, and renames it to its final name.
func (k *snapSink) complete() error {
	if _, err := k.out.Write(binary.LittleEndian.AppendUint64(nil, k.sum.Sum64())); err != nil {
		return err
	}
	if err := k.out.Flush(); err != nil {
		return err
	}
	if err := k.file.Sync(); err != nil {
		return err
	}
	err := k.file.Close()
	k.file = nil
	if err != nil {
		return err
	}
	k.named = true
	return k.store.fs.Rename(k.tmp(), k.store.path(k.name))
}

// Cancel discards the snapshot. It does not stop the group: raft calls it, for example, when a
// leader disconnects while it sends a snapshot.
func (k *snapSink) Cancel() error {
	if !k.closed {
		k.closed = true
		k.discard()
	}
	return nil
}

// discard removes the files of the snapshot. If discard cannot remove a file, the next start
// removes it. Names lists the snapshot until then, because it may be the newest one after a crash.
func (k *snapSink) discard() {
	var errs []error
	if k.file != nil {
		errs = append(errs, k.file.Close())
	}
	// Also remove the final name: a file system may have renamed the file and returned an error.
	for _, path := range []string{k.tmp(), k.store.path(k.name)} {
		if err := k.store.fs.Remove(path); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	if k.named {
		errs = append(errs, k.dir.Sync())
	}
	if k.dir != nil {
		errs = append(errs, k.dir.Close())
	}
	if err := errors.Join(errs...); err != nil {
		k.store.logger.Error("cannot remove an unfinished snapshot", "file", k.tmp(), "error", err)
		return
	}
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	delete(k.store.mu.writing, k.name)
}

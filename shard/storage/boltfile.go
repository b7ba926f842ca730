package storage

import (
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/countd/countd/internal/scarce"
	"github.com/countd/countd/shard/raftstore"
)

// boltDeleteMax bounds the entries that one transaction takes from the front of
// the log: some 4 ms, for which a write has to wait.
const boltDeleteMax = 4096

// boltLockTimeout is how long opening waits for another process's lock on the
// file: long enough for one that is just ending, no longer.
const boltLockTimeout = time.Second

// errInUse is returned for a log that another process has open.
var errInUse = errors.New("another process has the file open")

// boltFile is one group's bolt database. It adds to raft-boltdb that bolt's panics, and faults in
// its memory map, come back as errors, and that a full disk is raftstore.ErrNoSegment.
//
// A transaction writes and syncs its pages, none of which the transaction before uses, and then its
// meta page, which makes it the newest. So if the disk is full and the file has the meta page of
// before, nothing was stored, and the change may be made again.
type boltFile struct {
	path   string
	store  *raftboltdb.BoltStore
	file   *os.File   // bolt's
	writes sync.Mutex // held by a transaction that writes
}

// openBoltFile opens or creates the database at path. A file that is not whole
// is refused with ErrDamaged, and left as it is.
func openBoltFile(path string) (*boltFile, error) {
	if err := checkBoltFile(path); err != nil {
		return nil, fmt.Errorf("cannot open log %s: %w", path, err)
	}
	b := &boltFile{path: path}
	err := guardBolt(func() (err error) {
		b.store, err = raftboltdb.New(raftboltdb.Options{
			Path: path,
			BoltOptions: &bbolt.Options{
				Timeout: boltLockTimeout,
				// The list of free pages is found again at open instead of
				// being written, and synced, with every entry.
				NoFreelistSync: true,
				FreelistType:   bbolt.FreelistMapType,
				OpenFile: func(name string, flag int, mode os.FileMode) (f *os.File, err error) {
					b.file, err = os.OpenFile(name, flag, mode)
					return b.file, err
				},
			},
			MsgpackUseNewTimeFormat: true,
		})
		return err
	})
	if errors.Is(err, bbolterrors.ErrTimeout) {
		err = errInUse
	}
	if err != nil {
		if b.file != nil {
			b.file.Close() // bolt keeps it, and the lock, when it panics
		}
		return nil, fmt.Errorf("cannot open log %s: %w", path, err)
	}
	return b, nil
}

// guardBolt runs one call into bolt.
func guardBolt(call func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	return call()
}

// change runs a transaction that writes. An error of a full disk that stored nothing is
// raftstore.ErrNoSegment.
func (b *boltFile) change(write func() error) error {
	b.writes.Lock()
	defer b.writes.Unlock()
	before, err := b.newest()
	if err == nil {
		err = guardBolt(write)
	}
	if scarce.NoRoom(err) {
		if after, unread := b.newest(); unread == nil && after == before {
			return raftstore.NoSegment(err)
		}
	}
	return err
}

// newest returns the newest transaction in the file.
func (b *boltFile) newest() (uint64, error) {
	info, err := b.file.Stat()
	if err != nil {
		return 0, err
	}
	meta, err := readBoltMetas(b.file, info.Size())
	return meta.txid, err
}

func (b *boltFile) FirstIndex() (index uint64, err error) {
	err = guardBolt(func() error { index, err = b.store.FirstIndex(); return err })
	return index, err
}

func (b *boltFile) LastIndex() (index uint64, err error) {
	err = guardBolt(func() error { index, err = b.store.LastIndex(); return err })
	return index, err
}

func (b *boltFile) GetLog(index uint64, entry *raft.Log) error {
	err := guardBolt(func() error { return b.store.GetLog(index, entry) })
	switch {
	case err == nil, errors.Is(err, raft.ErrLogNotFound), errors.Is(err, ErrDamaged),
		errors.Is(err, bbolterrors.ErrDatabaseNotOpen):
		return err
	}
	return fmt.Errorf("%w: %w", ErrDamaged, err) // it could not be decoded
}

func (b *boltFile) StoreLog(entry *raft.Log) error {
	return b.change(func() error { return b.store.StoreLog(entry) })
}

func (b *boltFile) StoreLogs(entries []*raft.Log) error {
	return b.change(func() error { return b.store.StoreLogs(entries) })
}

// DeleteRange is raft.LogStore's. What goes before entries that stay, which a
// snapshot covers, goes in many transactions: between them bolt stores the
// entries that come meanwhile, and a crash leaves a log that begins earlier. All
// else goes in one: a log cut in between is not the one that raft decided on.
func (b *boltFile) DeleteRange(first, last uint64) error {
	begin, err := b.FirstIndex()
	if err != nil {
		return err
	}
	end, err := b.LastIndex()
	if err != nil {
		return err
	}
	if first <= begin && last < end {
		for first = begin; first+boltDeleteMax <= last; first += boltDeleteMax {
			if err := b.deleteAtOnce(first, first+boltDeleteMax-1); err != nil {
				return err
			}
		}
	}
	return b.deleteAtOnce(first, last)
}

func (b *boltFile) deleteAtOnce(first, last uint64) error {
	return b.change(func() error { return b.store.DeleteRange(first, last) })
}

func (b *boltFile) Set(key, value []byte) error {
	return b.change(func() error { return b.store.Set(key, value) })
}

func (b *boltFile) Get(key []byte) (value []byte, err error) {
	err = guardBolt(func() error { value, err = b.store.Get(key); return err })
	return value, err
}

func (b *boltFile) Close() error {
	return guardBolt(b.store.Close)
}

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

// boltDeleteMax bounds the entries that one transaction deletes from the front of the log. Writes
// wait for such a transaction, about 4 ms.
const boltDeleteMax = 4096

// boltLockTimeout bounds the wait for another process's lock on the file. It is long enough for an
// ending process to release the lock.
const boltLockTimeout = time.Second

// errInUse is returned if another process has opened the log.
var errInUse = errors.New("another process has the file open")

// boltFile is one group's bolt database. Unlike raft-boltdb, it returns bolt's panics and memory
// faults as errors, and reports a full disk as raftstore.ErrNoSegment.
//
// A transaction first writes and syncs new pages, none of which the previous transaction uses. It
// writes its meta page last, and only then is it the newest transaction. So if the disk was full
// and the newest meta page is unchanged, nothing was stored, and the change may be repeated.
type boltFile struct {
	store  *raftboltdb.BoltStore
	file   *os.File   // the file that bolt has open
	writes sync.Mutex // held during a write transaction
}

// openBoltFile opens or creates the database at path. It refuses a damaged file with ErrDamaged and
// does not change it.
func openBoltFile(path string) (*boltFile, error) {
	if err := checkBoltFile(path); err != nil {
		return nil, fmt.Errorf("cannot open log %s: %w", path, err)
	}
	b := &boltFile{}
	err := guardBolt(func() (err error) {
		b.store, err = raftboltdb.New(raftboltdb.Options{
			Path: path,
			BoltOptions: &bbolt.Options{
				Timeout: boltLockTimeout,
				// bolt rebuilds the list of free pages at open, instead of writing and syncing it
				// with every entry.
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
			b.file.Close() // after a panic bolt leaves the file open and locked
		}
		return nil, fmt.Errorf("cannot open log %s: %w", path, err)
	}
	return b, nil
}

// guardBolt calls bolt and returns a panic as ErrDamaged.
func guardBolt(call func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	return call()
}

// change runs a write transaction. If the disk was full and nothing was stored, it returns
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

// newest returns the number of the newest transaction in the file.
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
	return fmt.Errorf("%w: %w", ErrDamaged, err) // raft-boltdb could not decode the entry
}

func (b *boltFile) StoreLog(entry *raft.Log) error {
	return b.change(func() error { return b.store.StoreLog(entry) })
}

func (b *boltFile) StoreLogs(entries []*raft.Log) error {
	return b.change(func() error { return b.store.StoreLogs(entries) })
}

// DeleteRange implements raft.LogStore. It deletes entries at the front of the log, which a
// snapshot covers, in several transactions, so that bolt can store new entries in between. A crash
// may leave some of the covered entries, which is harmless. It deletes any other range in one
// transaction, because a crash must not leave such a range partly deleted.
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

package shard

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"runtime/debug"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// boltLockTimeout is how long opening waits for another process's lock on the
// file: long enough for one that is just ending, no longer.
const boltLockTimeout = time.Second

// boltFile is one group's bolt database. It adds nothing to raft-boltdb but
// that bolt's panics, and faults in its memory map, come back as errors.
type boltFile struct {
	path  string
	store *raftboltdb.BoltStore
}

// openBoltFile opens or creates the database at path. A file that is not whole
// is refused with errDamaged, and left as it is.
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
			},
			MsgpackUseNewTimeFormat: true,
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot open log %s: %w", path, err)
	}
	return b, nil
}

// guardBolt runs one call into bolt.
func guardBolt(call func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errDamaged, p)
		}
	}()
	return call()
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
	return guardBolt(func() error { return b.store.GetLog(index, entry) })
}

func (b *boltFile) StoreLog(entry *raft.Log) error {
	return guardBolt(func() error { return b.store.StoreLog(entry) })
}

func (b *boltFile) StoreLogs(entries []*raft.Log) error {
	return guardBolt(func() error { return b.store.StoreLogs(entries) })
}

func (b *boltFile) DeleteRange(first, last uint64) error {
	return guardBolt(func() error { return b.store.DeleteRange(first, last) })
}

func (b *boltFile) Set(key, value []byte) error {
	return guardBolt(func() error { return b.store.Set(key, value) })
}

func (b *boltFile) Get(key []byte) (value []byte, err error) {
	err = guardBolt(func() error { value, err = b.store.Get(key); return err })
	return value, err
}

func (b *boltFile) close() error {
	return guardBolt(b.store.Close)
}

// checkBoltFile refuses a database file that bolt would open wrongly, or
// crash on. A file that is not there or empty is fine: bolt creates it.
func checkBoltFile(path string) error {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	if err := checkBoltMeta(file, info.Size()); err != nil {
		return err
	}
	return guardBolt(func() error { return walkBolt(path) })
}

// A bolt file begins with two meta pages, written in turn by its transactions.
// Behind a page header of 16 bytes, each holds (little endian)
//
//	magic 4 | version 4 | page size 4 | flags 4 | root 16 | free list 8 |
//	pages in use 8 | transaction 8 | fnv-1a of the 56 bytes before it 8
const (
	boltMetaOffset = 16
	boltMetaBytes  = 64
	boltMetaMagic  = 0xED0CDAED
)

// checkBoltMeta refuses a file with a damaged meta page and one that is shorter
// than its pages. With one meta page damaged bolt would go back to the
// transaction before, and the entry that was acknowledged last, or a vote,
// would be gone. A crash leaves none: a meta page's write is 64 bytes.
func checkBoltMeta(file io.ReaderAt, size int64) error {
	pageSize, pages, err := readBoltMeta(file, 0)
	if err != nil {
		return err
	}
	_, pages1, err := readBoltMeta(file, pageSize)
	if err != nil {
		return err
	}
	if needed := int64(max(pages, pages1)) * pageSize; size < needed {
		return fmt.Errorf("%w: the file has %d bytes of %d", errDamaged, size, needed)
	}
	return nil
}

func readBoltMeta(file io.ReaderAt, offset int64) (pageSize int64, pages uint64, err error) {
	var meta [boltMetaBytes]byte
	if _, err := file.ReadAt(meta[:], offset+boltMetaOffset); err != nil {
		return 0, 0, fmt.Errorf("%w: cannot read the meta page at %d: %w", errDamaged, offset, err)
	}
	sum := fnv.New64a()
	sum.Write(meta[:boltMetaBytes-8])
	if binary.LittleEndian.Uint32(meta[:]) != boltMetaMagic ||
		binary.LittleEndian.Uint64(meta[boltMetaBytes-8:]) != sum.Sum64() {
		return 0, 0, fmt.Errorf("%w: the meta page at %d", errDamaged, offset)
	}
	return int64(binary.LittleEndian.Uint32(meta[8:])), binary.LittleEndian.Uint64(meta[40:]), nil
}

var (
	boltLogBucket  = []byte("logs")
	boltConfBucket = []byte("conf")
)

// walkBolt visits every key, in this goroutine, where a fault can be caught;
// bolt visits every page from a goroutine of its own when it opens the file.
// It refuses keys that nobody wrote: bolt has no checksums on its pages.
func walkBolt(path string) error {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: boltLockTimeout})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(name []byte, bucket *bbolt.Bucket) error {
			switch {
			case bytes.Equal(name, boltLogBucket):
				return walkEntries(bucket)
			case bytes.Equal(name, boltConfBucket):
				return walkStable(bucket)
			}
			return fmt.Errorf("%w: unknown bucket %q", errDamaged, name)
		})
	})
}

func walkEntries(bucket *bbolt.Bucket) error {
	var last uint64
	return bucket.ForEach(func(key, _ []byte) error {
		if len(key) != 8 {
			return fmt.Errorf("%w: unknown log key %x", errDamaged, key)
		}
		index := binary.BigEndian.Uint64(key)
		if last != 0 && index != last+1 {
			return fmt.Errorf("%w: entry %d follows entry %d", errDamaged, index, last)
		}
		last = index
		return nil
	})
}

func walkStable(bucket *bbolt.Bucket) error {
	return bucket.ForEach(func(key, _ []byte) error {
		if !bytes.Equal(key, keyTerm) && !bytes.Equal(key, keyVote) {
			return fmt.Errorf("%w: unknown key %q", errDamaged, key)
		}
		return nil
	})
}

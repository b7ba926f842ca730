package shard

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/segment"
)

// walSegmentBytes is the size that a segment is made with. Each group has one
// that is not full, so that 24 idle groups take 192 MiB of disk. Smaller ones
// cost more than they save: a change of segments is four syncs, and raft-wal
// keeps the write buffer of each segment that was filled since the start, at
// least 192 KiB and with large entries the size of an append.
const walSegmentBytes = 8 << 20

// walStore is one group's directory of segments, by raft-wal, with a bolt file
// beside them for term, vote and the list of segments. A write is one sync.
type walStore struct {
	dir  string
	meta *walMeta
	log  *wal.WAL
}

// openWALStore opens or creates the log in dir. What is not whole is refused
// with errDamaged, and left as it is.
//
// A write that was cut short by a crash, which nobody was told of, is cleared
// away: behind the last whole batch of the newest segment stand zeros, always.
// And all that is there is synced: a process that was killed may have left it
// in the system's memory alone.
func openWALStore(dir string, segmentBytes int, logger hclog.Logger) (*walStore, error) {
	s, err := openWAL(dir, segmentBytes, logger)
	if err != nil {
		return nil, fmt.Errorf("cannot open log %s: %w", dir, err)
	}
	return s, nil
}

func openWAL(dir string, segmentBytes int, logger hclog.Logger) (*walStore, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	bolt, err := openBoltFile(filepath.Join(dir, walMetaName))
	if err != nil {
		return nil, err
	}
	s := &walStore{dir: dir, meta: &walMeta{dir: dir, bolt: bolt}}
	if err := s.meta.recoverSegments(segmentBytes); err != nil {
		return nil, errors.Join(err, bolt.close())
	}
	s.log, err = wal.Open(dir,
		wal.WithMetaStore(s.meta),
		wal.WithSegmentFiler(segment.NewFiler(dir, walFiles{fs.New()})),
		wal.WithSegmentSize(segmentBytes),
		wal.WithLogger(logger),
	)
	if err != nil {
		return nil, errors.Join(err, bolt.close())
	}
	return s, nil
}

// guardWAL runs one call that reads from raft-wal, which trusts what it reads.
func guardWAL(read func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", errDamaged, p)
		}
	}()
	return read()
}

func (s *walStore) FirstIndex() (uint64, error) { return s.log.FirstIndex() }

func (s *walStore) LastIndex() (uint64, error) { return s.log.LastIndex() }

// GetLog is raft.LogStore's. raft-wal still has entries before the first, as
// long as their segment is its newest.
func (s *walStore) GetLog(index uint64, entry *raft.Log) error {
	first, err := s.log.FirstIndex()
	if err != nil {
		return err
	}
	if index < first {
		return raft.ErrLogNotFound
	}
	get := func() error { return s.log.GetLog(index, entry) }
	err = guardWAL(get)
	if errors.Is(err, os.ErrClosed) {
		// Its segment was deleted between raft-wal's look at the list and its
		// hold on it. Now it is in the list no more.
		err = guardWAL(get)
	}
	if err == nil || errors.Is(err, raft.ErrLogNotFound) || errors.Is(err, wal.ErrClosed) || errors.Is(err, errDamaged) {
		return err
	}
	return fmt.Errorf("%w: %w", errDamaged, err) // a frame or an entry that cannot be decoded
}

func (s *walStore) StoreLog(entry *raft.Log) error { return s.StoreLogs([]*raft.Log{entry}) }

// StoreLogs is raft.LogStore's. raft-wal makes the next segment between two
// calls and can only log that it failed: the next call finds the old one full,
// and this tells why.
func (s *walStore) StoreLogs(entries []*raft.Log) error {
	err := s.log.StoreLogs(entries)
	if err != nil {
		err = errors.Join(err, s.meta.failure())
	}
	return err
}

func (s *walStore) DeleteRange(first, last uint64) error { return s.log.DeleteRange(first, last) }

func (s *walStore) Set(key, value []byte) error { return s.meta.bolt.Set(key, value) }

func (s *walStore) Get(key []byte) ([]byte, error) { return s.meta.bolt.Get(key) }

// close closes the segments and the bolt file. raft-wal's own goroutine ends
// soon after it, without touching a file.
func (s *walStore) close() error { return s.log.Close() }

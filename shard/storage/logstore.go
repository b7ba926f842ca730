// Package storage keeps one replica's log, term and vote, and snapshots on disk, over
// either log store. It checks every byte that it reads back, detects a write that hangs, and
// stops the replica for good (FailStop) when it can no longer give the guarantees that raft
// needs.
//
// It knows neither the meaning of an entry, nor the leader, nor the other members. Invariant:
// it returns stored data exactly as it was written, or stops the replica. After the first
// failure it stores nothing more, so the replica acknowledges nothing and casts no vote.
package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/raftstore"
)

// ErrDamaged is returned for bytes on disk that are not what was written.
var ErrDamaged = raftstore.ErrDamaged

// castagnoli is read only.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// An entry is stored with its checksum in front of its extensions, which raft
// leaves to its users:
//
//	┌───────────┬──────────────────────┬─────────────────────┐
//	│ version 1 │ crc32c little endian │ extensions as given │
//	│  1 byte   │       4 bytes        │      the rest       │
//	└───────────┴──────────────────────┴─────────────────────┘
//
// crc32c covers index, term (8 bytes each), type (1), length of data (8), data
// and extensions as given. It is the store's own: it is cut off before raft
// sees the entry, so that it never travels.
const (
	sealVersion = 1
	sealBytes   = 5
)

// entryOverheadBytes stands for what an entry costs beside its payload.
const entryOverheadBytes = 48

// EntryBytes returns about what an entry takes in the log.
func EntryBytes(e *raft.Log) int {
	return len(e.Data) + len(e.Extensions) + entryOverheadBytes
}

func entryChecksum(e *raft.Log, extensions []byte) uint32 {
	var head [25]byte
	binary.LittleEndian.PutUint64(head[0:], e.Index)
	binary.LittleEndian.PutUint64(head[8:], e.Term)
	head[16] = byte(e.Type)
	binary.LittleEndian.PutUint64(head[17:], uint64(len(e.Data)))
	sum := crc32.Update(0, castagnoli, head[:])
	sum = crc32.Update(sum, castagnoli, e.Data)
	return crc32.Update(sum, castagnoli, extensions)
}

// sealEntry appends the stored form of e's extensions to dst.
func sealEntry(dst []byte, e *raft.Log) []byte {
	dst = append(dst, sealVersion)
	dst = binary.LittleEndian.AppendUint32(dst, entryChecksum(e, e.Extensions))
	return append(dst, e.Extensions...)
}

// unsealEntry checks a stored entry and gives it its own extensions back.
func unsealEntry(e *raft.Log) error {
	sealed := e.Extensions
	if len(sealed) < sealBytes {
		return fmt.Errorf("%w: the entry has no checksum", ErrDamaged)
	}
	if sealed[0] != sealVersion {
		return fmt.Errorf("%w: unknown checksum version %d", ErrDamaged, sealed[0])
	}
	extensions := sealed[sealBytes:]
	if binary.LittleEndian.Uint32(sealed[1:]) != entryChecksum(e, extensions) {
		return fmt.Errorf("%w: the entry's checksum does not match", ErrDamaged)
	}
	if e.Extensions = extensions; len(extensions) == 0 {
		e.Extensions = nil
	}
	return nil
}

// Log is a replica's log. It stores every entry with a checksum and verifies it when it
// reads it back. The watchdog sees a write that hangs. Any error but
// raft.ErrLogNotFound and raftstore.ErrNoSegment stops the replica for good.
//
// raftstore.ErrNoSegment passes. If nothing was written, StoreLogs returns it: raft's leader steps
// down, so that another node may lead, and a follower refuses the entries, which come again.
// Four changes wait and try again until they succeed, because raft goes on as if they had:
//   - DeleteRange, and the StoreLogs that follows one at the log's end: raft does not check whether
//     its last entries are still there.
//   - StoreLogs of a configuration: a leader goes by it whether it was stored or not.
//   - The rest of a StoreLogs whose first entries are stored: they are in several batches of the
//     log, and raft would store the first ones again.
//
// A leader that waits is replaced like one whose disk hangs.
type Log struct {
	store raft.LogStore
	group uint32
	path  string
	stop  *FailStop

	storing stallGauge // StoreLogs, its waits too: raft's main goroutine only
	writing stallGauge // what the disk takes of it
	cutting stallGauge // DeleteRange, under cut
	cutEnd  bool       // the last entries were deleted, and none were stored since; raft's main goroutine only
	cut     sync.Mutex // raft's main and snapshot goroutines both delete

	// What was stored since the last snapshot: covered subtracts what a snapshot
	// covered. due is signalled at dueBytes.
	bytes    atomic.Int64
	entries  atomic.Int64
	dueBytes atomic.Int64
	due      chan struct{} // capacity 1
}

var (
	_ raft.LogStore          = (*Log)(nil)
	_ raft.MonotonicLogStore = (*Log)(nil)
)

// NewLog returns the log in store. path is for people; dueBytes is as of SetDue.
func NewLog(store raft.LogStore, group uint32, path string, dueBytes int64, stop *FailStop) *Log {
	l := &Log{store: store, group: group, path: path, stop: stop, due: make(chan struct{}, 1)}
	l.dueBytes.Store(dueBytes)
	return l
}

// SinceSnapshot returns how much was stored since the last snapshot.
func (l *Log) SinceSnapshot() (bytes, entries int64) { return l.bytes.Load(), l.entries.Load() }

// Covered subtracts what a snapshot covers from SinceSnapshot.
func (l *Log) Covered(bytes, entries int64) {
	l.bytes.Add(-bytes)
	l.entries.Add(-entries)
}

// SnapshotDue has a token once bytes were stored since the last snapshot; SetDue
// says how many.
func (l *Log) SnapshotDue() <-chan struct{} { return l.due }

// SetDue sets the bytes at which SnapshotDue gets a token.
func (l *Log) SetDue(bytes int64) { l.dueBytes.Store(bytes) }

// IsMonotonic makes raft delete the whole log when a snapshot from the leader
// replaces it. Otherwise entries that were never committed could stay below
// the snapshot, and be sent to others once this node leads.
func (l *Log) IsMonotonic() bool { return true }

// FirstIndex is raft.LogStore's.
func (l *Log) FirstIndex() (uint64, error) {
	return l.readIndex("first", l.store.FirstIndex)
}

// LastIndex is raft.LogStore's.
func (l *Log) LastIndex() (uint64, error) {
	return l.readIndex("last", l.store.LastIndex)
}

func (l *Log) readIndex(which string, read func() (uint64, error)) (uint64, error) {
	if err := l.stop.Failure(); err != nil {
		return 0, err
	}
	index, err := read()
	if err != nil {
		return 0, l.fail(fmt.Errorf("cannot read the %s index: %w", which, err))
	}
	return index, nil
}

// GetLog is raft.LogStore's. raft.ErrLogNotFound is returned as it is: raft
// compares it.
func (l *Log) GetLog(index uint64, entry *raft.Log) error {
	if err := l.stop.Failure(); err != nil {
		return err
	}
	var stored raft.Log
	err := l.store.GetLog(index, &stored)
	if errors.Is(err, raft.ErrLogNotFound) {
		return raft.ErrLogNotFound
	}
	if err == nil {
		err = unsealEntry(&stored)
	}
	if err == nil && stored.Index != index {
		err = fmt.Errorf("%w: it holds entry %d", ErrDamaged, stored.Index)
	}
	if err != nil {
		return l.fail(fmt.Errorf("cannot read entry %d: %w", index, err))
	}
	*entry = stored
	return nil
}

// StoreLog is raft.LogStore's.
func (l *Log) StoreLog(entry *raft.Log) error {
	return l.StoreLogs([]*raft.Log{entry})
}

// StoreLogs is raft.LogStore's. It keeps no reference to the entries.
func (l *Log) StoreLogs(entries []*raft.Log) error {
	if err := l.stop.Failure(); err != nil {
		return err
	}
	sealed, bytes := sealAll(entries)
	patient := l.cutEnd || slices.ContainsFunc(entries, func(e *raft.Log) bool { return e.Type == raft.LogConfiguration })
	l.storing.begin()
	err := l.write(&l.writing, &patient, func() error {
		err := l.store.StoreLogs(sealed)
		if errors.Is(err, raftstore.ErrNoSegment) {
			if last, unread := l.store.LastIndex(); unread == nil && last >= sealed[0].Index {
				sealed, patient = sealed[last+1-sealed[0].Index:], true // the first are stored
			}
		}
		return err
	})
	l.storing.end()
	if errors.Is(err, raftstore.ErrNoSegment) || errors.Is(err, errs.ErrGroupClosed) {
		return err
	}
	if err != nil {
		return l.fail(fmt.Errorf("cannot store %d entries: %w", len(entries), err))
	}
	// The watchdog may have given this write up: then it must not be
	// acknowledged, late as it is.
	if err := l.stop.Failure(); err != nil {
		return err
	}
	l.cutEnd = false
	l.entries.Add(int64(len(entries)))
	l.grow(int64(bytes))
	return nil
}

// write makes a change that the watchdog sees. If the log has no file for it, it fails, or if
// patient is set by then, it waits until the log has one.
func (l *Log) write(gauge *stallGauge, patient *bool, change func() error) error {
	for {
		gauge.begin()
		err := change()
		gauge.end()
		if !*patient || !errors.Is(err, raftstore.ErrNoSegment) {
			return err
		}
		if err := l.stop.wait(err); err != nil {
			return err
		}
	}
}

// sealAll returns copies of the entries as they are stored, and their size.
// The entries themselves belong to raft and stay as they are.
func sealAll(entries []*raft.Log) (sealed []*raft.Log, bytes int) {
	copies := make([]raft.Log, len(entries))
	sealed = make([]*raft.Log, len(entries))
	extensions := 0
	for _, e := range entries {
		extensions += sealBytes + len(e.Extensions)
	}
	arena := make([]byte, 0, extensions)
	for i, e := range entries {
		start := len(arena)
		arena = sealEntry(arena, e)
		copies[i] = *e
		copies[i].Extensions = arena[start:len(arena):len(arena)]
		sealed[i] = &copies[i]
		bytes += EntryBytes(e)
	}
	return sealed, bytes
}

// grow counts bytes of log since the last snapshot.
func (l *Log) grow(bytes int64) {
	if l.bytes.Add(bytes) >= l.dueBytes.Load() {
		select {
		case l.due <- struct{}{}:
		default:
		}
	}
}

// DeleteRange is raft.LogStore's.
func (l *Log) DeleteRange(first, last uint64) error {
	if err := l.stop.Failure(); err != nil {
		return err
	}
	l.cut.Lock()
	defer l.cut.Unlock()
	end, err := l.store.LastIndex()
	if err == nil {
		patient := true
		err = l.write(&l.cutting, &patient, func() error { return l.store.DeleteRange(first, last) })
	}
	if errors.Is(err, errs.ErrGroupClosed) {
		return err
	}
	if err != nil {
		return l.fail(fmt.Errorf("cannot delete entries %d to %d: %w", first, last, err))
	}
	if last >= end { // only raft's main goroutine deletes those
		l.cutEnd = true
	}
	return l.stop.Failure()
}

func (l *Log) fail(err error) error {
	return l.stop.Fail(fmt.Errorf("group %d: log %s: %w", l.group, l.path, err))
}

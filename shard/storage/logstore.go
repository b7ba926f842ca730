// Package storage keeps one replica's log, term and vote, and snapshots on disk, over either log
// store. It checks every byte that it reads back and detects writes that hang. If it can no longer
// give the guarantees that raft needs, it stops the replica for good (FailStop).
//
// It knows neither the meaning of an entry, nor the leader, nor the other members. Invariant: it
// returns stored data exactly as written, or stops the replica. After the first failure it stores
// nothing more, so the replica acknowledges nothing and casts no vote.
package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/raftstore"
)

// ErrDamaged is returned if bytes on disk differ from those written.
var ErrDamaged = raftstore.ErrDamaged

// errMaybeStored replaces errs.ErrGroupClosed in StoreLogs. ErrGroupClosed would promise the
// proposers that no log has their entries.
var errMaybeStored = errors.New("the group is closing: the entries may be stored")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A stored entry has its checksum in front of raft's field Extensions, which is free for users of
// raft:
//
//	┌───────────┬──────────────────────┬─────────────────────┐
//	│ version 1 │ crc32c little endian │ extensions as given │
//	│  1 byte   │       4 bytes        │      the rest       │
//	└───────────┴──────────────────────┴─────────────────────┘
//
// crc32c covers index, term (8 bytes each), type (1), length of data (8), data and the given
// extensions. Log removes the checksum before raft sees the entry, so raft never sends a checksum
// to other nodes.
const (
	sealVersion = 1
	sealBytes   = 5
)

// entryOverheadBytes approximates the bytes of an entry in addition to its payload.
const entryOverheadBytes = 48

// EntryBytes returns the approximate size of an entry in the log.
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

// sealEntry appends the stored form of e.Extensions to dst.
func sealEntry(dst []byte, e *raft.Log) []byte {
	dst = append(dst, sealVersion)
	dst = binary.LittleEndian.AppendUint32(dst, entryChecksum(e, e.Extensions))
	return append(dst, e.Extensions...)
}

// unsealEntry verifies a stored entry and restores e.Extensions.
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

// Log is a replica's log. It stores every entry with a checksum and verifies it on reading. The
// watchdog detects a write that hangs. Any error except raft.ErrLogNotFound and
// raftstore.ErrNoSegment stops the replica for good.
//
// raftstore.ErrNoSegment is transient. StoreLogs returns it if nothing was written. A leader then
// steps down, so that another node may lead. A follower refuses the entries, which the leader sends
// again. The following changes wait and retry until they succeed, because raft ignores their
// errors:
//   - DeleteRange, and a StoreLogs after a deletion at the log's end. After an error raft would
//     assume that its last entries are still stored.
//   - A StoreLogs that has stored only the first of several batches. After an error raft would
//     store those entries again.
//
// A configuration is a special case, because a leader uses it even if it was not stored: see
// Unstored.
//
// If a leader waits, the other nodes elect another leader, as they do for a leader with a hanging
// disk.
type Log struct {
	store raft.LogStore
	group uint32
	path  string
	stop  *FailStop
	// Unstored is called with the error if the log could create no file to store a configuration.
	// If Unstored returns nil, StoreLogs retries; otherwise StoreLogs returns the error of
	// Unstored. A nil Unstored means no retry. Set it before raft starts.
	Unstored func(error) error

	storing StallGauge  // runs during StoreLogs, including its waits; only raft's main goroutine uses it
	writing StallGauge  // runs during the disk writes of StoreLogs
	cutting StallGauge  // runs during DeleteRange; guarded by cut
	cutEnd  atomic.Bool // the last entries were deleted and no entry has been stored since, by raft's main goroutine, or by its snapshots if the log had no later entry
	cut     sync.Mutex  // serialises deletions by raft's main and snapshot goroutines

	// bytes and entries count the growth of the log since the last snapshot; see Covered. due gets
	// a token once bytes reaches dueBytes.
	bytes    atomic.Int64
	entries  atomic.Int64
	dueBytes atomic.Int64
	due      chan struct{} // capacity 1
}

var (
	_ raft.LogStore          = (*Log)(nil)
	_ raft.MonotonicLogStore = (*Log)(nil)
)

// NewLog returns a Log over store. path appears in error messages; for dueBytes, see SetDue.
func NewLog(store raft.LogStore, group uint32, path string, dueBytes int64, stop *FailStop) *Log {
	l := &Log{store: store, group: group, path: path, stop: stop, due: make(chan struct{}, 1)}
	l.dueBytes.Store(dueBytes)
	return l
}

// SinceSnapshot returns the bytes and entries stored since the last snapshot.
func (l *Log) SinceSnapshot() (bytes, entries int64) { return l.bytes.Load(), l.entries.Load() }

// Covered subtracts the bytes and entries that a new snapshot covers from the counts of
// SinceSnapshot.
func (l *Log) Covered(bytes, entries int64) {
	l.bytes.Add(-bytes)
	l.entries.Add(-entries)
}

// SnapshotDue returns a channel that gets a token once the bytes since the last snapshot reach the
// number of SetDue.
func (l *Log) SnapshotDue() <-chan struct{} { return l.due }

// SetDue sets the number of bytes at which SnapshotDue gets a token.
func (l *Log) SetDue(bytes int64) { l.dueBytes.Store(bytes) }

// IsMonotonic makes raft delete the whole log when it installs a leader's snapshot. Otherwise
// uncommitted entries could stay at indexes before the snapshot, and this node could send them to
// others once it leads.
func (l *Log) IsMonotonic() bool { return true }

// FirstIndex implements raft.LogStore.
func (l *Log) FirstIndex() (uint64, error) {
	return l.readIndex("first", l.store.FirstIndex)
}

// LastIndex implements raft.LogStore.
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

// GetLog implements raft.LogStore. It returns raft.ErrLogNotFound unwrapped, because raft compares
// with ==.
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

// StoreLog implements raft.LogStore.
func (l *Log) StoreLog(entry *raft.Log) error {
	return l.StoreLogs([]*raft.Log{entry})
}

// StoreLogs implements raft.LogStore. It keeps no reference to the entries.
func (l *Log) StoreLogs(entries []*raft.Log) error {
	if err := l.stop.Failure(); err != nil {
		return err
	}
	sealed, bytes := sealAll(entries)
	patient := l.cutEnd.Load()
	store := func() (bool, error) {
		err := l.store.StoreLogs(sealed)
		if errors.Is(err, raftstore.ErrNoSegment) {
			if last, unread := l.store.LastIndex(); unread == nil && last >= sealed[0].Index {
				sealed, patient = sealed[last+1-sealed[0].Index:], true // keep only the entries that are not stored
			}
		}
		return patient, err
	}
	l.storing.Begin()
	err := l.write(&l.writing, store)
	for l.Unstored != nil && entries[0].Type == raft.LogConfiguration && errors.Is(err, raftstore.ErrNoSegment) {
		if err = l.Unstored(err); err != nil {
			break
		}
		err = l.write(&l.writing, store)
	}
	l.storing.End()
	switch {
	case errors.Is(err, raftstore.ErrNoSegment):
		return err
	case err != nil && !errors.Is(err, errs.ErrGroupClosed):
		err = l.fail(fmt.Errorf("cannot store %d entries: %w", len(entries), err))
	case err == nil:
		// If the watchdog has failed the group for this write, the write must not be acknowledged,
		// even though it succeeded late.
		err = l.stop.Failure()
	}
	if errors.Is(err, errs.ErrGroupClosed) {
		return errMaybeStored
	}
	if err != nil {
		return err
	}
	l.cutEnd.Store(false)
	l.entries.Add(int64(len(entries)))
	l.grow(int64(bytes))
	return nil
}

// write runs a change under a gauge of the watchdog. If the log can create no file for a patient
// change, write retries the change until the log can. For any other change, write returns the
// error.
func (l *Log) write(gauge *StallGauge, change func() (patient bool, err error)) error {
	for {
		gauge.Begin()
		patient, err := change()
		gauge.End()
		if !patient || !errors.Is(err, raftstore.ErrNoSegment) {
			return err
		}
		if err := l.stop.Wait(err); err != nil {
			return err
		}
	}
}

// sealAll returns copies of the entries in their stored form, and their size. The originals belong
// to raft and do not change.
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

// grow counts bytes stored since the last snapshot, and makes a snapshot due once they reach
// dueBytes.
func (l *Log) grow(bytes int64) {
	if l.bytes.Add(bytes) >= l.dueBytes.Load() {
		select {
		case l.due <- struct{}{}:
		default:
		}
	}
}

// DeleteRange implements raft.LogStore.
func (l *Log) DeleteRange(first, last uint64) error {
	if err := l.stop.Failure(); err != nil {
		return err
	}
	l.cut.Lock()
	defer l.cut.Unlock()
	end, err := l.store.LastIndex()
	if err == nil {
		err = l.write(&l.cutting, func() (bool, error) { return true, l.store.DeleteRange(first, last) })
	}
	if errors.Is(err, errs.ErrGroupClosed) {
		return err
	}
	if err != nil {
		return l.fail(fmt.Errorf("cannot delete entries %d to %d: %w", first, last, err))
	}
	if last >= end {
		l.cutEnd.Store(true)
	}
	return l.stop.Failure()
}

func (l *Log) fail(err error) error {
	return l.stop.Fail(fmt.Errorf("group %d: log %s: %w", l.group, l.path, err))
}

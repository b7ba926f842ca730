package cold

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/countd/countd/internal/scarce"
)

// Records stores data of a shard on disk that are not rows: byte strings (bodies), each under a
// key. Its methods are safe for concurrent use.
//
// Records live at most as long as the process, because their contents are in the owner's Raft log and snapshots
// too. So Records writes them without a sync, and Open removes the records of an earlier process. Generations
// survive a restart: snapshots name them and do not contain their rows.
//
// In Pebble, a record is this key and value:
//
//	'r' | group (4) | set (4) | key (8)    CRC32C, little-endian (4) | body
//
// The CRC covers the key in Pebble, the record's version (4) and the body. set is the number of a
// Records value; a store never reuses it. The owner chooses the version. A reader passes the
// version that it expects, and Read returns ErrDamaged if the record has another one.
//
// When a shard splits, its parts share its Records, each with keys of its own. The records stay until the last user
// has called Release, whatever happens to the group that wrote them.
type Records struct {
	store *Store
	group uint32
	set   uint32
	wrote atomic.Bool // whether there may be records

	mu struct {
		sync.Mutex // lock it before Store.mu
		users      int
		left       [][]uint64 // see Left; one list of each user
	}
}

// Record is a body under a key. Version distinguishes it from all earlier bodies under
// the key.
type Record struct {
	Key     uint64
	Version uint32
	Body    []byte
}

const keyRecord = 'r'

// deletedAtOnce bounds the records that one batch removes. Such a batch takes about 100 KB.
const deletedAtOnce = 4096

// Records returns a new, empty set of records of a group, for one user. They are gone after Remove or Release, or once
// the store is closed and opened again.
func (s *Store) Records(group uint32) *Records {
	r := &Records{store: s, group: group, set: s.sets.Add(1)}
	r.mu.users = 1
	return r
}

// Share counts another user of the records. It returns false if no user is left.
func (r *Records) Share() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.users == 0 {
		return false
	}
	r.mu.users++
	r.store.mu.Lock()
	defer r.store.mu.Unlock()
	if r.store.mu.shared == nil {
		r.store.mu.shared = map[uint32]uint32{}
	}
	r.store.mu.shared[r.set] = r.group
	return true
}

// Shared reports whether the records have several users.
func (r *Records) Shared() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.users > 1
}

// Release ends one use. The last one removes all records. Before that, it retains the keys that left returns, for Left.
func (r *Records) Release(left func() []uint64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.users--; r.mu.users > 0 {
		if keys := left(); len(keys) > 0 {
			r.mu.left = append(r.mu.left, keys)
		}
		return nil
	}
	r.mu.left = nil
	r.store.mu.Lock()
	delete(r.store.mu.shared, r.set)
	r.store.mu.Unlock()
	return r.Remove()
}

// Left returns at most some keys whose user has ended, and forgets them. A remaining user deletes their records.
func (r *Records) Left(most int) (keys []uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.mu.left) == 0 {
		return nil
	}
	last := &r.mu.left[len(r.mu.left)-1]
	n := max(0, len(*last)-most)
	keys, *last = (*last)[n:], (*last)[:n]
	if n == 0 {
		*last = nil
		r.mu.left = r.mu.left[:len(r.mu.left)-1]
	}
	return keys
}

// dropRecords removes the records of a group, except sets that several users have shared. The caller holds s.mu.
func (s *Store) dropRecords(batch *pebble.Batch, group uint32) error {
	var shared []uint32
	for set, of := range s.mu.shared {
		if of == group {
			shared = append(shared, set)
		}
	}
	slices.Sort(shared)
	from := groupKey(keyRecord, group)
	for _, set := range shared {
		prefix := (&Records{group: group, set: set}).prefix()
		if err := batch.DeleteRange(from, prefix, nil); err != nil {
			return err
		}
		from = scarce.PrefixEnd(prefix)
	}
	return batch.DeleteRange(from, scarce.PrefixEnd(groupKey(keyRecord, group)), nil)
}

// removeRecords removes the records that an earlier process left.
func (s *Store) removeRecords() error {
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: []byte{keyRecord}, UpperBound: []byte{keyRecord + 1}})
	if err != nil {
		return fmt.Errorf("cannot look for the records of an earlier process: %w", err)
	}
	none := !it.First() && it.Error() == nil
	if err := it.Close(); none || err != nil && !pebble.IsCorruptionError(err) {
		return err
	}
	if err := s.db.DeleteRange([]byte{keyRecord}, []byte{keyRecord + 1}, pebble.NoSync); err != nil {
		return fmt.Errorf("cannot remove the records of an earlier process: %w", err)
	}
	return nil
}

func (r *Records) prefix() []byte {
	return binary.BigEndian.AppendUint32(groupKey(keyRecord, r.group), r.set)
}

func (r *Records) name(key uint64) []byte { return binary.BigEndian.AppendUint64(r.prefix(), key) }

func recordCRC(name []byte, version uint32, body []byte) uint32 {
	var v [4]byte
	binary.LittleEndian.PutUint32(v[:], version)
	return crc32.Update(crc32.Update(crc32.Checksum(name, castagnoli), castagnoli, v[:]), castagnoli, body)
}

// openRecord verifies a value and returns its body, which aliases the value.
func openRecord(name []byte, version uint32, value []byte) ([]byte, error) {
	if len(value) < entryCRCBytes {
		return nil, fmt.Errorf("%w: a record of %d bytes", ErrDamaged, len(value))
	}
	body := value[entryCRCBytes:]
	if recordCRC(name, version, body) != binary.LittleEndian.Uint32(value) {
		return nil, fmt.Errorf("%w: a record fails its checksum", ErrDamaged)
	}
	return body, nil
}

// Write replaces the records under their keys: all of them or, on an error, none. It keeps no
// reference to its argument. It returns ErrFull while the disk is full.
func (r *Records) Write(records []Record) error {
	done, err := r.store.db.Use()
	if err != nil {
		return err
	}
	defer done()
	if !r.store.hasRoom() {
		return ErrFull
	}
	r.wrote.Store(true)
	batch := r.store.db.NewBatch()
	defer batch.Close()
	var value []byte
	for i := range records {
		name := r.name(records[i].Key)
		value = binary.LittleEndian.AppendUint32(value[:0], recordCRC(name, records[i].Version, records[i].Body))
		if err := batch.Set(name, append(value, records[i].Body...), nil); err != nil {
			return fmt.Errorf("cannot write records: %w", err)
		}
	}
	if err := r.store.commit(batch, pebble.NoSync); err != nil {
		return fmt.Errorf("cannot write records: %w", err)
	}
	return nil
}

// Delete removes the records of keys; on an error it may have removed some. A view from an earlier
// Capture still has them.
func (r *Records) Delete(keys []uint64) error {
	for some := range slices.Chunk(keys, deletedAtOnce) {
		err := r.change(func(batch *pebble.Batch) error {
			for _, key := range some {
				if err := batch.Delete(r.name(key), nil); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Remove removes all records. A view from an earlier Capture still has them.
func (r *Records) Remove() error {
	if !r.wrote.Load() {
		return nil
	}
	return r.change(func(batch *pebble.Batch) error {
		return batch.DeleteRange(r.prefix(), scarce.PrefixEnd(r.prefix()), nil)
	})
}

func (r *Records) change(fill func(*pebble.Batch) error) error {
	done, err := r.store.db.Use()
	if err != nil {
		return err
	}
	defer done()
	batch := r.store.db.NewBatch()
	defer batch.Close()
	if err = fill(batch); err == nil {
		err = batch.Commit(pebble.NoSync)
	}
	if err != nil {
		return fmt.Errorf("cannot remove records: %w", err)
	}
	return nil
}

// Read returns the verified body of a key and version. It waits until ctx ends. Concurrent
// callers share one read. The caller must not change the body. Read returns ErrDamaged if no
// such record exists, or if it differs from what was written.
func (r *Records) Read(ctx context.Context, key uint64, version uint32) ([]byte, error) {
	flight := "r." + strconv.FormatUint(uint64(r.set), 36) + "." + strconv.FormatUint(key, 36) + "." + strconv.FormatUint(uint64(version), 36)
	return r.store.shared(ctx, flight, func() ([]byte, error) { return r.ReadNow(key, version) })
}

// ReadNow is like Read, but it does not wait for other reads and has no deadline. It is for a
// caller that blocks other goroutines.
func (r *Records) ReadNow(key uint64, version uint32) ([]byte, error) {
	s := r.store
	done, err := s.db.Use()
	if err != nil {
		return nil, err
	}
	defer done()
	began := time.Now()
	name := r.name(key)
	value, closer, err := s.db.Get(name)
	s.stats.records.Add(1)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, fmt.Errorf("%w: record %d of group %d is missing", ErrDamaged, key, r.group)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: record %d of group %d: %w", ErrDamaged, key, r.group, err)
	}
	b := append(make([]byte, 0, len(value)), value...)
	if err := closer.Close(); err != nil {
		return nil, err
	}
	s.stats.recordNanos.Add(uint64(time.Since(began)))
	if b, err = openRecord(name, version, b); err != nil {
		return nil, fmt.Errorf("record %d of group %d: %w", key, r.group, err)
	}
	return b, nil
}

// Capture returns a view of the records as they are now. The caller closes it.
func (r *Records) Capture() *RecordsView {
	v := &RecordsView{records: r}
	if done, err := r.store.db.Use(); err == nil {
		v.mu.at = r.store.db.NewSnapshot()
		done()
	}
	return v
}

// RecordsView holds records as they were at one moment.
type RecordsView struct {
	records *Records

	mu struct {
		sync.Mutex // Close may run concurrently with a read
		at         *pebble.Snapshot
		it         *pebble.Iterator
	}
}

// Get appends the verified body of a key and version to dst. Ascending keys are fastest.
// It returns the errors of Read.
func (v *RecordsView) Get(dst []byte, key uint64, version uint32) ([]byte, error) {
	done, err := v.records.store.db.Use()
	if err != nil {
		return nil, err
	}
	defer done()
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.mu.at == nil {
		return nil, scarce.ErrClosed
	}
	if v.mu.it == nil {
		prefix := v.records.prefix()
		if v.mu.it, err = v.mu.at.NewIter(&pebble.IterOptions{LowerBound: prefix, UpperBound: scarce.PrefixEnd(prefix)}); err != nil {
			return nil, fmt.Errorf("%w: records of group %d: %w", ErrDamaged, v.records.group, err)
		}
	}
	name := v.records.name(key)
	if !v.mu.it.SeekGE(name) || string(v.mu.it.Key()) != string(name) {
		return nil, errors.Join(fmt.Errorf("%w: record %d of group %d is missing", ErrDamaged, key, v.records.group), v.mu.it.Error())
	}
	value, err := v.mu.it.ValueAndErr()
	if err != nil {
		return nil, fmt.Errorf("%w: record %d of group %d: %w", ErrDamaged, key, v.records.group, err)
	}
	body, err := openRecord(name, version, value)
	if err != nil {
		return nil, fmt.Errorf("record %d of group %d: %w", key, v.records.group, err)
	}
	return append(dst, body...), nil
}

// Close releases the view. Further calls do nothing.
func (v *RecordsView) Close() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var errs []error
	if v.mu.it != nil {
		errs = append(errs, v.mu.it.Close())
		v.mu.it = nil
	}
	if v.mu.at != nil {
		errs = append(errs, v.mu.at.Close())
		v.mu.at = nil
	}
	return errors.Join(errs...)
}

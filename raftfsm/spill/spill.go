// Package spill owns the bodies of a shard. A body is a byte string under a key, such as a feed or
// an outbox. It is in memory, or on disk if the key is idle. The package never interprets a body,
// and never decides when a body leaves memory: the owner of the shard calls Spill.
//
// Each replica decides by itself which bodies to move, because reads make a key active and are not
// in the log. So Apply, digests and snapshots must not depend on which bodies are on disk.
//
// Invariant: a key has a body, whether in memory or on disk, if and only if the ops of the log gave
// it one. A move changes neither the body nor the number of keys.
//
//   - Before its first op, Apply calls LockReturned with the keys that the entry needs. Then their
//     bodies are in memory, and stay there until Apply calls Unlock. So answers, refusals and
//     digests are those of a replica that never moved a body. The leader reads these bodies before
//     it proposes (Warm), so Apply rarely waits for the disk. Apply does not rely on that, because
//     the body may have left memory again, or the entry may be replayed from the log, or come from
//     another leader.
//   - Apply accesses no other body. So if an op only counts in the row of a key, a damaged body of
//     that key does not stop the entry.
//   - A mark is stored in a page only after its record was written. A record is removed only after
//     no page contains its mark. Therefore, if a reader finds no record although the mark is still
//     in the page, the record is lost, and the reader returns ErrLost.
//   - A record never changes, and its checksum covers the version in the mark. So a reader gets
//     either the body for which the mark stands, or an error.
//   - If Apply cannot read a record, it changes nothing, and the replica is stuck. It stays stuck
//     until it is opened again from its own snapshot and log, or restores another replica's
//     snapshot.
//   - A View captures pages and records at one moment. A snapshot contains all bodies and never
//     refers to this disk, so replicas need not agree on which bodies are on disk.
//   - Records live only as long as the process. After a restart at any moment, even between the
//     write of a record and its mark, the replica begins with the snapshot, the log and no records.
//   - Restore loads new Bodies, which have their own records. When the new Bodies replace the old,
//     the old records are removed. If Restore fails, the new records are removed.
//   - A write during Spill may leave a record without a mark. A later record of the same key
//     overwrites it, or it is removed together with all records.
package spill

import (
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/internal/wire"
)

// Place configures where the bodies of idle keys may be stored. With the zero Place, they stay in
// memory.
type Place struct {
	Store *cold.Store
	Group uint32 // Raft group of the replica
	// Tight reports whether memory is short. If so, bodies loaded from a snapshot leave
	// memory, and bodies that are read do not return to it.
	Tight func() bool
	// Full reports whether Spill must write nothing, because the disk is nearly full; nil for never.
	Full func() bool
}

func (p *Place) short() bool { return p.Tight != nil && p.Tight() }
func (p *Place) full() bool  { return p.Full != nil && p.Full() }

// Config configures a Shard.
type Config struct {
	Place
	// Errors call a body by the text What, such as "the feed of user", and then the key.
	What string
	// PageBytes is the size at which a page of several keys is split in two. A write copies a whole
	// page.
	PageBytes int
	// BytesMin is the size of the smallest body that leaves memory.
	BytesMin int
	// Summarise, if not nil, appends a summary of a body to its mark.
	Summarise func(mark, body []byte) []byte
	// Digest, if not nil, returns what the body of a key adds to the digest of the shard. Several goroutines may call
	// it at the same time.
	Digest func(key uint64, body []byte) uint64
}

func (s *Shard) digest(key uint64, body []byte) uint64 {
	if s.cfg.Digest == nil {
		return 0
	}
	return s.cfg.Digest(key, body)
}

// Shard holds the current Bodies of a replica, which Restore replaces. Its methods are safe for
// concurrent use.
type Shard struct {
	cfg     Config
	clock   atomic.Uint32
	pauses  atomic.Int32                              // by Split; if above 0, Spill moves nothing
	moved   struct{ spilled, returned atomic.Uint64 } // since the process started
	current atomic.Pointer[Bodies]
	newest  atomic.Pointer[Bodies] // current, or the bodies that Restore is loading
}

// NewShard returns a Shard. The caller must call New and Show before other methods.
func NewShard(cfg Config) *Shard { return &Shard{cfg: cfg} }

// New returns empty bodies. Show makes them current.
func (s *Shard) New() *Bodies {
	b := &Bodies{shard: s, pages: newPageTable(s.cfg.PageBytes), out: newSpilled(&s.cfg.Place)}
	s.newest.Store(b)
	return b
}

// Show makes b the current bodies of the shard, and disposes of the previous bodies, unless they are b.
func (s *Shard) Show(b *Bodies) {
	b.shown.Store(true)
	if was := s.current.Swap(b); was != nil && was != b {
		was.Dispose()
	}
}

// Current returns the current bodies of the shard. Call it for each request, because Restore
// replaces the bodies.
func (s *Shard) Current() *Bodies { return s.current.Load() }

// Close releases the bodies on disk of a replica whose raft has stopped. Later reads of them
// fail.
func (s *Shard) Close() { s.Current().Dispose() }

// Stats are the sizes of bodies.
type Stats struct {
	Keys  uint64 // number of keys with a body, in memory or on disk
	Slots int    // length of the directory of pages
	Bytes uint64 // in memory

	Spilled, SpilledBytes uint64 // bodies on disk
}

// Stats returns the sizes of the current bodies.
func (s *Shard) Stats() Stats { return s.Current().Stats() }

// Bytes returns how much memory the bodies take. While a snapshot is being restored, the bodies
// that were loaded so far count too.
func (s *Shard) Bytes() uint64 {
	held, newest := s.current.Load(), s.newest.Load()
	bytes := held.Stats().Bytes
	if newest != held {
		bytes += newest.Stats().Bytes
	}
	return bytes
}

// Bodies are the bodies of a shard from one Restore to the next. A single writer applies entries or
// loads a snapshot. Readers may call Get, Peek, GetMany and Stats concurrently with the writer and
// with the rounds that move bodies.
type Bodies struct {
	shard *Shard
	pages *pageTable
	out   *spilled // the bodies on disk; nil if they never leave memory
	// Origin is a number that the owner chooses before Show. Parts of a split have that of the undivided shard until
	// the owner changes it.
	Origin uint64

	stepping sync.Mutex  // held for a step of Part; lock it before spilled.turn
	heirs    []*Bodies   // if any, they have the pages now, and only they may change them; pages.mu guards it
	shown    atomic.Bool // by Show; before that, the bodies on disk are those of other Bodies too
}

// Hash returns the hash by which keys are ordered. It is a bijection.
func Hash(key uint64) uint64 { return wire.MixNext(key) }

// keyOf returns the key with a hash.
func keyOf(hash uint64) uint64 { return wire.UnmixNext(hash) }

// Get returns the body of a key, or its mark, or nil, and marks the key as active. The caller must not
// change the bytes.
func (b *Bodies) Get(key uint64) []byte { return b.pages.get(key, b.shard.clock.Load()) }

// Peek is like Get, but does not mark the key as active. It is for internal reads.
func (b *Bodies) Peek(key uint64) []byte { return b.pages.peek(key) }

// Keys returns the number of keys with a body.
func (b *Bodies) Keys() int { return int(b.pages.keys.Load()) }

// Stats returns the sizes of the bodies.
func (b *Bodies) Stats() Stats {
	slots := 0
	for _, tables := range b.pages.tables() {
		for _, t := range tables {
			slots += len(t.dir.Load().slots)
		}
	}
	p := b.pages
	return Stats{
		Keys: uint64(p.keys.Load()), Slots: slots, Bytes: uint64(p.bytes.Load()) + uint64(8*slots),
		Spilled: uint64(p.marks.Load()), SpilledBytes: uint64(p.marked.Load()),
	}
}

// Digest returns the sum of the digests that Set was given since the last Clear. Only the writer may call it, or who
// excludes the writer.
func (b *Bodies) Digest() uint64 { return b.pages.digest }

// Set copies body and makes it the body of a key; nil removes the key. It adds digest to Digest: the digest of the
// body, less that of the previous one. Only the writer may call Set, either between LockReturned and Unlock, or before
// Show.
func (b *Bodies) Set(key uint64, body []byte, digest uint64) {
	b.pages.set(key, body, digest, b.shard.clock.Load())
}

// Clear removes all bodies. The caller must meet the conditions of Set.
func (b *Bodies) Clear() {
	if b.out != nil {
		b.out.cleared.Add(1)
		if b.out.records.Shared() {
			b.out.gone = b.marksLocked()
		} else {
			b.out.gone = nil
			_ = b.out.records.Remove() // what stays is useless, and gone with the process
		}
	}
	b.pages.clear()
}

// marksLocked returns the hashes of all keys that may have a record.
func (b *Bodies) marksLocked() (hashes []uint64) {
	hashes = append(make([]uint64, 0, len(b.out.gone)+int(b.pages.marks.Load())), b.out.gone...)
	b.pages.eachPage(func(page *page) {
		for i := range page.keys() {
			if IsMark(page.body(i)) {
				hashes = append(hashes, Hash(page.key(i)))
			}
		}
	})
	return hashes
}

// Dispose stops the moves of bodies to disk, and releases the records. If nobody else uses them, they are removed, and
// a later read of a body on disk fails. Else a round of another user removes those of b, unless b was never shown, or
// an heir was: then they are those of other Bodies too.
func (b *Bodies) Dispose() {
	b.shard.newest.CompareAndSwap(b, b.shard.current.Load())
	if b.out == nil {
		return
	}
	b.pages.mu.Lock()
	defer b.pages.mu.Unlock()
	if b.out.closed.Swap(true) {
		return
	}
	_ = b.out.records.Release(func() []uint64 { // what stays is useless, and gone with the process
		if !b.shown.Load() || slices.ContainsFunc(b.heirs, func(heir *Bodies) bool { return heir.shown.Load() }) {
			return nil
		}
		return b.marksLocked()
	})
}

// getAtOnce is the number of keys that GetMany looks up together, so that their cache misses
// overlap.
const getAtOnce = 32

// bodyStartBytes is the part of a body that GetMany prefetches, because every visit reads it.
const bodyStartBytes = 16

// GetMany calls visit with the position of each key that has a body, and with the body or its mark.
// It does not mark keys as active. For that, call Touch.
func (b *Bodies) GetMany(keys []uint64, visit func(i int, body []byte)) {
	if b.pages.keys.Load() == 0 {
		return
	}
	var of [getAtOnce]*page
	var bodies [getAtOnce][]byte
	for first := 0; first < len(keys); first += getAtOnce {
		some := keys[first:min(first+getAtOnce, len(keys))]
		for i, key := range some {
			_, of[i] = b.pages.find(key, Hash(key))
			of[i].prefetch()
		}
		for i, key := range some {
			if bodies[i] = of[i].bodyOf(key); bodies[i] != nil {
				at := uintptr(unsafe.Pointer(unsafe.SliceData(bodies[i])))
				engine.Prefetch(at, at+bodyStartBytes)
			}
		}
		for i := range some {
			if bodies[i] != nil {
				visit(first+i, bodies[i])
			}
		}
	}
}

// Touch marks a key as active.
func (b *Bodies) Touch(key uint64) {
	if b.out != nil {
		b.Get(key)
	}
}

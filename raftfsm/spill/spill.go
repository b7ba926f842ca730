// Package spill owns the bodies of a shard, one byte string per key: in memory, or on disk if the key
// is idle. Feeds and outboxes are bodies. The package never interprets a body, and never decides when
// one leaves memory: its owner calls Spill.
//
// Each replica moves bodies by itself, because reads, which make a key active, are not in the
// log. So Apply, digests and snapshots must not depend on which bodies are on disk.
//
// Invariant: a key has a body, whether in memory or on disk, if and only if the ops of the
// log gave it one. Moving it changes neither the body nor the number of keys.
//
//   - Before its first op, Apply calls LockReturned with the keys that the entry needs. Their
//     bodies are then in memory, and stay there until Apply unlocks. So answers, refusals and
//     digests are those of a replica that never moved a body. The leader reads these bodies
//     before it proposes (Warm), so Apply rarely waits for the disk. Apply does not rely on that:
//     the entry may be old, or another node's, and the body may have left memory again.
//   - Apply reads no other body. If an op only counts in the row of a key, a damaged body of that
//     key cannot stop its entry.
//   - A mark is stored in a page only after its record was written, and a record is removed
//     only after no page has its mark. A reader that finds no record, but still finds the
//     mark in the page, therefore knows that the record is lost: it returns ErrLost.
//   - A record never changes, and its checksum covers the version in the mark. A reader
//     therefore has either the body that the mark stood for, or an error.
//   - If Apply cannot read a record, it changes nothing: the replica is stuck until it is
//     opened again, from its own snapshot and log, or restores another replica's snapshot.
//   - A View captures pages and records at one moment. A snapshot contains all bodies and never
//     refers to this disk, so replicas need not agree on which bodies are on disk.
//   - Records live only as long as the process. A restart at any moment, also between the
//     write of a record and its mark, begins with the snapshot, the log and no records.
//   - Restore builds other Bodies, with records of their own, and removes the earlier records
//     when it replaces them, or its own if it fails.
//   - A record without a mark, left by a write that raced with Spill, is overwritten, or
//     removed with all others.
package spill

import (
	"sync/atomic"
	"unsafe"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/internal/wire"
)

// Place is where the bodies of idle keys may be stored. With the zero Place they stay in
// memory.
type Place struct {
	Store *cold.Store
	Group uint32 // Raft group of the replica
	// Tight reports whether memory is short. If so, bodies loaded from a snapshot leave
	// memory, and bodies that are read do not return to it.
	Tight func() bool
}

func (p *Place) short() bool { return p.Tight != nil && p.Tight() }

// Config configures a Shard.
type Config struct {
	Place
	// What names a body in errors, such as "the feed of user". The key follows it.
	What string
	// PageBytes is the size at which a page of several keys is split in two. A write copies
	// its page.
	PageBytes int
	// BytesMin is the size of the smallest body that leaves memory.
	BytesMin int
	// Summarise appends the summary of a body to its mark; nil for none.
	Summarise func(mark, body []byte) []byte
}

// Shard holds the current Bodies of a replica, which Restore replaces. Its methods are safe for
// concurrent use.
type Shard struct {
	cfg     Config
	clock   atomic.Uint32
	moved   struct{ spilled, returned atomic.Uint64 } // since the process started
	current atomic.Pointer[Bodies]
	newest  atomic.Pointer[Bodies] // current, or the bodies that Restore is loading
}

// NewShard returns a Shard, whose owner calls Show before anything else.
func NewShard(cfg Config) *Shard { return &Shard{cfg: cfg} }

// New returns empty bodies. Show makes them current.
func (s *Shard) New() *Bodies {
	b := &Bodies{shard: s, pages: newPageTable(&s.clock, s.cfg.PageBytes), out: newSpilled(&s.cfg.Place)}
	s.newest.Store(b)
	return b
}

// Show makes bodies the current bodies of the shard, and disposes of the earlier ones.
func (s *Shard) Show(b *Bodies) {
	if was := s.current.Swap(b); was != nil {
		was.Dispose()
	}
}

// Current returns the bodies of the shard. A caller loads them for each request.
func (s *Shard) Current() *Bodies { return s.current.Load() }

// Close releases the bodies on disk of a replica whose raft has stopped. Later reads of them
// fail.
func (s *Shard) Close() { s.Current().Dispose() }

// Stats are the sizes of bodies.
type Stats struct {
	Keys  uint64 // with a body in memory or on disk
	Slots int    // length of the directory of pages
	Bytes uint64 // in memory

	Spilled, SpilledBytes uint64 // bodies on disk
}

// Stats returns the sizes of the current bodies.
func (s *Shard) Stats() Stats { return s.Current().Stats() }

// Bytes returns how much memory the bodies take. While a snapshot is being restored, its
// bodies count too.
func (s *Shard) Bytes() uint64 {
	held, newest := s.current.Load(), s.newest.Load()
	bytes := held.Stats().Bytes
	if newest != held {
		bytes += newest.Stats().Bytes
	}
	return bytes
}

// Bodies are the bodies of a shard from one Restore to the next. Readers call Get, Peek, GetMany
// and Stats concurrently with the one writer, which applies entries or loads a snapshot, and with
// the rounds that move bodies.
type Bodies struct {
	shard *Shard
	pages *pageTable
	out   *spilled // the bodies on disk; nil if they never leave memory
}

// Hash orders keys. It is a bijection.
func Hash(key uint64) uint64 { return wire.MixNext(key) }

// Get returns the body of a key, or its mark, or nil, and marks the key as active. The caller must not
// change the bytes.
func (b *Bodies) Get(key uint64) []byte { return b.pages.get(key) }

// Peek is like Get, but for internal reads, which do not make a key active.
func (b *Bodies) Peek(key uint64) []byte { return b.pages.peek(key) }

// Stats returns the sizes of the bodies.
func (b *Bodies) Stats() Stats {
	slots := len(b.pages.dir.Load().slots)
	s := Stats{Keys: uint64(b.pages.keys.Load()), Slots: slots, Bytes: uint64(b.pages.bytes.Load()) + uint64(8*slots)}
	if b.out != nil {
		s.Spilled, s.SpilledBytes = uint64(b.out.keys.Load()), uint64(b.out.bytes.Load())
	}
	return s
}

// Set copies body and makes it the body of a key; nil removes the key. The caller is the
// writer, and holds the lock of LockReturned or has not shown the bodies.
func (b *Bodies) Set(key uint64, body []byte) { b.pages.set(key, body) }

// Clear removes all bodies. The caller must meet the conditions of Set.
func (b *Bodies) Clear() {
	b.pages.clear()
	if b.out == nil {
		return
	}
	b.out.keys.Store(0)
	b.out.bytes.Store(0)
	b.out.gone = nil
	b.out.cleared.Add(1)
	b.out.forget()
}

// Dispose stops spilling and removes all records. A later read of a body on disk fails.
func (b *Bodies) Dispose() {
	b.shard.newest.CompareAndSwap(b, b.shard.current.Load())
	if b.out != nil && !b.out.closed.Swap(true) {
		b.out.forget()
	}
}

// getAtOnce is how many keys GetMany looks up at once, so that their cache misses overlap.
const getAtOnce = 32

// bodyStartBytes is the part of a body that GetMany prefetches, because every visit reads it.
const bodyStartBytes = 16

// GetMany calls visit with the position of each key that has a body, and with the body or its
// mark. It does not make keys active; Touch does.
func (b *Bodies) GetMany(keys []uint64, visit func(i int, body []byte)) {
	if b.pages.keys.Load() == 0 {
		return
	}
	var of [getAtOnce]*page
	var bodies [getAtOnce][]byte
	for first := 0; first < len(keys); first += getAtOnce {
		some := keys[first:min(first+getAtOnce, len(keys))]
		for i, key := range some {
			of[i] = b.pages.page(Hash(key))
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
		b.pages.get(key)
	}
}

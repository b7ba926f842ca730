package spill

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/internal/wire"
)

// This file reads bodies on disk and returns them to memory. While a body is on disk, its page
// contains a mark instead of the body, little-endian:
//
//	0 (1) | version (uvarint) | size of the body (uvarint) | summary
//
// No body begins with 0. The body is the record in cold.Records under the key's hash and that
// version. Before Apply changes the body, it returns the body to memory. The record is then
// useless, and a later round removes it.

// spilled tracks the bodies on disk.
type spilled struct {
	records *cold.Records // after a split, the parts share it
	closed  atomic.Bool   // set by Dispose, under pageTable.mu; later rounds write no records

	gone    []uint64      // hashes of keys that may have a useless record; guarded by pageTable.mu
	cleared atomic.Uint64 // number of calls of Clear; changes only under pageTable.mu

	turn struct {
		sync.Mutex        // locked while bodies leave memory; lock it before pageTable.mu
		from       uint64 // the next round begins at this hash
		version    uint32 // version of the last records
		loaded     uint64 // bodies of a snapshot with this hash or a higher one are still in memory
	}
}

func newSpilled(place *Place) *spilled {
	if place.Store == nil {
		return nil
	}
	return &spilled{records: place.Store.Records(place.Group)}
}

// IsMark reports whether body is a mark.
func IsMark(body []byte) bool { return len(body) > 0 && body[0] == 0 }

// Summary returns what Config.Summarise appended to a mark.
func Summary(mark []byte) []byte {
	_, _, summary := parseMark(mark)
	return summary
}

func parseMark(mark []byte) (version uint32, size int, summary []byte) {
	v, n := binary.Uvarint(mark[1:])
	bytes, m := binary.Uvarint(mark[1+n:])
	return uint32(v), int(bytes), mark[1+n+m:]
}

func versionOf(mark []byte) uint32 {
	version, _, _ := parseMark(mark)
	return version
}

// sizeOf returns the size of the body for which a mark stands.
func sizeOf(mark []byte) int {
	_, size, _ := parseMark(mark)
	return size
}

func (s *Shard) appendMark(dst []byte, version uint32, body []byte) []byte {
	dst = binary.AppendUvarint(binary.AppendUvarint(append(dst, 0), uint64(version)), uint64(len(body)))
	if s.cfg.Summarise != nil {
		dst = s.cfg.Summarise(dst, body)
	}
	return dst
}

// padded returns body with zeros after its end, in its spare capacity if possible. They are needed
// because a bit reader reads past the end.
func padded(body []byte) []byte {
	n := len(body)
	return append(body, make([]byte, wire.RicePadding)...)[:n]
}

// ErrMoved is returned for a mark that is not in its page any more: the body has returned to memory,
// or an op has changed or removed it.
var ErrMoved = errors.New("the body has moved")

// ErrLost is returned, with cold.ErrDamaged, for a body whose record cannot be read. The replica's
// own snapshot and log still contain the body.
var ErrLost = errors.New("a record of this process is lost")

// IsSpilled reports whether the body of a key is on disk.
func (s *Shard) IsSpilled(key uint64) bool { return IsMark(s.Current().Peek(key)) }

// Fetch returns the body of a key from memory or from disk, or nil for none, and the Bodies that have it. It waits for
// the disk until ctx ends. Unless memory is short, the body returns to memory. cold.ErrDamaged means that the body
// cannot be read.
func (s *Shard) Fetch(ctx context.Context, key uint64) ([]byte, *Bodies, error) {
	return s.fetch(ctx, key, !s.cfg.short())
}

// Warm is like Fetch, but for a caller that is about to write to the key: the body always returns to
// memory.
func (s *Shard) Warm(ctx context.Context, key uint64) error {
	_, _, err := s.fetch(ctx, key, true)
	return err
}

func (s *Shard) fetch(ctx context.Context, key uint64, keep bool) ([]byte, *Bodies, error) {
	for {
		held := s.Current()
		body, err := held.fetch(ctx, key, keep)
		// If a snapshot has replaced the bodies meanwhile, their records are removed. Then read
		// from the new bodies.
		if err == nil || ctx.Err() != nil || s.Current() == held {
			return body, held, err
		}
	}
}

func (b *Bodies) fetch(ctx context.Context, key uint64, keep bool) ([]byte, error) {
	for {
		mark := b.Get(key)
		if !IsMark(mark) {
			return mark, nil
		}
		body, err := b.read(ctx, key, mark, keep)
		if errors.Is(err, ErrMoved) && ctx.Err() == nil {
			continue
		}
		return body, err
	}
}

// FetchMark returns the body for which a mark stands. It works even if the body has moved, as long
// as the record exists. If the record was removed because the body has moved, FetchMark returns
// ErrMoved. Like Fetch, it waits until ctx ends, and returns the body to memory unless memory is
// short.
func (b *Bodies) FetchMark(ctx context.Context, key uint64, mark []byte) ([]byte, error) {
	body, err := b.read(ctx, key, mark, !b.shard.cfg.short())
	if err != nil && b.shard.Current() != b {
		return nil, ErrMoved // a snapshot has replaced the bodies
	}
	return body, err
}

// read reads the body for which a mark of a key stands. If keep is set, the body returns to memory.
func (b *Bodies) read(ctx context.Context, key uint64, mark []byte, keep bool) ([]byte, error) {
	body, err := b.out.records.Read(ctx, Hash(key), versionOf(mark))
	if err = b.ofMark(key, mark, err); err != nil {
		return nil, b.shard.cfg.lost("read", key, err)
	}
	if keep {
		b.pages.mu.Lock()
		b.returnLocked(key, mark, body)
		b.pages.mu.Unlock()
	}
	return padded(slices.Clip(body)), nil
}

// lost adds the key to the error of a read of its record. If the record is damaged, the error also
// wraps ErrLost.
func (c *Config) lost(verb string, key uint64, err error) error {
	err = fmt.Errorf("cannot %s %s %d: %w", verb, c.What, key, err)
	if errors.Is(err, cold.ErrDamaged) {
		return fmt.Errorf("%w: %w", ErrLost, err)
	}
	return err
}

// ofMark returns err, or ErrMoved if the page has no such mark any more.
func (b *Bodies) ofMark(key uint64, mark []byte, err error) error {
	if err != nil && string(b.Peek(key)) != string(mark) {
		return ErrMoved
	}
	return err
}

// returnLocked replaces a mark by its body, if the mark is still in the page. If body is nil,
// because the body had moved before the read, returnLocked does nothing. It does nothing either if other
// Bodies have the pages now.
func (b *Bodies) returnLocked(key uint64, mark, body []byte) {
	if body == nil || len(b.heirs) > 0 || string(b.Peek(key)) != string(mark) {
		return
	}
	b.pages.set(key, body, 0, b.shard.clock.Load())
	b.out.gone = append(b.out.gone, Hash(key))
	b.shard.moved.returned.Add(1)
}

// marked is a body on disk that an op needs in memory.
type marked struct {
	key        uint64
	mark, body []byte // body is nil until it is read; it stays nil if it has moved
}

// readsAtOnce bounds the bodies that Apply reads concurrently.
const readsAtOnce = 16

// LockReturned returns the bodies of keys to memory, and locks the pages. No body moves until the
// caller calls Unlock. If LockReturned returns an error, the pages are not locked, and no body has
// changed. It calls keys several times. It reads the disk while the pages are not locked.
func (b *Bodies) LockReturned(keys func(yield func(key uint64))) error {
	var read []marked
	for {
		b.pages.mu.Lock()
		for i := range read {
			b.returnLocked(read[i].key, read[i].mark, read[i].body)
		}
		if read = b.marked(keys); len(read) == 0 {
			return nil
		}
		b.pages.mu.Unlock()
		if err := b.readMarked(read); err != nil {
			return err
		}
	}
}

// Unlock releases the lock of LockReturned.
func (b *Bodies) Unlock() { b.pages.mu.Unlock() }

// marked returns those of keys whose bodies are on disk, without duplicates.
func (b *Bodies) marked(keys func(yield func(key uint64))) (all []marked) {
	if b.out == nil || b.pages.marks.Load() == 0 {
		return nil
	}
	keys(func(key uint64) {
		if mark := b.Peek(key); IsMark(mark) {
			all = append(all, marked{key: key, mark: mark})
		}
	})
	slices.SortFunc(all, func(a, b marked) int { return cmp.Compare(a.key, b.key) })
	return slices.CompactFunc(all, func(a, b marked) bool { return a.key == b.key })
}

// readMarked reads bodies from disk, several at a time, and skips those that have moved.
func (b *Bodies) readMarked(all []marked) error {
	var reads errgroup.Group
	reads.SetLimit(readsAtOnce)
	for i := range all {
		m := &all[i]
		reads.Go(func() error {
			body, err := b.out.records.ReadNow(Hash(m.key), versionOf(m.mark))
			if err = b.ofMark(m.key, m.mark, err); err != nil && !errors.Is(err, ErrMoved) {
				return b.shard.cfg.lost("return", m.key, err)
			}
			m.body = body
			return nil
		})
	}
	return reads.Wait()
}

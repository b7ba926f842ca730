package raftfsm

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/golomb"
)

// This file reads feeds on disk and brings them back into memory. In place of such a feed
// its page has a mark, 5 bytes little-endian, which differs from all followees:
//
//	0 (1) | version (4)
//
// The record in cold.Records under the user's hash and that version has the followees in
// their form in memory. A record never changes. Apply brings a feed back before it writes
// to it, so the result, the digest and the answer are the same as if the feed had never
// left memory. The record is then unneeded and is removed later.
//
//   - A mark is stored in a page only after its record was written, and a record is
//     removed only after no page has its mark. So a reader that finds no record, but still
//     finds the mark in the page, knows that the record is lost.
//   - A snapshot captures records and pages at one moment and contains all feeds. It never
//     refers to this disk. So records live only as long as the process, and a replica with
//     damaged records recovers the feeds from its snapshot and log.
//   - A record without a mark, left by a write that raced with Spill, is overwritten, or
//     removed with all others.

// FeedPlace is where feeds of idle users may be stored. With the zero FeedPlace they
// stay in memory.
type FeedPlace struct {
	Store *cold.Store
	Group uint32 // whose feeds they are
	// Tight reports whether memory is short. If so, feeds loaded from a snapshot leave
	// memory, and feeds that are read do not return to it.
	Tight func() bool
}

// feedCounts counts feeds that left memory and returned since the process started.
type feedCounts struct{ spilled, returned atomic.Uint64 }

// spilled is the feeds that are on disk.
type spilled struct {
	records *cold.Records
	closed  atomic.Bool // by dispose; no record is written afterwards

	users, bytes atomic.Int64  // number of marks, and bytes of their feeds
	gone         []uint64      // hashes that may have an unneeded record; under feedPages.mu
	cleared      atomic.Uint64 // how often all records were removed; changes under feedPages.mu

	turn struct {
		sync.Mutex        // held while feeds leave memory; acquired before feedPages.mu
		from       uint64 // hash to continue from
		version    uint32 // of the last records
	}
}

func newSpilled(of *Feed) *spilled {
	if of.place.Store == nil {
		return nil
	}
	return &spilled{records: of.place.Store.Records(of.place.Group)}
}

// isSpilled distinguishes a mark from followees, which begin with a number above 0.
func isSpilled(body []byte) bool { return body[0] == 0 }

func spilledVersion(mark []byte) uint32 { return binary.LittleEndian.Uint32(mark[1:]) }

// padded returns followees with the padding that a bit reader needs, in the same memory
// if that is large enough.
func padded(body []byte) []byte {
	n := len(body)
	return append(body, make([]byte, golomb.RicePadding)...)[:n]
}

// errFeedMoved is returned for a record that no longer has a mark.
var errFeedMoved = errors.New("the feed has moved")

// IsSpilled reports whether a user's followees are on disk.
func (f *Feed) IsSpilled(key uint64) bool {
	body := f.current.Load().pages.peek(key)
	return body != nil && isSpilled(body)
}

// Fetch is Followees for a user whose followees may be on disk. It waits for the disk
// until ctx ends. Unless memory is short, the feed returns to memory. cold.ErrDamaged
// means that it cannot be read.
func (f *Feed) Fetch(ctx context.Context, dst []Followee, key uint64) ([]Followee, error) {
	body, err := f.fetch(ctx, key, !f.place.short())
	if body == nil || err != nil {
		return dst, err
	}
	return decodeFollowees(dst, body), nil
}

// FetchGroups is Groups for a user whose feed may be on disk, as Fetch is Followees.
func (f *Feed) FetchGroups(ctx context.Context, key uint64) ([]Group, error) {
	body, err := f.fetch(ctx, key, !f.place.short())
	if body == nil || err != nil {
		return nil, err
	}
	return groupsOf(body), nil
}

// Warm is Fetch for a caller that is about to write to the user: the feed always
// returns to memory.
func (f *Feed) Warm(ctx context.Context, key uint64) error {
	_, err := f.fetch(ctx, key, true)
	return err
}

func (p *FeedPlace) short() bool { return p.Tight != nil && p.Tight() }

// fetch returns the body of a user, nil for none.
func (f *Feed) fetch(ctx context.Context, key uint64, keep bool) ([]byte, error) {
	for {
		held := f.current.Load()
		body, err := held.fetch(ctx, key, keep)
		// A feed that a snapshot has replaced meanwhile has removed its records.
		if err == nil || ctx.Err() != nil || f.current.Load() == held {
			return body, err
		}
	}
}

func (f *feed) fetch(ctx context.Context, key uint64, keep bool) ([]byte, error) {
	for {
		mark := f.pages.get(key)
		if mark == nil || !isSpilled(mark) {
			return mark, nil
		}
		body, err := f.out.records.Read(ctx, feedHash(key), spilledVersion(mark))
		if err = f.ofMark(key, mark, err); errors.Is(err, errFeedMoved) && ctx.Err() == nil {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read the feed of user %d: %w", key, err)
		}
		if keep {
			f.pages.mu.Lock()
			f.returnLocked(key, mark, body)
			f.pages.mu.Unlock()
		}
		return padded(slices.Clip(body)), nil
	}
}

// ofMark returns err, or errFeedMoved if the mark is no longer in the page.
func (f *feed) ofMark(key uint64, mark []byte, err error) error {
	if err != nil && string(f.pages.peek(key)) != string(mark) {
		return errFeedMoved
	}
	return err
}

// returnLocked replaces a mark by the followees that were read, if the mark is still
// there. A nil body means that its record is gone.
func (f *feed) returnLocked(key uint64, mark, body []byte) {
	if body == nil || string(f.pages.peek(key)) != string(mark) {
		return
	}
	f.pages.set(key, body)
	f.out.gone = append(f.out.gone, feedHash(key))
	f.out.users.Add(-1)
	f.out.bytes.Add(-int64(len(body)))
	f.of.counts.returned.Add(1)
}

// markedFeed is a spilled feed that an op needs in memory.
type markedFeed struct {
	key        uint64
	mark, body []byte
	err        error
}

// warmFeedsMax bounds the feeds that Apply reads concurrently.
const warmFeedsMax = 16

// lockReturned reads the spilled feeds of the ops back into memory and returns with
// pages.mu held. On an error the lock is free and nothing observable has changed. It
// reads the disk without the lock.
func (f *feed) lockReturned() error {
	var read []markedFeed
	for {
		f.pages.mu.Lock()
		for i := range read {
			f.returnLocked(read[i].key, read[i].mark, read[i].body)
		}
		if read = f.marked(); len(read) == 0 {
			return nil
		}
		f.pages.mu.Unlock()
		if err := f.readMarked(read); err != nil {
			return err
		}
	}
}

// marked returns each spilled feed that ops need, once.
func (f *feed) marked() (marked []markedFeed) {
	if f.out == nil || f.out.users.Load() == 0 {
		return nil
	}
	for i := range f.batch.ops {
		op := &f.batch.ops[i]
		if op.Kind == FeedClear {
			continue
		}
		if body := f.pages.peek(op.User); body != nil && isSpilled(body) {
			marked = append(marked, markedFeed{key: op.User, mark: body})
		}
	}
	slices.SortFunc(marked, func(a, b markedFeed) int { return cmp.Compare(a.key, b.key) })
	return slices.CompactFunc(marked, func(a, b markedFeed) bool { return a.key == b.key })
}

// readMarked reads feeds from disk, several at a time, and skips those that have moved.
func (f *feed) readMarked(marked []markedFeed) error {
	next := make(chan *markedFeed, len(marked))
	for i := range marked {
		next <- &marked[i]
	}
	close(next)
	read := func() {
		for m := range next {
			m.body, m.err = f.out.records.ReadNow(feedHash(m.key), spilledVersion(m.mark))
			m.err = f.ofMark(m.key, m.mark, m.err)
		}
	}
	var readers sync.WaitGroup
	for range min(len(marked), warmFeedsMax) - 1 {
		readers.Go(read)
	}
	read()
	readers.Wait()
	for i := range marked {
		if m := &marked[i]; m.err != nil && !errors.Is(m.err, errFeedMoved) {
			return fmt.Errorf("cannot bring the feed of user %d into memory: %w", m.key, m.err)
		}
	}
	return nil
}

// clearLocked removes the feeds of all users.
func (f *feed) clearLocked() {
	f.pages.clear()
	f.sum = 0
	if f.out == nil {
		return
	}
	f.out.users.Store(0)
	f.out.bytes.Store(0)
	f.out.gone = nil
	f.out.cleared.Add(1)
	f.out.forget()
}

// forget removes all records. If that fails, the next Open of the store removes them; until
// then they do no harm.
func (s *spilled) forget() { _ = s.records.Remove() }

// dispose stops spilling and removes all records. A later read of a feed on disk fails.
func (f *feed) dispose() {
	f.of.newest.CompareAndSwap(f, f.of.current.Load())
	if f.out != nil && !f.out.closed.Swap(true) {
		f.out.forget()
	}
}

// Close releases the spilled feeds of a replica whose raft has stopped. Later reads of
// these feeds fail.
func (f *Feed) Close() { f.current.Load().dispose() }

package raftfsm

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/countd/countd/engine"
)

// Feed is the state machine of one shard of the keyspace of feeds: of each user
// those that they follow and the posts of each when the user last saw them. It
// knows nothing of the posts there are now. Its methods but Followees are
// Machine's.
type Feed struct {
	machine
	held atomic.Pointer[feed] // replaced whole by Restore
}

// NewFeed returns the state before the first entry.
func NewFeed() *Feed {
	f := &Feed{}
	f.init(KindFeed, func() contents { return &feed{pages: newFeedPages()} }, func(held contents) { f.held.Store(held.(*feed)) })
	return f
}

// Followees appends the followees of the user of a key to dst, ascending by id, as
// they were together at one moment during the call. It allocates only to grow dst.
func (f *Feed) Followees(dst []Followee, key uint64) []Followee {
	if body := f.held.Load().pages.get(key); body != nil {
		return decodeFollowees(dst, body)
	}
	return dst
}

// Bytes is Machine's.
func (f *Feed) Bytes() uint64 { return f.held.Load().stats().Bytes }

// feed is what a shard of the keyspace of feeds holds.
type feed struct {
	pages *feedPages
	sum   uint64 // digest of all followees

	batch    feedBatch
	was, now []Followee // of the op that is applied
	body     []byte
	reader   feedReader // of load
}

func (f *feed) begin() { f.batch.begin() }

func (f *feed) decode(_ *RequestID, p []byte, _ bool) (int, error) {
	return parseOps(p, feedOpSizeMin, f.batch.op)
}

// void makes the last ops reads of nobody.
func (f *feed) void(ops int) {
	b := &f.batch
	first := len(b.ops) - ops
	end := 0
	if first > 0 {
		end = b.ends[first-1]
	}
	b.followees = b.followees[:end]
	for i := first; i < len(b.ops); i++ {
		b.ops[i].Kind, b.ends[i] = FeedRead, end
	}
}

func (f *feed) apply(_ int64, width int, rows []int64) (refused []engine.Overflow) {
	f.batch.link()
	for i := range f.batch.ops {
		op := &f.batch.ops[i]
		if op.Kind == FeedClear {
			f.pages.clear()
			f.sum = 0
			continue
		}
		f.was = f.was[:0]
		if body := f.pages.get(op.User); body != nil {
			f.was = decodeFollowees(f.was, body)
		}
		f.now = op.change(f.now[:0], f.was)
		if len(f.now) > FolloweesMax {
			refused = append(refused, engine.Overflow{Op: i})
			f.now = append(f.now[:0], f.was...)
		}
		f.replace(op.User)
		if width > 0 {
			rows[i*width] = int64(len(f.now))
		}
	}
	return refused
}

// change appends to dst what the op makes of a user's followees.
func (op *FeedOp) change(dst, was []Followee) []Followee {
	if op.Kind == FeedReset {
		return append(dst, op.Followees...)
	}
	named := op.Followees
	for _, f := range was {
		for op.Kind == FeedFollow && len(named) > 0 && named[0].ID < f.ID {
			dst, named = append(dst, named[0]), named[1:]
		}
		at, found := slices.BinarySearchFunc(named, f.ID, func(n Followee, id uint64) int { return cmp.Compare(n.ID, id) })
		named = named[at:]
		switch {
		case !found || op.Kind == FeedFollow:
			dst = append(dst, f)
		case op.Kind == FeedRead:
			dst = append(dst, named[0])
		}
		if found {
			named = named[1:]
		}
	}
	if op.Kind == FeedFollow {
		dst = append(dst, named...)
	}
	return dst
}

// replace gives a user the followees of now in place of those that were.
func (f *feed) replace(key uint64) {
	if slices.Equal(f.was, f.now) {
		return
	}
	f.sum += followeesDigest(key, f.now) - followeesDigest(key, f.was)
	if len(f.now) == 0 {
		f.pages.set(key, nil)
		return
	}
	f.body = appendFollowees(f.body[:0], f.now)
	f.pages.set(key, f.body)
}

// followeesDigest is a user's part of the digest: the sum over followees of a hash
// of both, times the posts, and of the hash with its halves exchanged, for one
// without posts.
func followeesDigest(key uint64, followees []Followee) uint64 {
	sum, user := uint64(0), feedHash(key)
	for _, f := range followees {
		h := feedHash(user + bits.RotateLeft64(feedHash(f.ID), 32))
		sum += h*uint64(f.Posts) + bits.RotateLeft64(h, 32)
	}
	return sum
}

func (f *feed) digest() uint64 { return f.sum }

func (f *feed) stats() engine.Stats {
	pages := f.pages.dir.Load()
	return engine.Stats{
		Rows: uint64(f.pages.users.Load()), Segments: len(pages.slots),
		Bytes: uint64(f.pages.bytes.Load()) + uint64(8*len(pages.slots)),
	}
}

func (f *feed) capture() captured {
	return &feedSnapshot{pages: f.pages.pages(), users: uint64(f.pages.users.Load()), sum: f.sum}
}

func (f *feed) load(kind, last byte, p []byte) error {
	if kind != streamFeeds || last != streamHead && last != streamFeeds {
		return misplaced(kind, last)
	}
	return f.reader.section(p, func(user uint64, followees []Followee) error {
		f.was, f.now = f.was[:0], append(f.now[:0], followees...)
		f.replace(user)
		return nil
	})
}

// The feeds of a snapshot, one section for about feedSectionBytes of them:
//
//	feeds:  users (4) | key (8), followees (4), followees as in an op … by the users' hashes
//
// The hash is that of feedHash; it orders all users of the stream.
const feedSectionBytes = 1 << 20

// feedSnapshot is the shard on its way into a snapshot.
type feedSnapshot struct {
	pages []*feedPage
	users uint64
	sum   uint64
}

func (s *feedSnapshot) write(w *streamWriter) error {
	var followees []Followee
	user := 0 // of page at
	for at := 0; at < len(s.pages); {
		err := w.section(streamFeeds, func(b []byte) []byte {
			start, users := len(b), uint32(0)
			b = append(b, 0, 0, 0, 0)
			for at < len(s.pages) && len(b)-start < feedSectionBytes {
				page := s.pages[at]
				if user == page.users() {
					at, user = at+1, 0
					continue
				}
				followees = decodeFollowees(followees[:0], page.body(user))
				b = binary.LittleEndian.AppendUint64(b, page.key(user))
				b = binary.LittleEndian.AppendUint32(b, uint32(len(followees)))
				b = appendFolloweeList(b, followees)
				user, users = user+1, users+1
			}
			binary.LittleEndian.PutUint32(b[start:], users)
			return b
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *feedSnapshot) rows() uint64   { return s.users }
func (s *feedSnapshot) digest() uint64 { return s.sum }
func (s *feedSnapshot) release()       { s.pages = nil }

// feedReader reads the sections of feeds of a stream, in their order.
type feedReader struct {
	followees []Followee
	hash      uint64 // of the user before
	behind    bool   // there is one
}

// section calls visit with each user of a section.
func (r *feedReader) section(p []byte, visit func(user uint64, followees []Followee) error) error {
	if len(p) < 4 {
		return fmt.Errorf("%w: feeds of %d bytes", errSnapshot, len(p))
	}
	users := binary.LittleEndian.Uint32(p)
	p = p[4:]
	for range users {
		if len(p) < 12 {
			return fmt.Errorf("%w: feed of %d bytes", errSnapshot, len(p))
		}
		key, n := binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint32(p[8:])
		hash := feedHash(key)
		if n < 1 || n > FolloweesMax || r.behind && hash <= r.hash {
			return fmt.Errorf("%w: feed of user %d with %d followees", errSnapshot, key, n)
		}
		var ok bool
		if r.followees, p, ok = parseFolloweeList(r.followees[:0], p[12:], int(n)); !ok {
			return fmt.Errorf("%w: followees of user %d", errSnapshot, key)
		}
		r.hash, r.behind = hash, true
		if err := visit(key, r.followees); err != nil {
			return err
		}
	}
	if len(p) > 0 {
		return fmt.Errorf("%w: %d bytes behind the feeds", errSnapshot, len(p))
	}
	return nil
}

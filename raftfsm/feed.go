package raftfsm

import (
	"context"
	"math/bits"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/splitmix"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/spill"
)

// Feed is the state machine of one shard of feeds. For each user it holds the followees, how
// many posts each had when the user last saw them, and groups of followees. It does not know the
// current numbers of posts.
type Feed struct {
	machine
	bodies *spill.Shard
}

// feedPageBytes is about the size of ten users with a hundred followees each.
const feedPageBytes = 4 << 10

// NewFeed returns a feed shard before its first entry. Each replica decides for itself which feeds
// leave memory for place.
func NewFeed(place spill.Place) *Feed {
	f := &Feed{bodies: spill.NewShard(spill.Config{Place: place, What: "the feed of user", PageBytes: feedPageBytes})}
	f.init(codec.KindFeed, func() contents { return &feed{bodies: f.bodies.New()} }, func(held contents) { f.bodies.Show(held.(*feed).bodies) })
	return f
}

// Bodies returns the feeds as bodies that may leave memory.
func (f *Feed) Bodies() *spill.Shard { return f.bodies }

// Close implements Machine.
func (f *Feed) Close() { f.bodies.Close() }

// Followees appends the followees of a user to dst, ascending by id, as of one moment
// during the call, and returns the stamp of the feed, or 0; see FeedOp. It allocates only to grow
// dst. If they are on disk, it returns dst unchanged and false; Fetch reads them then.
func (f *Feed) Followees(dst []Followee, key uint64) (_ []Followee, stamp uint64, inMemory bool) {
	body := f.bodies.Current().Get(key)
	if body == nil || spill.IsMark(body) {
		return dst, 0, body == nil
	}
	dst, stamp, _ = decodeFeed(dst, body)
	return dst, stamp, true
}

// Fetch is Followees for a user whose feed may be on disk. It waits for the disk until ctx ends, as
// spill.Shard.Fetch does.
func (f *Feed) Fetch(ctx context.Context, dst []Followee, key uint64) (_ []Followee, stamp uint64, err error) {
	body, err := f.bodies.Fetch(ctx, key)
	if body == nil || err != nil {
		return dst, 0, err
	}
	dst, stamp, _ = decodeFeed(dst, body)
	return dst, stamp, nil
}

// Groups returns the groups of a user, ascending by name. If the feed is on disk, it returns false;
// FetchGroups reads it then.
func (f *Feed) Groups(key uint64) (groups []Group, inMemory bool) {
	body := f.bodies.Current().Get(key)
	if body == nil || spill.IsMark(body) {
		return nil, body == nil
	}
	return groupsOf(body), true
}

// FetchGroups is Groups for a user whose feed may be on disk. It waits for the disk as Fetch does.
func (f *Feed) FetchGroups(ctx context.Context, key uint64) ([]Group, error) {
	body, err := f.bodies.Fetch(ctx, key)
	if body == nil || err != nil {
		return nil, err
	}
	return groupsOf(body), nil
}

func groupsOf(body []byte) []Group {
	followees, _, groups := decodeFeed(nil, body)
	return decodeGroups(groups, followees)
}

// Bytes implements Machine. While a snapshot is being restored, its contents count too.
func (f *Feed) Bytes() uint64 { return f.bodies.Bytes() }

// SnapshotBytes estimates the size of a snapshot without the request memory. A snapshot includes
// the feeds on disk. A snapshot encodes numbers in whole bytes. For ids in the millions, these take
// a quarter more space than the bits in memory.
func (f *Feed) SnapshotBytes() uint64 {
	s := f.bodies.Stats()
	return (s.Bytes + s.SpilledBytes) * 3 / 2
}

// feed is the contents of a shard of feeds.
type feed struct {
	inMemory
	bodies *spill.Bodies
	sum    uint64 // digest of all followees

	batch                feedBatch
	was, now             []Followee // scratch for the op being applied
	wasStamp, nowStamp   uint64
	wasGroups, nowGroups []Group
	body                 []byte
	loading              feedReader
}

func (f *feed) begin() { f.batch.begin() }

func (f *feed) decode(_ *dedup.RequestID, p []byte, _ bool) (int, error) {
	return parseOps(p, f.batch.op)
}

// void turns the last ops into reads, which change no feed.
func (f *feed) void(ops int) {
	b := &f.batch
	first := len(b.ops) - ops
	end := 0
	if first > 0 {
		end = b.ends[first-1]
	}
	b.followees = b.followees[:end]
	for i := first; i < len(b.ops); i++ {
		b.ops[i].Kind, b.ops[i].Group, b.ends[i] = FeedRead, "", end
	}
}

func (f *feed) apply(_ int64, r *Result) error {
	f.batch.link()
	if err := f.bodies.LockReturned(f.batch.users); err != nil {
		return err
	}
	defer f.bodies.Unlock()
	for i := range f.batch.ops {
		op := &f.batch.ops[i]
		if op.Kind == FeedClear {
			f.bodies.Clear()
			f.sum = 0
			continue
		}
		if why, not := f.change(op, r.Index); not {
			r.Overflows = append(r.Overflows, engine.Overflow{Op: i, Column: why})
		} else {
			f.replace(op.User)
		}
		if r.Width > 0 {
			r.Rows[i*r.Width] = f.answer(op)
		}
		if r.Width > FeedMerged && op.overtaken(f.wasStamp) {
			r.Rows[i*r.Width+FeedMerged] = FeedOvertaken
		}
	}
	return nil
}

// change applies an op of the entry at index to the feed in was, and stores the result in now. If
// it refuses the op, it copies was to now.
func (f *feed) change(op *FeedOp, index uint64) (why uint8, refused bool) {
	f.was, f.wasStamp, f.wasGroups = f.was[:0], 0, nil
	if body := f.bodies.Get(op.User); body != nil {
		var groups []byte
		f.was, f.wasStamp, groups = decodeFeed(f.was, body)
		f.wasGroups = decodeGroups(groups, f.was)
	}
	f.now = op.change(f.now[:0], f.was, op.overtaken(f.wasStamp))
	if f.nowStamp = f.wasStamp; op.Since > 0 && op.setsPosts() {
		f.nowStamp = index
	}
	if refused = len(f.now) > FolloweesMax; refused {
		why = RefusedFollowees
	} else if f.nowGroups = nil; len(f.wasGroups) > 0 || op.Kind == FeedPutGroup {
		f.nowGroups, why, refused = op.changeGroups(f.wasGroups, f.now)
	}
	if refused {
		f.now, f.nowStamp, f.nowGroups = append(f.now[:0], f.was...), f.wasStamp, f.wasGroups
	}
	return why, refused
}

// answer returns the row of the op that made now.
func (f *feed) answer(op *FeedOp) int64 {
	if op.Kind.OfGroup() {
		return groupSize(f.nowGroups, op.Group)
	}
	return int64(len(f.now))
}

// change appends to dst the followees of a user after the op. If merges is set, the seen posts of a
// followee do not fall.
func (op *FeedOp) change(dst, was []Followee, merges bool) []Followee {
	if op.Kind == FeedReset {
		first := len(dst)
		dst = append(dst, op.Followees...)
		for i := 0; merges && i < len(was); i++ {
			if at, found := findFollowee(dst[first:], was[i].ID); found {
				dst[first+at] = merge(was[i], dst[first+at])
			}
		}
		return dst
	}
	if op.Kind.OfGroup() {
		return append(dst, was...)
	}
	named := op.Followees
	for _, f := range was {
		for op.Kind == FeedFollow && len(named) > 0 && named[0].ID < f.ID {
			dst, named = append(dst, named[0]), named[1:]
		}
		at, found := findFollowee(named, f.ID)
		named = named[at:]
		switch {
		case !found || op.Kind == FeedFollow:
			dst = append(dst, f)
		case op.Kind == FeedRead && merges:
			dst = append(dst, merge(f, named[0]))
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

// replace stores now, nowStamp and nowGroups as a user's feed. The feed that it replaces is
// was, wasStamp and wasGroups.
func (f *feed) replace(key uint64) {
	if slices.Equal(f.was, f.now) && f.wasStamp == f.nowStamp && sameGroups(f.wasGroups, f.nowGroups) {
		return
	}
	f.sum += followeesDigest(key, f.now) - followeesDigest(key, f.was)
	f.sum += groupsDigest(key, f.nowGroups) - groupsDigest(key, f.wasGroups)
	if len(f.now)+len(f.nowGroups) == 0 {
		f.bodies.Set(key, nil)
		return
	}
	f.body = appendGroups(appendFeed(f.body[:0], f.now, f.nowStamp), f.nowGroups, f.now)
	f.bodies.Set(key, f.body)
}

// followeesDigest returns a user's part of the digest. For each followee it adds a hash
// of user and followee times the posts, and that hash with its halves exchanged, so that
// a followee without posts counts too.
func followeesDigest(key uint64, followees []Followee) uint64 {
	sum, user := uint64(0), splitmix.Next(key)
	for _, f := range followees {
		h := splitmix.Next(user + bits.RotateLeft64(splitmix.Next(f.ID), 32))
		sum += h*uint64(f.Posts) + bits.RotateLeft64(h, 32)
	}
	return sum
}

func (f *feed) digest() uint64 { return f.sum }

func (f *feed) stats() engine.Stats {
	s := f.bodies.Stats()
	return engine.Stats{Rows: s.Keys, Segments: s.Slots, Bytes: s.Bytes, ColdRows: s.Spilled, ColdBytes: s.SpilledBytes}
}

func (f *feed) dispose() { f.bodies.Dispose() }

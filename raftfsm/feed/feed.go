// Package feed owns the state machine of shards of feeds. A feed contains a user's followees, the
// number of posts of each that the user has seen, and the user's groups of followees. The package
// never knows the current numbers of posts: a proposer reads them and passes them in an op. A feed
// is one body. While nobody uses it, it may move from memory to the replica's disk. The move
// changes no answer.
//
// Invariant: posts that a user has seen never become unread again, whatever the order of proposals
// (see Op).
package feed

import (
	"context"
	"math/bits"
	"slices"
	"sync"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/spill"
)

// Machine is the state machine of one shard of feeds.
type Machine struct {
	raftfsm.Base
	bodies *spill.Shard
}

// pageBytes suffices for about ten users with a hundred followees each.
const pageBytes = 4 << 10

// New returns a feed shard before its first entry. Idle feeds move from memory to place. Each
// replica decides by itself which feeds to move.
func New(place spill.Place) *Machine {
	f := &Machine{bodies: spill.NewShard(spill.Config{Place: place, What: "the feed of user", PageBytes: pageBytes, Digest: bodyDigest})}
	f.Init(codec.KindFeed, func() raftfsm.Contents { return &contents{bodies: f.bodies.New()} }, func(held raftfsm.Contents) { f.bodies.Show(held.(*contents).bodies) })
	return f
}

// Bodies returns the feeds as bodies that may leave memory.
func (f *Machine) Bodies() *spill.Shard { return f.bodies }

// Close implements Machine.
func (f *Machine) Close() { f.bodies.Close() }

// Followees appends the followees of a user to dst, ascending by id, as of one moment during the
// call. It returns the stamp of the feed, or 0 (see Op). It allocates only to grow dst. If the feed
// is on disk, it returns dst unchanged and false. The caller then uses Fetch.
func (f *Machine) Followees(dst []Followee, key uint64) (_ []Followee, stamp uint64, inMemory bool) {
	bodies := f.bodies.Current()
	body := bodies.Get(key)
	if body == nil || spill.IsMark(body) {
		return dst, 0, body == nil
	}
	dst, stamp, _ = decodeBody(dst, body)
	return dst, stampOf(bodies, stamp), true
}

// Fetch is like Followees, but for a user whose feed may be on disk. Like spill.Shard.Fetch, it
// waits for the disk until ctx ends.
func (f *Machine) Fetch(ctx context.Context, dst []Followee, key uint64) (_ []Followee, stamp uint64, err error) {
	body, bodies, err := f.bodies.Fetch(ctx, key)
	if body == nil || err != nil {
		return dst, 0, err
	}
	dst, stamp, _ = decodeBody(dst, body)
	return dst, stampOf(bodies, stamp), nil
}

// Groups returns the groups of a user, ascending by name. If the feed is on disk, it returns false.
// The caller then uses FetchGroups.
func (f *Machine) Groups(key uint64) (groups []Group, inMemory bool) {
	body := f.bodies.Current().Get(key)
	if body == nil || spill.IsMark(body) {
		return nil, body == nil
	}
	return groupsOf(body), true
}

// FetchGroups is like Groups, but for a user whose feed may be on disk. Like Fetch, it waits for
// the disk.
func (f *Machine) FetchGroups(ctx context.Context, key uint64) ([]Group, error) {
	body, _, err := f.bodies.Fetch(ctx, key)
	if body == nil || err != nil {
		return nil, err
	}
	return groupsOf(body), nil
}

func groupsOf(body []byte) []Group {
	followees, _, groups := decodeBody(nil, body)
	return decodeGroups(groups, followees)
}

// Bytes implements Machine. While a snapshot is being restored, the contents that were loaded so
// far count too.
func (f *Machine) Bytes() uint64 { return f.bodies.Bytes() }

// SnapshotBytes estimates the size of a snapshot without the request memory. A snapshot includes
// the feeds on disk. A snapshot encodes numbers in whole bytes. For ids in the millions, that takes
// a quarter more space than the Rice codes in memory.
func (f *Machine) SnapshotBytes() uint64 {
	s := f.bodies.Stats()
	return (s.Bytes + s.SpilledBytes) * 3 / 2
}

type contents struct {
	raftfsm.InMemory
	bodies *spill.Bodies // their digest is that of all feeds; for Origin, see stampOf

	batch                batch
	was, now             []Followee // the feed before and after the op being applied
	wasStamp, nowStamp   uint64
	wasGroups, nowGroups []Group
	body                 []byte
	loading              reader
}

func (f *contents) Begin() { f.batch.begin() }

func (f *contents) Decode(_ *dedup.RequestID, p []byte, _ bool) (int, error) {
	return raftfsm.ParseOps(p, f.batch.op)
}

// Void turns the last ops into reads, which change no feed.
func (f *contents) Void(ops int) {
	b := &f.batch
	first := len(b.ops) - ops
	end := 0
	if first > 0 {
		end = b.ends[first-1]
	}
	b.followees = b.followees[:end]
	for i := first; i < len(b.ops); i++ {
		b.ops[i].Kind, b.ops[i].Group, b.ends[i] = Read, "", end
	}
}

func (f *contents) Apply(_ int64, _ bool, r *raftfsm.Result) error {
	f.batch.link()
	if err := f.bodies.LockReturned(f.batch.users); err != nil {
		return err
	}
	defer f.bodies.Unlock()
	for i := range f.batch.ops {
		op := &f.batch.ops[i]
		if op.Kind == Clear {
			f.bodies.Clear()
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
		if r.Width > Merged && op.overtaken(f.wasStamp) {
			r.Rows[i*r.Width+Merged] = Overtaken
		}
	}
	return nil
}

// change applies an op of the entry at index to its user's feed. It decodes the feed into f.was, and
// stores the result in f.now. If it refuses the op, it copies f.was to f.now.
func (f *contents) change(op *Op, index uint64) (why uint8, refused bool) {
	f.was, f.wasStamp, f.wasGroups = f.was[:0], 0, nil
	if body := f.bodies.Get(op.User); body != nil {
		var groups []byte
		f.was, f.wasStamp, groups = decodeBody(f.was, body)
		f.wasGroups = decodeGroups(groups, f.was)
		f.wasStamp = stampOf(f.bodies, f.wasStamp)
	}
	f.now = op.change(f.now[:0], f.was, op.overtaken(f.wasStamp))
	if f.nowStamp = f.wasStamp; op.Since > 0 && op.setsPosts() {
		f.nowStamp = index
	}
	if refused = len(f.now) > FolloweesMax; refused {
		why = RefusedFollowees
	} else if f.nowGroups = nil; len(f.wasGroups) > 0 || op.Kind == PutGroup {
		f.nowGroups, why, refused = op.changeGroups(f.wasGroups, f.now)
	}
	if refused {
		f.now, f.nowStamp, f.nowGroups = append(f.now[:0], f.was...), f.wasStamp, f.wasGroups
	}
	return why, refused
}

// answer returns the first column of the op's result row, from f.now and f.nowGroups.
func (f *contents) answer(op *Op) int64 {
	if op.Kind.OfGroup() {
		return groupSize(f.nowGroups, op.Group)
	}
	return int64(len(f.now))
}

// change appends to dst the followees of a user after the op. If merges is set, the seen posts of a
// followee never decrease.
func (op *Op) change(dst, was []Followee, merges bool) []Followee {
	if op.Kind == Reset {
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
		for op.Kind == Follow && len(named) > 0 && named[0].ID < f.ID {
			dst, named = append(dst, named[0]), named[1:]
		}
		at, found := findFollowee(named, f.ID)
		named = named[at:]
		switch {
		case !found || op.Kind == Follow:
			dst = append(dst, f)
		case op.Kind == Read && merges:
			dst = append(dst, merge(f, named[0]))
		case op.Kind == Read:
			dst = append(dst, named[0])
		}
		if found {
			named = named[1:]
		}
	}
	if op.Kind == Follow {
		dst = append(dst, named...)
	}
	return dst
}

// replace stores f.now, f.nowStamp and f.nowGroups as a user's feed. The earlier feed is in
// f.was, f.wasStamp and f.wasGroups.
func (f *contents) replace(key uint64) {
	if slices.Equal(f.was, f.now) && f.wasStamp == f.nowStamp && sameGroups(f.wasGroups, f.nowGroups) {
		return
	}
	digest := followeesDigest(key, f.now) - followeesDigest(key, f.was)
	digest += groupsDigest(key, f.nowGroups) - groupsDigest(key, f.wasGroups)
	if len(f.now)+len(f.nowGroups) == 0 {
		f.bodies.Set(key, nil, digest)
		return
	}
	stamp := f.nowStamp
	if stamp > 0 {
		stamp += f.bodies.Origin
	}
	f.body = appendGroups(appendBody(f.body[:0], f.now, stamp), f.nowGroups, f.now)
	f.bodies.Set(key, f.body, digest)
}

// Digest returns what the feed adds to the digest of a shard in which its user has the given key.
func (f *Feed) Digest(key uint64) uint64 {
	return followeesDigest(key, f.Followees) + groupsDigest(key, f.Groups)
}

// followeesDigest returns a user's part of the digest. For each followee, it adds h times the
// posts, where h is a hash of the user and the followee. It also adds h with its halves exchanged,
// so that a followee without posts changes the sum.
func followeesDigest(key uint64, followees []Followee) uint64 {
	sum, user := uint64(0), wire.MixNext(key)
	for _, f := range followees {
		h := wire.MixNext(user + bits.RotateLeft64(wire.MixNext(f.ID), 32))
		sum += h*uint64(f.Posts) + bits.RotateLeft64(h, 32)
	}
	return sum
}

// bodyDigest is Digest of a body.
func bodyDigest(key uint64, body []byte) uint64 {
	scratch := followeesPool.Get().(*[]Followee)
	defer followeesPool.Put(scratch)
	followees, _, groups := decodeBody((*scratch)[:0], body)
	*scratch = followees
	return followeesDigest(key, followees) + groupsDigest(key, decodeGroups(groups, followees))
}

// followeesPool lets the shards of a process share the memory of bodyDigest.
var followeesPool = sync.Pool{New: func() any { return new([]Followee) }}

func (f *contents) Digest() uint64 { return f.bodies.Digest() }

func (f *contents) Stats() engine.Stats {
	s := f.bodies.Stats()
	return engine.Stats{Rows: s.Keys, Segments: s.Slots, Bytes: s.Bytes, ColdRows: s.Spilled, ColdBytes: s.SpilledBytes}
}

func (f *contents) Dispose() { f.bodies.Dispose() }

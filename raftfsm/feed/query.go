package feed

import (
	"context"
	"encoding/binary"
	"slices"
	"time"

	"github.com/countd/countd/internal/wire"

	"github.com/countd/countd/raftfsm"
)

const (
	// feedsInReadMax bounds the feeds of one read. With FolloweesMax followees each, they take a
	// few megabytes.
	feedsInReadMax = 32
	// feedBytesHint is the estimated size of a feed in an answer.
	feedBytesHint = 8 << 10
)

// Query reads the feeds of users. One read of a shard returns at most feedsInReadMax feeds. If a
// query needs more, several reads return them, perhaps from different replicas.
type Query struct {
	raftfsm.Defaults
	followees []Followee
	feeds     []feedAnswer // by user, in the order of the read's ids
}

// feedAnswer is the feed of one user in Query.followees.
type feedAnswer struct {
	from, to int
	stamp    uint64
	modulus  uint32
}

// Of returns the followees of user i, ascending by id, and the stamp of the feed, or 0; see Op.
func (q *Query) Of(i int) (followees []Followee, stamp uint64) {
	f := q.feeds[i]
	return q.followees[f.from:f.to], f.stamp
}

// Modulus returns the modulus of the route by which the feed of user i was read; see Op.
func (q *Query) Modulus(i int) uint32 { return q.feeds[i].modulus }

// Cap returns the number of followees for which the answer has memory.
func (q *Query) Cap() int { return cap(q.followees) }

// Begin prepares the answer for n users. A user whose feed is not set follows nobody.
func (q *Query) Begin(n int) {
	q.followees, q.feeds = q.followees[:0], slices.Grow(q.feeds[:0], n)[:n]
	clear(q.feeds)
}

// set sets the feed of user i. followees must be q.followees with the user's followees appended.
func (q *Query) set(i int, followees []Followee, stamp uint64, modulus uint32) {
	q.feeds[i] = feedAnswer{from: len(q.followees), to: len(followees), stamp: stamp, modulus: modulus}
	q.followees = followees
}

// Append sets the feed of user i, without a modulus. It must be called at most once for each user after Begin.
func (q *Query) Append(i int, followees []Followee, stamp uint64) {
	q.set(i, append(q.followees, followees...), stamp, 0)
}

// Number implements Query.
func (*Query) Number() byte { return 0 }

// Limits implements Query.
func (*Query) Limits(keys int) raftfsm.Limits {
	return raftfsm.Limits{Keys: feedsInReadMax, Bytes: feedBytesHint * keys, Answer: keys * (2 + 2*FolloweesMax) * binary.MaxVarintLen64}
}

// Split implements Query.
func (q *Query) Split(read *raftfsm.Read) { q.Begin(len(read.IDs)) }

// One implements Query.
func (q *Query) One(m raftfsm.Machine, key uint64) bool {
	f, is := m.(*Machine)
	if !is {
		return false
	}
	q.Begin(1)
	followees, stamp, inMemory := f.Followees(q.followees, key)
	if inMemory {
		q.set(0, followees, stamp, m.Route().Modulus)
	}
	return inMemory
}

// Answer implements Query. If it reads from memory and p.At is set, it sets the feeds of q.
// Otherwise it appends each feed to p.Words (appendFeedWords).
func (q *Query) Answer(m raftfsm.Machine, p *raftfsm.Part, disk bool, deadline time.Time) error {
	f, is := m.(*Machine)
	if !is {
		return raftfsm.ErrOtherKind
	}
	p.Words = p.Words[:0]
	if !disk {
		var scratch []Followee
		for i, key := range p.Keys {
			dst := scratch
			if len(p.At) > 0 {
				dst = q.followees
			}
			followees, stamp, inMemory := f.Followees(dst, key)
			switch {
			case !inMemory:
				return raftfsm.ErrNotInMemory
			case len(p.At) > 0:
				q.set(p.At[i], followees, stamp, p.Route.Modulus)
			default:
				scratch, p.Words = followees[:0], appendFeedWords(p.Words, followees, stamp)
			}
		}
		return nil
	}
	feeds, stamps := make([][]Followee, len(p.Keys)), make([]uint64, len(p.Keys))
	err := raftfsm.EachRead(len(p.Keys), deadline, func(ctx context.Context, i int) (err error) {
		feeds[i], stamps[i], err = f.Fetch(ctx, nil, p.Keys[i])
		return err
	})
	for i, followees := range feeds {
		p.Words = appendFeedWords(p.Words, followees, stamps[i])
	}
	return err
}

// Join implements Query. A failed part has no Words.
func (q *Query) Join(read *raftfsm.Read) bool {
	for s := range read.Parts {
		p := &read.Parts[s]
		for words, i := p.Words, 0; len(words) > 0; i++ {
			followees := q.followees
			n, stamp := words[0], uint64(words[1])
			for words = words[2:]; n > 0; n-- {
				followees = append(followees, Followee{ID: uint64(words[0]), Posts: words[1]})
				words = words[2:]
			}
			q.set(p.At[i], followees, stamp, p.Route.Modulus)
		}
	}
	return false
}

// ParseAnswer implements Query.
func (*Query) ParseAnswer(r *wire.Reader, p *raftfsm.Part) {
	p.Words = p.Words[:0]
	for range p.Keys {
		p.Words = raftfsm.ParseCounted(r, p.Words, FolloweesMax, func(n int) int { return 1 + 2*n })
	}
}

// appendFeedWords appends a feed: the number of followees, the stamp, then the id and the posts of each
// followee.
func appendFeedWords(words []int64, feed []Followee, stamp uint64) []int64 {
	words = append(words, int64(len(feed)), int64(stamp))
	for _, f := range feed {
		words = append(words, int64(f.ID), f.Posts)
	}
	return words
}

package counters

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/spill"

	"github.com/countd/countd/raftfsm"
)

const (
	// PostsMax bounds the posts of one read.
	PostsMax = 1_001
	// postBytes bounds the bytes of a post in an answer.
	postBytes = 2 * binary.MaxVarintLen64
)

// Post is a post in a timeline.
type Post struct{ ID, Author uint64 }

// PostsQuery reads the newest posts of several authors, in the order of a timeline: by descending
// id, and equal ids by ascending author. The ids of the read are the authors, ascending, without
// duplicates. The posts of one author are from one moment.
type PostsQuery struct {
	raftfsm.Defaults
	Limit int // 1 to PostsMax
	// If HasAfter is set, After is the last post of the previous page, and the result begins after
	// it.
	After    Post
	HasAfter bool

	Posts      []Post // the result; each read reuses its memory
	Unreadable []int  // the shards that could not be read, ascending

	selected selection
	newest   newestPosts // Author is an index in the read's ids
	parts    []postsPart // by shard
}

// selection selects the posts whose ids are not above last. If an author's index is less than
// below, it omits the post with the id last, because that post was on the previous page.
type selection struct {
	last  uint64
	below int
}

// postsPart is a shard's part of a read of posts.
type postsPart struct {
	counters *Machine      // this node's replica; nil if Part.Words has the result
	outboxes *spill.Bodies // outboxes of that replica
	disk     bool          // the part must be read again, with disk set
}

// lastOf returns the highest id that s selects for an author. It returns false if s selects none.
func (s *selection) lastOf(author int) (last uint64, has bool) {
	if author >= s.below {
		return s.last, true
	}
	return s.last - 1, s.last > 0
}

// newest adds the posts of the authors with the given keys to into. The author index of keys[i] is
// at[i], or i if at is nil. newest does not read outboxes on disk; into.Missing returns those that
// must be read. Their marks are valid for the bodies that newest returns.
func (c *Machine) newest(keys []uint64, at []int, s *selection, into *newestPosts) *spill.Bodies {
	bodies := c.outboxes.Current()
	bodies.GetMany(keys, func(i int, body []byte) {
		author := i
		if at != nil {
			author = at[i]
		}
		last, has := s.lastOf(author)
		switch {
		case !has:
		case spill.IsMark(body):
			into.AddSummary(author, body, spill.Summary(body), last)
		default:
			into.Add(author, body, last)
		}
	})
	return bodies
}

// Number implements Query.
func (*PostsQuery) Number() byte { return 2 }

// Limits implements Query.
func (q *PostsQuery) Limits(keys int) raftfsm.Limits {
	return raftfsm.Limits{Keys: raftfsm.ReadKeysMax, Bytes: 8*keys + postBytes*q.Limit, Answer: postBytes * (1 + q.Limit), Partial: true}
}

// Split implements Query.
func (q *PostsQuery) Split(read *raftfsm.Read) {
	q.Posts, q.Unreadable = q.Posts[:0], q.Unreadable[:0]
	q.parts = slices.Grow(q.parts[:0], len(read.Parts))[:len(read.Parts)]
	clear(q.parts)
	q.selected = selection{last: noLast}
	if q.HasAfter {
		below, found := slices.BinarySearch(read.IDs, q.After.Author)
		if found {
			below++
		}
		q.selected = selection{q.After.ID, below}
	}
}

// noLast is selection.last for the first page.
const noLast = 1<<64 - 1

// of returns the selection for the keys of a Part.
func (q *PostsQuery) of(p *raftfsm.Part) selection {
	s := q.selected
	if p.At != nil {
		s.below, _ = slices.BinarySearch(p.At, s.below)
	}
	return s
}

// Answer implements Query. If p.At is not nil and disk is false, it only records the replica: Join
// then merges the posts of all shards, and reads only those outboxes on disk that the merged page
// needs. Otherwise it sets Words to the number of posts; then for each post its id and the index of
// its author in the keys.
func (q *PostsQuery) Answer(m raftfsm.Machine, p *raftfsm.Part, disk bool, deadline time.Time) error {
	c, is := m.(*Machine)
	if !is {
		return raftfsm.ErrOtherKind
	}
	if !disk && p.At != nil {
		if q.parts[p.Shard].disk {
			return raftfsm.ErrNotInMemory
		}
		q.parts[p.Shard].counters = c
		return nil
	}
	selected := q.of(p)
	var newest newestPosts
	for {
		newest.Reset(q.Limit)
		bodies := c.newest(p.Keys, nil, &selected, &newest)
		missing := newest.Missing(nil)
		if len(missing) > 0 && !disk {
			return raftfsm.ErrNotInMemory
		}
		err := readOutboxes(missing, deadline, func(author int) (*spill.Bodies, uint64) { return bodies, p.Keys[author] })
		if errors.Is(err, spill.ErrMoved) && time.Now().Before(deadline) {
			continue // read again, with the present outboxes
		}
		if err != nil {
			return err
		}
		for i := range missing {
			newest.Found(&missing[i])
		}
		posts := newest.Posts()
		p.Words = append(p.Words[:0], int64(len(posts)))
		for _, post := range posts {
			bodies.Touch(p.Keys[post.Author])
			p.Words = append(p.Words, int64(post.ID), int64(post.Author))
		}
		return nil
	}
}

// readOutboxes reads the missing outboxes from disk and sets their Body. of returns the bodies and
// the key of an author.
func readOutboxes(missing []missingOutbox, deadline time.Time, of func(author int) (*spill.Bodies, uint64)) error {
	return raftfsm.EachRead(len(missing), deadline, func(ctx context.Context, i int) (err error) {
		bodies, key := of(missing[i].Author)
		missing[i].Body, err = bodies.FetchMark(ctx, key, missing[i].Mark)
		return err
	})
}

// Join implements Query. It merges the posts of all shards. If an outbox on disk could not be read
// or has moved, or if a shard has split, Join makes the read ask that shard again, now with disk set.
// Answer then repeats its reads until no outbox moves meanwhile.
func (q *PostsQuery) Join(read *raftfsm.Read) (again bool) {
	defer func() { // let the garbage collector free replicas and outboxes
		q.newest.Reset(0)
		for s := range q.parts {
			q.parts[s] = postsPart{disk: again && q.parts[s].disk}
		}
	}()
	if read.Err != nil {
		return false
	}
	q.newest.Reset(q.Limit)
	q.Unreadable = q.Unreadable[:0]
	for s := range read.Parts {
		p, of := &read.Parts[s], &q.parts[s]
		switch {
		case p.Failed:
			q.Unreadable = append(q.Unreadable, s)
		case of.counters != nil:
			of.outboxes = of.counters.newest(p.Keys, p.At, &q.selected, &q.newest)
			if !of.counters.Routed(p.Route) { // Answer compared the route before the outboxes were read
				of.disk, again = true, true
			}
		default:
			q.addWords(p)
		}
	}
	if again || q.readMissing(read) {
		return true
	}
	for _, post := range q.newest.Posts() {
		author := read.IDs[post.Author]
		if s, key := read.Route.KeyOf(author); q.parts[s].outboxes != nil {
			q.parts[s].outboxes.Touch(key)
		}
		q.Posts = append(q.Posts, Post{post.ID, author})
	}
	return false
}

// readMissing reads the outboxes on disk that the page needs. If a read fails, it sets disk for the
// shards of all these outboxes, and returns true.
func (q *PostsQuery) readMissing(read *raftfsm.Read) (failed bool) {
	missing := q.newest.Missing(nil)
	err := readOutboxes(missing, read.Deadline, func(author int) (*spill.Bodies, uint64) {
		s, key := read.Route.KeyOf(read.IDs[author])
		return q.parts[s].outboxes, key
	})
	for i := range missing {
		if err == nil {
			q.newest.Found(&missing[i])
			continue
		}
		s, _ := read.Route.KeyOf(read.IDs[missing[i].Author])
		q.parts[s].disk = true
	}
	return err != nil
}

// addWords adds the posts of a Part whose result is in Words.
func (q *PostsQuery) addWords(p *raftfsm.Part) {
	for words := p.Words[min(1, len(p.Words)):]; len(words) > 0; words = words[2:] {
		if !q.newest.AddPost(foundPost{ID: uint64(words[0]), Author: p.At[words[1]]}) {
			return
		}
	}
}

// AppendTo implements Query: last (8) | below | limit.
func (q *PostsQuery) AppendTo(dst []byte, p *raftfsm.Part) []byte {
	s := q.of(p)
	dst = binary.AppendUvarint(binary.LittleEndian.AppendUint64(dst, s.last), uint64(s.below))
	return binary.AppendUvarint(dst, uint64(q.Limit))
}

// parsePostsQuery parses the bytes of AppendTo.
func parsePostsQuery(r *wire.Reader) raftfsm.Query {
	q := &PostsQuery{selected: selection{last: r.Fixed64(), below: int(r.UintTo(raftfsm.ReadKeysMax))}, Limit: int(r.UintTo(PostsMax))}
	if q.Limit == 0 {
		r.Fail("a read of no posts")
	}
	return q
}

// ParseAnswer implements Query.
func (q *PostsQuery) ParseAnswer(r *wire.Reader, p *raftfsm.Part) {
	p.Words = raftfsm.ParseCounted(r, p.Words[:0], q.Limit, func(n int) int { return 2 * n })
	for i := 2; i < len(p.Words); i += 2 {
		if p.Words[i] < 0 || p.Words[i] >= int64(len(p.Keys)) {
			r.Fail(fmt.Sprintf("a post of author %d", p.Words[i]))
			return
		}
	}
}

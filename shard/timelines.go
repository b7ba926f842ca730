package shard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/raftfsm/spill"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/keyspace"
	"github.com/countd/countd/shard/tiering"
)

// Timelines reads the posts of authors and the groups of followees.
type Timelines interface {
	// Newest appends the posts of q to dst. If only some shards of the authors could be read, it
	// returns their posts, and the numbers of the other shards, ascending. Each author's posts are of
	// one moment.
	Newest(ks *Keyspace, q *NewestPosts, opt *ReadOptions, dst []Post) (posts []Post, unreadable []int, err error)
	// Groups returns the groups of a user, ascending by name.
	Groups(ks *Keyspace, user uint64, opt *ReadOptions) ([]feed.Group, error)
}

const (
	// PostsMax bounds the posts of one read.
	PostsMax = 1_001
	// postBytes bounds the bytes of a post in an answer.
	postBytes = 2 * binary.MaxVarintLen64
)

// Post is a post in a timeline.
type Post struct{ ID, Author uint64 }

// NewestPosts is a query for the newest posts of authors, ordered by descending id. Posts of equal ids
// are ordered by ascending author.
type NewestPosts struct {
	Authors []uint64 // ascending, without duplicates
	Limit   int      // up to PostsMax
	// If HasAfter, After is the last post of the page before, and the result begins after it.
	After    Post
	HasAfter bool
}

// Newest implements Timelines.
func (rd *reader) Newest(ks *Keyspace, q *NewestPosts, opt *ReadOptions, dst []Post) ([]Post, []int, error) {
	groups, err := rd.groupsToRead(ks, opt)
	if err != nil {
		return dst, nil, rd.orUnknown(ks, err)
	}
	pg := newPage(readPosts, q.Authors, 0, groups[0].route)
	defer pg.release()
	pg.posts = counters.NewestPosts{Last: counters.NoLast, Limit: q.Limit}
	if q.HasAfter {
		pg.posts.Last = q.After.ID
		behind, found := slices.BinarySearch(q.Authors, q.After.Author)
		if found {
			behind++
		}
		pg.posts.Below = behind
	}
	for {
		if unreadable, err := rd.mergePosts(pg, groups, q.Limit, opt); err != nil {
			return dst, nil, rd.orUnknown(ks, err)
		} else if pg.readOutboxes(groups[0].route, q.Authors, opt.Deadline) {
			return pg.appendPosts(dst, groups[0].route, q.Authors), unreadable, nil
		}
	}
}

// mergePosts merges the newest posts of all shards, except those in outboxes on this node's disk.
func (rd *reader) mergePosts(pg *page, groups []*shardReplica, limit int, opt *ReadOptions) (unreadable []int, err error) {
	pg.newest.Reset(limit)
	for s := range pg.byShard { // after an earlier merge, another node may answer a shard
		pg.byShard[s].here, pg.byShard[s].outboxes = nil, nil
	}
	failed := rd.readShards(pg, groups, opt, time.Now())
	if unreadable, err = failed.unreadable(pg); err != nil {
		return nil, err
	}
	for s := range pg.byShard {
		if p := &pg.byShard[s]; len(p.keys) > 0 && p.here == nil && !slices.Contains(unreadable, s) {
			p.addPosts(&pg.newest)
		}
	}
	return unreadable, nil
}

// readOutboxes reads the outboxes on disk that the page needs. If one could not be read or has
// moved, it returns false, and the caller must merge the page again. The next merge reads the
// shards of these outboxes separately: with localReplica.postsRow, which repeats until no outbox
// has moved, or from another node.
func (pg *page) readOutboxes(route keyspace.Route, authors []uint64, deadline time.Time) (all bool) {
	missing := pg.newest.Missing(nil)
	if len(missing) == 0 {
		return true
	}
	err := tiering.ReadOutboxes(missing, deadline, func(author int) (*spill.Bodies, uint64) {
		s, key := route.KeyOf(authors[author])
		return pg.byShard[s].outboxes, key
	})
	for i := range missing {
		if err == nil {
			pg.newest.Found(&missing[i])
			continue
		}
		s, _ := route.KeyOf(authors[missing[i].Author])
		pg.byShard[s].disk = true
	}
	return err == nil
}

// appendPosts appends the posts of a page, and marks their outboxes as used.
func (pg *page) appendPosts(dst []Post, route keyspace.Route, authors []uint64) []Post {
	for _, p := range pg.newest.Posts() {
		author := authors[p.Author]
		if s, key := route.KeyOf(author); pg.byShard[s].outboxes != nil {
			pg.byShard[s].outboxes.Touch(key)
		}
		dst = append(dst, Post{p.ID, author})
	}
	return dst
}

// unreadable returns the shards that failed, ascending. It returns an error if all shards of the page
// failed, or if one failed because of the request itself.
func (e *ReadError) unreadable(pg *page) (shards []int, err error) {
	if e == nil {
		return nil, nil
	}
	read := 0
	for s, failed := range e.ByShard {
		if len(pg.byShard[s].keys) > 0 {
			read++
		}
		if failed == nil {
			continue
		}
		if errors.Is(failed, ErrBadToken) || errors.Is(failed, ErrUnknownKeyspace) {
			return nil, failed
		}
		shards = append(shards, s)
		err = failed
	}
	if len(shards) < read {
		err = nil
	}
	return shards, err
}

// postsRow returns the posts of a read in a row of outbox.AppendRow. Unless cold is set, it returns
// errs.ErrColdRows if it needs outboxes that are not in memory.
func (r *localReplica) postsRow(q *remoteRead, cold bool, deadline time.Time) ([]int64, error) {
	if r.counters == nil {
		return nil, fmt.Errorf("%w: a read of posts in group %d", wire.ErrBadMessage, q.group)
	}
	var newest outbox.Newest
	for {
		newest.Reset(q.posts.Limit)
		bodies := r.counters.Newest(q.keys, nil, &q.posts, &newest)
		missing := newest.Missing(nil)
		if len(missing) > 0 && !cold {
			return nil, errs.ErrColdRows
		}
		err := tiering.ReadOutboxes(missing, deadline, func(author int) (*spill.Bodies, uint64) { return bodies, q.keys[author] })
		if errors.Is(err, spill.ErrMoved) && time.Now().Before(deadline) {
			continue // with the present outboxes
		}
		if err != nil {
			return nil, r.bodyFailure(err)
		}
		for i := range missing {
			newest.Found(&missing[i])
		}
		posts := newest.Posts()
		for _, p := range posts {
			bodies.Touch(q.keys[p.Author])
		}
		return outbox.AppendRow(nil, posts), nil
	}
}

// addPosts adds the posts of a part that another node read.
func (p *pagePart) addPosts(into *outbox.Newest) {
	for row := p.rows[1:]; len(row) > 0; row = row[2:] {
		if !into.AddPost(outbox.Post{ID: uint64(row[0]), Author: p.at[row[1]]}) {
			return
		}
	}
}

// parsePostsRow parses an answer with a row of outbox.AppendRow.
func parsePostsRow(r *wire.Reader, q *remoteRead) []int64 {
	row := parseCounted(r, nil, q.posts.Limit, func(n int) int { return 2 * n })
	for i := 2; i < len(row); i += 2 {
		if row[i] < 0 || row[i] >= int64(len(q.keys)) {
			r.Fail(fmt.Sprintf("a post of author %d", row[i]))
			return nil
		}
	}
	return row
}

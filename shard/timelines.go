package shard

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/raftfsm/spill"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/keyspace"
	"github.com/countd/countd/shard/tiering"
)

// Timelines reads the posts of authors and the groups of followees.
type Timelines interface {
	// Newest appends the posts that q asks for to dst. If only some shards of the authors
	// could be read, it returns the posts of those and the others, ascending. Each author's
	// posts are as of one moment.
	Newest(ks *Keyspace, q *NewestPosts, opt *ReadOptions, dst []Post) (posts []Post, unreadable []int, err error)
	// Groups returns the groups of a user, ascending by name.
	Groups(ks *Keyspace, user uint64, opt *ReadOptions) ([]raftfsm.Group, error)
}

const (
	// PostsMax bounds the posts of one read.
	PostsMax = 1_001
	// postBytes is the most that a post takes in an answer.
	postBytes = 2 * binary.MaxVarintLen64
)

// Post is a post in a timeline.
type Post struct{ ID, Author uint64 }

// NewestPosts asks for the newest posts of authors: by descending id, equal ids by ascending
// author.
type NewestPosts struct {
	Authors []uint64 // ascending, without duplicates
	Limit   int      // up to PostsMax
	// After is the last post of the page before, if HasAfter: only posts behind it are
	// returned.
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
	pg.posts = raftfsm.NewestPosts{Last: raftfsm.NoLast, Limit: q.Limit}
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

// mergePosts merges the newest posts of all shards, but of outboxes that are on disk here.
func (rd *reader) mergePosts(pg *page, groups []*shardReplica, limit int, opt *ReadOptions) (unreadable []int, err error) {
	pg.newest.Reset(limit)
	for s := range pg.byShard { // of an earlier merge: another node may answer a shard now
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

// readOutboxes reads the outboxes on disk without which the posts of the page are not known.
// If it returns false, one could not be read or has moved, and the page is to be merged again:
// each shard of them is read apart then, by localReplica.postsRow, which repeats until none
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

// appendPosts appends the posts of a page. Their outboxes are in use.
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

// unreadable returns the shards that failed, ascending, or an error if all that the page
// reads failed, or if one failed with an error of the request itself.
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

// postsRow returns the posts that a read asks for as outbox.AppendRow has them. Unless cold, it
// returns errs.ErrColdRows if it needs outboxes that memory does not hold.
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
			continue // and begin with the outboxes of now
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

// addPosts adds the posts of a part that another node read, in a row of outbox.AppendRow.
func (p *pagePart) addPosts(into *outbox.Newest) {
	for row := p.rows[1:]; len(row) > 0; row = row[2:] {
		if !into.AddPost(outbox.Post{ID: uint64(row[0]), Author: p.at[row[1]]}) {
			return
		}
	}
}

// parsePostsRow reads an answer with a row of outbox.AppendRow.
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

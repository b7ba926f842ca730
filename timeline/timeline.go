// Package timeline builds the home page of a user from the data of shards. The page has the newest
// posts of the user's followees, or of a group of them, with the counts of each post. The package
// also writes outboxes and groups. It keeps no state, and stores nothing for a follower.
//
// Invariant: a page contains each post between the cursor and its last post once, if the post
// existed throughout the read and its shard was readable. It names the shards that it could not
// read.
package timeline

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
)

// The bounds of a page.
const (
	LimitDefault = 20
	LimitMax     = counters.PostsMax - 1
)

// ErrNoGroup is returned for a group that the user does not have.
var ErrNoGroup = errors.New("no such group")

// ErrOverflow is returned when an author publishes and the number of posts does not fit int64.
var ErrOverflow = errors.New("the number of posts is not an integer of 64 bits")

// Node has the methods of a node that this package calls. *shard.Node implements it and documents
// them.
type Node interface {
	Keyspace(name string) *shard.Keyspace
	Read(ks *shard.Keyspace, q raftfsm.Query, ids []uint64, opt *shard.ReadOptions) error
	Write(ks *shard.Keyspace, w *shard.Write) error
}

// Timelines answers for all users. Any goroutine may call its methods.
//
// The caller of a write passes a shard.Write with the identity and the deadline of the request. The
// method sets its Duplicate and Token, and owns the rest of it until it returns. Errors are
// shard's, or this package's.
type Timelines struct{ node Node }

// New returns the timelines of a node.
func New(node Node) *Timelines { return &Timelines{node} }

// Published is the outcome of a publish or a removal.
type Published struct {
	// Changed is false if the post existed already, or if there was none to remove. It is false for
	// a repeat of the request.
	Changed bool
	Posts   int64 // of the author, afterwards
}

// Publish adds a post to the outbox of an author and counts it.
func (t *Timelines) Publish(author, id uint64, w *shard.Write) (Published, error) {
	return t.change(author, outbox.Op{Kind: outbox.Publish, ID: id}, w)
}

// Remove removes a post from the outbox of an author and from the count.
func (t *Timelines) Remove(author, id uint64, w *shard.Write) (Published, error) {
	return t.change(author, outbox.Op{Kind: outbox.Remove, ID: id}, w)
}

func (t *Timelines) change(author uint64, op outbox.Op, w *shard.Write) (p Published, err error) {
	ks, err := t.users()
	if err != nil {
		return p, err
	}
	w.Ops, w.Outbox = append(w.Ops[:0], engine.Op{ID: author}), []outbox.Op{op}
	w.Width, w.Rows = 1, make([]int64, 1)
	if err := t.node.Write(ks, w); err != nil {
		return p, err
	}
	if len(w.Overflows) > 0 {
		if w.Overflows[0].Column == counters.TooOldColumn {
			return p, &shard.ArgumentError{Field: "id", Problem: "older than what the outbox of the author keeps: it may have been published before"}
		}
		return p, ErrOverflow
	}
	unchanged := slices.ContainsFunc(w.Cuts, func(c engine.Cut) bool { return c.Column == counters.UnchangedColumn })
	return Published{Changed: !unchanged && !w.Repeated, Posts: w.Rows[counters.PostsColumn]}, nil
}

// users returns the keyspace of authors.
func (t *Timelines) users() (*shard.Keyspace, error) {
	return t.keyspace(shard.KeyspaceUsers, shard.KindCounters)
}

func (t *Timelines) keyspace(name, kind string) (*shard.Keyspace, error) {
	ks := t.node.Keyspace(name)
	if ks == nil || ks.Kind != kind {
		return nil, fmt.Errorf("%w: keyspace %s is being created", shard.ErrNoLeader, name)
	}
	return ks, nil
}

// Outbox returns up to limit posts of an author, newest first, and whether there are more. If
// hasAfter is set, it begins behind the post with id after.
func (t *Timelines) Outbox(author, after uint64, hasAfter bool, limit int, opt *shard.ReadOptions) (posts []counters.Post, more bool, err error) {
	ks, err := t.users()
	if err != nil {
		return nil, false, err
	}
	q := counters.PostsQuery{Limit: limit + 1, After: counters.Post{ID: after, Author: author}, HasAfter: hasAfter}
	err = t.node.Read(ks, &q, []uint64{author}, opt)
	return q.Posts[:min(limit, len(q.Posts))], len(q.Posts) > limit, err
}

// Query selects a page of a timeline.
type Query struct {
	User  uint64
	Group string // if not "", only the followees in this group
	Limit int    // 1 to LimitMax
	// After is the last post of the previous page, if HasAfter is set.
	After    counters.Post
	HasAfter bool
	// Counts is the keyspace of the counters that the page returns for each post; nil for none.
	Counts *shard.Keyspace
	// Member has columns of the keyspace Sets. For each of them, the page reports whether the user
	// is in the set of each post.
	Member []uint8
	Sets   *shard.Keyspace
}

// Page is one page of a timeline. The caller owns it and may reuse it.
type Page struct {
	Posts  []counters.Post
	More   bool    // whether there are posts behind the last one
	Counts []int64 // a row for each post, if the query has a keyspace
	Member []bool  // whether the user is in the set of each post: first the first column for all posts, then the next column
	// Unreadable are the shards of authors that could not be read, ascending. Their posts are
	// missing.
	Unreadable []int

	feeds   feed.Query
	authors []uint64
	posts   counters.PostsQuery
	ids     []uint64
	counts  rows.Query
	member  counters.ContainsQuery
}

// Read fills a page. Its parts may show different moments.
func (t *Timelines) Read(q *Query, opt *shard.ReadOptions, p *Page) error {
	p.Posts, p.Counts, p.Member, p.Unreadable, p.More = p.Posts[:0], p.Counts[:0], p.Member[:0], nil, false
	if err := t.readAuthors(q, opt, p); err != nil {
		return err
	}
	ks, err := t.users()
	if err != nil || len(p.authors) == 0 {
		return err
	}
	p.posts.Limit, p.posts.After, p.posts.HasAfter = q.Limit+1, q.After, q.HasAfter
	if err := t.node.Read(ks, &p.posts, p.authors, withTimeLeft(opt)); err != nil {
		return err
	}
	p.Posts, p.Unreadable = p.posts.Posts, p.posts.Unreadable
	if p.More = len(p.Posts) > q.Limit; p.More {
		p.Posts = p.Posts[:q.Limit]
	}
	return t.readRows(q, opt, p)
}

// withTimeLeft returns options with three quarters of the time left, so that an unreadable shard
// does not cost the page its counts.
func withTimeLeft(opt *shard.ReadOptions) *shard.ReadOptions {
	earlier := *opt
	earlier.Deadline = opt.Deadline.Add(-time.Until(opt.Deadline) / 4)
	return &earlier
}

// readAuthors sets the authors of a page, ascending.
func (t *Timelines) readAuthors(q *Query, opt *shard.ReadOptions, p *Page) error {
	p.authors = p.authors[:0]
	if q.Group != "" {
		group, err := t.Group(q.User, q.Group, opt)
		p.authors = append(p.authors, group.Followees...)
		return err
	}
	ks, err := t.keyspace(shard.KeyspaceFeed, shard.KindFeed)
	if err != nil {
		return err
	}
	if err := t.node.Read(ks, &p.feeds, []uint64{q.User}, opt); err != nil {
		return err
	}
	followees, _ := p.feeds.Of(0)
	for _, f := range followees {
		p.authors = append(p.authors, f.ID)
	}
	return nil
}

// readRows reads the counts and the sets of the posts at once.
func (t *Timelines) readRows(q *Query, opt *shard.ReadOptions, p *Page) error {
	if q.Counts == nil && len(q.Member) == 0 || len(p.Posts) == 0 {
		return nil
	}
	p.ids = p.ids[:0]
	for _, post := range p.Posts {
		p.ids = append(p.ids, post.ID)
	}
	if len(q.Member) == 0 {
		return t.readCounts(q.Counts, opt, p)
	}
	var counts error
	var rest sync.WaitGroup
	if q.Counts != nil {
		rest.Go(func() { counts = t.readCounts(q.Counts, opt, p) }) // ends at the deadline
	}
	sets := t.readSets(q, opt, p)
	rest.Wait()
	return errors.Join(counts, sets)
}

func (t *Timelines) readCounts(ks *shard.Keyspace, opt *shard.ReadOptions, p *Page) error {
	width := len(ks.Columns)
	p.Counts = slices.Grow(p.Counts, len(p.ids)*width)[:len(p.ids)*width]
	p.counts = rows.Query{Width: width, Rows: p.Counts}
	return t.node.Read(ks, &p.counts, p.ids, opt)
}

func (t *Timelines) readSets(q *Query, opt *shard.ReadOptions, p *Page) error {
	n := len(p.ids)
	p.Member = slices.Grow(p.Member, n*len(q.Member))[:n*len(q.Member)]
	for i, column := range q.Member {
		p.member = counters.ContainsQuery{Column: column, Member: q.User, In: p.Member[i*n : (i+1)*n]}
		if err := t.node.Read(q.Sets, &p.member, p.ids, opt); err != nil {
			return fmt.Errorf("cannot read members: %w", err)
		}
	}
	return nil
}

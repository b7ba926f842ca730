package inbox

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/strictjson"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// These constants bound TimelineQuery.Limit.
const (
	TimelinePostsDefault = 20
	TimelinePostsMax     = counters.PostsMax - 1
)

// ErrNoGroup is returned for a group that the user does not have.
var ErrNoGroup = errors.New("no such group")

// ErrPostsOverflow is returned by Publish when the author's number of posts would not fit int64.
var ErrPostsOverflow = errors.New("the number of posts is not an integer of 64 bits")

// Timelines reads and changes the timelines of all users. Any goroutine may call its methods.
//
// The caller of a write passes a shard.Write with the identity and the deadline of the request. The
// method sets Duplicate and Token of the shard.Write. The caller must not use the shard.Write until
// the method returns. Methods return errors of package shard and of this package.
type Timelines struct {
	node   Node
	limits counters.OutboxLimits // limits of the outboxes
}

// NewTimelines returns the Timelines of a node.
func NewTimelines(node Node, keep OutboxKeep) *Timelines { return &Timelines{node, keep.limits()} }

// Published is the outcome of a publish or a removal.
type Published struct {
	// Changed is false if the published post already existed, or the removed post did not exist. It
	// is also false for a repeated request.
	Changed bool
	Posts   int64 // the author's number of posts after the write
}

// Publish adds a post to the outbox of an author and counts it.
func (t *Timelines) Publish(author, id uint64, w *shard.Write) (Published, error) {
	limits := t.limits
	if posts := t.node.Keyspace(kinds.KeyspacePosts); posts != nil && posts.Names != "" {
		limits = counters.OutboxLimits{Posts: limits.Posts} // the numbers of texts contain no time
	}
	return t.change(author, counters.PostOp{Kind: counters.Publish, ID: id, Limits: limits}, w)
}

// Remove removes a post from the outbox of an author and from the count.
func (t *Timelines) Remove(author, id uint64, w *shard.Write) (Published, error) {
	return t.change(author, counters.PostOp{Kind: counters.Unpublish, ID: id}, w)
}

func (t *Timelines) change(author uint64, op counters.PostOp, w *shard.Write) (p Published, err error) {
	ks, err := t.users()
	if err != nil {
		return p, err
	}
	w.Ops, w.Width, w.Rows = counters.OutboxOps{{Author: author, PostOp: op}}, 1, make([]int64, 1)
	if err := t.node.Write(ks, w); err != nil {
		return p, err
	}
	if len(w.Overflows) > 0 {
		if w.Overflows[0].Column == counters.TooOldColumn {
			return p, &errs.ArgumentError{Field: "id", Problem: "older than what the outbox of the author keeps: it may have been published before"}
		}
		return p, ErrPostsOverflow
	}
	unchanged := slices.ContainsFunc(w.Cuts, func(c engine.Cut) bool { return c.Column == counters.UnchangedColumn })
	return Published{Changed: !unchanged && !w.Repeated, Posts: w.Rows[counters.PostsColumn]}, nil
}

// users returns the keyspace of authors.
func (t *Timelines) users() (*shard.Keyspace, error) {
	return t.keyspace(kinds.KeyspaceUsers, kinds.Counters)
}

func (t *Timelines) keyspace(name, kind string) (*shard.Keyspace, error) {
	ks := t.node.Keyspace(name)
	if ks == nil || ks.Kind != kind {
		return nil, fmt.Errorf("%w: keyspace %s is being created", errs.ErrNoLeader, name)
	}
	return ks, nil
}

// readFeed runs a query on a user's feed.
func (t *Timelines) readFeed(q raftfsm.Query, user uint64, opt *shard.ReadOptions) error {
	ks, err := t.keyspace(kinds.KeyspaceFeed, kinds.Feed)
	if err != nil {
		return err
	}
	return t.node.Read(ks, q, []uint64{user}, opt)
}

// Outbox returns up to limit posts of an author, newest first, and whether there are more. If
// hasAfter is set, it begins after the post afterID.
func (t *Timelines) Outbox(author, afterID uint64, hasAfter bool, limit int, opt *shard.ReadOptions) (posts []counters.Post, more bool, err error) {
	ks, err := t.users()
	if err != nil {
		return nil, false, err
	}
	q := counters.PostsQuery{Limit: limit + 1, After: counters.Post{ID: afterID, Author: author}, HasAfter: hasAfter}
	err = t.node.Read(ks, &q, []uint64{author}, opt)
	return q.Posts[:min(limit, len(q.Posts))], len(q.Posts) > limit, err
}

// TimelineQuery selects a page of a timeline.
type TimelineQuery struct {
	User  uint64
	Group string // if not "", only the followees in this group
	Limit int    // 1 to TimelinePostsMax
	// After is the last post of the previous page, if HasAfter is set.
	After    counters.Post
	HasAfter bool
	// Counts is the keyspace of the counters that the page returns for each post; nil for none.
	Counts *shard.Keyspace
	// Member lists columns of the keyspace Sets. For each of these columns, the page reports
	// whether the user is in the set of each post.
	Member []uint8
	Sets   *shard.Keyspace
	// RowIDs replaces the ids of posts by their ids in the keyspaces Counts and Sets; nil if they are
	// the same.
	RowIDs func(posts []uint64, opt *shard.ReadOptions) error
}

// ParseCursor sets After and HasAfter from a text of AppendCursor. It returns false for any other
// text.
func (q *TimelineQuery) ParseCursor(text []byte) bool {
	id, author, _ := bytes.Cut(text, []byte("."))
	var okID, okAuthor bool
	q.After.ID, okID = strictjson.ParseUint64(id)
	q.After.Author, okAuthor = strictjson.ParseUint64(author)
	q.HasAfter = okID && okAuthor
	return q.HasAfter
}

// AppendCursor appends the cursor of the page that begins after the post last.
func AppendCursor(dst []byte, last counters.Post) []byte {
	return strconv.AppendUint(append(strconv.AppendUint(dst, last.ID, 10), '.'), last.Author, 10)
}

// TimelinePage is one page of a timeline. The caller owns it and may reuse it.
type TimelinePage struct {
	Posts  []counters.Post
	More   bool    // there are posts after the last post of the page
	Counts []int64 // one row of counts for each post, if Query.Counts is set
	Member []bool  // whether the user is in the set of a post: the values of all posts for the first of Query.Member, then for the next
	// Unreadable lists the shards of authors that could not be read, ascending. The posts of their
	// authors are missing.
	Unreadable []int

	feeds   feed.Query
	authors []uint64
	posts   counters.PostsQuery
	ids     []uint64
	counts  rows.Query
	member  counters.ContainsQuery
}

// Read fills in a page. Posts, counts and sets may be as of different moments.
func (t *Timelines) Read(q *TimelineQuery, opt *shard.ReadOptions, p *TimelinePage) error {
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

// withTimeLeft returns opt with three quarters of its remaining time. So time for the counts
// remains even if a shard is unreadable.
func withTimeLeft(opt *shard.ReadOptions) *shard.ReadOptions {
	earlier := *opt
	earlier.Deadline = opt.Deadline.Add(-time.Until(opt.Deadline) / 4)
	return &earlier
}

// readAuthors sets the authors of a page, ascending.
func (t *Timelines) readAuthors(q *TimelineQuery, opt *shard.ReadOptions, p *TimelinePage) error {
	p.authors = p.authors[:0]
	if q.Group != "" {
		group, err := t.Group(q.User, q.Group, opt)
		p.authors = append(p.authors, group.Followees...)
		return err
	}
	if err := t.readFeed(&p.feeds, q.User, opt); err != nil {
		return err
	}
	followees, _ := p.feeds.Of(0)
	for _, f := range followees {
		p.authors = append(p.authors, f.ID)
	}
	return nil
}

// readRows reads the counts and the sets of the posts concurrently.
func (t *Timelines) readRows(q *TimelineQuery, opt *shard.ReadOptions, p *TimelinePage) error {
	if q.Counts == nil && len(q.Member) == 0 || len(p.Posts) == 0 {
		return nil
	}
	p.ids = p.ids[:0]
	for _, post := range p.Posts {
		p.ids = append(p.ids, post.ID)
	}
	if q.RowIDs != nil {
		if err := q.RowIDs(p.ids, opt); err != nil {
			return fmt.Errorf("cannot look up ids: %w", err)
		}
	}
	if len(q.Member) == 0 {
		return t.readCounts(q.Counts, opt, p)
	}
	var counts error
	var rest sync.WaitGroup
	if q.Counts != nil {
		rest.Go(func() { counts = t.readCounts(q.Counts, opt, p) }) // the goroutine ends at the deadline of opt
	}
	sets := t.readSets(q, opt, p)
	rest.Wait()
	return errors.Join(counts, sets)
}

func (t *Timelines) readCounts(ks *shard.Keyspace, opt *shard.ReadOptions, p *TimelinePage) error {
	width := len(ks.Columns)
	p.Counts = slices.Grow(p.Counts, len(p.ids)*width)[:len(p.ids)*width]
	p.counts = rows.Query{Width: width, Rows: p.Counts}
	return t.node.Read(ks, &p.counts, p.ids, opt)
}

func (t *Timelines) readSets(q *TimelineQuery, opt *shard.ReadOptions, p *TimelinePage) error {
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

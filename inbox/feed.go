package inbox

import (
	"fmt"
	"math"
	"slices"

	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

// postsPageMax bounds the counts of posts in one read. It is below raftfsm.ReadKeysMax, the bound
// of a call to another node, because one node may hold all these rows.
const postsPageMax = 8192

// FolloweeUnread is the number of unread posts of one followee.
type FolloweeUnread struct {
	ID     uint64
	Unread int64
}

// Feed is the number of posts that a user has not seen.
type Feed struct {
	Unread int64            // sum of Detail, at most math.MaxInt64
	Detail []FolloweeUnread // one entry for each followee, ascending by id
}

// sum adds two non-negative numbers without overflow.
func sum(a, b int64) int64 {
	if b > math.MaxInt64-a {
		return math.MaxInt64
	}
	return a + b
}

// Feed returns the number of posts that a user has not seen.
func (n *Numbers) Feed(user uint64, opt *shard.ReadOptions) (Feed, error) {
	return n.feed(user, opt, opt)
}

// feed reads the user's feed with feedOpt and the counts of posts with postsOpt.
func (n *Numbers) feed(user uint64, feedOpt, postsOpt *shard.ReadOptions) (f Feed, err error) {
	followees, err := n.followees(user, feedOpt)
	if err != nil {
		return f, err
	}
	posts, err := n.posts(ids(followees), postsOpt)
	if err != nil {
		return f, err
	}
	for i, followee := range followees {
		unread := followee.Unread(posts[i])
		f.Detail = append(f.Detail, FolloweeUnread{followee.ID, unread})
		f.Unread = sum(f.Unread, unread)
	}
	return f, nil
}

// Followees returns up to limit followees of a user, ascending, and whether there are more. If
// hasAfter is set, it begins after the id afterID.
func (n *Numbers) Followees(user, afterID uint64, hasAfter bool, limit int, opt *shard.ReadOptions) (page []uint64, more bool, err error) {
	followees, err := n.followees(user, opt)
	if err != nil {
		return nil, false, err
	}
	page = ids(followees)
	if hasAfter {
		from, found := slices.BinarySearch(page, afterID)
		if found {
			from++
		}
		page = page[from:]
	}
	return page[:min(limit, len(page))], len(page) > limit, nil
}

// followees returns the followees of a user.
func (n *Numbers) followees(user uint64, opt *shard.ReadOptions) ([]feed.Followee, error) {
	return n.since(&feed.Op{User: user}, opt)
}

// since sets the Since of an op from the stamp of its user's feed, and returns the followees.
func (n *Numbers) since(op *feed.Op, opt *shard.ReadOptions) ([]feed.Followee, error) {
	var q feed.Query
	if err := n.read(kinds.KeyspaceFeed, kinds.Feed, &q, []uint64{op.User}, opt); err != nil {
		return nil, err
	}
	followees, stamp := q.Of(0)
	op.Since, op.Modulus = max(stamp, 1), q.Modulus(0)
	return followees, nil
}

func ids(followees []feed.Followee) []uint64 {
	all := make([]uint64, len(followees))
	for i, f := range followees {
		all[i] = f.ID
	}
	return all
}

// posts returns the number of posts of each author.
func (n *Numbers) posts(authors []uint64, opt *shard.ReadOptions) ([]int64, error) {
	return n.readPosts(&rows.Query{}, kinds.Feeds[0].Column, authors, opt)
}

// readPosts returns the count of a column for each author. The result is in the memory of q.
func (n *Numbers) readPosts(q *rows.Query, column string, authors []uint64, opt *shard.ReadOptions) ([]int64, error) {
	ks := n.node.Keyspace(kinds.KeyspaceUsers)
	if ks == nil || ks.Column(column) < 0 {
		return nil, fmt.Errorf("%w: keyspace %s is being created", errs.ErrNoLeader, kinds.KeyspaceUsers)
	}
	width := ks.Column(column) + 1
	counts := resized(q.Rows, len(authors)*width)
	for from := 0; from < len(authors); from += postsPageMax {
		to := min(from+postsPageMax, len(authors))
		*q = rows.Query{Width: width, Rows: counts[from*width : to*width]}
		if err := n.node.Read(ks, q, authors[from:to], opt); err != nil {
			return nil, err
		}
	}
	for i := range authors {
		counts[i] = counts[(i+1)*width-1] // the last column of the row
	}
	q.Rows = counts
	return counts[:len(authors)], nil
}

// ResetFeed makes the user follow exactly these authors, or the current followees if authors is
// nil. It marks all their current posts as seen. If upTo is not nil, those posts with ids above
// *upTo that are in the authors' outboxes stay unread.
func (n *Numbers) ResetFeed(user uint64, authors []uint64, upTo *uint64, w *shard.Write) (Feed, error) {
	op := feed.Op{Kind: feed.Reset, User: user}
	if authors == nil {
		followees, err := n.since(&op, now(w))
		if err != nil {
			return Feed{}, err
		}
		op.Kind, authors = feed.Read, ids(followees)
	}
	posts := n.posts
	if upTo != nil {
		posts = func(authors []uint64, opt *shard.ReadOptions) ([]int64, error) {
			return n.postsUpTo(authors, *upTo, opt)
		}
	}
	if err := n.writeFeed(op, authors, posts, w); err != nil {
		return Feed{}, err
	}
	if !w.Repeated && upTo == nil {
		return Feed{}, nil // right after the reset, no post is unread
	}
	return n.feedAfter(user, w)
}

// Follow adds followees and marks all their current posts as seen. It skips authors whom the user
// already follows.
func (n *Numbers) Follow(user uint64, authors []uint64, w *shard.Write) (Feed, error) {
	return n.changeFeed(feed.Follow, user, authors, w)
}

// Unfollow removes followees. Their posts no longer count as unread.
func (n *Numbers) Unfollow(user uint64, authors []uint64, w *shard.Write) (Feed, error) {
	return n.changeFeed(feed.Unfollow, user, authors, w)
}

// ReadFeed marks all current posts of some authors as seen. It skips authors whom the
// user does not follow.
func (n *Numbers) ReadFeed(user uint64, authors []uint64, w *shard.Write) (Feed, error) {
	return n.changeFeed(feed.Read, user, authors, w)
}

func (n *Numbers) changeFeed(kind feed.OpKind, user uint64, authors []uint64, w *shard.Write) (Feed, error) {
	if err := n.writeFeed(feed.Op{Kind: kind, User: user}, authors, n.posts, w); err != nil {
		return Feed{}, err
	}
	return n.feedAfter(user, w)
}

// postsOf returns, for each author, how many posts the op marks as seen.
type postsOf func(authors []uint64, opt *shard.ReadOptions) ([]int64, error)

// writeFeed proposes op, a change of a user's feed, with the numbers of posts that read returns. A
// caller that has read the feed must set op.Since. The comment of feed.Op explains why seen posts
// stay seen.
//
// If another op set the feed's posts after op.Since, the shard stores the higher of the two counts
// for each followee. That would hide new posts of an author who removed posts meanwhile. So
// writeFeed reads the posts and proposes them again. The second proposal needs no identity: it has
// the same effect as a new request, and a repeated request does not make a second proposal.
func (n *Numbers) writeFeed(op feed.Op, authors []uint64, read postsOf, w *shard.Write) error {
	authors = slices.Clone(authors)
	slices.Sort(authors)
	authors = slices.Compact(authors)
	switch {
	case op.Kind == feed.Follow:
		op.Since = 1 // older than every change of the feed, so that the op does not replace the seen posts of followees
	case op.Kind != feed.Unfollow && op.Since == 0:
		if _, err := n.since(&op, &shard.ReadOptions{Consistency: shard.Stale, Deadline: w.Deadline}); err != nil {
			return err
		}
	}
	merged, err := n.proposeFeed(op, authors, read, w)
	if err != nil {
		return err
	}
	for merged {
		again := shard.Write{Deadline: w.Deadline, Permission: w.Permission}
		op.Kind = feed.Read
		if _, err = n.since(&op, &shard.ReadOptions{Consistency: shard.Stale, Token: w.Token, Deadline: w.Deadline}); err == nil {
			merged, err = n.proposeFeed(op, authors, read, &again)
		}
		if err != nil {
			return fmt.Errorf("%w: it was applied, and overtaken by another change of the feed: %w", errs.ErrOutcomeUnknown, err)
		}
		w.Token = again.Token
	}
	return nil
}

// proposeFeed reads the posts and proposes op once. merged reports whether another op set the
// feed's posts after op.Since.
func (n *Numbers) proposeFeed(op feed.Op, authors []uint64, read postsOf, w *shard.Write) (merged bool, err error) {
	ks, err := n.keyspace(kinds.KeyspaceFeed, kinds.Feed)
	if err != nil {
		return false, err
	}
	var posts []int64
	if op.Kind != feed.Unfollow {
		if posts, err = read(authors, now(w)); err != nil {
			return false, err
		}
	}
	op.Followees = make([]feed.Followee, len(authors))
	for i, id := range authors {
		op.Followees[i].ID = id
		if posts != nil {
			op.Followees[i].Posts = posts[i]
		}
	}
	w.Ops, w.Width = feed.Ops{op}, 1+feed.Merged
	w.Rows = make([]int64, w.Width)
	if err := n.node.Write(ks, w); err != nil {
		return false, err
	}
	if len(w.Overflows) > 0 {
		return false, &errs.ArgumentError{Field: "followees", Problem: fmt.Sprintf("the user would follow more than %d", FolloweesMax)}
	}
	return w.Rows[feed.Merged] == feed.Overtaken && !w.Repeated, nil
}

// The function now returns options for a read that sees every acknowledged write.
func now(w *shard.Write) *shard.ReadOptions {
	return &shard.ReadOptions{Consistency: shard.Linearizable, Deadline: w.Deadline}
}

// feedAfter returns the user's feed after an applied write. If the read fails, the error is
// ErrOutcomeUnknown: the write succeeded, so the request must not count as failed.
func (n *Numbers) feedAfter(user uint64, w *shard.Write) (Feed, error) {
	behind := &shard.ReadOptions{Consistency: shard.Stale, Token: w.Token, Deadline: w.Deadline}
	f, err := n.feed(user, behind, now(w))
	if err != nil {
		return f, fmt.Errorf("%w: it was applied, and what is left could not be read: %w", errs.ErrOutcomeUnknown, err)
	}
	return f, err
}

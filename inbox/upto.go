package inbox

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

const (
	// newerMax bounds the posts with ids above the id of a reset, because the reset reads all of
	// them.
	newerMax = 100_000
	// The first read requests newerFirst posts, and each later read newerPage posts. Most resets
	// come soon after a page was shown, so few posts are newer.
	newerFirst, newerPage = 50, 1_000
)

// tally counts all posts of an author, and the newer posts: those in the outbox with ids above
// upTo.
type tally struct {
	posts, newer int64
	ids          uint64 // hash of the ids of the newer posts
}

// postsUpTo returns the number of posts of each author, not counting the posts in the outbox with
// ids above upTo. authors must be ascending, and opt linearizable.
//
// It reads the numbers of posts and the outboxes separately, and reads everything twice. If the two
// reads of an author differ, it reads that author again. Two equal reads of an author show the
// state of one moment, with one exception: the author may publish, remove and publish the same post
// during the reads. The unread number of that author is then wrong by one until the next reset. A
// version in each outbox would prevent that, but would take memory for every author. A read of both
// under one lock would also prevent it, but would need one more kind of read between nodes.
func (n *Numbers) postsUpTo(authors []uint64, upTo uint64, opt *shard.ReadOptions) ([]int64, error) {
	seen, authors := make([]int64, len(authors)), slices.Clone(authors)
	at := make([]int, len(authors)) // index in seen of each author that must still be read
	for i := range at {
		at[i] = i
	}
	was, err := n.tallies(authors, upTo, opt)
	for err == nil {
		var now []tally
		if now, err = n.tallies(authors, upTo, opt); err != nil {
			break
		}
		again := 0
		for i, s := range now {
			if s == was[i] {
				seen[at[i]] = max(s.posts, math.MinInt64+s.newer) - s.newer
				continue
			}
			authors[again], at[again], now[again] = authors[i], at[i], s
			again++
		}
		if again == 0 {
			return seen, nil
		}
		if authors, at, was = authors[:again], at[:again], now[:again]; !time.Now().Before(opt.Deadline) {
			err = fmt.Errorf("%w: %d followees publish all the time", errs.ErrOverloaded, again)
		}
	}
	return nil, err
}

// tallies reads the authors' numbers of posts, and then their outboxes. authors must be ascending.
func (n *Numbers) tallies(authors []uint64, upTo uint64, opt *shard.ReadOptions) ([]tally, error) {
	all := make([]tally, len(authors))
	posts, err := n.posts(authors, opt)
	if err != nil || len(authors) == 0 {
		return all, err
	}
	for i := range all {
		all[i].posts = posts[i]
	}
	q := counters.PostsQuery{Limit: newerFirst}
	for newer := 0; newer <= newerMax; newer += len(q.Posts) {
		if err := n.read(kinds.KeyspaceUsers, kinds.Counters, &q, authors, opt); err != nil {
			return nil, err
		}
		if len(q.Unreadable) > 0 {
			return nil, fmt.Errorf("%w: shards %v of keyspace %s", errs.ErrNoQuorum, q.Unreadable, kinds.KeyspaceUsers)
		}
		for _, p := range q.Posts {
			if p.ID <= upTo {
				return all, nil
			}
			author, _ := slices.BinarySearch(authors, p.Author)
			s := &all[author]
			s.newer, s.ids = s.newer+1, (s.ids+p.ID+1)*0x9e3779b97f4a7c15
		}
		if len(q.Posts) < q.Limit {
			return all, nil
		}
		q.After, q.HasAfter, q.Limit = q.Posts[len(q.Posts)-1], true, newerPage
	}
	return nil, &errs.ArgumentError{Field: "up_to", Problem: fmt.Sprintf("followees have more than %d newer posts", newerMax)}
}

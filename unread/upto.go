package unread

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/shard"
)

const (
	// newerMax bounds the posts above the id of a reset. The reset reads all of them.
	newerMax = 100_000
	// The first read asks for newerFirst posts, and each later read for newerPage posts. Most resets follow a
	// page, so few posts are newer.
	newerFirst, newerPage = 50, 1_000
)

// tally counts an author's posts, and those in the outbox above an id.
type tally struct {
	posts, newer int64
	ids          uint64 // hash of the ids of the newer posts
}

// postsUpTo returns the number of posts of each author, ascending, without the posts in the outbox whose ids
// are above upTo. opt is linearizable, so it reads all acknowledged writes.
//
// It reads posts and outboxes separately, and twice. It reads authors that changed in between
// again: publishes of some authors do not delay the reads of the others. Two equal reads show the
// state of one moment, with one exception. An author may change three times during the reads and
// return to the initial state, for example by publishing, removing and publishing the same post.
// That author's unread number is then one off until the next reset. More reads only make this
// rarer. A version in each outbox would exclude it, but would take memory for every author, and be
// part of digests and snapshots. A read of posts and outboxes under the lock that entries with
// posts hold would also exclude it. But that needs one more kind of read between nodes.
func (n *Numbers) postsUpTo(authors []uint64, upTo uint64, opt *shard.ReadOptions) ([]int64, error) {
	seen, authors := make([]int64, len(authors)), slices.Clone(authors)
	at := make([]int, len(authors)) // the index in seen of each author that is still to be read
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
			err = fmt.Errorf("%w: %d followees publish all the time", shard.ErrOverloaded, again)
		}
	}
	return nil, err
}

// tallies reads the posts of authors, ascending, and then their outboxes.
func (n *Numbers) tallies(authors []uint64, upTo uint64, opt *shard.ReadOptions) ([]tally, error) {
	all := make([]tally, len(authors))
	posts, err := n.posts(authors, opt)
	if err != nil || len(authors) == 0 {
		return all, err
	}
	for i := range all {
		all[i].posts = posts[i]
	}
	ks, err := n.keyspace(PostsKeyspace, shard.KindCounters)
	if err != nil {
		return nil, err
	}
	q := counters.PostsQuery{Limit: newerFirst}
	for newer := 0; newer <= newerMax; newer += len(q.Posts) {
		if err := n.node.Read(ks, &q, authors, opt); err != nil {
			return nil, err
		}
		if len(q.Unreadable) > 0 {
			return nil, fmt.Errorf("%w: shards %v of keyspace %s", shard.ErrNoQuorum, q.Unreadable, PostsKeyspace)
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
	return nil, &shard.ArgumentError{Field: "up_to", Problem: fmt.Sprintf("followees have more than %d newer posts", newerMax)}
}

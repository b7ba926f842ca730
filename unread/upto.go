package unread

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/countd/countd/shard"
)

const (
	// newerMax bounds the posts above the id of a reset, which reads them all.
	newerMax = 100_000
	// newerPage is how many of them one read asks for.
	newerPage = 1_000
)

// postsUpTo returns how many posts each author, ascending, has without those in the outbox
// whose ids are above upTo. It reads what is acknowledged: opt is linearizable.
//
// Posts and outboxes are read apart. They are of one moment if no posts changed between a read
// of them before the outboxes and one behind: a publish or a removal in between makes it read
// again. Only a removal and a publish of one author, both between these two reads, go
// unnoticed.
func (n *Numbers) postsUpTo(authors []uint64, upTo uint64, opt *shard.ReadOptions) ([]int64, error) {
	posts, err := n.posts(authors, opt)
	for err == nil {
		var newer, again []int64
		if newer, err = n.newer(authors, upTo, opt); err != nil {
			break
		}
		if again, err = n.posts(authors, opt); err != nil {
			break
		}
		if slices.Equal(posts, again) {
			for i := range posts {
				posts[i] = max(posts[i], math.MinInt64+newer[i]) - newer[i]
			}
			return posts, nil
		}
		if posts = again; !time.Now().Before(opt.Deadline) {
			err = fmt.Errorf("%w: followees publish all the time", shard.ErrOverloaded)
		}
	}
	return nil, err
}

// newer returns how many posts with ids above upTo the outbox of each author has.
func (n *Numbers) newer(authors []uint64, upTo uint64, opt *shard.ReadOptions) ([]int64, error) {
	counts := make([]int64, len(authors))
	ks, err := n.keyspace(PostsKeyspace, shard.KindCounters)
	if err != nil || len(authors) == 0 {
		return counts, err
	}
	q := shard.NewestPosts{Authors: authors, Limit: newerPage}
	var page []shard.Post
	for range newerMax / newerPage {
		var unreadable []int
		page, unreadable, err = n.node.Timelines().Newest(ks, &q, opt, page[:0])
		if err != nil {
			return nil, err
		}
		if len(unreadable) > 0 {
			return nil, fmt.Errorf("%w: shards %v of keyspace %s", shard.ErrNoQuorum, unreadable, PostsKeyspace)
		}
		for _, p := range page {
			if p.ID <= upTo {
				return counts, nil
			}
			author, _ := slices.BinarySearch(authors, p.Author)
			counts[author]++
		}
		if len(page) < newerPage {
			return counts, nil
		}
		q.After, q.HasAfter = page[len(page)-1], true
	}
	return nil, &shard.ArgumentError{Field: "up_to", Problem: fmt.Sprintf("followees have more than %d newer posts", newerMax)}
}

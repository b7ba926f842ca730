package unread

import (
	"sync"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard"
)

// PollUsersMax bounds the users of one poll.
const PollUsersMax = 100

// feedUsersMax is how many users' feeds are held at once while polls are answered:
// 16 with the most followees each take some megabytes.
const feedUsersMax = 16

// Poll asks for all that clients poll for, and holds the answer. It belongs to its
// caller and is used again. Rows are by user; within one they are in the order of
// what was asked for.
type Poll struct {
	Users    []uint64
	Channels []string
	Dots     []string

	Columns []string // of the counts
	Counts  []int64  // len(Columns) a user
	Notices []int64  // len(Channels) a user
	Shown   []bool   // len(Dots) a user
	Feeds   []int64  // one a user
}

// scratch is the memory of one poll under way.
type scratch struct {
	cursors []int64
	feeds   shard.Feeds
	authors []uint64
	posts   []int64
}

var scratchPool = sync.Pool{New: func() any { return &scratch{} }}

// pooledFolloweesMax is how many followees a scratch may have had room for and be
// kept: those of a page of usual users.
const pooledFolloweesMax = 16_384

// Poll answers p. What is read of one user may be of different moments.
func (n *Numbers) Poll(p *Poll, opt *shard.ReadOptions) error {
	s := scratchPool.Get().(*scratch)
	defer func() {
		if cap(s.feeds.Followees) <= pooledFolloweesMax {
			scratchPool.Put(s)
		}
	}()
	if err := n.pollCounts(p, opt); err != nil {
		return err
	}
	if err := n.pollBoard(p, s, opt); err != nil {
		return err
	}
	p.Feeds = p.Feeds[:0]
	for from := 0; from < len(p.Users); from += feedUsersMax {
		if err := n.pollFeeds(p, p.Users[from:min(from+feedUsersMax, len(p.Users))], s, opt); err != nil {
			return err
		}
	}
	return nil
}

func (n *Numbers) pollCounts(p *Poll, opt *shard.ReadOptions) error {
	ks, err := n.keyspace(shard.KeyspaceUnread, shard.KindUnread)
	if err != nil {
		return err
	}
	p.Columns = ks.Names()
	p.Counts = resized(p.Counts, len(p.Users)*len(ks.Columns))
	if err := n.node.Get(ks, p.Users, len(ks.Columns), opt, p.Counts); err != nil {
		return err
	}
	if len(ks.Dropped) > 0 {
		p.Counts = withoutDropped(p.Counts, ks.Columns)
	}
	return nil
}

// withoutDropped returns rows of counts, in place, without those of columns that have no
// name any more.
func withoutDropped(counts []int64, columns []string) []int64 {
	kept := counts[:0]
	for i, count := range counts {
		if columns[i%len(columns)] != "" {
			kept = append(kept, count)
		}
	}
	return kept
}

// resized returns a slice of n values of any content, in the same array if it is
// large enough.
func resized[T any](values []T, n int) []T {
	if cap(values) < n {
		return make([]T, n)
	}
	return values[:n]
}

// pollBoard fills in notices and dots.
func (n *Numbers) pollBoard(p *Poll, s *scratch, opt *shard.ReadOptions) error {
	p.Notices, p.Shown = p.Notices[:0], p.Shown[:0]
	if len(p.Channels)+len(p.Dots) == 0 {
		return nil
	}
	board, err := n.board(opt)
	if err != nil {
		return err
	}
	ks, err := n.keyspace(shard.KeyspaceUnread, shard.KindUnread)
	if err != nil {
		return err
	}
	width := 1
	for _, name := range p.Channels {
		width = max(width, int(board.Channels[name].Number)+1)
	}
	for _, name := range p.Dots {
		width = max(width, int(board.Dots[name].Number)+1)
	}
	s.cursors = resized(s.cursors, len(p.Users)*width)
	if err := n.node.Cursors(ks, p.Users, width, opt, s.cursors); err != nil {
		return err
	}
	for i := range p.Users {
		p.show(board, s.cursors[i*width:(i+1)*width])
	}
	return nil
}

// show appends the notices and dots of the user of a row of cursors. A channel or
// dot that is not there has number 0 and nothing to show.
func (p *Poll) show(board *raftfsm.BoardView, row []int64) {
	for _, name := range p.Channels {
		unread := int64(0)
		if c, there := board.Channels[name]; there {
			unread = standing(&c, row, Stand{}).Unread
		}
		p.Notices = append(p.Notices, unread)
	}
	for _, name := range p.Dots {
		d, there := board.Dots[name]
		p.Shown = append(p.Shown, there && d.Shows(row))
	}
}

// pollFeeds appends the feeds of users.
func (n *Numbers) pollFeeds(p *Poll, users []uint64, s *scratch, opt *shard.ReadOptions) error {
	ks, err := n.keyspace(shard.KeyspaceFeed, shard.KindFeed)
	if err != nil {
		return err
	}
	if err := n.node.Feeds(ks, users, opt, &s.feeds); err != nil {
		return err
	}
	s.authors = resized(s.authors, len(s.feeds.Followees))
	for i := range s.feeds.Followees {
		s.authors[i] = s.feeds.Followees[i].ID
	}
	s.posts = resized(s.posts, len(s.authors))
	if err := n.readPosts(s.authors, opt, s.posts); err != nil {
		return err
	}
	at := 0
	for _, end := range s.feeds.Ends {
		unread, posts := int64(0), s.posts[at:end]
		for i, f := range s.feeds.Followees[at:end] {
			unread = sum(unread, f.Unread(posts[i]))
		}
		p.Feeds = append(p.Feeds, unread)
		at = end
	}
	return nil
}

package inbox

import (
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard"
)

// PollUsersMax bounds the users of one poll.
const PollUsersMax = 100

// feedUsersMax bounds the feeds that a poll keeps in memory at a time. 16 feeds with FolloweesMax
// followees take a few megabytes.
const feedUsersMax = 16

// PollReads returns the keyspaces that a caller of Poll must be allowed to read.
func PollReads() []string {
	names := []string{kinds.KeyspaceUnread}
	for i := range kinds.Feeds {
		names = append(names, kinds.Feeds[i].Keyspace)
	}
	return names
}

// pollKeyspaces lists the keyspaces that a poll reads. It is read only.
var pollKeyspaces = append(PollReads(), kinds.KeyspaceBoard, kinds.KeyspaceUsers)

// Poll is a request and its answer. The caller owns it and may reuse it. The answer has a row for
// each user, with the values in the order of the requested names.
type Poll struct {
	Users    []uint64
	Channels []string
	Dots     []string

	Columns []string                  // the columns of Counts
	Counts  []int64                   // len(Columns) counts for each user
	Notices []int64                   // len(Channels) numbers for each user
	Shown   []bool                    // len(Dots) values for each user
	Feeds   [len(kinds.Feeds)][]int64 // one number for each user
}

// Part is a part of the answer of a poll: for each user, a value for each of Names, or one number
// if One is set. The values of one user are adjacent. Every protocol shows the part under Name.
type Part struct {
	Name    string
	Names   []string
	One     bool    // the part has one number for each user, and no names
	Numbers []int64 // the values, or nil if they are in Truths
	Truths  []bool
}

// Parts returns the parts of the answer, in the order of the public contract.
func (p *Poll) Parts() (parts [3 + len(kinds.Feeds)]Part) {
	parts[0] = Part{Name: "unread", Names: p.Columns, Numbers: p.Counts}
	parts[1] = Part{Name: "notices", Names: p.Channels, Numbers: p.Notices}
	parts[2] = Part{Name: "dots", Names: p.Dots, Truths: p.Shown}
	for i := range kinds.Feeds {
		parts[3+i] = Part{Name: kinds.Feeds[i].Keyspace, One: true, Numbers: p.Feeds[i]}
	}
	return parts
}

// scratch is reusable memory for one running poll.
type scratch struct {
	counts  rows.Query
	board   unread.BoardQuery
	cursors rows.Query
	feeds   feed.Query
	authors []uint64
	posts   rows.Query
}

var scratchPool = sync.Pool{New: func() any { return &scratch{} }}

// pooledFolloweesMax is the largest capacity for followees that the pool keeps. It suffices for
// most polls.
const pooledFolloweesMax = 16_384

// Poll fills in the answer of p. The parts of the answer may be as of different moments.
func (n *Numbers) Poll(p *Poll, opt *shard.ReadOptions) error {
	s := scratchPool.Get().(*scratch)
	defer func() {
		if s.feeds.Cap() <= pooledFolloweesMax {
			s.counts.Rows, s.board.View = nil, nil
			scratchPool.Put(s)
		}
	}()
	// The parts share only p.Users and opt, and do not change them.
	parts := [...]func(*Numbers, *Poll, *scratch, *shard.ReadOptions) error{(*Numbers).pollCounts, (*Numbers).pollBoard, (*Numbers).pollFeeds}
	if n.waits(opt) {
		var together errgroup.Group // each part ends at the deadline of opt
		for _, part := range parts {
			together.Go(func() error { return part(n, p, s, opt) })
		}
		return together.Wait()
	}
	for _, part := range parts {
		if err := part(n, p, s, opt); err != nil {
			return err
		}
	}
	return nil
}

// waits reports whether parts of a poll probably wait for other nodes. If not, reading the parts
// one after the other is faster than reading them in goroutines.
func (n *Numbers) waits(opt *shard.ReadOptions) bool {
	if opt.Consistency == shard.Linearizable {
		return true
	}
	for _, name := range pollKeyspaces {
		if ks := n.node.Keyspace(name); ks != nil && !n.node.Holds(ks) {
			return true
		}
	}
	return false
}

func (n *Numbers) pollCounts(p *Poll, s *scratch, opt *shard.ReadOptions) error {
	ks, err := n.keyspace(kinds.KeyspaceUnread, kinds.Unread)
	if err != nil {
		return err
	}
	p.Columns = ks.ColumnNames()
	p.Counts = resized(p.Counts, len(p.Users)*len(ks.Columns))
	s.counts = rows.Query{Width: len(ks.Columns), Rows: p.Counts}
	if err := n.node.Read(ks, &s.counts, p.Users, opt); err != nil {
		return err
	}
	if len(ks.Dropped) > 0 {
		p.Counts = withoutDropped(p.Counts, ks.Columns)
	}
	return nil
}

// withoutDropped removes, in place, the counts of dropped columns, which have no name.
func withoutDropped(counts []int64, columns []string) []int64 {
	kept := counts[:0]
	for i, count := range counts {
		if columns[i%len(columns)] != "" {
			kept = append(kept, count)
		}
	}
	return kept
}

// resized returns a slice of n arbitrary values. It reuses the memory of values if possible.
func resized(values []int64, n int) []int64 {
	return slices.Grow(values[:0], n)[:n]
}

// pollBoard fills in notices and dots.
func (n *Numbers) pollBoard(p *Poll, s *scratch, opt *shard.ReadOptions) error {
	p.Notices, p.Shown = p.Notices[:0], p.Shown[:0]
	if len(p.Channels)+len(p.Dots) == 0 {
		return nil
	}
	if err := n.readBoard(&s.board, opt); err != nil {
		return err
	}
	view := s.board.View
	width := 1
	for _, name := range p.Channels {
		width = max(width, int(view.Channels[name].Number)+1)
	}
	for _, name := range p.Dots {
		width = max(width, int(view.Dots[name].Number)+1)
	}
	s.cursors = rows.Query{Table: unread.Cursors, Width: width, Rows: resized(s.cursors.Rows, len(p.Users)*width)}
	if err := n.read(kinds.KeyspaceUnread, kinds.Unread, &s.cursors, p.Users, opt); err != nil {
		return err
	}
	for i := range p.Users {
		p.show(view, s.cursors.Rows[i*width:(i+1)*width])
	}
	return nil
}

// show appends a user's notices and dots, computed from the row of the user's cursors. A missing
// channel or dot has number 0 and shows nothing.
func (p *Poll) show(view *unread.BoardView, row []int64) {
	for _, name := range p.Channels {
		unread := int64(0)
		if c, there := view.Channels[name]; there {
			unread = standing(&c, row, Stand{}).Unread
		}
		p.Notices = append(p.Notices, unread)
	}
	for _, name := range p.Dots {
		d, there := view.Dots[name]
		p.Shown = append(p.Shown, there && d.Shows(row))
	}
}

// pollFeeds fills in the feeds.
func (n *Numbers) pollFeeds(p *Poll, s *scratch, opt *shard.ReadOptions) error {
	for i := range kinds.Feeds {
		p.Feeds[i] = p.Feeds[i][:0]
		for users := range slices.Chunk(p.Users, feedUsersMax) {
			if err := n.pollFeed(p, i, users, s, opt); err != nil {
				return err
			}
		}
	}
	return nil
}

// pollFeed appends the numbers of users in one of kinds.Feeds.
func (n *Numbers) pollFeed(p *Poll, of int, users []uint64, s *scratch, opt *shard.ReadOptions) error {
	if err := n.read(kinds.Feeds[of].Keyspace, kinds.Feed, &s.feeds, users, opt); err != nil {
		return err
	}
	s.authors = s.authors[:0]
	for user := range users {
		followees, _ := s.feeds.Of(user)
		for i := range followees {
			s.authors = append(s.authors, followees[i].ID)
		}
	}
	posts, err := n.readPosts(&s.posts, kinds.Feeds[of].Column, s.authors, opt)
	if err != nil {
		return err
	}
	for user := range users {
		unread := int64(0)
		followees, _ := s.feeds.Of(user)
		for i, f := range followees {
			unread = sum(unread, f.Unread(posts[i]))
		}
		p.Feeds[of], posts = append(p.Feeds[of], unread), posts[len(followees):]
	}
	return nil
}

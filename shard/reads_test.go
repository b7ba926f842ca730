package shard

import (
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/unread"
)

// This file has one method of Node for each query, for the tests.

// Get fills dst with the rows of ids.
func (n *Node) Get(ks *Keyspace, ids []uint64, width int, opt *ReadOptions, dst []int64) error {
	return n.Read(ks, &rows.Query{Width: width, Rows: dst}, ids, opt)
}

// Cursors is Get for the cursors of an unread keyspace.
func (n *Node) Cursors(ks *Keyspace, ids []uint64, width int, opt *ReadOptions, dst []int64) error {
	return n.Read(ks, &rows.Query{Table: unread.Cursors, Width: width, Rows: dst}, ids, opt)
}

// Scan returns up to limit rows above after.
func (n *Node) Scan(ks *Keyspace, after uint64, hasAfter bool, limit, width int, opt *ReadOptions) (*rows.Scan, error) {
	q := &rows.Scan{Width: width, Limit: limit, After: after, HasAfter: hasAfter, Dropped: ks.Dropped}
	return q, n.Read(ks, q, nil, opt)
}

// scanReadable returns up to limit rows of the shards that a living node can read.
func (n *Node) scanReadable(ks *Keyspace, limit, width int, opt *ReadOptions) (*rows.Scan, error) {
	q := &rows.Scan{Width: width, Limit: limit, SkipUnreadable: true}
	return q, n.Read(ks, q, nil, opt)
}

// Board returns the board of an unread keyspace.
func (n *Node) Board(ks *Keyspace, opt *ReadOptions) (*unread.BoardView, error) {
	var q unread.BoardQuery
	err := n.Read(ks, &q, nil, opt)
	return q.View, err
}

// Groups returns the groups of followees of a user.
func (n *Node) Groups(ks *Keyspace, user uint64, opt *ReadOptions) ([]feed.Group, error) {
	var q feed.GroupsQuery
	err := n.Read(ks, &q, []uint64{user}, opt)
	return q.Groups, err
}

// Feeds is the answer of Node.Feeds.
type Feeds struct{ query feed.Query }

// Of returns the followees of user i.
func (f *Feeds) Of(i int) []feed.Followee {
	followees, _ := f.query.Of(i)
	return followees
}

// Feeds fills into with the feeds of users.
func (n *Node) Feeds(ks *Keyspace, users []uint64, opt *ReadOptions, into *Feeds) error {
	return n.Read(ks, &into.query, users, opt)
}

// Post is a post in a timeline.
type Post = counters.Post

// NewestPosts is a query of Node.Newest.
type NewestPosts struct {
	Authors  []uint64
	Limit    int
	After    Post
	HasAfter bool
}

// Newest returns the newest posts of authors, and the shards that could not be read.
func (n *Node) Newest(ks *Keyspace, of *NewestPosts, opt *ReadOptions) (posts []Post, unreadable []int, err error) {
	q := counters.PostsQuery{Limit: of.Limit, After: of.After, HasAfter: of.HasAfter}
	err = n.Read(ks, &q, of.Authors, opt)
	return q.Posts, q.Unreadable, err
}

// Check sets in[i] to whether the member is in the set of ids[i].
func (n *Node) Check(ks *Keyspace, column int, member uint64, ids []uint64, opt *ReadOptions, in []bool) error {
	return n.Read(ks, &counters.ContainsQuery{Column: uint8(column), Member: member, In: in}, ids, opt)
}

// List returns a page of the members of a row.
func (n *Node) List(ks *Keyspace, column int, id uint64, page members.Page, opt *ReadOptions) (members.List, error) {
	q := counters.MembersQuery{Column: uint8(column), Page: page}
	err := n.Read(ks, &q, []uint64{id}, opt)
	return q.List, err
}

// Of returns a page of the rows that a member is in.
func (n *Node) Of(ks *Keyspace, column int, member uint64, page members.Page, opt *ReadOptions) (members.List, error) {
	q := counters.RowsOfMemberQuery{Column: uint8(column), Member: member, Page: page}
	err := n.Read(ks, &q, nil, opt)
	return q.List, err
}

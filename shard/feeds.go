package shard

import "github.com/countd/countd/raftfsm"

// Feeds is the feeds of several users, in their order. It is used again.
type Feeds struct {
	Followees []raftfsm.Followee
	Ends      []int // followees of user i end here
}

// Of returns the followees of the user of a number, ascending by id.
func (f *Feeds) Of(i int) []raftfsm.Followee {
	if i == 0 {
		return f.Followees[:f.Ends[0]]
	}
	return f.Followees[f.Ends[i-1]:f.Ends[i]]
}

// appendRow appends the feed that a row holds, and returns the rows behind it.
func (f *Feeds) appendRow(rows []int64) []int64 {
	followees, rows := rows[1:1+2*rows[0]], rows[1+2*rows[0]:]
	for ; len(followees) > 0; followees = followees[2:] {
		f.Followees = append(f.Followees, raftfsm.Followee{ID: uint64(followees[0]), Posts: followees[1]})
	}
	f.Ends = append(f.Ends, len(f.Followees))
	return rows
}

// appendFeedRow appends a feed as a row: the number of followees, then of each the id and
// the posts.
func appendFeedRow(rows []int64, feed []raftfsm.Followee) []int64 {
	rows = append(rows, int64(len(feed)))
	for _, f := range feed {
		rows = append(rows, int64(f.ID), f.Posts)
	}
	return rows
}

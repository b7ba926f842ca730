package shard

import (
	"github.com/countd/countd/raftfsm/feed"
)

// Feeds holds the feeds of several users, in their order. Node.Feeds reuses its memory.
type Feeds struct {
	Followees []feed.Followee
	Ends      []int    // by user: where its followees end
	Stamps    []uint64 // by user; see feed.Op
}

// Of returns the followees of user i, ascending by id.
func (f *Feeds) Of(i int) []feed.Followee {
	if i == 0 {
		return f.Followees[:f.Ends[0]]
	}
	return f.Followees[f.Ends[i-1]:f.Ends[i]]
}

// StampOf returns the stamp of the feed of user i, or 0.
func (f *Feeds) StampOf(i int) uint64 {
	if i < len(f.Stamps) {
		return f.Stamps[i]
	}
	return 0
}

// appendRow decodes the first feed in rows, which appendFeedRow encoded, and appends that feed. It
// returns the remaining rows.
func (f *Feeds) appendRow(rows []int64) []int64 {
	stamp, followees, rows := uint64(rows[1]), rows[2:2+2*rows[0]], rows[2+2*rows[0]:]
	for ; len(followees) > 0; followees = followees[2:] {
		f.Followees = append(f.Followees, feed.Followee{ID: uint64(followees[0]), Posts: followees[1]})
	}
	f.Ends, f.Stamps = append(f.Ends, len(f.Followees)), append(f.Stamps, stamp)
	return rows
}

// appendFeedRow appends a feed as a row: the number of followees, the stamp, then the id and the posts
// of each followee.
func appendFeedRow(rows []int64, feed []feed.Followee, stamp uint64) []int64 {
	rows = append(rows, int64(len(feed)), int64(stamp))
	for _, f := range feed {
		rows = append(rows, int64(f.ID), f.Posts)
	}
	return rows
}

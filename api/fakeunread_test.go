package api

import (
	"maps"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/board"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard"
)

// fakeShards holds the unread numbers of a fakeNode. It knows no repeats and drops nothing.
type fakeShards struct {
	counts, cursors map[uint64][]int64
	feeds           map[uint64]map[uint64]int64
	board           board.View
	posts           map[counters.Post]bool
	groups          map[uint64]map[string][]uint64
}

func newFakeShards() *fakeShards {
	return &fakeShards{
		map[uint64][]int64{}, map[uint64][]int64{}, map[uint64]map[uint64]int64{},
		board.View{Channels: map[string]board.Channel{}, Dots: map[string]board.Dot{}},
		map[counters.Post]bool{}, map[uint64]map[string][]uint64{},
	}
}

func (f *fakeShards) write(ks *shard.Keyspace, w *shard.Write) {
	clear(w.Rows)
	for i := range w.Ops {
		row := w.Rows[i*w.Width : (i+1)*w.Width]
		switch ks.Kind {
		case shard.KindFeed:
			f.writeFeed(&w.Feeds[i])
			f.writeGroup(w, &w.Feeds[i], row)
		case shard.KindBoard:
			f.writeBoard(w, row)
		default:
			f.writeUser(w, i, row)
		}
	}
}

func (f *fakeShards) writeUser(w *shard.Write, i int, answer []int64) {
	op, table := w.Ops[i], w.Table
	users := f.counts
	if table == unread.Cursors {
		users = f.cursors
	}
	row := make([]int64, engine.ColumnsMax)
	copy(row, users[op.ID])
	was := slices.Clone(row)
	if op.Kind == engine.OpAdd && table == rows.Counts {
		column, ok := applied(row, op)
		if !ok {
			w.Overflows = append(w.Overflows, engine.Overflow{Op: i, Column: column})
			return
		}
		w.Cuts = append(w.Cuts, cutShort(row, op, i)...)
		op.Cells = nil
	}
	for _, c := range op.Cells {
		switch {
		case table == unread.Cursors:
			row[unread.CursorDay] = 1
			row[c.Column] = max(row[c.Column], c.Value)
		case op.Kind == engine.OpTake:
			row[c.Column] -= min(c.Value, max(0, row[c.Column]))
		case op.Kind == engine.OpSet:
			row[c.Column] = c.Value
		}
	}
	users[op.ID] = row
	for i := range answer {
		if answer[i] = row[i]; op.Kind == engine.OpTake && table == rows.Counts {
			answer[i] = was[i] - row[i]
		}
	}
}

func (f *fakeShards) writeFeed(op *feed.Op) {
	seen := f.feeds[op.User]
	if op.Kind.OfGroup() {
		return // writeGroup's
	}
	if op.Kind == feed.Reset || seen == nil {
		seen = map[uint64]int64{}
	}
	for _, followee := range op.Followees {
		_, there := seen[followee.ID]
		switch {
		case op.Kind == feed.Unfollow:
			delete(seen, followee.ID)
		case op.Kind == feed.Reset, there == (op.Kind == feed.Read):
			seen[followee.ID] = followee.Posts
		}
	}
	f.feeds[op.User] = seen
}

func (f *fakeShards) writeBoard(w *shard.Write, answer []int64) {
	op, v := w.Board, &f.board
	number := uint8(len(v.Channels) + len(v.Dots) + 1)
	c, isChannel := v.Channels[op.Name]
	d, isDot := v.Dots[op.Name]
	switch op.Kind {
	case board.Publish, board.MakeChannel:
		if !isChannel {
			c.Number = number
		}
		if op.Kind == board.Publish {
			c.Latest++
		}
		v.Channels[op.Name] = c
		answer[1] = c.Latest
	case board.Retract:
		if op.Seq < 1 || op.Seq > c.Latest {
			w.Overflows = append(w.Overflows, engine.Overflow{Column: board.RefusedMissing})
			return
		}
		c.Retracted = append(c.Retracted, op.Seq)
		v.Channels[op.Name] = c
	default:
		if !isDot {
			d = board.Dot{Number: number, NewUsers: true}
		}
		switch op.Kind {
		case board.SetDot:
			d.NewUsers = op.NewUsers
		case board.Fire:
			d.Fired++
		}
		v.Dots[op.Name] = d
		answer[1] = d.Fired
	}
}

func (n *fakeNode) cursors(users []uint64, q *rows.Query) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(q.Rows)
	for i, user := range users {
		copy(q.Rows[i*q.Width:(i+1)*q.Width], n.mu.shards.cursors[user])
	}
	return n.troubleLocked()
}

func (n *fakeNode) feeds(users []uint64, q *feed.Query) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	q.Begin(len(users))
	for i, user := range users {
		seen := n.mu.shards.feeds[user]
		var followees []feed.Followee
		for _, id := range slices.Sorted(maps.Keys(seen)) {
			followees = append(followees, feed.Followee{ID: id, Posts: seen[id]})
		}
		q.Append(i, followees, 0)
	}
	return n.troubleLocked()
}

func (n *fakeNode) board(q *board.Query, opt *shard.ReadOptions) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.lastRead = *opt
	if err := n.troubleLocked(); err != nil {
		return err
	}
	q.View = &board.View{Channels: maps.Clone(n.mu.shards.board.Channels), Dots: maps.Clone(n.mu.shards.board.Dots)}
	return nil
}

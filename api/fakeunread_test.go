package api

import (
	"maps"
	"slices"

	"github.com/countd/countd/api/apitest"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard"
)

// fakeShards holds the unread numbers of a fakeNode. It does not detect repeated requests, and it
// drops nothing.
type fakeShards struct {
	counts, cursors map[uint64][]int64
	feeds           map[uint64]map[uint64]int64
	board           unread.BoardView
	posts           map[counters.Post]bool
	groups          map[uint64]map[string][]uint64
}

func newFakeShards() *fakeShards {
	return &fakeShards{
		map[uint64][]int64{}, map[uint64][]int64{}, map[uint64]map[uint64]int64{},
		unread.BoardView{Channels: map[string]unread.Channel{}, Dots: map[string]unread.Dot{}},
		map[counters.Post]bool{}, map[uint64]map[string][]uint64{},
	}
}

func (f *fakeShards) write(ks *shard.Keyspace, w *shard.Write) {
	clear(w.Rows)
	for i := range w.Ops.Len() {
		row := w.Rows[i*w.Width : (i+1)*w.Width]
		switch ks.Kind {
		case kinds.Feed:
			op := &w.Ops.(feed.Ops)[i]
			f.writeFeed(op)
			f.writeGroup(w, op, row)
		case kinds.Board:
			f.writeBoard(w, row)
		default:
			f.writeUser(w, i, row)
		}
	}
}

func (f *fakeShards) writeUser(w *shard.Write, i int, answer []int64) {
	op, users := apitest.RowOps(w.Ops)[i], f.counts
	_, cursors := w.Ops.(unread.CursorOps)
	if cursors {
		users = f.cursors
	}
	row := make([]int64, engine.ColumnsMax)
	copy(row, users[op.ID])
	was := slices.Clone(row)
	if op.Kind == engine.OpAdd && !cursors {
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
		case cursors:
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
		if answer[i] = row[i]; op.Kind == engine.OpTake && !cursors {
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
	op, v := w.Ops.(*unread.BoardOp), &f.board
	number := uint8(len(v.Channels) + len(v.Dots) + 1)
	c, isChannel := v.Channels[op.Name]
	d, isDot := v.Dots[op.Name]
	switch op.Kind {
	case unread.Publish, unread.MakeChannel:
		if !isChannel {
			c.Number = number
		}
		if op.Kind == unread.Publish {
			c.Latest++
		}
		v.Channels[op.Name] = c
		answer[1] = c.Latest
	case unread.Retract:
		if op.Seq < 1 || op.Seq > c.Latest {
			w.Overflows = append(w.Overflows, engine.Overflow{Column: unread.RefusedMissing})
			return
		}
		c.Retracted = append(c.Retracted, op.Seq)
		v.Channels[op.Name] = c
	default:
		if !isDot {
			d = unread.Dot{Number: number, NewUsers: true}
		}
		switch op.Kind {
		case unread.SetDot:
			d.NewUsers = op.NewUsers
		case unread.Fire:
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

func (n *fakeNode) board(q *unread.BoardQuery, opt *shard.ReadOptions) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.lastRead = *opt
	if err := n.troubleLocked(); err != nil {
		return err
	}
	q.View = &unread.BoardView{Channels: maps.Clone(n.mu.shards.board.Channels), Dots: maps.Clone(n.mu.shards.board.Dots)}
	return nil
}

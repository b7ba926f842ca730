package api

import (
	"maps"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/shard"
)

// publish applies an op to an author's outbox. It returns the op by which the author's count of
// posts changes.
func (f *fakeShards) publish(w *shard.Write, op *counters.OutboxOp) engine.Op {
	post, count := counters.Post{ID: op.ID, Author: op.Author}, engine.Op{ID: op.Author, Kind: engine.OpAdd}
	if f.posts[post] == (op.Kind == counters.Publish) {
		w.Cuts = append(w.Cuts, engine.Cut{Column: counters.UnchangedColumn})
		return count
	}
	delta := int64(1)
	if op.Kind == counters.Unpublish {
		delta = -1
	}
	f.posts[post] = delta > 0
	count.Cells = []engine.Cell{{Column: counters.PostsColumn, Value: delta}}
	return count
}

func (f *fakeShards) writeGroup(w *shard.Write, op *feed.Op, answer []int64) {
	switch op.Kind {
	case feed.DropGroup:
		delete(f.groups[op.User], op.Group)
	case feed.PutGroup:
		var ids []uint64
		for _, followee := range op.Followees {
			if _, follows := f.feeds[op.User][followee.ID]; !follows {
				w.Overflows = append(w.Overflows, engine.Overflow{Column: feed.RefusedNotFollowed})
				return
			}
			ids = append(ids, followee.ID)
		}
		if f.groups[op.User] == nil {
			f.groups[op.User] = map[string][]uint64{}
		}
		f.groups[op.User][op.Group] = ids
		answer[0] = int64(len(ids))
	}
}

func (n *fakeNode) newest(authors []uint64, q *counters.PostsQuery) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	order := func(a, b counters.Post) int {
		if a.ID > b.ID || a.ID == b.ID && a.Author < b.Author {
			return -1
		}
		return 1
	}
	q.Posts, q.Unreadable = q.Posts[:0], nil
	for _, p := range slices.SortedFunc(maps.Keys(n.mu.shards.posts), order) {
		behind := !q.HasAfter || p != q.After && order(q.After, p) < 0
		if n.mu.shards.posts[p] && behind && slices.Contains(authors, p.Author) && len(q.Posts) < q.Limit {
			q.Posts = append(q.Posts, p)
		}
	}
	if n.mu.fault == "shards_unreadable" {
		q.Unreadable = []int{3}
		return nil
	}
	return n.troubleLocked()
}

func (n *fakeNode) groups(user uint64, q *feed.GroupsQuery) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	q.Groups = nil
	for _, name := range slices.Sorted(maps.Keys(n.mu.shards.groups[user])) {
		q.Groups = append(q.Groups, feed.Group{Name: name, Followees: n.mu.shards.groups[user][name]})
	}
	return n.troubleLocked()
}

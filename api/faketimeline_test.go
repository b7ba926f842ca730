package api

import (
	"maps"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/shard"
)

// publish turns a write to an outbox into a write of the posts that it counts.
func (f *fakeShards) publish(w *shard.Write) {
	op, post := &w.Outbox[0], shard.Post{ID: w.Outbox[0].ID, Author: w.Ops[0].ID}
	w.Ops[0].Kind = engine.OpAdd
	if f.posts[post] == (op.Kind == outbox.Publish) {
		w.Cuts = append(w.Cuts, engine.Cut{Column: counters.UnchangedColumn})
		return
	}
	delta := int64(1)
	if op.Kind == outbox.Remove {
		delta = -1
	}
	f.posts[post] = delta > 0
	w.Ops[0].Cells = []engine.Cell{{Column: counters.PostsColumn, Value: delta}}
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

// fakeTimelines are the timelines of a fakeNode.
type fakeTimelines struct{ *fakeNode }

func (n *fakeNode) Timelines() shard.Timelines { return fakeTimelines{n} }

func (f fakeTimelines) Newest(_ *shard.Keyspace, q *shard.NewestPosts, _ *shard.ReadOptions, dst []shard.Post) ([]shard.Post, []int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	order := func(a, b shard.Post) int {
		if a.ID > b.ID || a.ID == b.ID && a.Author < b.Author {
			return -1
		}
		return 1
	}
	for _, p := range slices.SortedFunc(maps.Keys(f.mu.shards.posts), order) {
		behind := !q.HasAfter || p != q.After && order(q.After, p) < 0
		if f.mu.shards.posts[p] && behind && slices.Contains(q.Authors, p.Author) && len(dst) < q.Limit {
			dst = append(dst, p)
		}
	}
	if f.mu.fault == "shards_unreadable" {
		return dst, []int{3}, nil
	}
	return dst, nil, f.troubleLocked()
}

func (f fakeTimelines) Groups(_ *shard.Keyspace, user uint64, _ *shard.ReadOptions) (all []feed.Group, _ error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(f.mu.shards.groups[user])) {
		all = append(all, feed.Group{Name: name, Followees: f.mu.shards.groups[user][name]})
	}
	return all, f.troubleLocked()
}

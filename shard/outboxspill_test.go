package shard

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
)

// outboxSpill is a model of authors whose outboxes leave memory.
type outboxSpill struct {
	posts map[uint64][]uint64 // by author, newest first
}

const spillAuthors, spillPosts = 20, 10

// fillAuthors publishes some posts of each author. The older posts of a page are those of the
// authors with lower numbers.
func fillAuthors(t *testing.T, n *Node) *outboxSpill {
	t.Helper()
	m := &outboxSpill{posts: map[uint64][]uint64{}}
	var ops counters.OutboxOps
	for i := range uint64(spillPosts) {
		for author := range uint64(spillAuthors) {
			id := 1_000_000*author + 1000*i
			ops = append(ops, counters.OutboxOp{Author: author, PostOp: counters.PostOp{Kind: counters.Publish, ID: id, Limits: counters.OutboxLimits{Posts: 10_000}}})
			m.posts[author] = append([]uint64{id}, m.posts[author]...)
		}
	}
	mustDo(t, n.Write(n.Keyspace(kinds.KeyspaceUsers), once(&Write{Ops: ops, Deadline: soon()})))
	return m
}

// check reads pages of all authors, from the newest on and behind each post.
func (m *outboxSpill) check(t *testing.T, n *Node, opt ReadOptions) {
	t.Helper()
	var authors []uint64
	var all []Post
	for author := range uint64(spillAuthors) {
		authors = append(authors, author)
		for _, id := range m.posts[author] {
			all = append(all, Post{ID: id, Author: author})
		}
	}
	slices.SortFunc(all, func(a, b Post) int {
		if a.ID > b.ID || a.ID == b.ID && a.Author < b.Author {
			return -1
		}
		return 1
	})
	mustReadNewest(t, n, NewestPosts{Authors: authors, Limit: 1000}, opt, all...)
	for i := 0; i < len(all); i += 13 {
		mustReadNewest(t, n, NewestPosts{Authors: authors, Limit: 5, HasAfter: true, After: all[i]}, opt, all[i+1:min(i+6, len(all))]...)
	}
	mustReadNewest(t, n, NewestPosts{Authors: authors[:1], Limit: 1000}, opt, all[len(all)-len(m.posts[0]):]...)
}

// changeSome publishes, publishes again, removes and deletes, each for another author.
func (m *outboxSpill) changeSome(t *testing.T, n *Node, first uint64) {
	t.Helper()
	ks := n.Keyspace(kinds.KeyspaceUsers)
	posts := len(m.posts[first])
	if w := mustPublish(t, n, first, m.posts[first][1]); w.Rows[0] != int64(posts) || !slices.Contains(w.Cuts, engine.Cut{Column: counters.UnchangedColumn}) {
		t.Errorf("published twice: %d posts, cuts %v, want %d posts", w.Rows[0], w.Cuts, posts)
	}
	id := m.posts[first][0] + 1
	if w := mustPublish(t, n, first, id); w.Rows[0] != int64(posts+1) {
		t.Errorf("published: %d posts, want %d", w.Rows[0], posts+1)
	}
	m.posts[first] = append([]uint64{id}, m.posts[first]...)
	w := once(&Write{
		Ops:   counters.OutboxOps{{Author: first + 1, PostOp: counters.PostOp{Kind: counters.Unpublish, ID: m.posts[first+1][2]}}},
		Width: 1, Rows: make([]int64, 1), Deadline: soon(),
	})
	mustDo(t, n.Write(ks, w))
	if w.Rows[0] != int64(len(m.posts[first+1])-1) || len(w.Cuts) > 0 {
		t.Errorf("removed: %d posts, cuts %v", w.Rows[0], w.Cuts)
	}
	m.posts[first+1] = slices.Delete(slices.Clone(m.posts[first+1]), 2, 3)
	mustDo(t, n.Write(ks, once(&Write{Ops: counters.Ops{{ID: first + 2, Kind: engine.OpDelete}}, Deadline: soon()})))
	m.posts[first+2] = nil
}

// outboxesOnDisk returns the number of outboxes that a node has on disk, and the number of all its
// outboxes.
func outboxesOnDisk(n *Node) (spilled, authors uint64) {
	for _, r := range n.registry.bodies() {
		if r.Of == codec.KindCounters {
			s := r.Stats()
			spilled, authors = spilled+s.Spilled, authors+s.Keys
		}
	}
	return spilled, authors
}

// Outboxes on disk are read, written, backed up and kept over a restart like outboxes in memory. A
// page brings back at most as many as it has posts.
func TestSpilledOutboxesOfANode(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	n := openFeedNode(t, dir, 1, "")
	m := fillAuthors(t, n)
	before := digests(n)
	spillAll(t, n)
	if spilled, authors := outboxesOnDisk(n); spilled != spillAuthors || authors != spillAuthors {
		t.Fatalf("%d outboxes of %d are on disk", spilled, authors)
	}
	authors := []uint64{0, 1, 2, 3, 4, 5, 18, 19}
	mustReadNewest(t, n, NewestPosts{Authors: authors, Limit: 3}, ReadOptions{}, Post{ID: m.posts[19][0], Author: 19}, Post{ID: m.posts[19][1], Author: 19}, Post{ID: m.posts[19][2], Author: 19})
	if spilled, _ := outboxesOnDisk(n); spilled != spillAuthors-3 { // the three with the newest last post
		t.Errorf("a page of 3 posts left %d of %d outboxes on disk", spilled, spillAuthors)
	}
	m.check(t, n, ReadOptions{})
	spillAll(t, n)
	if after := digests(n); !maps.Equal(before, after) {
		t.Errorf("digests %v, before %v", after, before)
	}
	m.changeSome(t, n, 5)
	m.check(t, n, ReadOptions{Consistency: Linearizable})
	spillAll(t, n)
	before = digests(n)
	for _, g := range n.registry.groups.Load().all {
		if g.keyspace != kinds.KeyspaceUsers {
			continue
		}
		backup, err := n.OpenSnapshot(t.Context(), g.number)
		mustDo(t, err)
		found := uint64(0)
		facts, err := kinds.All.VisitSnapshot(backup, codec.KindCounters, g.first, raftfsm.SnapshotVisitor{Body: func(author uint64, body any) error {
			box := body.(*counters.Outbox)
			found++
			if !slices.Equal(box.IDs, m.posts[author]) {
				t.Errorf("the backup has %v of author %d, want %v", box.IDs, author, m.posts[author])
			}
			return nil
		}})
		if state := g.replica.Load().fsm.State(); err != nil || facts.Digest != state.Digest || found != spillAuthors-1 {
			t.Errorf("a backup of %d outboxes and %+v, %v, of %+v", found, facts, err, state)
		}
		mustDo(t, backup.Close())
	}
	closeCold(t, n)
	n = openFeedNode(t, dir, 1, "")
	if after := digests(n); !maps.Equal(before, after) {
		t.Errorf("after the restart %v, before %v", after, before)
	}
	m.check(t, n, ReadOptions{})
}

// Each of three nodes has other outboxes in memory. Any node answers for all of them and all nodes
// agree, even if the leader loses those that it has on disk.
func TestNodesSpillOutboxesByThemselves(t *testing.T) {
	t.Parallel()
	first := openFeedNode(t, t.TempDir(), 1, "")
	m := fillAuthors(t, first)
	all := []*Node{first, openFeedNode(t, t.TempDir(), 2, ""), openFeedNode(t, t.TempDir(), 3, ""), openFeedNode(t, t.TempDir(), 4, "")}
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	number := first.Keyspace(kinds.KeyspaceUsers).FirstGroup
	for _, other := range all[1:] {
		mustDo(t, first.catalogClient.MustChange(ctx, &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: other.record()}}))
	}
	place := &catalog.PlaceEntry{Group: number, Was: []string{"n1.0"}, Target: []string{"n1.0", "n2.0", "n3.0"}} // the last holds none
	mustDo(t, first.catalogClient.MustChange(ctx, &catalog.Command{Place: place}))
	agree := func() bool {
		g := first.registry.shardOf(number).replica.Load()
		return g != nil && len(g.group.Voters()) == 3 && digestsAgree(all)
	}
	eventually(t, "three hold the shard", agree)
	spillAll(t, first)
	spillAll(t, all[2])
	for i, n := range all {
		// Every node but the leader forwards the write. The leader may have to read the outbox from disk.
		m.changeSome(t, n, uint64(4*i))
		m.check(t, n, ReadOptions{Consistency: Linearizable})
		spillAll(t, all[i%3])
	}
	for _, n := range all {
		spillAll(t, first)
		m.check(t, n, ReadOptions{Consistency: Linearizable})
	}
	eventually(t, "digests agree", agree)
	spillAll(t, first)
	replaced := loseFeeds(t, first, number)
	m.check(t, first, ReadOptions{Consistency: Linearizable})
	eventually(t, "the leader has another replica", replaced)
	for _, n := range all {
		m.check(t, n, ReadOptions{Consistency: Linearizable})
	}
	eventually(t, "digests agree again", agree)
}

// A single node whose outboxes on disk are lost answers no page without them, counts no post twice,
// and gets all of them again from its own snapshot and log.
func TestLostOutboxesComeBack(t *testing.T) {
	t.Parallel()
	n := openFeedNode(t, t.TempDir(), 1, "")
	m := fillAuthors(t, n)
	number := n.Keyspace(kinds.KeyspaceUsers).FirstGroup
	for name, touch := range map[string]func(r *localReplica){
		"by a read": func(*localReplica) {
			opt := &ReadOptions{Deadline: time.Now().Add(300 * time.Millisecond)}
			posts, unreadable, err := n.Newest(n.Keyspace(kinds.KeyspaceUsers), &NewestPosts{Authors: []uint64{3}, Limit: 5}, opt)
			if err == nil && (len(posts) != 5 || len(unreadable) > 0) {
				t.Errorf("a lost outbox has %v, unreadable %v", posts, unreadable)
			}
		},
		"by a write": func(*localReplica) {
			w := once(&Write{Ops: counters.OutboxOps{{Author: 3, PostOp: counters.PostOp{Kind: counters.Publish, ID: m.posts[3][1], Limits: counters.OutboxLimits{Posts: 10_000}}}}, Deadline: soon()})
			if err := n.Write(n.Keyspace(kinds.KeyspaceUsers), w); err == nil && !slices.Contains(w.Cuts, engine.Cut{Column: counters.UnchangedColumn}) {
				t.Error("a post was published twice")
			} else if err != nil && !errors.Is(err, errs.ErrNoLeader) {
				var unreadable *UnreadableError
				if !errors.As(err, &unreadable) {
					t.Errorf("a publish to a lost outbox: %v", err)
				}
			}
		},
		"by a snapshot": func(r *localReplica) {
			mustWrite(t, n, n.Keyspace(kinds.KeyspaceUsers), addTo(999, 1, 1))
			if err := r.group.Snapshotter().Take(); err == nil {
				t.Error("a snapshot without all outboxes was taken")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			spillAll(t, n)
			loseAndTouch(t, n, number, touch)
			m.check(t, n, ReadOptions{Consistency: Linearizable})
		})
	}
}

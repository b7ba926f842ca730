package shard

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
)

// mustPublish publishes a post, and returns the write with the author's posts.
func mustPublish(t *testing.T, n *Node, author, id uint64) *Write {
	t.Helper()
	w := once(&Write{
		Ops:   counters.OutboxOps{{Author: author, PostOp: counters.PostOp{Kind: counters.Publish, ID: id, Limits: counters.OutboxLimits{Posts: 10_000}}}},
		Width: 1, Rows: make([]int64, 1), Deadline: soon(),
	})
	mustDo(t, n.Write(n.Keyspace(kinds.KeyspaceUsers), w))
	return w
}

func mustPutGroup(t *testing.T, n *Node, user uint64, name string, followees ...uint64) {
	t.Helper()
	op := feed.Op{Kind: feed.PutGroup, User: user, Group: name}
	for _, id := range followees {
		op.Followees = append(op.Followees, feed.Followee{ID: id})
	}
	w := once(&Write{Ops: feed.Ops{op}, Width: 1, Rows: make([]int64, 1), Deadline: soon()})
	mustDo(t, n.Write(n.Keyspace(kinds.KeyspaceFeed), w))
	if w.Rows[0] != int64(len(followees)) || len(w.Overflows) > 0 {
		t.Fatalf("group %s has %d, %v, want %v", name, w.Rows[0], w.Overflows, followees)
	}
}

func mustReadNewest(t *testing.T, n *Node, q NewestPosts, opt ReadOptions, want ...Post) {
	t.Helper()
	opt.Deadline = soon()
	posts, unreadable, err := n.Newest(n.Keyspace(kinds.KeyspaceUsers), &q, &opt)
	if err != nil || len(unreadable) > 0 || !slices.Equal(posts, want) {
		t.Fatalf("%s: %+v are %v, unreadable %v, %v, want %v", n.cfg.NodeName, q, posts, unreadable, err, want)
	}
}

// A node answers a page from its own replicas. Once they are gone, the page is merged again from
// the answers of other nodes, and has the same posts.
func TestPageIsMergedAgainByAnotherNode(t *testing.T) {
	t.Parallel()
	all := openMembers(t, 3)
	authors := []uint64{1, 2, 3, 4}
	var want []Post // newest first
	for _, author := range authors {
		mustPublish(t, all[0], author, 100+author)
		want = append([]Post{{ID: 100 + author, Author: author}}, want...)
	}
	opt := &ReadOptions{Consistency: Stale, Deadline: soon()}
	for _, n := range all {
		shards, err := n.reader.shardsToRead(n.Keyspace(kinds.KeyspaceUsers), opt)
		mustDo(t, err)
		q := counters.PostsQuery{Limit: 10}
		pg := raftfsm.NewRead(authors, shards.route, opt.Deadline)
		defer pg.Release()
		q.Split(pg)
		here := true // this node answers all shards
		merge := func() bool {
			q.Posts = nil
			err := n.reader.readShards(pg, &q, shards.all, opt, func(g *shardReplica) (*localReplica, error) {
				r, err := n.reader.admitted(g, opt, time.Now())
				here = here && r != nil
				return r, err
			})
			return !q.Join(pg) && err == nil && len(q.Unreadable) == 0 && slices.Equal(q.Posts, want)
		}
		eventually(t, n.cfg.NodeName+" answers alone", func() bool { here = true; return merge() && here })
		if n != all[2] {
			continue
		}
		n.registry.changing.Lock() // the node does not open them again while this lock is held
		defer n.registry.changing.Unlock()
		for _, g := range shards.all {
			defer g.replica.Store(g.replica.Swap(nil))
		}
		if !merge() || here {
			t.Errorf("merged by others: %v, want %v", q.Posts, want)
		}
	}
}

// Each node publishes, and reads posts and groups. It leads some shards, follows others, and with
// four nodes does not hold some.
func TestAnyNodeAnswersTimelines(t *testing.T) {
	all := openMembers(t, 4)
	authors := []uint64{0, 1, 2, 3, math.MaxUint64}
	var want []Post // newest first
	mustFollow(t, all[0], 7, feed.Followee{ID: 2}, feed.Followee{ID: 3}, feed.Followee{ID: math.MaxUint64})
	var groups []feed.Group
	for round, n := range all {
		id := uint64(10 + round)
		tokens := []Token{}
		var posts []Post
		for _, author := range authors {
			posts = append(posts, Post{ID: id, Author: author})
			tokens = append(tokens, mustPublish(t, n, author, id).Token)
			if w := mustPublish(t, n, author, id); w.Rows[0] != int64(round+1) || !slices.Contains(w.Cuts, engine.Cut{Column: counters.UnchangedColumn}) {
				t.Fatalf("published twice: %d posts, cuts %v", w.Rows[0], w.Cuts)
			}
		}
		want = append(posts, want...)
		name := fmt.Sprintf("a-name-of-a-group-%d", round)
		mustPutGroup(t, n, 7, name, 2, math.MaxUint64)
		groups = append(groups, feed.Group{Name: name, Followees: []uint64{2, math.MaxUint64}})
		for _, reader := range all {
			linearizable := ReadOptions{Consistency: Linearizable}
			mustReadNewest(t, reader, NewestPosts{Authors: authors, Limit: 1000}, linearizable, want...)
			mustReadNewest(t, reader, NewestPosts{Authors: authors, Limit: 3}, linearizable, want[:3]...)
			mustReadNewest(t, reader, NewestPosts{Authors: authors[1:2], Limit: 1}, linearizable, Post{ID: id, Author: 1})
			for i := range want {
				mustReadNewest(t, reader, NewestPosts{Authors: authors, Limit: 2, HasAfter: true, After: want[i]}, linearizable, want[i+1:min(i+3, len(want))]...)
			}
			for i, token := range tokens {
				mustReadNewest(t, reader, NewestPosts{Authors: authors[i : i+1], Limit: 1}, ReadOptions{Consistency: Stale, Token: token}, Post{ID: id, Author: authors[i]})
			}
			got, err := reader.Groups(reader.Keyspace(kinds.KeyspaceFeed), 7, &ReadOptions{Consistency: Linearizable, Deadline: soon()})
			if err != nil || !slices.EqualFunc(got, groups, func(a, b feed.Group) bool { return a.Name == b.Name && slices.Equal(a.Followees, b.Followees) }) {
				t.Fatalf("%s: groups %v, %v, want %v", reader.cfg.NodeName, got, err, groups)
			}
		}
	}
	eventually(t, "digests agree", func() bool { return digestsAgree(all) })
}

// A shard that cannot be read is named, and the page has the posts of the others.
func TestTimelineNamesUnreadableShards(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{kinds.KeyspaceUsers: 3})
	for author := range uint64(6) {
		mustPublish(t, n, author, 10+author)
	}
	ks := n.Keyspace(kinds.KeyspaceUsers)
	groups, err := n.router.groupsOf(ks)
	mustDo(t, err)
	n.registry.changing.Lock() // the node opens no other replica while this lock is held
	defer n.registry.changing.Unlock()
	r := groups[1].replica.Swap(nil) // as if this node had no replica
	defer groups[1].replica.Store(r)
	within := func() *ReadOptions { return &ReadOptions{Deadline: time.Now().Add(hinderedMax)} }
	q := NewestPosts{Authors: []uint64{0, 1, 2, 3, 4, 5}, Limit: 10}
	posts, unreadable, err := n.Newest(ks, &q, within())
	if want := []Post{{ID: 15, Author: 5}, {ID: 13, Author: 3}, {ID: 12, Author: 2}, {ID: 10, Author: 0}}; err != nil || !slices.Equal(posts, want) || !slices.Equal(unreadable, []int{1}) {
		t.Errorf("%v, unreadable %v, %v, want %v", posts, unreadable, err, want)
	}
	q.Authors = []uint64{1, 4}
	if posts, unreadable, err := n.Newest(ks, &q, within()); !errors.Is(err, errs.ErrNoQuorum) {
		t.Errorf("of the shard alone: %v, unreadable %v, %v", posts, unreadable, err)
	}
}

// A publish that was refused is repeated, and is refused again for the same reason.
func TestRefusedPublishRepeated(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, kinds.KeyspaceUsers: 1, kinds.KeyspaceFeed: 1})
	ks := n.Keyspace(kinds.KeyspaceUsers)
	mustWrite(t, n, ks, engine.Op{ID: 1, Kind: engine.OpSet, Cells: []engine.Cell{{Value: math.MaxInt64}}})
	put := counters.PostOp{Kind: counters.PutOutbox, Outbox: counters.Outbox{IDs: []uint64{9}, Trimmed: 5}}
	mustDo(t, n.Write(ks, once(&Write{Ops: counters.OutboxOps{{Author: 2, PostOp: put}}, Deadline: soon()})))
	for name, c := range map[string]struct {
		author, post uint64
		column       uint8
	}{"overflow": {1, 9, counters.PostsColumn}, "too old": {2, 4, counters.TooOldColumn}} {
		for round := range 2 {
			w := &Write{
				ID: dedup.ByKey([]byte(name)), Ops: counters.OutboxOps{{Author: c.author, PostOp: counters.PostOp{Kind: counters.Publish, ID: c.post, Limits: counters.OutboxLimits{Posts: 10_000}}}},
				Width: 1, Rows: make([]int64, 1), Deadline: soon(),
			}
			mustDo(t, n.Write(ks, w))
			if want := []engine.Overflow{{Column: c.column}}; w.Duplicate != (round > 0) || !slices.Equal(w.Overflows, want) {
				t.Errorf("%s, round %d: duplicate %v, refused %v, want %v", name, round, w.Duplicate, w.Overflows, want)
			}
		}
	}
}

// Outboxes and groups are backed up and restored, without force into an empty cluster, and with
// force over other rows.
func TestRestoreOfTimelines(t *testing.T) {
	shards := map[string]int{"posts": 1, kinds.KeyspaceUsers: 1, kinds.KeyspaceFeed: 1}
	from := []*Node{openNode(t, t.TempDir(), shards)}
	n := from[0]
	for author := range uint64(40) {
		for post := range author {
			mustPublish(t, n, author, 100*post+author)
		}
		mustFollow(t, n, author, feed.Followee{ID: 1}, feed.Followee{ID: 2})
		mustPutGroup(t, n, author, "b", 2)
		mustPutGroup(t, n, author, "a")
	}
	mustWrite(t, n, n.Keyspace(kinds.KeyspaceUsers), engine.Op{ID: 9, Kind: engine.OpSet, Cells: []engine.Cell{{Value: 0}}}) // an outbox without a row
	to := openNode(t, t.TempDir(), shards)
	mustPublish(t, to, 77, 5)
	mustWrite(t, to, to.Keyspace(kinds.KeyspaceUsers), engine.Op{ID: 77, Kind: engine.OpSet, Cells: []engine.Cell{{Value: 0}}})
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	for _, name := range []string{kinds.KeyspaceUsers, kinds.KeyspaceFeed} {
		number := n.Keyspace(name).FirstGroup
		stream, facts := taken(t, from, number)
		for _, force := range []bool{false, true} {
			got, err := RestoreShard(ctx, to, number, bytes.NewReader(stream), force, nil)
			if name == kinds.KeyspaceUsers && !force { // author 77 has an outbox and no row
				if !errors.Is(err, ErrNotEmpty) {
					t.Fatalf("restored over an outbox: %v", err)
				}
				continue
			}
			if err != nil || got != facts {
				t.Fatalf("%s: restored %+v, %v, want %+v", name, got, err, facts)
			}
		}
	}
	opt := ReadOptions{Consistency: Linearizable, Deadline: soon()}
	mustReadNewest(t, to, NewestPosts{Authors: []uint64{9, 77}, Limit: 2}, opt, Post{ID: 809, Author: 9}, Post{ID: 709, Author: 9})
	if w := mustPublish(t, to, 39, 39); !slices.Contains(w.Cuts, engine.Cut{Column: counters.UnchangedColumn}) || w.Rows[0] != 39 {
		t.Errorf("a restored post was published again: %v, %v", w.Rows, w.Cuts)
	}
	groups, err := to.Groups(to.Keyspace(kinds.KeyspaceFeed), 5, &opt)
	if err != nil || len(groups) != 2 || groups[0].Name != "a" || !slices.Equal(groups[1].Followees, []uint64{2}) {
		t.Errorf("groups %v, %v", groups, err)
	}
}

// A query reaches another node with its keys. That node refuses a query without its key, or of
// another kind.
func TestReadMessages(t *testing.T) {
	g := (&Node{}).newShardReplica(&Keyspace{Kind: kinds.Feed, Shards: 1, Groups: []uint32{1}}, 0, codec.Whole)
	for _, q := range []raftfsm.Query{&feed.Query{}, &feed.GroupsQuery{}} {
		read := newRemoteRead(q, &raftfsm.Part{Route: g.first, Keys: []uint64{1}}, g, &ReadOptions{Consistency: Linearizable})
		r := wire.Reader{Rest: read.appendTo(nil)}
		got := parseRead(&r)
		parsed, p, err := got.parseQuery(codec.KindFeed)
		if r.End() != nil || err != nil || !reflect.DeepEqual(parsed, q) || !slices.Equal(p.Keys, read.keys) {
			t.Errorf("%+v became %+v of %+v, %v, %v", q, parsed, got, err, r.Err)
		}
		got.keys = nil
		if _, _, err := got.parseQuery(codec.KindFeed); (err == nil) != (q.Limits(0).Keys > 1) {
			t.Errorf("%T without a key: %v", q, err)
		}
		got.keys = make([]uint64, raftfsm.ReadKeysMax)
		if _, _, err := got.parseQuery(codec.KindFeed); !errors.Is(err, wire.ErrBadMessage) {
			t.Errorf("%T with too many keys: %v", q, err)
		}
		got.number = 2
		if _, _, err := got.parseQuery(codec.KindFeed); !errors.Is(err, wire.ErrBadMessage) {
			t.Errorf("query %d: %v", got.number, err)
		}
	}
}

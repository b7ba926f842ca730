package shard

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/codec/codectest"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/shard/rpc"
)

// mustPublish publishes a post, and returns the write with the author's posts.
func mustPublish(t *testing.T, n *Node, author, id uint64) *Write {
	t.Helper()
	w := once(&Write{
		Ops: []engine.Op{{ID: author}}, Outbox: []outbox.Op{{Kind: outbox.Publish, ID: id}},
		Width: 1, Rows: make([]int64, 1), Deadline: soon(),
	})
	mustDo(t, n.Write(n.Keyspace(KeyspaceUsers), w))
	return w
}

func mustPutGroup(t *testing.T, n *Node, user uint64, name string, followees ...uint64) {
	t.Helper()
	op := feed.Op{Kind: feed.PutGroup, User: user, Group: name}
	for _, id := range followees {
		op.Followees = append(op.Followees, feed.Followee{ID: id})
	}
	w := once(&Write{Ops: []engine.Op{{ID: user}}, Feeds: []feed.Op{op}, Width: 1, Rows: make([]int64, 1), Deadline: soon()})
	mustDo(t, n.Write(n.Keyspace(KeyspaceFeed), w))
	if w.Rows[0] != int64(len(followees)) || len(w.Overflows) > 0 {
		t.Fatalf("group %s has %d, %v, want %v", name, w.Rows[0], w.Overflows, followees)
	}
}

func mustReadNewest(t *testing.T, n *Node, q NewestPosts, opt ReadOptions, want ...Post) {
	t.Helper()
	opt.Deadline = soon()
	posts, unreadable, err := n.Timelines().Newest(n.Keyspace(KeyspaceUsers), &q, &opt, nil)
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
	var want []outbox.Post // newest first
	for i, author := range authors {
		mustPublish(t, all[0], author, 100+author)
		want = append([]outbox.Post{{ID: 100 + author, Author: i}}, want...)
	}
	opt := &ReadOptions{Consistency: Stale, Deadline: soon()}
	merge := func(n *Node, pg *page, groups []*shardReplica) (whole bool) {
		unreadable, err := n.reader.mergePosts(pg, groups, 10, opt)
		return err == nil && len(unreadable) == 0 && slices.Equal(pg.newest.Posts(), want)
	}
	for _, n := range all {
		groups, err := n.reader.groupsToRead(n.Keyspace(KeyspaceUsers), opt)
		mustDo(t, err)
		pg := newPage(readPosts, authors, 0, groups[0].route)
		pg.posts = counters.NewestPosts{Last: counters.NoLast, Limit: 10}
		eventually(t, n.cfg.NodeName+" answers alone", func() bool {
			return merge(n, pg, groups) && !slices.ContainsFunc(pg.byShard, func(p pagePart) bool { return len(p.keys) > 0 && p.here == nil })
		})
		if n != all[2] {
			pg.release()
			continue
		}
		n.registry.changing.Lock() // the node does not open them again while this lock is held
		defer n.registry.changing.Unlock()
		for _, g := range groups {
			defer g.replica.Store(g.replica.Swap(nil))
		}
		if !merge(n, pg, groups) {
			t.Errorf("merged by others: %v, want %v", pg.newest.Posts(), want)
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
			posts = append(posts, Post{id, author})
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
			mustReadNewest(t, reader, NewestPosts{Authors: authors[1:2], Limit: 1}, linearizable, Post{id, 1})
			for i := range want {
				mustReadNewest(t, reader, NewestPosts{Authors: authors, Limit: 2, HasAfter: true, After: want[i]}, linearizable, want[i+1:min(i+3, len(want))]...)
			}
			for i, token := range tokens {
				mustReadNewest(t, reader, NewestPosts{Authors: authors[i : i+1], Limit: 1}, ReadOptions{Consistency: Stale, Token: token}, Post{id, authors[i]})
			}
			got, err := reader.Timelines().Groups(reader.Keyspace(KeyspaceFeed), 7, &ReadOptions{Consistency: Linearizable, Deadline: soon()})
			if err != nil || !slices.EqualFunc(got, groups, func(a, b feed.Group) bool { return a.Name == b.Name && slices.Equal(a.Followees, b.Followees) }) {
				t.Fatalf("%s: groups %v, %v, want %v", reader.cfg.NodeName, got, err, groups)
			}
		}
	}
	eventually(t, "digests agree", func() bool { return digestsAgree(all) })
}

// A shard that cannot be read is named, and the page has the posts of the others.
func TestTimelineNamesUnreadableShards(t *testing.T) {
	n := openNode(t, t.TempDir(), map[string]int{KeyspaceUsers: 3})
	for author := range uint64(6) {
		mustPublish(t, n, author, 10+author)
	}
	ks := n.Keyspace(KeyspaceUsers)
	groups, err := n.router.groupsOf(ks)
	mustDo(t, err)
	n.registry.changing.Lock() // the node opens no other replica while this lock is held
	defer n.registry.changing.Unlock()
	r := groups[1].replica.Swap(nil) // as if this node had no replica
	defer groups[1].replica.Store(r)
	within := func() *ReadOptions { return &ReadOptions{Deadline: time.Now().Add(time.Second)} }
	q := NewestPosts{Authors: []uint64{0, 1, 2, 3, 4, 5}, Limit: 10}
	posts, unreadable, err := n.Timelines().Newest(ks, &q, within(), nil)
	if want := []Post{{15, 5}, {13, 3}, {12, 2}, {10, 0}}; err != nil || !slices.Equal(posts, want) || !slices.Equal(unreadable, []int{1}) {
		t.Errorf("%v, unreadable %v, %v, want %v", posts, unreadable, err, want)
	}
	q.Authors = []uint64{1, 4}
	if posts, unreadable, err := n.Timelines().Newest(ks, &q, within(), nil); !errors.Is(err, ErrNoQuorum) {
		t.Errorf("of the shard alone: %v, unreadable %v, %v", posts, unreadable, err)
	}
}

// A publish that was refused is repeated, and is refused again for the same reason.
func TestRefusedPublishRepeated(t *testing.T) {
	t.Parallel()
	n := openNode(t, t.TempDir(), map[string]int{"posts": 1, KeyspaceUsers: 1, KeyspaceFeed: 1})
	ks := n.Keyspace(KeyspaceUsers)
	mustWrite(t, n, ks, engine.Op{ID: 1, Kind: engine.OpSet, Cells: []engine.Cell{{Value: math.MaxInt64}}})
	put := outbox.Op{Kind: outbox.Put, Outbox: outbox.Outbox{IDs: []uint64{9}, Trimmed: 5}}
	mustDo(t, n.Write(ks, once(&Write{Ops: []engine.Op{{ID: 2}}, Outbox: []outbox.Op{put}, Deadline: soon()})))
	for name, c := range map[string]struct {
		author, post uint64
		column       uint8
	}{"overflow": {1, 9, counters.PostsColumn}, "too old": {2, 4, counters.TooOldColumn}} {
		for round := range 2 {
			w := &Write{
				ID: ByKey([]byte(name)), Ops: []engine.Op{{ID: c.author}}, Outbox: []outbox.Op{{Kind: outbox.Publish, ID: c.post}},
				Width: 1, Rows: make([]int64, 1), Deadline: soon(),
			}
			mustDo(t, n.Write(ks, w))
			if want := []engine.Overflow{{Column: c.column}}; w.Duplicate != (round > 0) || !slices.Equal(w.Overflows, want) {
				t.Errorf("%s, round %d: duplicate %v, refused %v, want %v", name, round, w.Duplicate, w.Overflows, want)
			}
		}
	}
}

// Outboxes and groups are backed up and restored, without force over nothing, and with force over
// others.
func TestRestoreOfTimelines(t *testing.T) {
	shards := map[string]int{"posts": 1, KeyspaceUsers: 1, KeyspaceFeed: 1}
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
	mustWrite(t, n, n.Keyspace(KeyspaceUsers), engine.Op{ID: 9, Kind: engine.OpSet, Cells: []engine.Cell{{Value: 0}}}) // an outbox without a row
	to := openNode(t, t.TempDir(), shards)
	mustPublish(t, to, 77, 5)
	mustWrite(t, to, to.Keyspace(KeyspaceUsers), engine.Op{ID: 77, Kind: engine.OpSet, Cells: []engine.Cell{{Value: 0}}})
	ctx, cancel := context.WithTimeout(t.Context(), eventuallyMax)
	defer cancel()
	for _, name := range []string{KeyspaceUsers, KeyspaceFeed} {
		number := n.Keyspace(name).FirstGroup
		stream, facts := taken(t, from, number)
		for _, force := range []bool{false, true} {
			got, err := to.RestoreShard(ctx, number, bytes.NewReader(stream), RestoreOptions{Force: force})
			if name == KeyspaceUsers && !force { // author 77 has an outbox and no row
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
	mustReadNewest(t, to, NewestPosts{Authors: []uint64{9, 77}, Limit: 2}, opt, Post{809, 9}, Post{709, 9})
	if w := mustPublish(t, to, 39, 39); !slices.Contains(w.Cuts, engine.Cut{Column: counters.UnchangedColumn}) || w.Rows[0] != 39 {
		t.Errorf("a restored post was published again: %v, %v", w.Rows, w.Cuts)
	}
	groups, err := to.Timelines().Groups(to.Keyspace(KeyspaceFeed), 5, &opt)
	if err != nil || len(groups) != 2 || groups[0].Name != "a" || !slices.Equal(groups[1].Followees, []uint64{2}) {
		t.Errorf("groups %v, %v", groups, err)
	}
}

// Answers with posts and groups are sent unchanged between nodes, and those that make no sense are
// refused.
func TestTimelineAnswers(t *testing.T) {
	posts := []outbox.Post{{ID: math.MaxUint64, Author: 0}, {ID: 5, Author: 2}}
	q := &remoteRead{route: codectest.Whole, readQuery: readQuery{of: readPosts, posts: counters.NewestPosts{Last: 9, Below: 1, Limit: 2}}, keys: []uint64{1, 2, 3}}
	part := pagePart{at: []int{0, 4, 8}, rows: parseReadRows(&wire.Reader{Rest: answerOf(outbox.AppendRow(nil, posts))}, q)}
	var merged outbox.Newest
	merged.Reset(3)
	merged.AddPost(outbox.Post{ID: 6, Author: 1})
	part.addPosts(&merged)
	if got, want := merged.Posts(), []outbox.Post{{ID: math.MaxUint64, Author: 0}, {ID: 6, Author: 1}, {ID: 5, Author: 8}}; !slices.Equal(got, want) {
		t.Errorf("posts %v, want %v", got, want)
	}
	for name, row := range map[string][]int64{
		"too many": {3, 1, 0, 1, 0, 1, 0}, "negative": {-1}, "another author": {1, 5, 3}, "author -1": {1, 5, -1}, "short": {2, 5, 1},
	} {
		r := &wire.Reader{Rest: answerOf(row)}
		if parseReadRows(r, q); r.End() == nil {
			t.Errorf("%s: %v was accepted", name, row)
		}
	}
	most := feed.Group{Name: strings.Repeat("x", feed.GroupNameBytesMax), Followees: slices.Repeat([]uint64{math.MaxUint64}, feed.FolloweesMax)}
	for _, groups := range [][]feed.Group{
		{}, {{Name: "eight888", Followees: []uint64{1, math.MaxUint64}}, {Name: "x", Followees: []uint64{}}}, slices.Repeat([]feed.Group{most}, feed.GroupsMax),
	} {
		row, err := jsonRow(groups)
		mustDo(t, err)
		answer := answerOf(row)
		r := &wire.Reader{Rest: answer}
		got, err := parseJSONRow[[]feed.Group](parseReadRows(r, &remoteRead{readQuery: readQuery{of: readGroups}, keys: []uint64{1}}))
		if err := errors.Join(err, r.End()); err != nil || !reflect.DeepEqual(got, groups) || len(answer) > rpc.MessageBytesMax {
			t.Errorf("%d groups became %d in %d bytes, %v", len(groups), len(got), len(answer), err)
		}
	}
	if _, err := parseJSONRow[[]feed.Group]([]int64{1, '{'}); !errors.Is(err, wire.ErrBadMessage) {
		t.Errorf("no JSON: %v", err)
	}
	for name, c := range map[string]struct {
		query readQuery
		row   []int64
	}{
		"rows of a scan":   {readQuery{chunk: 2, width: 1}, []int64{3, 1, 1, 2, 1, 3, 1}},
		"short rows":       {readQuery{chunk: 2, width: 1}, []int64{2, 1, 1, 2}},
		"a long list":      {readQuery{of: readRows, sets: setQuery{page: members.Page{Limit: 1}}}, []int64{2, 0, 1, 1, 2, 2}},
		"a list of halves": {readQuery{of: readMembers, sets: setQuery{page: members.Page{Limit: 1}}}, []int64{1, 0, 1}},
		"a board of none":  {readQuery{of: readBoard}, []int64{-1}},
		"a short board":    {readQuery{of: readBoard}, []int64{9, 1}},
	} {
		r := &wire.Reader{Rest: answerOf(c.row)}
		if parseReadRows(r, &remoteRead{readQuery: c.query, keys: []uint64{1}}); r.End() == nil {
			t.Errorf("%s: %v was accepted", name, c.row)
		}
	}
}

// Each kind of read is sent unchanged between nodes, and a read without its key is refused.
func TestReadMessages(t *testing.T) {
	sets := setQuery{column: 3, member: math.MaxUint64, page: members.Page{Limit: 5, Continues: true, After: members.Entry{At: 9, ID: 1 << 63}}}
	for _, query := range []readQuery{
		{width: 4}, {of: readCursors, width: 4}, {chunk: 9, width: 4}, {of: readFeeds}, {of: readGroups}, {of: readBoard},
		{of: readPosts, posts: counters.NewestPosts{Last: 9, Below: 1, Limit: 2}},
		{of: readContains, width: 1, sets: setQuery{column: 1, member: 7}}, {of: readMembers, sets: sets}, {of: readRows, sets: sets},
	} {
		q := &remoteRead{group: 7, route: codectest.Whole, consistency: Linearizable, readQuery: query, cold: query.of > 1, keys: []uint64{1, 2}}
		q.keys = q.keys[:min(2, q.keysMax())]
		r := wire.Reader{Rest: appendRead(nil, q)}
		if p := parseRead(&r); r.End() != nil || !reflect.DeepEqual(p, q) {
			t.Errorf("%+v became %+v, %v", q, p, r.Err)
		}
		q.keys = nil
		r = wire.Reader{Rest: appendRead(nil, q)}
		if parseRead(&r); (r.End() == nil) != (q.keysMax() > 1) {
			t.Errorf("%+v without a key: %v", q, r.Err)
		}
	}
}

func answerOf(rows []int64) []byte {
	var w []byte
	for _, v := range rows {
		w = binary.AppendVarint(w, v)
	}
	return w
}

func TestOutboxSettings(t *testing.T) {
	cfg := memberConfig(t, t.TempDir(), 1, 1)
	for name, set := range map[string]func(*Config){
		"keep": func(c *Config) { c.OutboxKeep = 1 }, "max": func(c *Config) { c.OutboxMax = outbox.PostsMax + 1 }, "negative": func(c *Config) { c.OutboxMax = -1 },
	} {
		bad := cfg
		set(&bad)
		if n, err := Open(bad); err == nil {
			mustStop(t, n)
			t.Errorf("%s was accepted", name)
		}
	}
}

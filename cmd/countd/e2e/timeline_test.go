package e2e

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

const (
	timelineAuthors = 20
	timelineUsers   = 12
	// timelinePost is the id of the first post, and timelineStep is the distance to the next one.
	// With these values, all posts are younger than --outbox-keep.
	timelinePost = 4_467_107_636_950_632
	timelineStep = 1 << 16
)

// timelineModel is a naive model of timelines.
type timelineModel struct {
	posts   map[client.ID][]client.ID        // ids of posts, by author
	follows map[client.ID]map[client.ID]bool // followed authors, by user
}

func (m *timelineModel) timeline(user client.ID) (all []client.Post) {
	for author := range m.follows[user] {
		for _, id := range m.posts[author] {
			all = append(all, client.Post{ID: id, Author: author})
		}
	}
	slices.SortFunc(all, func(a, b client.Post) int {
		return cmp.Or(b.ID.Compare(a.ID), a.Author.Compare(b.Author))
	})
	return all
}

// timelineRun is a model of timelines, and a client of the cluster that must agree with it.
type timelineRun struct {
	t     *testing.T
	rand  *rand.Rand
	model timelineModel
	http  *client.Client
	keys  int // number of idempotency keys used so far
}

// TestTimelinesEqualModelThroughKills publishes, deletes, follows and unfollows. It repeats some
// writes under the same key. Meanwhile nodes are killed one after the other, replicas move to a
// fourth node, and idle outboxes and feeds move to disk. The test checks the following while each
// node is down, and at the end through every node:
//
//  1. the timeline of each user, page by page, equals the model's;
//  2. each author's count of posts is exact;
//  3. replicas have the same digests.
func TestTimelinesEqualModelThroughKills(t *testing.T) {
	long(t)
	beside(t)
	c := newCluster(t, proctest.Options{Nodes: 4, Args: []string{"--feed-idle=1s"}})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := timelineRun{
		t: t, rand: rand.New(rand.NewPCG(seed, 0)), http: clientOf(t, c.Nodes()...),
		model: timelineModel{posts: map[client.ID][]client.ID{}, follows: map[client.ID]map[client.ID]bool{}},
	}
	for range short(1, 20) {
		for _, victim := range c.Nodes()[1:] {
			for range 40 {
				r.act()
			}
			moveTimelines(t, c)
			for range 10 {
				r.act()
			}
			victim.Kill()
			for range 40 {
				r.act()
			}
			r.http = clientOf(t, c.Others(victim)...)
			r.check()
			victim.Start()
			c.AwaitReady(victim)
			c.AwaitVoters(3)
			r.http = clientOf(t, c.Nodes()...)
		}
	}
	c.AwaitAgreement(c.Nodes()...)
	for _, n := range c.Nodes() {
		r.http = clientOf(t, n)
		r.check()
	}
}

func clientOf(t *testing.T, nodes ...*proctest.Member) *client.Client {
	t.Helper()
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, n.Site().HTTP)
	}
	c, err := client.New(client.Config{Addrs: addrs, Retry: client.Retry{For: must.BecomeMax}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// act makes a random change in the cluster and in the model. The client repeats the change, under
// one key, until the outcome is known.
func (r *timelineRun) act() {
	r.t.Helper()
	author, user := client.Number(1+r.rand.Uint64N(timelineAuthors)), client.Number(100+r.rand.Uint64N(timelineUsers))
	posts := r.model.posts[author]
	switch kind := r.rand.IntN(10); {
	case kind < 5:
		id := client.Number(timelinePost + timelineStep*r.rand.Uint64N(1000))
		if !slices.Contains(posts, id) {
			posts = append(posts, id)
		}
		r.publish(author, posts, func(o client.WriteOptions) (client.PostResult, error) {
			return r.http.AddPost(r.t.Context(), author, id, o)
		})
	case kind < 7 && len(posts) > 0:
		at := r.rand.IntN(len(posts))
		r.publish(author, slices.Delete(slices.Clone(posts), at, at+1), func(o client.WriteOptions) (client.PostResult, error) {
			return r.http.RemovePost(r.t.Context(), author, posts[at], o)
		})
	case kind == 7:
		if _, err := r.http.Feeds().Unfollow(r.t.Context(), user, []client.ID{author}, client.WriteOptions{}); err != nil {
			r.t.Fatal(err)
		}
		delete(r.model.follows[user], author)
	default:
		if _, err := r.http.Feeds().Follow(r.t.Context(), user, []client.ID{author}, client.WriteOptions{}); err != nil {
			r.t.Fatal(err)
		}
		if r.model.follows[user] == nil {
			r.model.follows[user] = map[client.ID]bool{}
		}
		r.model.follows[user][author] = true
	}
}

// publish calls write, after which the author's posts must be those of the parameter posts. In half
// of the cases, it calls write twice, under one key.
func (r *timelineRun) publish(author client.ID, posts []client.ID, write func(client.WriteOptions) (client.PostResult, error)) {
	r.t.Helper()
	r.keys++
	for range 1 + r.rand.IntN(2) {
		answer, err := write(client.WriteOptions{Key: fmt.Sprintf("key %d", r.keys)})
		if err != nil || answer.Posts != int64(len(posts)) {
			r.t.Fatalf("author %s has %d posts, %v, want %d", author, answer.Posts, err, len(posts))
		}
	}
	r.model.posts[author] = posts
}

func (r *timelineRun) check() {
	r.t.Helper()
	for n := range uint64(timelineUsers) {
		user := client.Number(100 + n)
		if got, want := r.pages(user), r.model.timeline(user); !slices.EqualFunc(got, want, samePost) {
			r.t.Fatalf("the timeline of user %s is %v, want %v", user, got, want)
		}
	}
	for n := range uint64(timelineAuthors) {
		author := client.Number(1 + n)
		row, err := r.http.Get(r.t.Context(), "users", author, linearizableRead)
		got, _ := row.Counts.Get("posts")
		if want := int64(len(r.model.posts[author])); err != nil || got != want {
			r.t.Fatalf("author %s counts %d posts, %v, want %d", author, got, err, want)
		}
	}
}

var linearizableRead = client.ReadOptions{Consistency: "linearizable"}

func samePost(a, b client.Post) bool { return a.ID == b.ID && a.Author == b.Author }

// pages reads the whole timeline of a user. If a page lacks the posts of a shard without a leader,
// pages reads the page again.
func (r *timelineRun) pages(user client.ID) (all []client.Post) {
	r.t.Helper()
	q := client.PostQuery{Limit: 7}
	for began := time.Now(); ; {
		page, err := r.http.Timeline(r.t.Context(), user, q, linearizableRead)
		if err != nil {
			r.t.Fatal(err)
		}
		if len(page.UnreadableShards) > 0 {
			if time.Since(began) > must.BecomeMax {
				r.t.Fatalf("shards %v cannot be read", page.UnreadableShards)
			}
			continue
		}
		all = append(all, page.Posts...)
		if q.Cursor = page.Cursor; q.Cursor == "" {
			return all
		}
	}
}

// TestPostOfAStar: everybody follows one author. Every follower's next read contains the author's
// new post, and the next read after its deletion does not.
func TestPostOfAStar(t *testing.T) {
	beside(t)
	followers := short(300, 1_000_000)
	n := proctest.NewNode(t, bin, t.TempDir())
	n.StartReady()
	n.MustCtl("--yes", "bench", "--op", "feed", "--dist", "each", "--ids", fmt.Sprint(followers), "--requests", fmt.Sprint(followers),
		"--duration", "0", "--followees", "10", "--authors", "1000", "--concurrency", "32")
	c, err := client.New(client.Config{Addrs: []string{n.Site().HTTP}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	star, post := client.Number(1), client.Number(timelinePost)
	pages := func(want bool) {
		t.Helper()
		for sample := range 300 {
			user := client.Number(uint64(1 + sample*followers/300))
			page, err := c.Timeline(t.Context(), user, client.PostQuery{Limit: 1}, linearizableRead)
			if err != nil || slices.ContainsFunc(page.Posts, func(p client.Post) bool { return p.ID == post && p.Author == star }) != want {
				t.Fatalf("the page of user %s is %v, %v; want the post: %v", user, page.Posts, err, want)
			}
		}
	}
	for range 3 {
		if _, err := c.AddPost(t.Context(), star, post, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		pages(true)
		if _, err := c.RemovePost(t.Context(), star, post, client.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		pages(false)
	}
}

// TestCountctlTimelines runs every command of outboxes, timelines and groups.
func TestCountctlTimelines(t *testing.T) {
	long(t)
	t.Parallel()
	n := proctest.NewNode(t, bin, t.TempDir())
	n.StartReady()
	const read = " --consistency linearizable"
	for _, step := range []struct{ args, want string }{
		{"outbox add 2 4467107636950632", "AUTHOR CHANGED POSTS 2 true 1"},
		{"outbox add 2 4467107636950632", "AUTHOR CHANGED POSTS 2 false 1"},
		{"outbox add 3 4467107636950700 --key k", "AUTHOR CHANGED POSTS 3 true 1"},
		{"outbox add 2 4467107636950800", "AUTHOR CHANGED POSTS 2 true 2"},
		{"outbox list 2" + read, "POST 4467107636950800 4467107636950632"},
		{"outbox list 2 --limit 1" + read, "POST 4467107636950800 next page: --cursor 4467107636950800"},
		{"outbox list 2 --cursor 4467107636950800" + read, "POST 4467107636950632"},
		{"feed follow 7 2 3", "USER UNREAD 7 0"},
		{"incr 4467107636950700 like=3", "ID REPOST COMMENT LIKE VIEW 4467107636950700 0 0 3 0"},
		{"timeline 7" + read, "POST AUTHOR 4467107636950800 2 4467107636950700 3 4467107636950632 2"},
		{"timeline 7 --limit 1 --cursor 4467107636950800.2 --counts posts" + read,
			"POST AUTHOR repost comment like view 4467107636950700 3 0 0 3 0 next page: --cursor 4467107636950700.3"},
		{"members add 4467107636950700 7 8", "ID MEMBER CHANGED COUNT 4467107636950700 7 true 4 4467107636950700 8 true 5"},
		{"timeline 7 --limit 1 --cursor 4467107636950800.2 --counts posts --member view,like" + read,
			"POST AUTHOR repost comment like view in like in view 4467107636950700 3 0 0 5 0 true false next page: --cursor 4467107636950700.3"},
		{"outbox remove 2 4467107636950800", "AUTHOR CHANGED POSTS 2 true 1"},
		{"outbox remove 2 4467107636950800", "AUTHOR CHANGED POSTS 2 false 1"},
		{"timeline 7" + read, "POST AUTHOR 4467107636950700 3 4467107636950632 2"},
		{"feed groups 7" + read, "GROUP FOLLOWEES"},
	} {
		if got := strings.Join(strings.Fields(n.MustCtl(strings.Fields(step.args)...)), " "); got != step.want {
			t.Errorf("countctl %s prints %q, want %q", step.args, got, step.want)
		}
	}
	for args, code := range map[string]int{
		"outbox": 2, "outbox add 2": 2, "outbox add 2 x": 2, "outbox add x 2": 2, "outbox list": 2, "outbox list 2 --cursor x": 2, "outbox remove 2 x": 2,
		"timeline": 2, "timeline x": 2, "timeline 7 --group nobody": 1, "timeline 7 --counts nothing": 1, "timeline 7 --member likes": 2, "timeline 7 --limit 1001": 2, "timeline 7 --cursor 5": 2,
		"outbox add 2 1000000000000000000": 0, "feed groups": 2,
	} {
		if ctl := n.Ctl(strings.Fields(args)...); ctl.Code != code {
			t.Errorf("countctl %s exits %d, want %d: %s", args, ctl.Code, code, ctl.Stderr)
		}
	}
	for _, op := range []string{"post", "timeline"} {
		if table := n.MustCtl("--yes", "bench", "--concurrency", "4", "--op", op, "--dist", "each", "--ids", "50", "--requests", "50"); !strings.Contains(table, "P99.99") {
			t.Errorf("countctl bench --op %s prints\n%s", op, table)
		}
	}
	n.MustCtl("verify")
}

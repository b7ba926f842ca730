package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

const (
	followEvents   = 20_000 // number of events of the stream, unless the whole stream is requested
	followRounds   = 12     // number of parts of the stream; after each part, all users are polled
	followMovers   = 60     // number of users who follow, unfollow, read and reset after each part
	followDetails  = 40     // number of users whose feeds are compared by followee
	followCallers  = 16     // number of requests in flight
	postsOfRequest = 500
	pollOfRequest  = 100
)

// TestReplayToFollowers: users follow each other as they did on Twitter, and a stream of events is
// replayed as posts of their followees. After each part of the stream
//
//  1. the polls of all users return the counts of a model that writes each post to each follower;
//  2. for some users, the counts by followee and a poll of the user alone also equal the model;
//  3. this also holds for users who change their followees or read posts between the parts, and
//     after kills of the node while posts arrive;
//  4. it also holds while feeds leave memory and come back.
func TestReplayToFollowers(t *testing.T) {
	long(t)
	t.Parallel()
	r := newFollowRun(t, followGraph(t, *replayAll), "--feed-idle=1s")
	events := higgsRecords(t, followEvents, *replayAll)
	by := r.model.authorsOfItems(events)
	r.loadFeeds()
	for round := range followRounds {
		part := events[len(events)*round/followRounds : len(events)*(round+1)/followRounds]
		sent := make(chan struct{})
		go func() { r.post(round, part, by); close(sent) }()
		if round == followRounds/3 || round == followRounds*2/3 {
			r.node.Kill()
			r.node.StartReady()
		}
		<-sent
		r.compare(round)
		r.move(round)
		if round%4 == 1 {
			r.awaitSpill()
		}
	}
	r.compare(followRounds)
	if r.told == 0 {
		t.Error("nobody was told of a post")
	}
	t.Logf("%d users, %d posts: %d writes in the model, one a post in countd; %d answers compared", len(r.users), len(events), r.model.written, r.answers)
}

// followRun is a node and the model of its answers.
type followRun struct {
	t       *testing.T
	ctx     context.Context
	node    *proctest.Node
	model   *fanOut
	users   []uint64 // all users of the graph
	rand    *rand.Rand
	answers int   // number of compared answers
	told    int64 // largest number of unread posts that a poll returned
}

// awaitSpill waits until most feeds are on disk.
func (r *followRun) awaitSpill() {
	r.t.Helper()
	eventually(r.t, "feeds leave memory", func() bool {
		var rows, spilled uint64
		for _, g := range r.node.Cluster().Groups {
			if g.Keyspace == "feed" {
				rows, spilled = rows+g.Rows, spilled+g.ColdRows
			}
		}
		return spilled > rows*3/4
	})
}

func newFollowRun(t *testing.T, edges []edge, settings ...string) *followRun {
	t.Helper()
	r := &followRun{t: t, node: proctest.NewNode(t, bin, t.TempDir(), settings...), model: newFanOut(edges), rand: rand.New(rand.NewPCG(3, 9))}
	r.users = r.model.users()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	r.ctx = ctx
	r.node.StartReady()
	return r
}

// each calls f with each of 0 … n-1, with followCallers calls in flight.
func (r *followRun) each(n int, f func(i int) error) {
	r.t.Helper()
	next := make(chan int)
	var callers sync.WaitGroup
	for range followCallers {
		callers.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					r.t.Error(err)
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	callers.Wait()
}

// write repeats a change, under its key, until the node answers it.
func (r *followRun) write(key, path string, body, answer any) error {
	return once(r.ctx, func() *proctest.Node { return r.node }, http.MethodPost, path, key, body, answer)
}

func (r *followRun) loadFeeds() {
	r.t.Helper()
	r.each(len(r.users), func(i int) error {
		user := r.users[i]
		return r.write(fmt.Sprintf("load %d", user), fmt.Sprintf("/v1/feed/%d/reset", user), followeesBody(r.model.authorsOf(user)), nil)
	})
}

func followeesBody(authors []uint64) any {
	texts := make([]string, len(authors))
	for i, a := range authors {
		texts[i] = strconv.FormatUint(a, 10)
	}
	return map[string][]string{"followees": texts}
}

// post sends each event as a post. The map by contains the author of each item.
func (r *followRun) post(round int, events [][]string, by map[string]uint64) {
	type op struct {
		ID  uint64         `json:"id"`
		Add map[string]int `json:"add"`
	}
	parts := slices.Collect(slices.Chunk(events, postsOfRequest))
	r.each(len(parts), func(i int) error {
		var ops []op
		for _, e := range parts[i] {
			ops = append(ops, op{by[e[0]], map[string]int{"posts": 1}})
		}
		return r.write(fmt.Sprintf("post %d %d", round, i), "/v1/counters/users/incr", map[string]any{"ops": ops, "want": "none"}, nil)
	})
	for _, e := range events {
		r.model.post(by[e[0]])
	}
}

// compare polls every user and compares the answers with the model.
func (r *followRun) compare(round int) {
	r.t.Helper()
	want := make([]int64, len(r.users))
	for i, user := range r.users {
		_, want[i] = r.model.unread(user)
		r.told = max(r.told, want[i])
	}
	pages := slices.Collect(slices.Chunk(r.users, pollOfRequest))
	r.each(len(pages), func(p int) error {
		var answer struct{ Results []struct{ Feed int64 } }
		if err := r.read(http.MethodPost, "/v1/poll", map[string][]uint64{"users": pages[p]}, &answer); err != nil {
			return err
		}
		if len(answer.Results) != len(pages[p]) {
			return fmt.Errorf("round %d: %d answers to a poll of %d users", round, len(answer.Results), len(pages[p]))
		}
		for i, got := range answer.Results {
			if at := p*pollOfRequest + i; got.Feed != want[at] {
				return fmt.Errorf("round %d: user %d is told of %d posts, want %d", round, r.users[at], got.Feed, want[at])
			}
		}
		return nil
	})
	some := r.someUsers(followDetails)
	r.each(len(some), func(i int) error { return r.compareOne(round, some[i]) })
	r.answers += len(r.users) + 2*len(some)
	if r.t.Failed() {
		r.t.FailNow()
	}
}

// compareOne reads a user's unread posts by followee, polls that user alone, and compares both
// answers with the model.
func (r *followRun) compareOne(round int, user uint64) error {
	detail, sum := r.model.unread(user)
	var feed struct {
		Unread    int64
		Followees map[string]int64
	}
	var poll struct{ Feed int64 }
	if err := r.read(http.MethodGet, fmt.Sprintf("/v1/feed/%d/unread?detail=true", user), nil, &feed); err != nil {
		return err
	}
	if err := r.read(http.MethodGet, fmt.Sprintf("/v1/poll/%d", user), nil, &poll); err != nil {
		return err
	}
	if feed.Unread != sum || poll.Feed != sum || !maps.Equal(feed.Followees, detail) {
		return fmt.Errorf("round %d: user %d has %d posts unread and is polled for %d, %v by followee; want %d, %v",
			round, user, feed.Unread, poll.Feed, feed.Followees, sum, detail)
	}
	return nil
}

// read sends a linearizable read.
func (r *followRun) read(method, path string, body, answer any) error {
	status, err := r.node.Send(r.ctx, method, path, http.Header{"Consistency": {"linearizable"}}, body, answer)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s %s: status %d", method, path, status)
	}
	return err
}

func (r *followRun) someUsers(n int) []uint64 {
	some := make([]uint64, 0, n)
	for _, i := range r.rand.Perm(len(r.users))[:min(n, len(r.users))] {
		some = append(some, r.users[i])
	}
	return some
}

// move lets each of some users make one change: follow, unfollow, read or reset. It compares the
// answers with the model.
func (r *followRun) move(round int) {
	r.t.Helper()
	type change struct {
		user    uint64
		path    string
		authors []uint64
		unread  int64 // number of unread posts after the change
	}
	var changes []change
	for i, user := range r.someUsers(followMovers) {
		c := change{user: user}
		authors := r.model.authorsOf(user)
		some := make([]uint64, 0, 3)
		for range min(3, len(authors)) {
			some = append(some, authors[r.rand.IntN(len(authors))])
		}
		slices.Sort(some)
		some = slices.Compact(some)
		switch i % 4 {
		case 0:
			c.path, c.authors = "follow", append(some, r.someUsers(3)...)
			slices.Sort(c.authors)
			c.authors = slices.Compact(c.authors)
			r.eachOf(user, c.authors, r.model.follow)
		case 1:
			c.path, c.authors = "unfollow", some
			r.eachOf(user, some, r.model.unfollow)
		case 2:
			c.path, c.authors = "read", some
			r.eachOf(user, some, r.model.read)
		case 3:
			c.path = "reset"
			r.eachOf(user, authors, r.model.read)
		}
		_, c.unread = r.model.unread(user)
		changes = append(changes, c)
	}
	r.each(len(changes), func(i int) error {
		c := changes[i]
		var body any
		if c.path != "reset" {
			body = followeesBody(c.authors)
		}
		var answer struct{ Unread int64 }
		if err := r.write(fmt.Sprintf("move %d %d", round, i), fmt.Sprintf("/v1/feed/%d/%s", c.user, c.path), body, &answer); err != nil {
			return err
		}
		if answer.Unread != c.unread {
			return fmt.Errorf("round %d: %s of user %d leaves %d, want %d", round, c.path, c.user, answer.Unread, c.unread)
		}
		return nil
	})
}

func (r *followRun) eachOf(user uint64, authors []uint64, do func(user, author uint64)) {
	for _, a := range authors {
		do(user, a)
	}
}

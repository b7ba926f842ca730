package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// TestMembers changes members on three nodes. Round after round, one node is killed with kill -9
// and started again:
//
//  1. unless a request is a repeat, its answer agrees with the model on whether each op changed the
//     set. The model is exact because only one caller changes a given member;
//  2. afterwards, at every node, the count of each post is the number of its members, and the check
//     of members and both lists agree with the model;
//  3. 300 users (1,000 in the long form) like one post twice each, all at the same time. Each user
//     counts once;
//  4. right before each kill, a post is deleted that has more members than one log entry removes.
//     Afterwards it has none of them, and members that join later count;
//  5. each node scrubs all its sets meanwhile, and finds no damage;
//  6. the replicas agree.
func TestMembers(t *testing.T) {
	long(t)
	beside(t)
	c := newCluster(t, proctest.Options{LogStore: "shared", Args: []string{"--scrub-every=1s"}})
	m := &memberRun{t: t, c: c}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var callers sync.WaitGroup
	for i := range memberCallers {
		w := &memberCaller{run: m, number: i, rand: rand.New(rand.NewPCG(uint64(i), 1)), in: map[memberPair]bool{}}
		m.callers = append(m.callers, w)
		callers.Go(func() { w.loop(ctx) })
	}
	for round := range short(2, 10) {
		before := m.answered.Load()
		eventually(t, "members change", func() bool { return m.answered.Load() > before+100 })
		m.deletePost(round)
		killed := c.Nodes()[round%len(c.Nodes())]
		killed.Kill()
		before = m.answered.Load()
		eventually(t, "members change without the node that was killed", func() bool { return m.answered.Load() > before+50 })
		killed.StartReady()
	}
	stop()
	callers.Wait()
	m.race()
	m.rejoin()
	m.check()
	m.scrubbed()
	c.AwaitAgreement(c.Nodes()...)
}

const (
	memberCallers = 6
	memberPosts   = 12
	memberUsers   = 40 // number of users of each caller
	racedPost     = "777"
	deletedPost   = "888"
	deletedUsers  = 5000
	rejoined      = 5
)

// racers returns the number of users who like one post at the same time.
func racers() int { return short(300, 1000) }

// memberRun is one run of TestMembers.
type memberRun struct {
	t        *testing.T
	c        *proctest.Cluster
	callers  []*memberCaller
	answered atomic.Int64
}

type memberPair struct{ post, user string }

// memberCaller adds and removes its own users as members of posts. The field in is the model.
type memberCaller struct {
	run    *memberRun
	number int
	rand   *rand.Rand
	in     map[memberPair]bool
}

type memberOp struct {
	ID     string `json:"id"`
	Member string `json:"member"`
	Set    bool   `json:"set"`
}

type membersAnswer struct {
	Results []struct {
		ID, Member string
		Changed    bool
		Count      int64
	}
	Duplicate bool
	Error     json.RawMessage
}

// loop changes members until ctx ends. It repeats a change, with the same key and through other
// nodes, until the change is answered.
func (w *memberCaller) loop(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		var ops []memberOp
		for range 1 + w.rand.IntN(8) {
			ops = append(ops, memberOp{
				strconv.Itoa(1 + w.rand.IntN(memberPosts)),
				strconv.Itoa(1000*(w.number+1) + w.rand.IntN(memberUsers)), w.rand.IntN(3) > 0,
			})
		}
		if !w.change(fmt.Sprintf("members-%d-%d", w.number, n), ops) {
			return
		}
	}
}

// change sends a change and applies it to the model. It returns false if the test has failed.
func (w *memberCaller) change(key string, ops []memberOp) bool {
	answer, ok := w.run.send(key, ops, w.rand.IntN(3))
	if !ok {
		return false
	}
	for i, op := range ops {
		pair := memberPair{op.ID, op.Member}
		if changes := w.in[pair] != op.Set; !answer.Duplicate && answer.Results[i].Changed != changes {
			w.run.t.Errorf("%s: op %d, %+v, of a member that is in: %v, is answered %+v", key, i, op, w.in[pair], answer.Results[i])
		}
		if w.in[pair] = op.Set; !op.Set {
			delete(w.in, pair)
		}
	}
	w.run.answered.Add(1)
	return true
}

// send repeats a change until a node answers it. It tries the nodes in turn, starting at index
// first.
func (m *memberRun) send(key string, ops []memberOp, first int) (answer membersAnswer, ok bool) {
	deadline := time.Now().Add(must.BecomeMax)
	for i := first; time.Now().Before(deadline); i++ {
		n := m.c.Nodes()[i%len(m.c.Nodes())]
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		answer = membersAnswer{}
		status, err := n.Send(ctx, http.MethodPost, "/v1/members/posts/like", http.Header{"Idempotency-Key": {key}}, map[string]any{"ops": ops}, &answer)
		cancel()
		switch {
		case err == nil && status == http.StatusOK && len(answer.Results) == len(ops):
			return answer, true
		case err == nil && status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable && status != http.StatusGatewayTimeout:
			m.t.Errorf("%s: answered %d %s", key, status, answer.Error)
			return answer, false
		case err != nil:
			time.Sleep(10 * time.Millisecond) // the node is down: do not spin
		}
	}
	m.t.Errorf("%s was never answered", key)
	return answer, false
}

// race lets all racers like one post, twice each, at the same time.
func (m *memberRun) race() {
	var changed atomic.Int64
	var users sync.WaitGroup
	next := atomic.Int64{}
	for range 32 {
		users.Go(func() {
			for n := next.Add(1) - 1; n < int64(2*racers()); n = next.Add(1) - 1 {
				answer, ok := m.send(fmt.Sprintf("race-%d", n), []memberOp{{racedPost, strconv.FormatInt(n/2, 10), true}}, int(n))
				if ok && (answer.Results[0].Changed || answer.Duplicate) {
					changed.Add(1)
				}
			}
		})
	}
	users.Wait()
	if n := changed.Load(); n < int64(racers()) {
		m.t.Errorf("%d of %d users changed the set", n, racers())
	}
}

// deletePost adds many members to a post and deletes it. The node needs several log entries to
// remove the members.
func (m *memberRun) deletePost(round int) {
	var ops []memberOp
	for user := range deletedUsers {
		ops = append(ops, memberOp{deletedPost, strconv.Itoa(1_000_000 + user), true})
	}
	m.send(fmt.Sprintf("deleted-%d", round), ops, round)
	eventually(m.t, "the post is deleted", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		status, err := m.c.Nodes()[round%len(m.c.Nodes())].Send(ctx, http.MethodDelete, "/v1/counters/posts/"+deletedPost, nil, nil, nil)
		return err == nil && status < http.StatusMultipleChoices
	})
}

// rejoin makes some members of the deleted post join it again.
func (m *memberRun) rejoin() {
	for user := range rejoined {
		answer, ok := m.send(fmt.Sprintf("rejoin-%d", user), []memberOp{{deletedPost, strconv.Itoa(1_000_000 + user), true}}, user)
		if ok && !answer.Duplicate && (!answer.Results[0].Changed || answer.Results[0].Count != int64(user+1)) {
			m.t.Errorf("join %d of a deleted post is answered %+v", user, answer.Results[0])
		}
	}
}

// scrubbed waits until every node has scrubbed all its sets, and fails the test if any set is
// damaged.
func (m *memberRun) scrubbed() {
	var status coldStatus
	eventually(m.t, "all nodes have read their sets", func() bool {
		status = ctlJSON[coldStatus](m.t, m.c.Nodes()[0].Node, "cold", "status")
		passed := len(status.Nodes) == len(m.c.Nodes())
		for _, n := range status.Nodes {
			passed = passed && n.Scrub.Passes > 0 && n.Scrub.Bytes > 0
		}
		return passed
	})
	for _, n := range status.Nodes {
		if n.Scrub.Damaged > 0 {
			m.t.Errorf("%s: %+v", n.Node, n.Scrub)
		}
	}
}

// check compares every node's answers with the model.
func (m *memberRun) check() {
	m.checkCallers()
	var again, raced []string
	for user := range rejoined {
		again = append(again, strconv.Itoa(1_000_000+user))
	}
	for n := range racers() {
		raced = append(raced, strconv.Itoa(n))
	}
	for _, n := range m.c.Nodes() {
		m.checkPost(n, racedPost, raced)
		m.checkPost(n, deletedPost, again)
	}
}

// checkCallers compares every node's answers with the models of the callers.
func (m *memberRun) checkCallers() {
	posts, users := map[string][]string{}, map[string][]string{}
	for _, w := range m.callers {
		for pair := range w.in {
			posts[pair.post] = append(posts[pair.post], pair.user)
			users[pair.user] = append(users[pair.user], pair.post)
		}
	}
	for _, n := range m.c.Nodes() {
		for post := range memberPosts {
			m.checkPost(n, strconv.Itoa(post+1), posts[strconv.Itoa(post+1)])
		}
		for user, want := range users {
			got, _ := m.list(n, "/v1/members/posts/like/of/"+user)
			slices.Sort(want)
			if slices.Sort(got); !slices.Equal(got, want) {
				m.t.Errorf("%s: user %s likes %v, want %v", n.Name, user, got, want)
			}
		}
	}
}

// checkPost compares a post's count, its list and a check of its members with the model.
func (m *memberRun) checkPost(n *proctest.Member, post string, want []string) {
	got, count := m.list(n, "/v1/members/posts/like/"+post)
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) || count != int64(len(want)) {
		m.t.Errorf("%s: post %s has the count %d and the members %v, want %v", n.Name, post, count, got, want)
	}
	for _, user := range want[:min(len(want), 5)] {
		var answer struct{ Results []bool }
		n.MustCall(http.MethodPost, "/v1/members/posts/like/check?consistency=linearizable", map[string]any{"member": user, "ids": []string{post, "999999"}}, &answer)
		if !slices.Equal(answer.Results, []bool{true, false}) {
			m.t.Errorf("%s: a check of %s and post %s is answered %v", n.Name, user, post, answer.Results)
		}
	}
}

// list reads all pages of a list of members or of sets, and checks that the list is sorted newest
// first.
func (m *memberRun) list(n *proctest.Member, path string) (all []string, count int64) {
	seen, last := map[string]bool{}, time.Time{}
	for cursor := ""; ; {
		var page struct {
			Count   int64
			Members []struct {
				Member string
				At     time.Time
			}
			IDs []struct {
				ID string
				At time.Time
			}
			Cursor string
		}
		n.MustCall(http.MethodGet, path+"?consistency=linearizable&limit=64"+cursor, nil, &page)
		line := func(id string, at time.Time) {
			if seen[id] || !last.IsZero() && at.After(last) {
				m.t.Errorf("%s: %s has %s of %v behind %v, seen before: %v", n.Name, path, id, at, last, seen[id])
			}
			seen[id], last = true, at
		}
		for _, one := range page.Members {
			line(one.Member, one.At)
		}
		for _, one := range page.IDs {
			line(one.ID, one.At)
		}
		if count = page.Count; page.Cursor == "" {
			return slices.Collect(maps.Keys(seen)), count
		}
		cursor = "&cursor=" + page.Cursor
	}
}

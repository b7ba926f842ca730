package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// once repeats a request under a key until the answer is final. Each try sends it to the node that
// the function node returns.
func once(ctx context.Context, node func() *proctest.Node, method, path, key string, body, answer any) error {
	header := http.Header{"Idempotency-Key": {key}, "Countd-Timeout": {"3s"}}
	for {
		status, err := node().Send(ctx, method, path, header, body, answer)
		switch {
		case err == nil && status == http.StatusOK:
			return nil
		case err == nil && status != http.StatusTooManyRequests && status != http.StatusServiceUnavailable && status != http.StatusGatewayTimeout:
			return fmt.Errorf("%s %s: status %d", method, path, status)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("%s %s: %w: %w", method, path, ctx.Err(), err)
		}
	}
}

type userRow struct {
	Counts    map[string]int64
	Cleared   map[string]int64
	Duplicate bool
}

// TestResetsRaceIncrements: 8 writers increment counts. 8 readers read counts, and then reset by
// the counts that they read. The node is killed meanwhile. Every write is repeated until it is
// answered:
//
//  1. the sum of the cleared and the remaining counts is exactly the sum of the increments;
//  2. no number is ever below zero;
//  3. if only a repeat of a reset is answered, it is unknown how much the reset cleared. The sum is
//     then at most the sum of the increments.
func TestResetsRaceIncrements(t *testing.T) {
	long(t)
	t.Parallel()
	const users, writers, readers = 5, 8, 8
	n := proctest.NewNode(t, bin, t.TempDir())
	n.StartReady()
	ctx, cancel := context.WithTimeout(t.Context(), 2*must.BecomeMax)
	defer cancel()
	node := func() *proctest.Node { return n }
	var stop atomic.Bool
	var added, cleared, forgotten [users]atomic.Int64
	var clients sync.WaitGroup
	for client := range writers + readers {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(client), 1))
			for i := 0; !stop.Load(); i++ {
				user, key := rng.IntN(users), fmt.Sprintf("%d-%d", client, i)
				if client < writers {
					by := 1 + rng.Int64N(9)
					body := map[string]any{"ops": []any{map[string]any{"user": user, "add": map[string]int64{"comment": by}}}, "want": "none"}
					if err := once(ctx, node, "POST", "/v1/unread/incr", key, body, nil); err != nil {
						t.Error(err)
						return
					}
					added[user].Add(by)
					continue
				}
				var row userRow
				path := fmt.Sprintf("/v1/unread/%d", user)
				if status, err := n.Call("GET", path, nil, &row); err != nil || status != http.StatusOK {
					continue // the node is being killed
				}
				seen := row.Counts["comment"]
				if seen < 0 {
					t.Errorf("user %d has %d", user, seen)
				}
				if err := once(ctx, node, "POST", path+"/reset", key, map[string]any{"seen": map[string]int64{"comment": seen}}, &row); err != nil {
					t.Error(err)
					return
				}
				if row.Duplicate {
					forgotten[user].Add(seen)
				}
				cleared[user].Add(row.Cleared["comment"])
			}
		})
	}
	for range 3 {
		time.Sleep(time.Duration(200+rand.IntN(300)) * time.Millisecond) // until a random point
		n.Kill()
		n.StartReady()
	}
	for user := range users { // wait, because the kills may have left the clients little time
		eventually(t, "each user's numbers were incremented and cleared", func() bool {
			return t.Failed() || added[user].Load() > 0 && cleared[user].Load() > 0
		})
	}
	stop.Store(true)
	clients.Wait()
	for user := range users {
		var row userRow
		n.MustCall("GET", fmt.Sprintf("/v1/unread/%d?consistency=linearizable", user), nil, &row)
		left, took := row.Counts["comment"], cleared[user].Load()
		unknown := added[user].Load() - took - left
		if added[user].Load() == 0 || took == 0 || unknown < 0 || unknown > forgotten[user].Load() || left < 0 {
			t.Errorf("user %d: %d added, %d cleared, %d left, up to %d cleared by resets that were repeated",
				user, added[user].Load(), took, left, forgotten[user].Load())
		}
		t.Logf("user %d: %d added, %d cleared, %d left", user, added[user].Load(), took, left)
	}
}

// TestClusterKeepsUnread: a cluster loses a node and regains it. Writes through every node to all
// kinds of unread numbers count once, and the replicas agree.
func TestClusterKeepsUnread(t *testing.T) {
	long(t)
	beside(t)
	c := newCluster(t, proctest.Options{Nodes: 3})
	c.AwaitReady(c.Nodes()...)
	ctx, cancel := context.WithTimeout(t.Context(), 2*must.BecomeMax)
	defer cancel()
	some := func() *proctest.Node { return c.Nodes()[rand.IntN(3)].Node }
	const rounds = 40
	victim := c.Nodes()[0]
	for i := range rounds {
		switch i {
		case rounds / 4:
			victim.Kill()
		case rounds / 2:
			victim.Start()
		}
		for path, body := range map[string]any{
			"/v1/notices/news":        nil,
			"/v1/dots/shop/fire":      nil,
			"/v1/counters/users/incr": map[string]any{"ops": []any{map[string]any{"id": "2", "add": map[string]int64{"posts": 1}}}},
			"/v1/unread/incr":         map[string]any{"ops": []any{map[string]any{"user": "7", "add": map[string]int64{"at": 1}}}},
			"/v1/feed/7/follow":       map[string]any{"followees": []string{"2"}},
		} {
			if err := once(ctx, some, "POST", path, fmt.Sprintf("%s %d", path, i), body, nil); err != nil {
				t.Fatal(err)
			}
		}
		if i == 0 {
			for _, path := range []string{"/v1/notices/news/users/7/read", "/v1/dots/shop/users/7/clear"} {
				if err := once(ctx, some, "POST", path, path, nil, nil); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	c.AwaitReady(c.Nodes()...)
	for _, n := range c.Nodes() {
		var poll struct {
			Unread  map[string]int64
			Notices map[string]int64
			Dots    map[string]bool
			Feed    int64
		}
		n.MustCall("GET", "/v1/poll/7?channels=news&dots=shop&consistency=linearizable", nil, &poll)
		if poll.Unread["at"] != rounds || poll.Notices["news"] != rounds-1 || !poll.Dots["shop"] || poll.Feed < rounds-1 || poll.Feed > rounds {
			t.Errorf("a poll through %s: %+v", n.URL, poll)
		}
	}
	c.AwaitAgreement(c.Nodes()...)
}

package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// recoverKinds are the kinds of writes of TestRecoverLostMajority. Write i adds 1 to what read returns.
var recoverKinds = []struct {
	name, path string
	body       func(i int64) any
	read       func(t *testing.T, n *proctest.Node) int64
}{
	{"counters", "/v1/counters/posts/incr", func(i int64) any {
		return map[string]any{"ops": []any{map[string]any{"id": strconv.FormatInt(i%7, 10), "add": map[string]int64{"view": 1}}}}
	}, func(_ *testing.T, n *proctest.Node) (sum int64) {
		for _, row := range n.Rows("posts", []string{"0", "1", "2", "3", "4", "5", "6"}) {
			sum += row.Counts["view"]
		}
		return sum
	}},
	{"members", "/v1/members/posts/like", func(i int64) any {
		return map[string]any{"ops": []any{map[string]any{"id": "2", "member": strconv.FormatInt(i, 10), "set": true}}}
	}, func(t *testing.T, n *proctest.Node) int64 {
		var page struct {
			Members []struct{ Member string }
			Cursor  string
		}
		listed := int64(0)
		for cursor := "?consistency=linearizable"; ; cursor = "?consistency=linearizable&cursor=" + page.Cursor {
			page.Cursor, page.Members = "", nil
			n.MustCall(http.MethodGet, "/v1/members/posts/like/2"+cursor, nil, &page)
			if listed += int64(len(page.Members)); page.Cursor == "" {
				break
			}
		}
		if count := n.Rows("posts", []string{"2"})[0].Counts["like"]; count != listed {
			t.Errorf("post 2 counts %d likes and lists %d members", count, listed)
		}
		return listed
	}},
	{"unread", "/v1/unread/incr", func(int64) any {
		return map[string]any{"ops": []any{map[string]any{"user": "7", "add": map[string]int64{"at": 1}}}}
	}, func(_ *testing.T, n *proctest.Node) int64 {
		var row proctest.Row
		n.MustCall(http.MethodGet, "/v1/unread/7?consistency=linearizable", nil, &row)
		return row.Counts["at"]
	}},
	{"notices", "/v1/notices/news", func(int64) any { return nil }, func(_ *testing.T, n *proctest.Node) int64 {
		var poll struct{ Notices map[string]int64 }
		n.MustCall(http.MethodGet, "/v1/poll/7?channels=news&consistency=linearizable", nil, &poll)
		return poll.Notices["news"]
	}},
	{"feeds", "/v1/feed/7/follow", func(i int64) any {
		return map[string]any{"followees": []string{strconv.FormatInt(1000+i, 10)}}
	}, func(_ *testing.T, n *proctest.Node) int64 {
		var page struct {
			Followees []string
		}
		n.MustCall(http.MethodGet, "/v1/feed/7/followees?limit=5000&consistency=linearizable", nil, &page)
		return int64(len(page.Followees))
	}},
}

// recoverMax is the time from the loss of most disks to the first acknowledged write, by the runbook.
const recoverMax = 5 * time.Minute

// TestRecoverLostMajority kills three nodes under load with kill -9 and deletes the directories of
// two. countctl recover then makes the third the only voter of all groups. In short mode there are only
// counters, one log store, and no lost node that returns. For each kind of writes:
//
//  1. All writes that were acknowledged before the nodes agreed, and so are on the survivor, count.
//  2. No write counts twice: there are at most as many as were sent, each with its own key.
//  3. Users and keyspaces are as they were. New writes are acknowledged.
//  4. Two fresh nodes join, each group gets three voters, and the counts stay.
//  5. A lost node that starts on a copy of its directory is refused, and the refusal names countctl recover.
func TestRecoverLostMajority(t *testing.T) {
	kinds := recoverKinds
	if testing.Short() {
		kinds = kinds[:1]
	}
	for _, store := range stores("shared") {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, proctest.Options{LogStore: store})
			survivor, lost := c.Nodes()[0], c.Nodes()[1:]
			survivor.MustCtl("user", "create", "web", "--grant", "writer:posts")
			survivor.MustCtl("keyspace", "create", "tags", "--columns", "use", "--shards", "2")

			for _, path := range []string{"/v1/notices/news", "/v1/notices/news/users/7/read"} { // a user counts the notices after those that it has read
				survivor.MustCall(http.MethodPost, path, nil, nil)
			}
			var tried, certain [5]int64
			write := func(ctx context.Context, kind int) error {
				i := atomic.AddInt64(&tried[kind], 1)
				k := kinds[kind]
				some := func() *proctest.Node { return c.Nodes()[int(i)%3].Node }
				return once(ctx, some, http.MethodPost, k.path, fmt.Sprintf("%s %d", k.name, i), k.body(i), nil)
			}
			for kind := range kinds {
				for range 50 {
					must.Do(t, write(t.Context(), kind))
				}
				certain[kind] = tried[kind]
			}
			c.AwaitAgreement(c.Nodes()...)
			ctx, stop := context.WithCancel(t.Context())
			var load sync.WaitGroup
			var more atomic.Int64
			for kind := range kinds {
				load.Go(func() {
					for ctx.Err() == nil {
						if write(ctx, kind) == nil {
							more.Add(1)
						}
					}
				})
			}
			must.Become(t, "the load is acknowledged", func() bool { return more.Load() > 300 })
			for _, n := range []*proctest.Member{lost[0], survivor, lost[1]} {
				n.Kill()
			}
			began := time.Now()
			stop()
			load.Wait()

			saved := filepath.Join(t.TempDir(), "saved")
			must.Do(t, os.CopyFS(saved, os.DirFS(lost[0].Dir)))
			for _, n := range lost {
				must.Do(t, os.RemoveAll(n.Dir))
			}
			if refused := survivor.Ctl("recover", "--data-dir", survivor.Dir); refused.Code == 0 || !strings.Contains(refused.Stderr, "--yes") {
				t.Fatalf("without --yes: %+v", refused)
			}
			done := survivor.Ctl("recover", "--data-dir", survivor.Dir, "--yes")
			if done.Code != 0 || !strings.Contains(done.Stderr, "ACKNOWLEDGED WRITES MAY BE LOST") || !strings.Contains(done.Stderr, "posts/0: "+keyOf(t, survivor)+" becomes the only voter") {
				t.Fatalf("%+v", done)
			}
			survivor.StartReady()
			survivor.MustCtl("incr", "0", "view=1")
			tried[0]++
			if took := time.Since(began); took > recoverMax {
				t.Errorf("the cluster counts after %s", took)
			}
			if !strings.Contains(survivor.Log(), "countctl recover made") {
				t.Errorf("the node does not report the recovery:\n%s", survivor.Log())
			}

			counted := [5]int64{}
			for kind, k := range kinds {
				counted[kind] = k.read(t, survivor.Node)
				t.Logf("%s: %d certain, %d counted, %d sent", k.name, certain[kind], counted[kind], tried[kind])
				if counted[kind] < certain[kind] || counted[kind] > tried[kind] {
					t.Errorf("%s: %d were on the survivor, %d were sent, %d count", k.name, certain[kind], tried[kind], counted[kind])
				}
			}
			for _, args := range [][]string{{"user", "show", "web"}, {"incr", "1", "use=1", "--keyspace", "tags"}} {
				survivor.MustCtl(args...)
			}

			c.Add()
			c.Add()
			c.AwaitVoters(3, lost...)
			for _, n := range c.Others(lost...) {
				for kind, k := range kinds {
					if got := k.read(t, n.Node); got != counted[kind] {
						t.Errorf("%s: %s counts %d, not %d", k.name, n.Name, got, counted[kind])
					}
				}
			}
			survivor.MustCtl("verify")
			if testing.Short() {
				return
			}

			must.Do(t, os.CopyFS(lost[0].Dir, os.DirFS(saved)))
			lost[0].Start()
			must.Become(t, "the lost node is refused by name", func() bool {
				return strings.Contains(lost[0].Log(), "countctl recover made one of these clusters from the other") &&
					strings.Contains(survivor.Log(), "countctl recover made one of these clusters from the other")
			})
			if out := survivor.MustCtl("node", "list"); strings.Contains(out, lost[0].Name) {
				t.Errorf("the lost node is a member again:\n%s", out)
			}
		})
	}
}

// keyOf returns the key of a node.
func keyOf(t *testing.T, n *proctest.Member) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(n.Dir, "node.json"))
	must.Do(t, err)
	_, rest, _ := strings.Cut(string(raw), `"instance": "`)
	instance, _, _ := strings.Cut(rest, `"`)
	return n.Name + "." + instance
}

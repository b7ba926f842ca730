package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/countd/countd/internal/clustertest"
	"github.com/countd/countd/internal/proctest"
)

// TestUpgradeSource makes a source while nodes run the program of before:
//
//  1. it is refused with the reason, at each node that knows sources, until the cluster
//     version rises, and nothing of it is kept;
//  2. nodes with the program of before stay up meanwhile;
//  3. after that it is made, and counts.
func TestUpgradeSource(t *testing.T) {
	if *oldCountd == "" {
		t.Skip("needs the program of before: make upgrade OLD=<git ref>")
	}
	stream := redis.NewClient(&redis.Options{Addr: proctest.StartRedis(t)})
	defer stream.Close()
	message := &redis.XAddArgs{Stream: "likes", Values: []string{"value", `{"keyspace":"posts","id":1,"add":{"like":7}}`}}
	if err := stream.XAdd(t.Context(), message).Err(); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "likes.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "name: likes\ntype: redis-stream\naddr: %s\nkey: likes\n", stream.Options().Addr), 0o600); err != nil {
		t.Fatal(err)
	}
	older := proctest.Binaries{Countd: *oldCountd, Countctl: bin.Countctl}
	u := &upgrading{t: t, c: clustertest.New(t, older, clustertest.Options{}), older: older}
	nodes := u.c.Nodes()
	u.at = nodes[0]
	u.at.MustCtl("upgrade", "hold")
	refused := func(n *clustertest.Node) {
		t.Helper()
		run := n.Ctl("source", "create", config)
		if run.Code != 1 || !strings.Contains(run.Stderr, "sources need a later cluster version than") {
			t.Errorf("%s: exit code %d, %s", n.Name, run.Code, run.Stderr)
		}
		for verb, body := range map[string]any{
			"pause": nil, "resume": nil,
			"past": map[string]any{"keyspace": "posts", "partition": 0, "from": 0},
			"rows": map[string]any{"keyspace": "posts", "ids": []int{}},
		} {
			if code, err := n.Call(http.MethodPost, "/v1/sources/likes/"+verb, body, nil); err != nil || code != http.StatusNotFound {
				t.Errorf("%s: %s of a source that is not there: %d, %v", n.Name, verb, code, err)
			}
		}
		var all struct{ Sources []sourceShown }
		if n.MustCall(http.MethodGet, "/v1/sources", nil, &all); len(all.Sources) != 0 {
			t.Errorf("%s: %+v", n.Name, all)
		}
	}
	for i, n := range nodes {
		u.restart(n, bin, i%2 == 0)
		refused(n)
		for _, before := range nodes[i+1:] {
			u.c.AwaitReady(before)
		}
	}
	refused(nodes[0])
	u.raiseVersion()
	nodes[1].MustCtl("source", "create", config)
	nodes[2].MustCtl("source", "show", "likes", "--wait")
	if got := nodes[0].Rows("posts", []string{"1"})[0].Counts["like"]; got != 7 {
		t.Errorf("it counted %d", got)
	}
	u.c.AwaitAgreement(agreeTimeout(), nodes...)
}

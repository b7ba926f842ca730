package e2e

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

// coldStatus is the output of countctl cold status.
type coldStatus struct {
	Nodes []struct {
		Node      string
		Answers   bool
		Keyspaces []struct {
			Keyspace string
			Rows     uint64
			ColdRows uint64 `json:"cold_rows"`
		}
		Scrub struct {
			Passes, Blocks, Bytes uint64
			Damaged               uint64 `json:"damaged_generations"`
		}
	}
}

// coldOrdered is the output of countctl cold migrate.
type coldOrdered struct {
	Rows  uint64
	Done  bool
	Nodes []struct {
		Node  string
		Moved uint64
	}
}

func ctlJSON[T any](t *testing.T, n *proctest.Node, args ...string) (out T) {
	t.Helper()
	c := n.Ctl(append(args, "-o", "json")...)
	if c.Code != 0 {
		t.Fatalf("countctl %s: exit %d, %s", strings.Join(args, " "), c.Code, c.Stderr)
	}
	if err := json.Unmarshal([]byte(c.Stdout), &out); err != nil {
		t.Fatalf("countctl %s: %v: %s", strings.Join(args, " "), err, c.Stdout)
	}
	return out
}

// TestColdByOrder moves rows of a cluster to disk and back with countctl. No row moves because of
// its age. The test checks:
//
//  1. all nodes carry out an order that any node receives, and report their progress;
//  2. no count changes, and replicas do not differ, whichever rows are cold;
//  3. the command reports a dead node, and the other nodes continue.
func TestColdByOrder(t *testing.T) {
	long(t)
	beside(t)
	c := newCluster(t, proctest.Options{Args: []string{"--cold-after=0", "--scrub-every=1s"}})
	nodes := c.Nodes()
	for from := 0; from < coldRows; from += 10_000 {
		ops := make([]op, 10_000)
		for i := range ops {
			ops[i] = op{strconv.FormatUint(3342819171543700+uint64(from+i)<<20, 10), map[string]int64{"comment": int64(1 + i)}}
		}
		writeRows(t, nodes[0], ops)
	}
	c.AwaitAgreement(nodes...)
	asked := nodes[1].Node
	if dry := ctlJSON[coldOrdered](t, asked, "cold", "migrate", "posts", "--older-than", "1h", "--dry-run"); dry.Rows < coldRows {
		t.Errorf("a dry run: %+v", dry)
	}
	moved := ctlJSON[coldOrdered](t, asked, "cold", "migrate", "posts", "--older-than", "1h")
	if len(moved.Nodes) != 3 || !moved.Done {
		t.Fatalf("%+v", moved)
	}
	for _, n := range moved.Nodes {
		if n.Moved < coldRows/3 {
			t.Errorf("%s moved %d rows", n.Node, n.Moved)
		}
	}
	deadline := time.Now().Add(coldWaitMax)
	for scrubbed := false; !scrubbed; {
		status := ctlJSON[coldStatus](t, nodes[2].Node, "cold", "status")
		scrubbed = len(status.Nodes) == 3
		for _, n := range status.Nodes {
			scrubbed = scrubbed && n.Scrub.Passes > 0 && n.Scrub.Blocks > 0
			for _, k := range n.Keyspaces {
				if k.Keyspace == "posts" && (k.Rows != coldRows || k.ColdRows < coldRows/3) {
					t.Errorf("%s has %+v", n.Node, k)
				}
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("not all is scrubbed: %+v", status)
		}
	}
	if again := ctlJSON[coldOrdered](t, asked, "cold", "migrate", "posts", "--older-than", "1h"); again.Rows != 0 {
		t.Errorf("again: %+v", again)
	}
	if refused := asked.Ctl("cold", "migrate"); refused.Code == 0 || !strings.Contains(refused.Stderr, "older_than_seconds") {
		t.Errorf("rows that are never old: exit %d, %s", refused.Code, refused.Stderr)
	}
	nodes[2].Kill()
	if table := asked.Ctl("cold", "status"); table.Code != 0 || !strings.Contains(table.Stdout, "no answer") {
		t.Errorf("exit %d:\n%s%s", table.Code, table.Stdout, table.Stderr)
	}
	if half := asked.Ctl("cold", "migrate", "posts", "--before", strconv.FormatUint(3342819171543700+coldRows/2<<20, 10)); half.Code != 0 || !strings.Contains(half.Stderr, "n3 does not answer") {
		t.Errorf("without a node: exit %d, %s%s", half.Code, half.Stdout, half.Stderr)
	}
	nodes[2].Start()
	c.AwaitReady(nodes[2])
	c.AwaitAgreement(nodes...)
	for i := range 5 {
		id := strconv.FormatUint(3342819171543700+uint64(i*10_007)<<20, 10)
		var row struct{ Counts map[string]int64 }
		asked.MustCall(http.MethodGet, "/v1/counters/posts/"+id, nil, &row)
		if want := int64(1 + i*10_007%10_000); row.Counts["comment"] != want {
			t.Errorf("row %s reads %+v, want %d", id, row, want)
		}
	}
}

package cluster

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/cmd/countctl/internal/data"
	"github.com/countd/countd/internal/nodetest"
	"github.com/countd/countd/internal/proctest"
)

func codes(warnings []warning) []string {
	var all []string
	for _, w := range warnings {
		all = append(all, w.Code)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func textsOf(warnings []warning) string {
	var all []string
	for _, w := range warnings {
		all = append(all, w.Text)
	}
	return strings.Join(all, "; ")
}

// Each state has its warning, on one screen with the command to run, which has the warning's subjects.
func TestWarnings(t *testing.T) {
	for name, test := range map[string]struct {
		edit func(*fakeCluster)
		want []string
	}{
		"none":                  {func(*fakeCluster) {}, nil},
		"a dead node":           {func(c *fakeCluster) { c.Nodes[2].Alive, c.Nodes[2].Answers = false, false }, []string{"group_degraded", "node_dead"}},
		"a silent node":         {func(c *fakeCluster) { c.Nodes[2].Answers = false }, []string{"node_silent"}},
		"one not ready":         {func(c *fakeCluster) { c.Nodes[2].NotReady = "it starts" }, []string{"node_not_ready"}},
		"one drained":           {func(c *fakeCluster) { c.Nodes[2].State = "draining" }, []string{"node_draining"}},
		"one leaving":           {func(c *fakeCluster) { c.Nodes[2].State = "leaving" }, []string{"node_leaving"}},
		"a bad certificate":     {func(c *fakeCluster) { c.Nodes[0].CertProblems = []string{"tls-cert: it ends"} }, []string{"certificate"}},
		"no recent backup":      {func(c *fakeCluster) { c.Nodes[0].BackupProblem = "it failed" }, []string{"backup"}},
		"insecure":              {func(c *fakeCluster) { c.Nodes[0].Insecure = true }, []string{"insecure"}},
		"joins nobody":          {func(c *fakeCluster) { c.Nodes[0].JoinIgnored = true }, []string{"join_ignored"}},
		"no memory":             {func(c *fakeCluster) { c.Nodes[0].MemoryFull = true }, []string{"memory_full"}},
		"a disk that hangs":     {func(c *fakeCluster) { c.Nodes[0].DiskHangs = true }, []string{"disk_hangs"}},
		"no disk":               {func(c *fakeCluster) { c.Nodes[0].DiskFull = true }, []string{"disk_full"}},
		"zones of some":         {func(c *fakeCluster) { c.Nodes[0].Zone = "a" }, []string{"zones_mixed"}},
		"no leader":             {func(c *fakeCluster) { c.Groups[1].Leader = "" }, []string{"group_no_leader"}},
		"few voters":            {func(c *fakeCluster) { c.Groups[1].Target = c.Groups[1].Target[:2] }, []string{"group_few_voters"}},
		"a move":                {func(c *fakeCluster) { c.Groups[1].Voters = c.Groups[1].Voters[:2] }, []string{"group_moving"}},
		"a replica behind":      {func(c *fakeCluster) { c.Groups[1].Replicas[2].Lag = 1001 }, []string{"replica_lags"}},
		"rows that are damaged": {func(c *fakeCluster) { c.Groups[1].Replicas[2].ColdDamaged = true }, []string{"cold_damaged"}},
		"rows that differ":      {func(c *fakeCluster) { c.Groups[1].Replicas[2].Digest = "ffffffffffffffff" }, []string{"replicas_differ"}},
		"logs that differ": {func(c *fakeCluster) {
			c.Groups[1].Replicas[0].Entries, c.Groups[1].Replicas[2].Entries = entries(90, 100, 5), entries(90, 100, 3)
		}, []string{"replicas_differ"}},
		"ids of another layout": {func(c *fakeCluster) {
			c.Groups[1].Misfit = &admin.Misfit{ID: client.Number(1850000000000000000), Layout: "weibo", Fits: "twitter", Rows: 6}
			c.Groups[2].Misfit = &admin.Misfit{ID: client.Number(1850000000000000001), Layout: "weibo", Rows: 4}
		}, []string{"id_layout_misfit"}},
		"a version held":            {func(c *fakeCluster) { c.Version.Held = true }, []string{"version_held"}},
		"a program that is another": {func(c *fakeCluster) { c.Nodes[1].Version = "2" }, []string{"versions_differ"}},
	} {
		t.Run(name, func(t *testing.T) {
			server, i := three(t)
			server.edit(test.edit)
			s := proctest.Decode[statusOutput](t, i.OK("status", "-o", "json"))
			if got := codes(s.Warnings); !slices.Equal(got, test.want) {
				t.Errorf("warnings %+v, want %q", s.Warnings, test.want)
			}
			table, screen := i.OK("status", "--groups"), i.OK("status")
			for _, w := range s.Warnings {
				if !strings.Contains(table, w.Text) {
					t.Errorf("the table lacks %q:\n%s", w.Text, table)
				}
				if !strings.Contains(screen, "\n"+w.Code+" ") {
					t.Errorf("the screen lacks %q:\n%s", w.Code, screen)
				}
				program, _, _ := strings.Cut(w.Run, " ")
				if program == "" || strings.Contains(w.Run, "NODE") || strings.Contains(w.Run, "KEYSPACE") || strings.Contains(w.Run, "#  ") {
					t.Errorf("%s has the command %q", w.Code, w.Run)
				}
				if command, _, _ := strings.Cut(w.Run, " #"); !strings.Contains(screen, "\n  $ "+command) || !strings.Contains(table, "$ "+w.Run) {
					t.Errorf("the screen or the table lacks the command %q:\n%s", w.Run, screen)
				}
			}
			fitsScreen(t, screen)
		})
	}
}

// status warns if a tenth or more of a keyspace's ids do not fit its layout. If another layout fits
// better, the warning names it.
func TestMisfitsAreWarnedOf(t *testing.T) {
	misfit := func(rows uint64, fits string) *admin.Misfit {
		return &admin.Misfit{ID: client.Number(1850000000000000000), Layout: "weibo", Fits: fits, Rows: rows}
	}
	const begins = " rows of posts, as 1850000000000000000, are not of layout weibo; "
	for name, test := range map[string]struct {
		rows [2]uint64 // by shard
		of   [2]*admin.Misfit
		want string
	}{
		"none":          {[2]uint64{50, 50}, [2]*admin.Misfit{}, ""},
		"a stray one":   {[2]uint64{50, 50}, [2]*admin.Misfit{misfit(1, "")}, ""},
		"under a tenth": {[2]uint64{50, 50}, [2]*admin.Misfit{misfit(9, "")}, ""},
		"a tenth":       {[2]uint64{50, 50}, [2]*admin.Misfit{misfit(3, ""), misfit(7, "")}, "10" + begins + "no layout with a name fits more of the rows"},
		"most":          {[2]uint64{500, 500}, [2]*admin.Misfit{misfit(500, "twitter"), misfit(490, "")}, "990" + begins + "start the nodes with --id-layout posts=twitter"},
		"all":           {[2]uint64{0, 1}, [2]*admin.Misfit{nil, misfit(1, "none")}, "1" + begins + "start the nodes with --id-layout posts=none"},
	} {
		t.Run(name, func(t *testing.T) {
			var groups []admin.ClusterGroup
			for s, rows := range test.rows {
				groups = append(groups, admin.ClusterGroup{Keyspace: "posts", Shard: s, Rows: rows, Misfit: test.of[s]})
			}
			groups = append(groups, admin.ClusterGroup{Keyspace: "users", Rows: 1000})
			var got findings
			if warnOfMisfits(groups, &got); textsOf(got) != test.want {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

// status warns of at most one shard for each keyspace: one with many rows and more than twice its
// share of the rows.
func TestUnevenShardsAreWarnedOf(t *testing.T) {
	groups := func(rows ...uint64) (all []admin.ClusterGroup) {
		for s, n := range rows {
			all = append(all, admin.ClusterGroup{Keyspace: "posts", Shard: s, Rows: n}, admin.ClusterGroup{Keyspace: "users", Shard: s, Rows: 10})
		}
		return all
	}
	for name, test := range map[string]struct {
		groups []admin.ClusterGroup
		want   string
	}{
		"all in one":           {groups(60_000, 0, 0, 0), "posts/0 holds 60,000 of the 60,000 rows of posts, more than twice its share of 4 shards"},
		"a little over double": {groups(0, 10_001, 5_000, 4_998), "posts/1 holds 10,001 of the 19,999 rows of posts, more than twice its share of 4 shards"},
		"double":               {groups(0, 10_000, 5_000, 5_000), ""},
		"few rows":             {groups(9_999, 0, 0, 0), ""},
		"one shard":            {groups(60_000), ""},
	} {
		t.Run(name, func(t *testing.T) {
			var got findings
			if warnOfSkew(test.groups, &got); textsOf(got) != test.want {
				t.Errorf("warned %q, want %q", got, test.want)
			}
		})
	}
}

func TestStatusNamesTheNodesOfALostGroup(t *testing.T) {
	server, i := three(t)
	server.edit(func(c *fakeCluster) {
		c.Nodes = append(c.Nodes, c.Nodes[2])
		c.Nodes[3].ID, c.Nodes[3].Key = "n4", "n4.00000003"
		for n := range 3 {
			c.Nodes[n].Alive, c.Nodes[n].Answers = false, false
		}
		c.Groups = c.Groups[:2]
		c.Groups[1].Leader = ""
	})
	s := proctest.Decode[statusOutput](t, i.OK("status", "-o", "json"))
	want := "posts/0: all its replicas are on dead nodes n1, n2, n3"
	if !slices.ContainsFunc(s.Warnings, func(w warning) bool { return w.Code == "group_no_leader" && w.Text == want }) {
		t.Errorf("warnings %+v, want %q", s.Warnings, want)
	}
}

func TestStatusOfManyGroupsFitsAScreen(t *testing.T) {
	server, i := three(t)
	server.edit(func(c *fakeCluster) {
		for n := range 100 {
			g := c.Groups[1]
			g.ID, g.Shard = uint32(100+n), 100+n
			c.Groups = append(c.Groups, g)
		}
	})
	fitsScreen(t, i.OK("status"))
	if table := i.OK("status", "--groups"); !strings.Contains(table, "posts/199") {
		t.Errorf("a group is missing in\n%s", table)
	}
}

func TestNodeDrain(t *testing.T) {
	server, i := three(t)
	looks := 0
	server.edit(func(c *fakeCluster) {
		c.Looked = func(c *fakeCluster, method, path string) {
			if method == http.MethodGet && c.Nodes[1].State == "draining" {
				looks++
				c.Groups[1].Leader = []string{"n2", "n2", "n3"}[min(looks, 2)] // the leadership moves only after the second poll
			}
		}
	})
	got := i.Run("node", "drain", "n2", "-o", "json")
	out := proctest.Decode[nodeOutput](t, got.Out)
	if got.Code != cli.ExitOK || !out.Changed || !out.Done || out.Leads != 0 || out.State != "draining" || !strings.Contains(got.Err, "n2 leads 1 group\n") {
		t.Errorf("exit %d, %+v, %s", got.Code, out, got.Err)
	}
	if out := proctest.Decode[nodeOutput](t, i.OK("node", "drain", "n2", "-o", "json")); out.Changed {
		t.Errorf("again: %+v", out)
	}
	if out := proctest.Decode[nodeOutput](t, i.OK("node", "undrain", "n2", "-o", "json")); !out.Changed || out.State != "active" {
		t.Errorf("undrained: %+v", out)
	}
	if list := i.OK("node", "list"); !strings.Contains(list, "n2.00000001") || strings.Count(list, "alive") != 3 {
		t.Errorf("list:\n%s", list)
	}
}

// If a drain does not end within --wait, the command fails. With --no-wait it succeeds.
func TestNodeDrainThatDoesNotEnd(t *testing.T) {
	server, i := three(t)
	server.edit(func(c *fakeCluster) {
		c.Looked = func(c *fakeCluster, _, _ string) { c.Groups[1].Leader = "n2" }
	})
	if got := i.Run("node", "drain", "n2", "--wait", "1ms"); got.Code != cli.ExitFail || !strings.Contains(got.Err, "n2 leads") {
		t.Errorf("exit %d, %s", got.Code, got.Err)
	}
	if out := proctest.Decode[nodeOutput](t, i.OK("node", "drain", "n2", "--no-wait", "-o", "json")); out.Done || out.Leads == 0 {
		t.Errorf("not waited for: %+v", out)
	}
}

func TestNodeRemove(t *testing.T) {
	server, i := three(t)
	if got := i.Run("node", "remove", "n3"); got.Code != cli.ExitUsage || !strings.Contains(got.Err, "Give --yes") {
		t.Errorf("without --yes: exit %d, %s", got.Code, got.Err)
	}
	server.edit(func(c *fakeCluster) {
		c.Looked = func(c *fakeCluster, method, _ string) {
			if n := c.node("n3"); method == http.MethodGet && n != nil && n.State == "leaving" {
				c.Nodes = c.Nodes[:2]
			}
		}
	})
	if out := proctest.Decode[nodeOutput](t, i.OK("node", "remove", "n3.00000002", "--yes", "-o", "json")); out.State != "removed" || !out.Done {
		t.Errorf("removed: %+v", out)
	}
	if got := i.Run("node", "remove", "n3", "--yes"); got.Code != cli.ExitFail || !strings.Contains(got.Err, "there is no node n3") {
		t.Errorf("again: exit %d, %s", got.Code, got.Err)
	}
	i.OK("node", "drain", "n2")
	if got := i.Run("node", "remove", "n1", "--yes"); got.Code != cli.ExitFail || !strings.Contains(got.Err, "no other node is active") {
		t.Errorf("the last one: exit %d, %s", got.Code, got.Err)
	}
}

func TestGroups(t *testing.T) {
	server, i := three(t)
	server.edit(func(c *fakeCluster) {
		c.Nodes = append(c.Nodes, admin.ClusterNode{ID: "n4", Key: "n4.0", State: "active", Alive: true, Answers: true})
	})
	if list := proctest.Decode[groupsOutput](t, i.OK("group", "list", "-o", "json")); len(list.Groups) != 9 || list.Groups[1].Keyspace != "posts" {
		t.Fatalf("groups %+v", list)
	}
	if out := proctest.Decode[admin.Changed](t, i.OK("group", "transfer", "posts/0", "n3", "-o", "json")); !out.Changed || out.Group.Leader != "n3" {
		t.Errorf("transferred: %+v", out)
	}
	if out := proctest.Decode[admin.Changed](t, i.OK("group", "move", "1", "n1", "n4", "-o", "json")); !slices.Equal(out.Group.Target, []string{"n4", "n2", "n3"}) {
		t.Errorf("moved: %+v", out)
	}
	if table := i.OK("group", "list"); !strings.Contains(table, "n4,n2,n3") {
		t.Errorf("table:\n%s", table)
	}
	for args, want := range map[string]string{
		"group transfer posts/9 n1": "there is no group posts/9", "group transfer posts/1 n9": "no such node", "group move posts/1 n4 n4": "is not to be on n4",
	} {
		if got := i.Run(strings.Fields(args)...); got.Code != cli.ExitFail || !strings.Contains(got.Err, want) {
			t.Errorf("%s: exit %d, %s", args, got.Code, got.Err)
		}
	}
}

func TestRebalance(t *testing.T) {
	server, i := three(t)
	if out := i.OK("rebalance", "--dry-run"); !strings.Contains(out, "nothing") {
		t.Errorf("printed %s", out)
	}
	groups := []uint32{1, 2}
	server.edit(func(c *fakeCluster) {
		c.Steps = []admin.PlanStep{
			{Step: "place", Group: &groups[0], Name: "posts/0", Add: []string{"n4"}, Remove: []string{"n1"}, Reason: "n1 has 9 replicas"},
			{Step: "transfer", Group: &groups[1], Name: "posts/1", From: "n1", To: "n2", Reason: "n1 is draining"},
		}
	})
	table := i.OK("rebalance", "--dry-run")
	for _, want := range []string{"+n4 -n1", "n1 has 9 replicas", "n1 → n2"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	if out := proctest.Decode[planOutput](t, i.OK("rebalance", "--dry-run", "-o", "json")); len(out.Steps) != 2 || *out.Steps[0].Group != 1 {
		t.Errorf("steps %+v", out)
	}
}

// The plan may have no steps while a group still moves. Then the output is not idle.
func TestRebalanceShowsWhatMoves(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*fakeCluster)
		want string // expected part of the table; "" if the output must be idle
	}{
		"at rest":      {func(*fakeCluster) {}, ""},
		"a group":      {func(c *fakeCluster) { c.Groups[1].Target = []string{"n1", "n2", "n4"} }, "+n4 -n3"},
		"no leader":    {func(c *fakeCluster) { c.Groups[1].Leader = "" }, "its leader does not answer"},
		"only planned": {func(c *fakeCluster) { c.Steps = []admin.PlanStep{{Step: "remove_node", Node: "n3"}} }, "removed"},
		"a move that began and ended meanwhile": {func(c *fakeCluster) {
			c.Looked = func(c *fakeCluster, _, path string) {
				if path == "/v1/admin/plan" {
					c.Groups[1].Target, c.Groups[1].Voters = []string{"n1", "n2", "n4"}, []string{"n1", "n2", "n4"}
				}
			}
		}, "just ended"},
	} {
		t.Run(name, func(t *testing.T) {
			server, i := three(t)
			server.edit(c.edit)
			want := c.want
			if want == "" {
				want = "nothing to do"
			}
			if out := i.OK("rebalance", "--dry-run"); !strings.Contains(out, want) {
				t.Errorf("the table lacks %q:\n%s", want, out)
			}
			server, i = three(t)
			server.edit(c.edit)
			if out := proctest.Decode[planOutput](t, i.OK("rebalance", "--dry-run", "-o", "json")); out.Idle != (c.want == "") {
				t.Errorf("idle is %v: %+v", out.Idle, out)
			}
		})
	}
}

func TestRebalanceWaits(t *testing.T) {
	server, i := three(t)
	server.edit(func(c *fakeCluster) { c.Groups[1].Target = []string{"n1", "n2"} })
	got := i.Run("rebalance", "--dry-run", "--wait", "10ms", "-o", "json")
	if got.Code != cli.ExitFail || !strings.Contains(got.Out, `"idle":false`) || !strings.Contains(got.Err, "groups that move: 1") {
		t.Errorf("exit %d, %s, %s", got.Code, got.Out, got.Err)
	}
	looks := 0
	server.edit(func(c *fakeCluster) {
		c.Looked = func(c *fakeCluster, _, path string) {
			if looks++; looks == 6 {
				c.Groups[1].Voters = []string{"n1", "n2"}
			}
		}
	})
	if out := proctest.Decode[planOutput](t, i.OK("rebalance", "--dry-run", "--wait", "3m", "-o", "json")); !out.Idle || looks < 6 {
		t.Errorf("ended after %d looks with %+v", looks, out)
	}
}

func TestUpgrade(t *testing.T) {
	server, i := three(t)
	server.edit(func(c *fakeCluster) { c.Version.Max = 2 })
	status := func(args ...string) upgradeOutput {
		t.Helper()
		return proctest.Decode[upgradeOutput](t, i.OK(append(args, "-o", "json")...))
	}
	if out := status("upgrade", "status"); out.Version != 1 || out.Max != 2 || out.Final || len(out.Nodes) != 3 {
		t.Errorf("status %+v", out)
	}
	if out := status("upgrade", "hold"); !out.Held || !out.Changed {
		t.Errorf("held %+v", out)
	}
	if out := status("upgrade", "hold"); !out.Held || out.Changed {
		t.Errorf("held again %+v", out)
	}
	if out := status("upgrade", "hold", "--off"); out.Held || !out.Changed {
		t.Errorf("let go %+v", out)
	}
	if got := i.Run("upgrade", "finalize"); got.Code != cli.ExitUsage {
		t.Errorf("finalize without --yes: exit %d, %s", got.Code, got.Err)
	}
	if out := status("upgrade", "finalize", "--yes"); out.Version != 2 || !out.Final || !out.Changed {
		t.Errorf("final %+v", out)
	}
	if out := status("upgrade", "finalize"); out.Changed || !out.Final {
		t.Errorf("final again %+v", out)
	}
	status("upgrade", "hold")
	if got := i.Run("upgrade", "finalize"); got.Code != cli.ExitUsage || !strings.Contains(got.Err, "is released") || !strings.Contains(got.Err, "End the hold?") {
		t.Errorf("the end of a hold without --yes: exit %d, %s", got.Code, got.Err)
	}
	if out := status("upgrade", "status"); !out.Held {
		t.Errorf("the hold ended unasked: %+v", out)
	}
	if out := status("upgrade", "finalize", "--yes"); out.Held || !out.Changed {
		t.Errorf("the hold stays %+v", out)
	}
}

func TestVerify(t *testing.T) {
	mark := func(index uint64, digest string) []admin.DigestMark {
		return []admin.DigestMark{{Index: index, Digest: digest}}
	}
	for name, test := range map[string]struct {
		edit func(*fakeCluster)
		code int
		err  string
	}{
		"all alike": {func(*fakeCluster) {}, cli.ExitOK, ""},
		"one differs": {func(c *fakeCluster) { c.Groups[3].Replicas[1].Digest = "ffffffffffffffff" },
			cli.ExitFail, "posts/2 at index 100 on n1 and n2"},
		"one is elsewhere": {func(c *fakeCluster) { c.Groups[3].Replicas[1].AppliedIndex = 99 },
			cli.ExitFail, "posts/2@n2"},
		"alike at a mark": {func(c *fakeCluster) {
			r := c.Groups[3].Replicas
			r[1].AppliedIndex, r[0].Marks, r[1].Marks = 99, mark(64, "0000000000000007"), mark(64, "0000000000000007")
		}, cli.ExitOK, ""},
		"a mark differs": {func(c *fakeCluster) {
			r := c.Groups[3].Replicas
			r[1].AppliedIndex, r[0].Marks, r[1].Marks = 99, mark(64, "0000000000000007"), mark(64, "0000000000000008")
		}, cli.ExitFail, "posts/2 at index 64"},
		"one is not heard of": {func(c *fakeCluster) { c.Groups[3].Replicas = c.Groups[3].Replicas[:2] },
			cli.ExitFail, "posts/2@n3"},
		"nobody is heard of": {func(c *fakeCluster) { c.Groups[3].Replicas, c.Groups[3].Voters = nil, nil },
			cli.ExitFail, "posts/2@n1"},
		"another term": {func(c *fakeCluster) {
			r := c.Groups[3].Replicas
			r[1].AppliedIndex, r[0].Entries, r[1].Entries = 99, entries(90, 100, 5), entries(80, 99, 3)
		}, cli.ExitFail, "posts/2 at index 90 on n1 and n2 (n1 has term 5 crc 0000005a, n2 has term 3 crc 0000005a)"},
		"another crc": {func(c *fakeCluster) {
			r := c.Groups[3].Replicas
			r[0].Entries, r[2].Entries = entries(90, 100, 5), entries(90, 100, 5)
			r[2].Entries[4].CRC = "ffffffff"
		}, cli.ExitFail, "posts/2 at index 94 on n1 and n3 (n1 has term 5 crc 0000005e, n3 has term 5 crc ffffffff)"},
		"an entry that one replica never applied": {func(c *fakeCluster) {
			r := c.Groups[3].Replicas
			r[1].AppliedIndex, r[0].Entries, r[1].Entries = 99, slices.Delete(entries(90, 100, 5), 2, 3), entries(90, 99, 5)
		}, cli.ExitFail, "posts/2 at index 92 on n1 and n2 (n1 has no entry, n2 has term 5 crc 0000005c)"},
		"windows that overlap in part": {func(c *fakeCluster) {
			r := c.Groups[3].Replicas
			r[0].Entries, r[1].Entries, r[2].Entries = entries(90, 100, 5), entries(96, 100, 5), entries(70, 93, 5)
		}, cli.ExitOK, ""},
		"windows that do not overlap": {func(c *fakeCluster) {
			r := c.Groups[3].Replicas
			r[0].Entries, r[1].Entries = entries(90, 95, 5), entries(96, 100, 4)
		}, cli.ExitOK, ""},
		"one is stuck": {func(c *fakeCluster) {
			r := c.Groups[3].Replicas
			r[1].AppliedIndex, r[0].Entries, r[1].Entries = 50, entries(90, 100, 5), entries(40, 50, 3)
		}, cli.ExitFail, "1 of them apply nothing: posts/2@n2 stays at index 50, n1 is at 100"},
		"it comes to the same index": {func(c *fakeCluster) {
			c.Groups[3].Replicas[1].AppliedIndex = 97
			c.Looked = func(c *fakeCluster, _, path string) {
				if strings.HasSuffix(path, "digests") && c.Groups[3].Replicas[1].AppliedIndex < 100 {
					c.Groups[3].Replicas[1].AppliedIndex++
				}
			}
		}, cli.ExitOK, ""},
	} {
		t.Run(name, func(t *testing.T) {
			server, i := three(t)
			server.edit(test.edit)
			wait := "1ms"
			if test.code == cli.ExitOK {
				wait = "30s"
			}
			got := i.Run("verify", "--wait", wait, "-o", "json")
			out := proctest.Decode[verifyOutput](t, got.Out)
			if got.Code != test.code || !strings.Contains(got.Err, test.err) || out.Equal != (test.code == cli.ExitOK) {
				t.Errorf("exit %d, %+v, %s", got.Code, out, got.Err)
			}
		})
	}
}

// entries returns entries of one term. Their indexes begin with from and end with to.
func entries(from, to, term uint64) []admin.EntryMark {
	var all []admin.EntryMark
	for i := from; i <= to; i++ {
		all = append(all, admin.EntryMark{Index: i, Term: term, CRC: fmt.Sprintf("%08x", i)})
	}
	return all
}

// The JSON output and the table name both replicas that differ. The table lists a stuck replica
// only once.
func TestVerifyNamesBothSides(t *testing.T) {
	server, i := three(t)
	server.edit(func(c *fakeCluster) {
		r := c.Groups[3].Replicas
		r[1].AppliedIndex, r[0].Entries, r[1].Entries = 99, entries(90, 100, 5), entries(80, 99, 3)
	})
	d := proctest.Decode[verifyOutput](t, i.Run("verify", "-o", "json").Out).Difference[0]
	if d.Group != "posts/2" || d.Index != 90 || d.One != "n1" || d.Other != "n2" ||
		*d.OneEntry != (entryOutput{5, "0000005a"}) || *d.OtherEntry != (entryOutput{3, "0000005a"}) {
		t.Errorf("%+v", d)
	}
	if table := i.Run("verify").Out; !strings.Contains(table, "different") || strings.Contains(table, "not compared") || !strings.Contains(table, "n2 has term 3 crc 0000005a") {
		t.Errorf("the table is\n%s", table)
	}
	server.edit(func(c *fakeCluster) { c.Groups[3].Replicas[1].Entries = nil })
	table := i.Run("verify", "--wait", "1ms").Out
	if !strings.Contains(table, "stuck") || strings.Contains(table, "not compared") {
		t.Errorf("the table is\n%s", table)
	}
}

func TestVerifyOfOneNode(t *testing.T) {
	if out := proctest.Decode[verifyOutput](t, against(t, nodetest.New(t).URL).OK("verify", "-o", "json")); !out.Equal || out.Groups != 12 {
		t.Errorf("%+v", out)
	}
}

func TestVerifyWatches(t *testing.T) {
	server, i := three(t)
	rounds := 0
	server.edit(func(c *fakeCluster) {
		c.Looked = func(c *fakeCluster, _, path string) {
			if strings.HasSuffix(path, "digests") {
				if rounds++; rounds == 3 {
					c.Groups[1].Replicas[2].Digest = "ffffffffffffffff"
				}
			}
		}
	})
	got := i.Run("verify", "--watch", "--every", "1ms", "-o", "json")
	if got.Code != cli.ExitFail || strings.Count(got.Out, "\n") != 3 || rounds != 3 {
		t.Errorf("exit %d after %d rounds, %s%s", got.Code, rounds, got.Out, got.Err)
	}
}

// An interrupt ends --watch without an error, even while no node answers and the client waits for
// its next try.
func TestVerifyWatchIsInterrupted(t *testing.T) {
	server, i := three(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	i.Ctx = ctx
	var rounds atomic.Int32
	server.edit(func(c *fakeCluster) {
		c.Looked = func(_ *fakeCluster, _, path string) {
			if !strings.HasSuffix(path, "digests") {
				return
			}
			round := rounds.Add(1)
			if round == 2 {
				time.AfterFunc(100*time.Millisecond, cancel) // by then, the client has retried and waits for its next try
			}
			if round >= 2 {
				panic(http.ErrAbortHandler)
			}
		}
	})
	got := i.Run("verify", "--watch", "--every", "1ms", "-o", "json")
	if got.Code != cli.ExitOK || strings.Count(got.Out, "\n") != 1 || got.Err != "" || rounds.Load() < 2 {
		t.Errorf("exit %d after %d rounds, %s%s", got.Code, rounds.Load(), got.Out, got.Err)
	}
}

// rolling-restart drains, restarts and undrains one node after the other. It restarts no node while
// another node or a group is unhealthy.
func TestRollingRestart(t *testing.T) {
	server, i := three(t)
	log := filepath.Join(t.TempDir(), "log")
	lives := map[string]int{}
	restarts := 0
	server.edit(func(c *fakeCluster) {
		c.Groups[2].Replicas[1].Lag = 500 // the replica catches up while countctl polls
		c.Looked = func(c *fakeCluster, method, _ string) {
			c.Groups[2].Replicas[1].Lag = max(c.Groups[2].Replicas[1].Lag, 100) - 100
			text, _ := os.ReadFile(log) // the file does not exist before the first restart
			if done := strings.Fields(string(text)); len(done) > restarts {
				n := c.node(done[restarts])
				for _, other := range c.Nodes {
					if (other.ID == n.ID) != (other.State == "draining") {
						t.Errorf("%s is %s while %s is restarted", other.ID, other.State, n.ID)
					}
				}
				restarts++
				lives[n.ID]++
				n.Life = fmt.Sprint(lives[n.ID])
			}
		}
	})
	out := proctest.Decode[rollingOutput](t, i.OK("rolling-restart", "--yes", "-o", "json", "--exec", "echo {id} >>"+log))
	if len(out.Restarted) != 3 || restarts != 3 || len(lives) != 3 {
		t.Errorf("restarted %+v, %v", out, lives)
	}
	for _, n := range proctest.Decode[nodesOutput](t, i.OK("node", "list", "-o", "json")).Nodes {
		if n.State != "active" {
			t.Errorf("%s is left %s", n.ID, n.State)
		}
	}
}

func TestRollingRestartStops(t *testing.T) {
	for name, test := range map[string]struct {
		edit  func(*fakeCluster)
		exec  string
		err   string
		state string // expected state of n1 after the command
	}{
		"the command fails":   {func(*fakeCluster) {}, "exit 7", "exit status 7", "active"},
		"it is not restarted": {func(*fakeCluster) {}, "true", "has not been restarted yet", "draining"},
		"it says what to do":  {func(*fakeCluster) {}, "true", "countctl node undrain n1", "draining"},
		"a node is dead":      {func(c *fakeCluster) { c.Nodes[2].Alive = false }, "true", "n3 is dead: rolling-restart begins only", "active"},
		"a group has no leader": {func(c *fakeCluster) { c.Groups[4].Leader = "" }, "true",
			"posts/3 has no leader", "active"},
	} {
		t.Run(name, func(t *testing.T) {
			server, i := three(t)
			server.edit(test.edit)
			got := i.Run("rolling-restart", "--yes", "--wait", "300ms", "--nodes", "n1", "--exec", test.exec)
			if got.Code != cli.ExitFail || !strings.Contains(got.Err, test.err) {
				t.Errorf("exit %d, %s", got.Code, got.Err)
			}
			server.edit(func(c *fakeCluster) {
				if c.Nodes[0].State != test.state {
					t.Errorf("n1 is %s, want %s", c.Nodes[0].State, test.state)
				}
			})
		})
	}
}

// After an interrupt, a rolling restart waits for the running restart command, which does not
// receive the terminal's signal. Then it undrains the node. It prints the state of each node, and
// the command to continue.
func TestRollingRestartIsInterrupted(t *testing.T) {
	server, i := three(t)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	i.Ctx = ctx
	dir := t.TempDir()
	group, goOn, ended := filepath.Join(dir, "group"), filepath.Join(dir, "go-on"), filepath.Join(dir, "ended")
	exec := fmt.Sprintf("cut -d ' ' -f 5 /proc/$$/stat >%[1]s.tmp; mv %[1]s.tmp %[1]s; while [ ! -e %[2]s ]; do sleep 0.05; done; echo >%[3]s", group, goOn, ended)
	go func() {
		for {
			if _, err := os.Stat(group); err == nil || t.Context().Err() != nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		interrupt()
		_ = os.WriteFile(goOn, nil, 0o600)
	}()
	got := i.Run("rolling-restart", "--yes", "--nodes", "n2,n3", "--exec", exec)
	if got.Code != cli.ExitFail {
		t.Errorf("exit %d", got.Code)
	}
	if _, err := os.Stat(ended); err != nil {
		t.Errorf("the command did not end: %v", err)
	}
	if text := strings.TrimSpace(proctest.ReadAll(t, group)); text == strconv.Itoa(syscall.Getpgrp()) {
		t.Error("the command is in the process group of countctl")
	}
	for _, want := range []string{"it was interrupted", "n1 is alive", "n2 is alive", "rolling-restart --nodes n2,n3 --exec"} {
		if !strings.Contains(got.Err, want) {
			t.Errorf("it does not say %q:\n%s", want, got.Err)
		}
	}
	server.edit(func(c *fakeCluster) {
		if c.Nodes[1].State != "active" {
			t.Errorf("n2 is left %s", c.Nodes[1].State)
		}
	})
}

func TestDebugBundle(t *testing.T) {
	_, i := three(t)
	file := filepath.Join(t.TempDir(), "b.tar.gz")
	if out := proctest.Decode[bundleOutput](t, i.OK("debug", "bundle", file, "-o", "json")); out.Files == 0 || len(out.Failed) != 0 {
		t.Errorf("%+v", out)
	}
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zip, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(zip); ; {
		head, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, head.Name)
	}
	for _, want := range []string{"cluster/groups.json", "nodes/n2.00000001/cluster.json", "errors.txt"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s in %q", want, names)
		}
	}
}

// If Ctrl-C is pressed at a question, the command ends without a change.
func TestQuestionIsInterrupted(t *testing.T) {
	in, typed := io.Pipe()
	defer typed.Close()
	interrupted := make(chan struct{})
	var said proctest.Buffer
	c := &cli.CLI{Terminal: cli.Terminal{In: in, Err: &said}, Interrupted: interrupted}
	ended := make(chan error, 1)
	go func() {
		_, err := c.Ask("Drop it? ")
		ended <- err
	}()
	close(interrupted)
	if err := <-ended; !errors.Is(err, context.Canceled) || !strings.HasPrefix(said.String(), "Drop it? ") {
		t.Errorf("%v, %q", err, said.String())
	}
}

func against(t *testing.T, url string) *proctest.Invocation {
	return invoke(t, url, Commands, data.Commands)
}

// groupsOutput is the JSON output of "group list".
type groupsOutput struct {
	Groups []admin.ClusterGroup `json:"groups"`
}

// status warns of a keyspace if its fullest shard has 90 % of its share of a limit.
func TestLimitsAreWarnedOf(t *testing.T) {
	groups := func(rows ...uint64) (all []admin.ClusterGroup) {
		for s, n := range rows {
			all = append(all, admin.ClusterGroup{Keyspace: "songs", Shard: s, Rows: n, Bytes: 10 * n}, admin.ClusterGroup{Keyspace: "users", Shard: s, Rows: 1_000_000})
		}
		return all
	}
	for name, test := range map[string]struct {
		limits client.Limits
		groups []admin.ClusterGroup
		want   string
	}{
		"none":            {client.Limits{}, groups(1000), ""},
		"below":           {client.Limits{Rows: 1000}, groups(899), ""},
		"near":            {client.Limits{Rows: 1000}, groups(900), "songs has 900 of at most 1,000 rows, the fullest of its 1 shard 900"},
		"one shard, near": {client.Limits{Rows: 1000}, groups(100, 450), "songs has 550 of at most 1,000 rows, the fullest of its 2 shards 450"},
		"memory":          {client.Limits{Rows: 10_000, Bytes: 10_000}, groups(1000), "songs has 10,000 of at most 10,000 bytes of memory, the fullest of its 1 shard 10,000"},
	} {
		t.Run(name, func(t *testing.T) {
			found := warningsOfLimits([]client.Keyspace{{Name: "users"}, {Name: "songs", Limits: test.limits}}, test.groups)
			if textsOf(found) != test.want {
				t.Errorf("%q, want %q", textsOf(found), test.want)
			}
			if len(found) > 0 && !strings.Contains(found[0].Run, "countctl keyspace limit songs ") {
				t.Errorf("the command is %q", found[0].Run)
			}
		})
	}
}

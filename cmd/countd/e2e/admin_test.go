package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/internal/proctest"
)

// JSON output of countctl, with only the fields that tests read.
type (
	ctlNode struct {
		Node, State   string
		Changed, Done bool
		Leads         int
	}
	ctlStatus struct {
		Ready    bool
		Nodes    []admin.ClusterNode
		Groups   []admin.ClusterGroup
		Warnings []struct{ Code, Text string }
	}
	ctlVerify struct {
		Equal       bool
		Replicas    int
		Differences []struct{ Group, One, Other string }
	}
)

// ctl runs countctl against a node, without a terminal, and decodes the JSON that it
// prints. It must exit 0.
func ctl[T any](t *testing.T, n *proctest.Member, args ...string) T {
	t.Helper()
	out := n.MustCtl(append(args, "-o", "json")...)
	var v T
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("countctl %q printed %q: %v", args, out, err)
	}
	return v
}

// refusesCtl runs countctl, which must exit with code and print an error that contains the text
// says.
func refusesCtl(t *testing.T, n *proctest.Member, code int, says string, args ...string) {
	t.Helper()
	if got := n.Ctl(args...); got.Code != code || !strings.Contains(got.Stderr, says) {
		t.Errorf("countctl %q: exit code %d, %q; want %d and %q", args, got.Code, got.Stderr, code, says)
	}
}

// awaitWarnings waits until status has exactly the warnings want. It ignores the warning about ids
// without a time, which the load's ids cause. It waits because an election on a busy machine also
// causes warnings for a moment.
func awaitWarnings(t *testing.T, n *proctest.Member, want ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("status has the warnings %q", want), func() bool {
		got := n.Ctl("status", "-o", "json")
		var status ctlStatus
		err := json.Unmarshal([]byte(got.Stdout), &status)
		return got.Code == 0 && err == nil && slices.Equal(status.warnings(), want)
	})
}

// warnings returns the codes of all warnings except the one that the load's ids cause.
func (s *ctlStatus) warnings() (codes []string) {
	for _, w := range s.Warnings {
		if w.Code != "id_layout_misfit" {
			codes = append(codes, w.Code)
		}
	}
	return codes
}

// load is a cluster under writers, readers and a watch of digests. The clients wait for each answer
// as long as the API's default timeout.
type load struct {
	t     *testing.T
	began time.Time
	*proctest.Load
}

func startLoad(t *testing.T, c *proctest.Cluster) *load {
	t.Helper()
	return &load{t, time.Now(), c.StartLoad(short(4, 8), short(orderPace, faultPace))}
}

// end checks that no request failed for its client, that each node reads each count as the sum of
// the answered writes, that one order explains all other answers, and that replicas never differed
// and soon become equal.
func (l *load) end(nodes ...*proctest.Member) {
	l.t.Helper()
	during := l.inTime(time.Now())
	l.End(nodes...)
	l.t.Logf("load: %v", during)
}

// inTime returns the statistics of the load up to the time until, and fails the test if a request
// was late.
func (l *load) inTime(until time.Time) proctest.Stats {
	l.t.Helper()
	during := l.Between(l.began, until)
	if during.Late > 0 {
		l.t.Errorf("%d requests took longer than %v", during.Late, proctest.RequestDeadline)
	}
	return during
}

// byLeads returns the nodes' names, sorted by the number of groups that they lead, largest first.
func byLeads(nodes []admin.ClusterNode) []string {
	slices.SortStableFunc(nodes, func(a, b admin.ClusterNode) int { return b.Leads - a.Leads })
	var names []string
	for _, n := range nodes {
		names = append(names, n.ID)
	}
	return names
}

// TestAdminNodes drains, undrains, adds and removes nodes of a cluster under load.
func TestAdminNodes(t *testing.T) {
	long(t)
	beside(t)
	c := newCluster(t, proctest.Options{})
	l := startLoad(t, c)
	quiet := time.Now()
	time.Sleep(short(time.Second, 10*time.Second)) // measures the load without drains, as a baseline
	began := time.Now()
	for range short(1, 10) {
		drains(t, c)
	}
	t.Logf("quiet:  %v", l.Between(quiet, began))
	t.Logf("during: %v", l.Between(began, time.Now()))

	at, gone := c.Nodes()[0], c.Nodes()[1]
	refusesToLeadNowhere(t, c, at)
	c.AwaitShares()
	removesNode(t, c, at, gone)
	l.end(c.Others(gone)...)
}

// drains drains the node that leads most groups. It drains the node a second time, which changes
// nothing, and undrains it.
func drains(t *testing.T, c *proctest.Cluster) {
	t.Helper()
	victim, _ := c.LeaderOfMost()
	at := c.Others(victim)[0]
	if out := ctl[ctlNode](t, at, "node", "drain", victim.Name); !out.Changed || !out.Done || out.Leads != 0 || out.State != "draining" {
		t.Errorf("drained: %+v", out)
	}
	if again := ctl[ctlNode](t, victim, "node", "drain", victim.Name); again.Changed || !again.Done {
		t.Errorf("drained again: %+v", again)
	}
	for _, g := range ctl[ctlStatus](t, victim, "status").Groups {
		if g.Leader == victim.Name {
			t.Errorf("%s leads group %d", victim.Name, g.ID)
		}
	}
	refusesCtl(t, at, 1, victim.Name+" is draining", "group", "transfer", "posts/0", victim.Name)
	if out := ctl[ctlNode](t, victim, "node", "undrain", victim.Name); out.State != "active" || !out.Changed {
		t.Errorf("undrained: %+v", out)
	}
	c.AwaitShares()
}

// refusesToLeadNowhere drains all nodes except one. The cluster must then refuse to drain that one.
func refusesToLeadNowhere(t *testing.T, c *proctest.Cluster, at *proctest.Member) {
	t.Helper()
	for _, n := range c.Others(at) {
		at.MustCtl("node", "drain", n.Name)
	}
	refusesCtl(t, at, 1, "no other node is active", "node", "drain", at.Name)
	refusesCtl(t, at, 1, "no other node is active", "node", "remove", at.Name, "--yes")
	refusesCtl(t, at, 1, "there is no node n9", "node", "drain", "n9")
	for _, n := range c.Others(at) {
		at.MustCtl("node", "undrain", n.Name)
	}
}

// removesNode drains and then removes the node gone, after a fourth node has joined.
func removesNode(t *testing.T, c *proctest.Cluster, at, gone *proctest.Member) {
	t.Helper()
	c.Add()
	refusesCtl(t, at, 2, "Give --yes", "node", "remove", gone.Name)
	if out := ctl[ctlNode](t, at, "node", "drain", gone.Name, "--no-wait"); out.Done || out.State != "draining" {
		t.Errorf("not waited for: %+v", out)
	}
	if out := ctl[ctlNode](t, at, "node", "remove", gone.Name, "--yes", "--no-wait"); out.Done || out.State != "leaving" {
		t.Errorf("not waited for: %+v", out)
	}
	if out := ctl[ctlNode](t, at, "node", "remove", gone.Name, "--yes"); !out.Done || out.State != "removed" || out.Changed {
		t.Errorf("removed: %+v", out)
	}
	refusesCtl(t, at, 1, "there is no node "+gone.Name, "node", "undrain", gone.Name)
	eventually(t, "the node hears that it is removed", func() bool {
		got := gone.Ctl("status")
		return got.Code == 1 && strings.Contains(got.Stderr, "was removed from the cluster")
	})
	gone.Stop()
	c.AwaitGone(gone)
	c.AwaitShares(gone)
	awaitWarnings(t, at)
	if s := ctl[ctlStatus](t, at, "status"); len(s.Nodes) != voters {
		t.Errorf("status: %d nodes", len(s.Nodes))
	}
}

// TestAdminGroups hands groups over and moves their replicas, under load, and
// compares them.
func TestAdminGroups(t *testing.T) {
	long(t)
	beside(t)
	c := newCluster(t, proctest.Options{Nodes: 4})
	l := startLoad(t, c)
	c.AwaitShares()
	at := c.Nodes()[0]

	g, from, to := movable(t, ctl[ctlStatus](t, at, "status"))
	moved := ctl[admin.Changed](t, at, "group", "move", g, from, to)
	if !moved.Changed || !slices.Contains(moved.Group.Target, to) || slices.Contains(moved.Group.Target, from) {
		t.Errorf("moved %s from %s to %s: %+v", g, from, to, moved.Group)
	}
	refusesCtl(t, at, 1, "there is no group posts/9", "group", "move", "posts/9", from, to)
	refusesCtl(t, at, 1, "no such node", "group", "move", g, from, "n9")
	refusesCtl(t, at, 2, "takes GROUP NODE", "group", "transfer", g)
	c.AwaitShares()

	list := ctl[ctlStatus](t, at, "status")
	first := list.Groups[1] // Groups[0] is the catalog
	heir := byLeads(list.Nodes)[len(list.Nodes)-1]
	if !slices.Contains(first.Voters, heir) || first.Leader == heir {
		i := slices.IndexFunc(first.Voters, func(name string) bool { return name != first.Leader })
		heir = first.Voters[i]
	}
	given := ctl[admin.Changed](t, at, "group", "transfer", "1", heir)
	if !given.Changed || given.Group.Leader != heir {
		t.Errorf("group 1 handed over to %s: %+v", heir, given.Group)
	}
	if steps := ctl[struct{ Steps []admin.PlanStep }](t, at, "rebalance", "--dry-run"); len(steps.Steps) > c.AllShards() {
		t.Errorf("the plan has %d steps", len(steps.Steps))
	}
	refusesCtl(t, at, 2, "--dry-run", "rebalance")
	c.AwaitShares()
	if v := ctl[ctlVerify](t, at, "verify"); !v.Equal || v.Replicas != voters*c.AllShards()+2*len(c.Nodes()) { // all nodes have replicas of the catalog and the board
		t.Errorf("compared while written to: %+v", v)
	}
	l.end(c.Nodes()...)
}

// movable returns a group of posts, a node that has a replica of the group but does not lead it,
// and a node without a replica.
func movable(t *testing.T, s ctlStatus) (group, from, to string) {
	t.Helper()
	for _, g := range s.Groups {
		if g.Keyspace != "posts" {
			continue
		}
		for _, n := range s.Nodes {
			if !slices.Contains(g.Voters, n.ID) {
				i := slices.IndexFunc(g.Voters, func(name string) bool { return name != g.Leader })
				return g.Keyspace + "/" + string(rune('0'+g.Shard)), g.Voters[i], n.ID
			}
		}
	}
	t.Fatal("every node has a replica of every group")
	return "", "", ""
}

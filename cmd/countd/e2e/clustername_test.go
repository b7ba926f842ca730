package e2e

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// contact returns a new node with the gossip address of a stopped node.
func contact(t *testing.T, stopped *proctest.Member, args ...string) *proctest.Node {
	t.Helper()
	site := proctest.FreeSite(t)
	site.Gossip = stopped.Site().Gossip
	return proctest.NewNodeAt(t, bin, filepath.Join(t.TempDir(), "stray"), site, append([]string{"--node-id", "stray"}, args...)...)
}

// mustHaveNoCluster checks that the stray node is not ready, is not joining a cluster, and is no
// member of the others' cluster.
func mustHaveNoCluster(t *testing.T, stray *proctest.Node, others ...*proctest.Member) {
	t.Helper()
	if status, err := stray.Call(http.MethodGet, "/readyz", nil, nil); err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("the stray node's readiness is %d, %v", status, err)
	}
	identity, err := os.ReadFile(filepath.Join(stray.Dir, "node.json"))
	if err != nil || !strings.Contains(string(identity), `"cluster_id": ""`) || strings.Contains(string(identity), "joining") {
		t.Errorf("the stray node's identity, %v:\n%s", err, identity)
	}
	for _, n := range others {
		for _, of := range n.Cluster().Nodes {
			if of.ID == "stray" {
				t.Errorf("%s counts the stray node: %+v", n.Name, of)
			}
		}
	}
}

// nameAt returns the cluster's name as a node reports it.
func nameAt(n *proctest.Node) string {
	var status struct {
		ClusterName string `json:"cluster_name"`
	}
	n.MustCall(http.MethodGet, "/v1/cluster", nil, &status)
	return status.ClusterName
}

// TestStrayNodeJoinsNothing: a cluster still searches for one of its nodes at a gossip address that
// now belongs to a stray node. The stray node's --join names no running node. Then
//
//  1. the stray node stays alone, logs which cluster it refused, and is no member of that cluster;
//  2. a node with another cluster name does not become a member, even if its --join names a member;
//  3. restarts of one node after the other give the cluster a name. Afterwards only nodes with that
//     name can join, and a member with another name is kept out until it has the right name.
func TestStrayNodeJoinsNothing(t *testing.T) {
	long(t)
	beside(t)
	c := newCluster(t, proctest.Options{LogStore: "shared"})
	gone, rest := c.Nodes()[2], c.Nodes()[:2]
	gone.Stop()
	stray := contact(t, gone, "--join", proctest.FreePorts(t, 1)[0])
	stray.Start()
	eventually(t, "the stray node refuses the cluster", func() bool {
		return strings.Contains(stray.Log(), "no address of --join has led this node") && strings.Contains(stray.Log(), rest[0].Cluster().ClusterID)
	})
	eventually(t, "the stray node finds nobody", func() bool { return strings.Contains(stray.Log(), "found no other node yet") })
	mustHaveNoCluster(t, stray, rest...)

	restart := func(n *proctest.Node, args []string) {
		n.Stop()
		n.Args = args
		n.Start()
	}
	told := slices.Clone(stray.Args)
	told[len(told)-1] = rest[0].Site().Gossip
	restart(stray, append(told, "--cluster-name", "other"))
	for _, n := range []*proctest.Node{stray, rest[0].Node} {
		eventually(t, "both log both clusters", func() bool {
			return strings.Contains(n.Log(), "--cluster-name other") && strings.Contains(n.Log(), rest[0].Cluster().ClusterID+" (no --cluster-name)")
		})
	}
	mustHaveNoCluster(t, stray, rest...)

	stray.Stop()

	gone.StartReady()
	for _, n := range c.Nodes() {
		restart(n.Node, append(n.Args, "--cluster-name", "prod"))
		c.AwaitReady(n)
		if name := nameAt(n.Node); name != "prod" {
			t.Errorf("%s says that its cluster is named %q", n.Name, name)
		}
		if status := n.MustCtl("status", "--wait", "60s"); !strings.Contains(status, "Cluster prod (") {
			t.Errorf("the name is not in the status:\n%s", status)
		}
	}
	c.AwaitReady(c.Nodes()...)
	for _, name := range []string{"", "test", "prod"} {
		n := proctest.NewNode(t, bin, t.TempDir(), "--node-id", "new", "--join", rest[0].Site().Gossip, "--cluster-name", name)
		n.Start()
		if name == "prod" {
			if ready, code := n.WaitReady(must.BecomeMax); !ready {
				t.Fatalf("a node of the right name did not join, exit code %d:\n%s", code, n.Log())
			}
			break
		}
		eventually(t, "a node of another name is refused", func() bool { return strings.Contains(n.Log(), "(--cluster-name prod)") })
		n.Stop()
	}

	wrong := c.Nodes()[1].Node
	right := slices.Clone(wrong.Args)
	wrong.Args[len(right)-1] = "test"
	restart(wrong, wrong.Args)
	for _, n := range []*proctest.Node{wrong, rest[0].Node} {
		eventually(t, "a member of another name is refused", func() bool { return strings.Contains(n.Log(), "(--cluster-name test)") })
	}
	restart(wrong, right)
	c.AwaitReady(c.Nodes()...)
}

// TestTwoClustersStayTwo: two clusters stay separate even if an operator joins their nodes by
// mistake.
func TestTwoClustersStayTwo(t *testing.T) {
	t.Parallel()
	red := proctest.NewNode(t, bin, t.TempDir(), "--node-id", "n1", "--cluster-name", "red")
	blue := proctest.NewNode(t, bin, t.TempDir(), "--node-id", "n2", "--cluster-name", "blue")
	for _, n := range []*proctest.Node{red, blue} {
		n.StartReady()
	}
	blue.Stop()
	blue.Args = append(blue.Args, "--join", red.Site().Gossip)
	blue.StartReady()
	for _, n := range []*proctest.Node{red, blue} {
		eventually(t, "both log both names", func() bool {
			return strings.Contains(n.Log(), "(--cluster-name red)") && strings.Contains(n.Log(), "(--cluster-name blue)")
		})
		if nodes := n.Cluster().Nodes; len(nodes) != 1 {
			t.Errorf("a cluster of one has %+v", nodes)
		}
	}
}

func TestWrongClusterNameExitsWithUsage(t *testing.T) {
	t.Parallel()
	n := proctest.NewNode(t, bin, t.TempDir(), "--cluster-name", strings.Repeat("n", 33))
	n.Start()
	if code := n.Exited(); code != 2 || !strings.Contains(n.Log(), "cluster-name (flag --cluster-name)") {
		t.Errorf("exit code %d:\n%s", code, n.Log())
	}
	mustBeNobodys(t, n.Dir)
}

// TestNodeWithoutJoinIsFound: three nodes form a cluster. Two nodes name the third in --join, and
// the third has no --join. One of the two founds the cluster, and the third must join it.
func TestNodeWithoutJoinIsFound(t *testing.T) {
	long(t)
	t.Parallel()
	known := proctest.NewNode(t, bin, t.TempDir(), "--node-id", "c", "--bootstrap-expect", "3") // not the founder: the node with the lowest key founds the cluster
	nodes := []*proctest.Node{known}
	for _, id := range []string{"a", "b"} {
		nodes = append(nodes, proctest.NewNode(t, bin, t.TempDir(), "--node-id", id, "--bootstrap-expect", "3", "--join", known.Site().Gossip))
	}
	for _, n := range nodes {
		n.Start()
	}
	for _, n := range nodes {
		if ready, code := n.WaitReady(must.BecomeMax); !ready {
			t.Fatalf("a node is not ready, exit code %d:\n%s", code, n.Log())
		}
		if status := n.Cluster(); status.ClusterID != known.Cluster().ClusterID || len(status.Nodes) != 3 {
			t.Errorf("its cluster is %+v", status)
		}
	}
}

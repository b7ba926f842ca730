package console

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// startCluster starts three nodes of one cluster, and waits until they can serve. prepare, if not nil, changes each
// node before its start.
func startCluster(t *testing.T, prepare func(*proctest.Node), args ...string) []*proctest.Node {
	t.Helper()
	var sites []proctest.Site
	var gossip []string
	for range 3 {
		site := proctest.FreeSite(t)
		sites, gossip = append(sites, site), append(gossip, site.Gossip)
	}
	var nodes []*proctest.Node
	for i, site := range sites {
		name := fmt.Sprintf("n%d", i+1)
		n := proctest.NewNodeAt(t, bin, filepath.Join(t.TempDir(), name), site, append([]string{
			"--node-id", name, "--zone", fmt.Sprintf("z%d", i+1), "--disk-reserve", "16MiB", "--bootstrap-expect", "3", "--join", strings.Join(gossip, ","),
		}, args...)...)
		if prepare != nil {
			prepare(n)
		}
		nodes = append(nodes, n)
		n.Start()
	}
	for _, n := range nodes {
		if ready, code := n.WaitReady(must.BecomeMax); !ready {
			t.Fatalf("a node is not ready, exit code %d:\n%s", code, n.Log())
		}
	}
	return nodes
}

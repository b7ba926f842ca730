package e2e

import (
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/internal/proctest"
)

// TestClusterFounderDies kills the node that leads the catalog as soon as all nodes of a new
// cluster are ready. The others must then lead every group, including the catalog, and accept
// writes.
func TestClusterFounderDies(t *testing.T) {
	long(t)
	beside(t)
	for range short(1, 5) {
		c := proctest.StartCluster(t, bin, proctest.Options{})
		for _, n := range c.Nodes() {
			if strings.Contains(n.Log(), "no member of the cluster answered") {
				t.Errorf("%s asked a founder that could not admit it yet:\n%s", n.Name, n.Log())
			}
		}
		tally := c.NewTally(0)
		i := slices.IndexFunc(c.Nodes(), func(n *proctest.Member) bool {
			return slices.ContainsFunc(n.Cluster().Groups, func(g admin.Group) bool { return g.ID == 0 && g.Role == "leader" })
		})
		if i < 0 {
			t.Fatal("nobody leads the catalog")
		}
		founder := c.Nodes()[i]
		founder.Kill()
		t.Logf("each group has a leader after %v", c.AwaitLed(founder))
		tally.AddAll(1, c.Others(founder)...)
		for _, n := range c.Others(founder) {
			n.Kill()
		}
	}
}

package cluster

import (
	"context"
	"net/http"
	"strings"
	"testing"

	"github.com/countd/countd/cmd/countctl/internal/cli"
)

// The error of an interrupted command states that the cluster continues the order, and how to
// cancel the order.
func TestInterruptedOrderGoesOn(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		says string
	}{
		"remove": {[]string{"node", "remove", "n3", "--yes"}, "countctl node undrain n3 keeps it"},
		"drain":  {[]string{"node", "drain", "n3", "--yes"}, "countctl node undrain n3 ends that"},
	} {
		t.Run(name, func(t *testing.T) {
			server, i := three(t)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			i.Ctx = ctx
			server.edit(func(c *fakeCluster) {
				c.Looked = func(c *fakeCluster, method, _ string) {
					if n := c.node("n3"); method == http.MethodGet && n.State != "active" {
						c.Groups[1].Leader = "n3" // n3 still leads a group, so the order is not complete
						cancel()
					}
				}
			})
			got := i.Run(test.args...)
			if got.Code != cli.ExitFail || !strings.Contains(got.Err, "interrupted, but the cluster continues") || !strings.Contains(got.Err, test.says) {
				t.Errorf("exit %d, %s", got.Code, got.Err)
			}
		})
	}
}

// node remove sends no order if no replica could move.
func TestNodeRemoveWithoutAMajority(t *testing.T) {
	server, i := three(t)
	server.edit(func(c *fakeCluster) { c.Nodes[1].Alive, c.Nodes[2].Alive = false, false })
	got := i.Run("node", "remove", "n3", "--yes")
	if got.Code != cli.ExitFail || !strings.Contains(got.Err, "no replica can move while 1 of the other 2 nodes are dead (n2)") {
		t.Errorf("exit %d, %s", got.Code, got.Err)
	}
	server.edit(func(c *fakeCluster) {
		if c.Nodes[2].State != "active" {
			t.Errorf("n3 is %s", c.Nodes[2].State)
		}
		c.Nodes[1].Alive = true
	})
	if got := i.Run("node", "remove", "n3", "--yes", "--no-wait"); got.Code != cli.ExitOK {
		t.Errorf("of a dead node alone: exit %d, %s", got.Code, got.Err)
	}
}

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/countd/countd/internal/clustertest"
	"github.com/countd/countd/internal/must"
)

// TestGossipKeysRotate: countctl changes the key of every node without a restart. A node that
// restarts has the new one, no log or bundle has either, and what would cut nodes off from
// each other is refused.
func TestGossipKeysRotate(t *testing.T) {
	beside(t)
	const one, two = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=", "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI="
	file := filepath.Join(t.TempDir(), "keys")
	must.Do(t, os.WriteFile(file, []byte(one+"\n"), 0o600))
	c := clustertest.New(t, bin, clustertest.Options{LogStore: "shared", Args: []string{"--gossip-key-file", file}})
	n := c.Nodes()[0]
	eventually(t, "the cluster has the version for it", func() bool { return n.Ctl("gossip-key", "list").Code == 0 })
	for _, bad := range [][]string{{"use", two}, {"remove", one}} {
		if got := n.Ctl(append([]string{"gossip-key"}, bad...)...); got.Code != 1 || !strings.Contains(got.Stderr, "no key was changed") {
			t.Errorf("%v: exit %d\n%s%s", bad, got.Code, got.Stdout, got.Stderr)
		}
	}
	n.MustCtl("gossip-key", "add", two)
	c.Nodes()[2].Stop()
	if got := n.Ctl("gossip-key", "use", two); got.Code != 1 || !strings.Contains(got.Stderr, "does not answer") {
		t.Errorf("while a node is down: exit %d\n%s%s", got.Code, got.Stdout, got.Stderr)
	}
	c.Nodes()[2].Start()
	c.AwaitReady(c.Nodes()[2])
	eventually(t, "the node answers again", func() bool { return n.Ctl("gossip-key", "use", two).Code == 0 })
	out := n.MustCtl("gossip-key", "remove", one)
	if strings.Contains(out, one) || strings.Contains(out, two) || strings.Count(out, "yes") != 3 {
		t.Error(out)
	}
	restart(c, c.Nodes()[1])
	eventually(t, "all nodes hear each other", func() bool {
		here, there := n.Ctl("status"), c.Nodes()[1].Ctl("status")
		return here.Code == 0 && there.Code == 0 && !strings.Contains(here.Stdout+there.Stdout, "dead")
	})
	for _, n := range c.Nodes() {
		for _, key := range []string{one, two} {
			if strings.Contains(n.Log(), key) {
				t.Errorf("the log of %s has a key", n.Name)
			}
		}
	}
}

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// TestGossipKeysRotate: an operator changes the gossip key with key files and SIGHUP, without
// restarts. A node ignores a key file that skips a step of the rotation. A restarted node uses the
// new key, and no log contains a key.
func TestGossipKeysRotate(t *testing.T) {
	long(t)
	beside(t)
	const one, two = "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=", "AgICAgICAgICAgICAgICAgICAgICAgICAgICAgICAgI="
	file := filepath.Join(t.TempDir(), "keys")
	write := func(keys ...string) { must.Do(t, os.WriteFile(file, []byte(strings.Join(keys, "\n")), 0o600)) }
	write(one)
	c := newCluster(t, proctest.Options{LogStore: "shared", Args: []string{"--gossip-key-file", file}})
	reload := func(line string) {
		t.Helper()
		for _, n := range c.Nodes() {
			before := strings.Count(n.Log(), line)
			n.Signal(syscall.SIGHUP)
			eventually(t, n.Name+" logs "+line, func() bool { return strings.Count(n.Log(), line) > before })
		}
	}
	write(two)
	reload("gossip keys stay as they were")
	for _, keys := range [][]string{{one, two}, {two, one}, {two}} {
		write(keys...)
		reload("gossip keys were read again")
	}
	restart(c, c.Nodes()[1])
	eventually(t, "all nodes hear each other", func() bool {
		here, there := c.Nodes()[0].Ctl("status"), c.Nodes()[1].Ctl("status")
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

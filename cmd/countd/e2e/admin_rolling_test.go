package e2e

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

// TestAdminRollingRestart restarts a cluster's nodes one by one, under load, with countctl.
func TestAdminRollingRestart(t *testing.T) {
	long(t)
	beside(t)
	c := newCluster(t, proctest.Options{})
	l := startLoad(t, c)
	at := c.Nodes()[0]
	refusesCtl(t, at, 2, "needs --exec", "rolling-restart", "--yes")
	refusesCtl(t, at, 2, "Give --yes", "rolling-restart", "--exec", "true")
	refusesCtl(t, at, 2, "there is no node n9", "rolling-restart", "--exec", "true", "--nodes", "n9", "--yes")
	refusesCtl(t, at, 1, "exit status 3", "rolling-restart", "--exec", "exit 3", "--yes")
	awaitWarnings(t, at) // a failed command must leave no node drained

	quiet := time.Now()
	time.Sleep(short(time.Second, 10*time.Second)) // measures the load without restarts, as a baseline
	began := time.Now()
	rollingRestart(t, c, at)
	t.Logf("quiet:  %v", l.Between(quiet, began))
	t.Logf("during: %v", l.Between(began, time.Now()))
	awaitWarnings(t, at)
	l.end(c.Nodes()...)
	upgrades(t, at)
	bundles(t, c, at)
}

// rollingRestart runs countctl rolling-restart with a command that makes this test restart
// the node, as a service manager would.
func rollingRestart(t *testing.T, c *proctest.Cluster, at *proctest.Member) {
	t.Helper()
	asked := t.TempDir()
	run := at.StartCtl("rolling-restart", "--exec", "touch "+asked+"/{id}", "--yes", "-o", "json")
	for _, n := range c.Nodes() {
		eventually(t, "countctl asks for a restart of "+n.Name, func() bool {
			_, err := os.Stat(filepath.Join(asked, n.Name))
			return err == nil
		})
		n.Stop()
		n.Start()
	}
	if run.Wait(); run.Code != 0 || strings.Count(run.Stdout, `"seconds"`) != len(c.Nodes()) {
		t.Errorf("exit code %d\n%s%s", run.Code, run.Stdout, run.Stderr)
	}
}

// upgrades holds the cluster version and finalises it. The version does not change, because no node
// supports a later one.
func upgrades(t *testing.T, at *proctest.Member) {
	t.Helper()
	type version struct {
		Version, Max         int
		Held, Changed, Final bool
		Nodes                []struct{ Node string }
	}
	now := ctl[version](t, at, "upgrade", "status")
	if now.Version < 1 || now.Version != now.Max || now.Held || !now.Final || len(now.Nodes) != voters {
		t.Errorf("upgrade status: %+v", now)
	}
	if v := ctl[version](t, at, "upgrade", "hold"); !v.Held || !v.Changed {
		t.Errorf("upgrade hold: %+v", v)
	}
	awaitWarnings(t, at, "version_held")
	if v := ctl[version](t, at, "upgrade", "finalize", "--yes"); v.Held || !v.Changed || v.Version != now.Version {
		t.Errorf("upgrade finalize: %+v", v)
	}
}

// bundles writes a debug bundle while one node is down.
func bundles(t *testing.T, c *proctest.Cluster, at *proctest.Member) {
	t.Helper()
	c.Others(at)[0].Kill()
	file := filepath.Join(t.TempDir(), "bundle.tar.gz")
	out := ctl[struct {
		Files  int
		Failed []string
	}](t, at, "debug", "bundle", file)
	if len(out.Failed) == 0 || !strings.Contains(strings.Join(out.Failed, " "), c.Others(at)[0].Addr) {
		t.Errorf("what failed: %q, want %s", out.Failed, c.Others(at)[0].Addr)
	}
	names := strings.Join(filesOfBundle(t, file), " ")
	for _, want := range []string{"cluster/nodes.json", "cluster/digests.json", "metrics.txt", "errors.txt"} {
		if !strings.Contains(names, want) {
			t.Errorf("the bundle lacks %s: %s", want, names)
		}
	}
}

func filesOfBundle(t *testing.T, file string) []string {
	t.Helper()
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
	for in := tar.NewReader(zip); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, header.Name)
	}
}

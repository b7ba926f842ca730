package e2e

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/internal/proctest"
)

// replacement replaces a text that a file has once.
type replacement struct{ file, old, new string }

// nextVersion is a list of replacements that turn this program into one with a further cluster
// version. The new version adds an invented command to the catalog, which counts marks. The list is
// also an example of how to gate a command: it has a constant, a check before the proposal, and a
// check in apply.
var nextVersion = []replacement{
	{"raftfsm/catalog/version.go", "const ClusterVersionMax = versionOfGrowth\n", `const ClusterVersionMax = versionOfMarks

const versionOfMarks = versionOfGrowth + 1

// MarkEntry counts one mark.
type MarkEntry struct{}

// TakesMarks reports whether nodes may propose a MarkEntry.
func (v *View) TakesMarks() bool { return v.ClusterVersion >= versionOfMarks }

func (*MarkEntry) apply(v *View) (Result, bool) {
	if !v.TakesMarks() {
		return refused("marks need cluster version %d, this is %d", versionOfMarks, v.ClusterVersion)
	}
	v.Marks++
	return Result{}, true
}
`},
	{"raftfsm/catalog/command.go", "type Command struct {\n", "type Command struct {\n\tMark *MarkEntry `json:\"mark,omitempty\"`\n"},
	{"raftfsm/catalog/view.go", "\tchanged chan struct{} //", "\tMarks int `json:\"marks,omitempty\"`\n\tchanged chan struct{} //"},
	{"client/admin/cluster.go", "type ClusterVersion struct {\n", "type ClusterVersion struct {\n\tMarks int `json:\"marks,omitempty\"`\n"},
	{"admin/gather.go", "clientadmin.ClusterVersion{", "clientadmin.ClusterVersion{Marks: v.Marks, "},
	{"admin/change.go", "func (FinalizeChange) make(", `// MarkChange counts one mark.
type MarkChange struct{}

func (MarkChange) make(ctx context.Context, o *operation) (*clientadmin.Changed, error) {
	if !o.catalog.TakesMarks() {
		return nil, refusedf("marks need a later cluster version than %d", o.catalog.ClusterVersion)
	}
	err := o.command(ctx, &catalog.Command{Mark: &catalog.MarkEntry{}})
	return o.changedVersion(), err
}

func (FinalizeChange) make(`},
	{"api/operate/cluster.go", "Finalize *bool `json:\"finalize\"`\n", "Finalize *bool `json:\"finalize\"`\n\tMark *bool `json:\"mark\"`\n"},
	{"api/operate/cluster.go", "\tcase (body.Hold == nil) == (body.Finalize == nil):\n", "\tcase body.Mark != nil:\n\t\treturn admin.MarkChange{}, nil\n\tcase (body.Hold == nil) == (body.Finalize == nil):\n"},
}

// buildReplaced builds countd with replacements.
func buildReplaced(t *testing.T, replacements []replacement) proctest.Binaries {
	t.Helper()
	dir := t.TempDir()
	root, err := filepath.Abs("../../..")
	if err != nil {
		t.Fatal(err)
	}
	write := func(path string, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	overlay := map[string]map[string]string{"Replace": {}}
	for _, p := range replacements {
		at := filepath.Join(root, p.file)
		from, patched := at, overlay["Replace"][at]
		if patched != "" {
			from = patched
		}
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Count(string(text), p.old) != 1 {
			t.Fatalf("%s has changed: it has %q %d times; adapt the test", p.file, p.old, strings.Count(string(text), p.old))
		}
		overlay["Replace"][at] = filepath.Join(dir, strings.ReplaceAll(p.file, "/", "_"))
		write(overlay["Replace"][at], []byte(strings.Replace(string(text), p.old, p.new, 1)))
	}
	list, err := json.Marshal(overlay)
	if err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(dir, "overlay.json"), list)
	next := bin
	next.Countd = filepath.Join(dir, "countd")
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-ldflags=-s -w", "-o", next.Countd, "./cmd/countd")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the next program: %v\n%s", err, out)
	}
	return next
}

// mark sends the command that counts a mark to a node. It returns the HTTP status, or 0 if the
// outcome is unknown.
func mark(n *proctest.Member) (status int) {
	status, err := n.Call(http.MethodPost, "/v1/admin/version", map[string]bool{"mark": true}, nil)
	if err != nil {
		return 0
	}
	return status
}

func marksAt(n *proctest.Member) (marks int) {
	var v struct{ Marks int }
	n.MustCall(http.MethodGet, "/v1/admin/version", nil, &v)
	return v.Marks
}

// TestUpgradeGate upgrades three nodes under load to a program whose next cluster version gates
// a command:
//
//  1. while the version is held, nodes of both programs serve together, also after stops and kills.
//     A node can return to the previous program;
//  2. until the version rises, each node with the new program refuses the command and states the
//     reason;
//  3. after that each node accepts the command, also while another node is killed. All nodes count
//     each acknowledged command exactly once;
//  4. a node with the previous program then cannot take part, but returns with the new program;
//  5. the answers to the load are correct, as in TestUpgradeUnderLoad.
func TestUpgradeGate(t *testing.T) {
	long(t)
	t.Parallel()
	u := startUpgrade(t, bin, buildReplaced(t, nextVersion), proctest.Options{})
	nodes := u.c.Nodes()
	u.at.MustCtl("upgrade", "hold")
	before := u.version(u.at)
	gated := func(n *proctest.Member) {
		t.Helper()
		var refusal struct{ Error struct{ Message string } }
		status, err := n.Call(http.MethodPost, "/v1/admin/version", map[string]bool{"mark": true}, &refusal)
		if err != nil || status != http.StatusConflict {
			t.Errorf("%s: a mark before the version rose: status %d, %+v, %v", n.Name, status, refusal, err)
		}
	}
	for i, n := range nodes {
		u.restart(n, u.newer, i%2 == 0)
		gated(n)
		u.c.AwaitReady(nodes...)
	}
	u.restart(u.at, u.older, true)
	u.restart(u.at, u.newer, false)
	gated(u.at)
	eventually(t, "all nodes are known to speak the next version", func() bool { return u.version(u.at).Max == before.Version+1 })
	if v := u.version(u.at); v.Version != before.Version || !v.Held {
		t.Errorf("held, the version is %+v", v)
	}
	u.raiseVersion()

	var tried, answered atomic.Int64
	stop := make(chan struct{})
	var marking sync.WaitGroup
	for _, n := range nodes[:2] {
		marking.Go(func() { // ends with stop
			for {
				select {
				case <-stop:
					return
				case <-time.After(faultPace):
				}
				tried.Add(1)
				if mark(n) == http.StatusOK {
					answered.Add(1)
				}
			}
		})
	}
	eventually(t, "marks are taken", func() bool { return answered.Load() >= 20 })
	u.restart(nodes[2], u.newer, true)
	at := answered.Load()
	eventually(t, "marks are taken after a kill", func() bool { return answered.Load() >= at+20 })
	close(stop)
	marking.Wait()
	eventually(t, "all nodes have the same marks", func() bool { return marksAt(nodes[0]) == marksAt(nodes[1]) && marksAt(nodes[1]) == marksAt(nodes[2]) })
	if got := int64(marksAt(nodes[0])); got < answered.Load() || got > tried.Load() {
		t.Errorf("%d marks of %d answered and %d tried", got, answered.Load(), tried.Load())
	}

	nodes[2].Kill()
	nodes[2].Use(u.older)
	nodes[2].Start()
	if code := nodes[2].Exited(); code == 0 {
		t.Errorf("the program of before ended with %d", code)
	} else if log := nodes[2].Log(); !strings.Contains(log, "marks") && !strings.Contains(log, "cluster version") {
		t.Errorf("the program of before does not say why it ended:\n%s", log)
	}
	nodes[2].Use(u.newer)
	nodes[2].Start()
	u.end()
}

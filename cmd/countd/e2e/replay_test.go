package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

// requestsOfFile is the number of requests in which a file is sent. It is high enough that a kill
// can hit the middle of the file.
const requestsOfFile = 6000

// fileRun is a run of countctl that adds the increments of a file, during kills of the server and
// the client.
type fileRun struct {
	node   *proctest.Node
	args   []string // arguments of countctl
	client *proctest.Ctl
	rows   uint64 // rows in posts at the end
}

func newFileRun(t *testing.T, events int, rows uint64, args ...string) *fileRun {
	t.Helper()
	n := proctest.NewNode(t, bin, t.TempDir(), "--shards=posts=2")
	n.StartReady()
	args = append(args, "--batch", strconv.Itoa(1+events/requestsOfFile))
	return &fileRun{node: n, args: args, client: n.StartCtl(args...), rows: rows}
}

// reach waits until the keyspace posts has at least the given number of rows. It fails the test if
// all rows are there already.
func (r *fileRun) reach(t *testing.T, rows uint64) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d of %d rows are there", rows, r.rows), func() bool { return r.node.Cluster().Rows("posts") >= rows })
	if r.node.Cluster().Rows("posts") == r.rows {
		t.Fatal("all is added already: there was no middle")
	}
}

func (r *fileRun) killServer() {
	r.node.Kill()
	r.node.StartReady()
}

// killClient kills the client, which must be running.
func (r *fileRun) killClient(t *testing.T) {
	t.Helper()
	if r.client.Kill(); r.client.Code != -1 {
		t.Fatalf("the client had ended, with code %d\n%s%s", r.client.Code, r.client.Stdout, r.client.Stderr)
	}
}

func (r *fileRun) resume() { r.client = r.node.StartCtl(r.args...) }

// done waits until the client succeeds. The client must have continued where an earlier, killed
// client stopped.
func (r *fileRun) done(t *testing.T) {
	t.Helper()
	if r.client.Wait(); r.client.Code != 0 {
		t.Fatalf("exit code %d\n%s%s", r.client.Code, r.client.Stdout, r.client.Stderr)
	}
	if !strings.Contains(r.client.Stderr, "going on after line") {
		t.Errorf("the client began anew:\n%s", r.client.Stderr)
	}
}

// TestReplayThroughKills replays a stream of events. Meanwhile it kills the server three times and
// the client twice: once both together. Afterwards each item's totals are those of the file. A
// further run of the command does not change them.
func TestReplayThroughKills(t *testing.T) {
	long(t)
	t.Parallel()
	s := higgs(t, *replayAll)
	want := exportOf(t, s.counts)
	after := func(fifths int) uint64 { return s.seen[s.events*fifths/5] }
	r := newFileRun(t, s.events, uint64(len(s.counts)), "replay", s.file, "--map", eventsToPosts)
	r.reach(t, after(1))
	r.killServer()
	r.reach(t, after(2))
	r.node.Kill()
	r.killClient(t)
	r.node.StartReady()
	r.resume()
	r.reach(t, after(3))
	r.killClient(t)
	r.resume()
	r.reach(t, after(4))
	r.killServer()
	r.done(t)
	compareExport(t, r.node, want)
	r.node.MustCtl(r.args...)
	r.killServer()
	compareExport(t, r.node, want)
	t.Logf("%d events of %d items", s.events, len(s.counts))
}

// TestImportAddThroughKills adds the counts in a file while it kills first the server and then the
// client. Each row of the file counts once, and once more only after a run with --restart.
func TestImportAddThroughKills(t *testing.T) {
	long(t)
	t.Parallel()
	packed, err := os.ReadFile(sampleSet)
	if err != nil {
		t.Fatal(err)
	}
	file, once := copyPosts(t, packed)
	twice, rows := map[uint64]rowCounts{}, uint64(0)
	for id, c := range once {
		if c != (rowCounts{}) {
			rows++
		}
		for i, n := range c {
			c[i] = 2 * n
		}
		twice[id] = c
	}
	r := newFileRun(t, len(once), rows, "import", "--add", file, "--map", postsMap)
	r.reach(t, rows/4)
	r.killServer()
	r.reach(t, rows/2)
	r.killClient(t)
	r.resume()
	r.done(t)
	compareExport(t, r.node, exportOf(t, once))
	r.node.MustCtl(r.args...)
	compareExport(t, r.node, exportOf(t, once))
	r.node.MustCtl(append(r.args, "--restart")...)
	compareExport(t, r.node, exportOf(t, twice))
}

package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

const (
	// pollEvery is the first pause between two polls. Pauses grow during a wait, because polls take
	// processor time from the process under test.
	pollEvery    = 5 * time.Millisecond
	pollEveryMax = 100 * time.Millisecond
)

// eventually polls a condition until it holds, for at most must.BecomeMax.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	began := time.Now()
	for !holds() {
		waited := time.Since(began)
		if waited > must.BecomeMax {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(min(max(waited/20, pollEvery), pollEveryMax))
	}
}

func TestStartWithoutFlags(t *testing.T) {
	n := proctest.NewNode(t, bin, "")
	n.Cwd = t.TempDir()
	for i, name := range []string{"HTTP", "CLUSTER", "GOSSIP"} {
		n.Env = append(n.Env, "COUNTD_"+name+"_ADDR="+n.Args[2*i+3]) // set free ports in the environment instead of by flags
	}
	n.Args = nil
	n.StartReady()
	if _, err := os.Stat(filepath.Join(n.Cwd, "countd-data", "node.json")); err != nil {
		t.Error(err)
	}
	n.MustCtl("incr", "7", "like=2")
	n.Stop()
}

func TestStatusShowsTheNode(t *testing.T) {
	t.Parallel()
	n := proctest.NewNode(t, bin, t.TempDir(), "--node-id=alpha", "--shards=posts=3")
	n.StartReady()
	c := n.Cluster()
	if len(c.Nodes) != 1 || c.Nodes[0].ID != "alpha" || c.Nodes[0].HTTPAddr != n.Args[3] ||
		c.Nodes[0].ClusterAddr != n.Args[5] || c.Nodes[0].GossipAddr != n.Args[7] {
		t.Errorf("nodes %+v, want alpha at %v", c.Nodes, n.Args)
	}
	if shards := len(c.Digests("posts")); shards != 3 {
		t.Errorf("posts has %d shards, want 3", shards)
	}
}

func TestSecondProcessIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first, second := proctest.NewNode(t, bin, dir), proctest.NewNode(t, bin, dir)
	first.StartReady()
	second.Start()
	if code := second.Exited(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	if want := "held by pid " + strconv.Itoa(first.PID()); !strings.Contains(second.Log(), want) {
		t.Errorf("log lacks %q:\n%s", want, second.Log())
	}
	first.MustCtl("incr", "7", "like=2")
	first.Kill()
	second.StartReady() // the kill released the lock
}

func TestAnotherNodeIDIsRefused(t *testing.T) {
	t.Parallel()
	n := proctest.NewNode(t, bin, t.TempDir(), "--node-id=a")
	n.StartReady()
	n.Stop()
	n.Args[len(n.Args)-1] = "--node-id=b"
	n.Start()
	if code := n.Exited(); code != 1 || !strings.Contains(n.Log(), `is node "a", not "b"`) {
		t.Errorf("exit code %d:\n%s", code, n.Log())
	}
}

func TestAnotherLogStoreIsRefused(t *testing.T) {
	t.Parallel()
	n := proctest.NewNode(t, bin, t.TempDir(), "--log-store=shared")
	n.StartReady()
	n.MustCtl("incr", "7", "like=2")
	n.Stop()
	whole := slices.Clone(n.Args)
	n.Args[len(n.Args)-1] = "--log-store=boltdb"
	n.Start()
	if code := n.Exited(); code != 1 || !strings.Contains(n.Log(), "holds logs of shared, and boltdb was asked for") {
		t.Errorf("exit code %d:\n%s", code, n.Log())
	}
	n.Args = whole[:len(whole)-1] // without --log-store, the node uses the log store of its directory
	n.StartReady()
}

func TestTakenPortIsToldAndGivesTheDirectoryBack(t *testing.T) {
	t.Parallel()
	for i, name := range []string{"http", "cluster"} {
		t.Run(name, func(t *testing.T) {
			n := proctest.NewNode(t, bin, t.TempDir())
			l, err := net.Listen("tcp", n.Args[2*i+3])
			if err != nil {
				t.Fatal(err)
			}
			n.Start()
			code := n.Exited()
			l.Close()
			if code != 1 || !strings.Contains(n.Log(), "address already in use") || strings.Contains(n.Log(), "stopped") {
				t.Errorf("exit code %d:\n%s", code, n.Log())
			}
			mustBeNobodys(t, n.Dir)
			n.StartReady()
		})
	}
}

// If a node cannot keep its memory limit, it exits before it creates any file.
func TestTooLittleMemoryIsToldAtOnce(t *testing.T) {
	t.Parallel()
	n := proctest.NewNode(t, bin, t.TempDir(), "--memory-limit=1")
	n.Start()
	if code := n.Exited(); code != 2 || !strings.Contains(n.Log(), "memory-limit (flag --memory-limit)") {
		t.Errorf("exit code %d:\n%s", code, n.Log())
	}
	mustBeNobodys(t, n.Dir)
}

// A node that already is a cluster of one node warns that it ignores --join.
func TestClusterOfOneJoinsNoOther(t *testing.T) {
	t.Parallel()
	n := proctest.NewNode(t, bin, t.TempDir())
	n.StartReady()
	n.Stop()
	n.Args = append(n.Args, "--join", proctest.FreePorts(t, 1)[0], "--bootstrap-expect", "3")
	n.StartReady()
	eventually(t, "the node warns that it is the only one", func() bool {
		return strings.Contains(n.Log(), "this node is the only one of its cluster")
	})
	if status := n.MustCtl("status"); !strings.Contains(status, "join_ignored") {
		t.Errorf("status has no warning:\n%s", status)
	}
}

// mustBeNobodys checks that a failed start did not turn dir into the data directory of a node.
func mustBeNobodys(t *testing.T, dir string) {
	t.Helper()
	for _, name := range []string{"node.json", "groups"} {
		if _, err := os.Stat(filepath.Join(dir, name)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a start that failed has left %s (%v)", name, err)
		}
	}
}

// At level INFO, a start logs only what an operator needs, without messages of raft.
func TestLogOfAStart(t *testing.T) {
	t.Parallel()
	n := proctest.NewNode(t, bin, t.TempDir())
	n.StartReady()
	eventually(t, "it has told that it is ready", func() bool { return strings.Contains(n.Log(), "msg=ready") })
	n.Stop()
	lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(n.Log()), "\n"), func(line string) bool {
		return strings.Contains(line, "the limit of open files is low") // depends on the machine
	})
	for i, want := range []string{"countd started", "ready", "stopping", "stopped"} {
		if i >= len(lines) || !strings.Contains(lines[i], want) {
			t.Fatalf("line %d does not tell %q:\n%s", i, want, n.Log())
		}
	}
	if len(lines) != 4 {
		t.Errorf("%d lines:\n%s", len(lines), n.Log())
	}
}

func TestWrongSettingsExitWithUsage(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ arg, env, want string }{
		"flag of no version":    {"--no-flag=x", "", "unknown flag: --no-flag"},
		"command":               {"start", "", `unknown command "start"`},
		"log store":             {"--log-store=rocksdb", "", "boltdb"},
		"value":                 {"--shards=posts=65", "", "want 1 to 64 shards"},
		"variable":              {"--log-level=info", "COUNTD_LOG_FORMAT=x", "env COUNTD_LOG_FORMAT"},
		"keyspace's name":       {"--shards=Posts=4", "", "want KEYSPACE=N"},
		"keyspace not built in": {"--shards=likes=4", "", `no keyspace "likes"`},
	} {
		t.Run(name, func(t *testing.T) {
			n := proctest.NewNode(t, bin, t.TempDir())
			n.Args, n.Env = append([]string{tc.arg}, n.Args...), []string{tc.env}
			n.Start()
			if code := n.Exited(); code != 2 || !strings.Contains(n.Log(), tc.want) {
				t.Errorf("exit code %d, want 2 and %q:\n%s", code, tc.want, n.Log())
			}
			mustBeNobodys(t, n.Dir)
		})
	}
}

func TestPrintingCommandsTouchNothing(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{"config": "log-level: warn # flag --log-level", "version": "countd "} {
		n := proctest.NewNode(t, bin, filepath.Join(t.TempDir(), "data"))
		n.Args = []string{command, "--data-dir=" + n.Dir, "--log-level=warn"}
		n.Start()
		if code := n.Exited(); code != 0 || !strings.Contains(n.Log(), want) {
			t.Errorf("%s: exit code %d, want 0 and %q:\n%s", command, code, want, n.Log())
		}
		if _, err := os.Stat(n.Dir); !os.IsNotExist(err) {
			t.Errorf("%s: the data directory was made: %v", command, err)
		}
	}
}

// slowRequest sends the header of a request, but never its whole body.
func slowRequest(t *testing.T, n *proctest.Node) {
	t.Helper()
	conn, err := net.Dial("tcp", n.Addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	fmt.Fprintf(conn, "POST /v1/counters/posts/incr HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
}

func TestStopIsBoundedAndKeepsWhatWasAcknowledged(t *testing.T) {
	long(t)
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			n := proctest.NewNode(t, bin, t.TempDir())
			n.StartReady()
			slowRequest(t, n)
			w := startWriters(n, newLedger())
			eventually(t, "writes are acknowledged", func() bool { return w.ledger.acknowledged() > 100 })
			began := time.Now()
			n.Signal(s)
			if code := n.Exited(); code != 0 {
				t.Errorf("exit code %d, want 0", code)
			}
			t.Logf("stopped after %v", time.Since(began))
			w.wait(t)
			n.StartReady()
			w.ledger.check(t, n)
		})
	}
}

func TestSecondSignalExitsAtOnce(t *testing.T) {
	t.Parallel()
	n := proctest.NewNode(t, bin, t.TempDir())
	n.StartReady()
	slowRequest(t, n) // delays the stop by seconds
	n.MustCall(http.MethodGet, "/healthz", nil, nil)
	n.Signal(syscall.SIGTERM)
	eventually(t, "the first signal is heeded", func() bool { return strings.Contains(n.Log(), "stopping") })
	eventually(t, "a second signal is heeded", func() bool { // repeat the signal, because the node ignores one that arrives within a second of the first
		n.Signal(syscall.SIGTERM)
		return strings.Contains(n.Log(), "exiting at once")
	})
	if code := n.Exited(); code != 1 {
		t.Errorf("exit code %d, want 1", code)
	}
	n.StartReady()
}

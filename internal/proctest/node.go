package proctest

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
)

const (
	// pollEvery is the first interval between two polls. Intervals grow during a wait, because
	// polls take processor time from the starting node.
	pollEvery    = 5 * time.Millisecond
	pollEveryMax = 50 * time.Millisecond
)

// Node is one node: a data directory and addresses, which stay the same over restarts. At most one
// process of a node runs at a time.
type Node struct {
	Dir  string   // data directory
	Args []string // arguments for the directory and the addresses, followed by the test's arguments
	Env  []string // variables that are added to the environment of the test
	Cwd  string   // working directory; "" for the test's
	URL  string   // URL of the HTTP API
	Addr string   // host:port of the HTTP API
	// Redis is the address for Redis clients, HOST:PORT; "" for none.
	Redis string
	// Token is the bearer token of the calls that the node's methods send; "" for none.
	Token string

	t      testing.TB
	bin    Binaries
	site   Site
	client *http.Client
	tls    *tls.Config // nil without TLS
	live   *process
	log    *Buffer // output of the process live
}

// Site is the addresses of a node, and its network.
type Site struct {
	HTTP, Cluster, Gossip string // addresses, HOST:PORT
	Redis                 string // address, HOST:PORT; "" for none
	// Enter runs f inside the node's network: processes that f starts and sockets that f opens use
	// this network. Enter is nil if the node uses the test's own network.
	Enter func(f func() error) error
}

func (s Site) enter(f func() error) error {
	if s.Enter == nil {
		return f()
	}
	return s.Enter(f)
}

// dial connects from within the node's network.
func (s Site) dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	entering := s.enter(func() error {
		conn, err = (&net.Dialer{}).DialContext(ctx, network, addr)
		return err
	})
	return conn, entering
}

// NewNode returns a node with a data directory; Start runs it. args are added to the arguments for
// the directory and the addresses. The end of the test kills the node if it still runs.
func NewNode(t testing.TB, bin Binaries, dir string, args ...string) *Node {
	t.Helper()
	return NewNodeAt(t, bin, dir, FreeSite(t), args...)
}

// FreeSite returns free addresses of the loopback interface.
func FreeSite(t testing.TB) Site {
	t.Helper()
	ports := FreePorts(t, 4)
	return Site{HTTP: ports[0], Cluster: ports[1], Gossip: ports[2], Redis: ports[3]}
}

// NewNodeAt is like NewNode, but uses the addresses of a given site.
func NewNodeAt(t testing.TB, bin Binaries, dir string, site Site, args ...string) *Node {
	t.Helper()
	Note(t, bin.sources...)
	n := &Node{t: t, bin: bin, Dir: dir}
	n.client = &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 256, // keep a connection for each writer of a test; new connections would use up the ports
		DialContext:         n.Dial,
	}}
	n.Args = append([]string{"--data-dir", dir, "", "", "", "", "", "", "", ""}, args...)
	n.Move(site)
	t.Cleanup(func() {
		n.client.CloseIdleConnections()
		if n.live == nil {
			return
		}
		n.Kill()
		if t.Failed() {
			t.Logf("the last life of %s:\n%s", dir, n.Log())
		}
	})
	return n
}

// Dial connects to the node as a client does, if the address is one of the node's.
func (n *Node) Dial(ctx context.Context, network, addr string) (net.Conn, error) {
	return n.site.dial(ctx, network, addr)
}

// Site returns the node's addresses and network.
func (n *Node) Site() Site { return n.site }

// Move changes the addresses of a node that does not run. No other goroutine may use the node
// meanwhile.
func (n *Node) Move(site Site) {
	n.site, n.Addr, n.URL, n.Redis = site, site.HTTP, "http://"+site.HTTP, site.Redis
	if n.tls != nil {
		n.URL = "https://" + site.HTTP
	}
	copy(n.Args[2:], []string{
		"--http-addr", site.HTTP, "--cluster-addr", site.Cluster, "--gossip-addr", site.Gossip, "--redis-addr", site.Redis,
	})
}

// UseTLS makes the node's methods call it over TLS from now on. No other goroutine may use the node
// meanwhile.
func (n *Node) UseTLS(config *tls.Config) {
	n.client.CloseIdleConnections()
	n.tls, n.client.Transport.(*http.Transport).TLSClientConfig = config, config
	n.URL = "https://" + n.Addr
}

// Use makes the node run other programs from its next start on.
func (n *Node) Use(bin Binaries) { n.bin = bin }

// Start runs the process and returns at once.
func (n *Node) Start() {
	n.t.Helper()
	cmd, log := exec.Command(n.bin.Countd, n.Args...), &Buffer{}
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, n.Cwd
	// Set a variable instead of a flag: an older program would refuse a flag that it does not know.
	// Without GOGC, which make test sets for the tests, the node tunes its own collector.
	cmd.Env = append(append(os.Environ(), "COUNTD_SHUTDOWN_DELAY=0s", "GOGC="), n.Env...)
	live, err := run(n.site, cmd)
	if err != nil {
		n.t.Fatalf("cannot start countd: %v", err)
	}
	n.live, n.log = live, log
}

// StartReady runs the process and waits until it can serve.
func (n *Node) StartReady() {
	n.t.Helper()
	n.Start()
	if ready, code := n.WaitReady(must.BecomeMax); !ready {
		n.t.Fatalf("countd is not ready (exit code %d, if it ended):\n%s", code, n.Log())
	}
}

// WaitReady waits until the node can serve. A drained node counts as ready. It returns false if
// this takes longer than timeout or the process ends. If the process has ended, code is its exit
// code.
func (n *Node) WaitReady(timeout time.Duration) (ready bool, code int) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for began := time.Now(); ctx.Err() == nil; {
		status, body, err := n.ask(ctx, http.MethodGet, "/readyz", nil, nil)
		if err == nil && (status == http.StatusOK || bytes.Contains(body, []byte("undrain"))) {
			return true, 0
		}
		select {
		case <-n.live.exited:
			return false, n.live.code
		case <-time.After(min(max(time.Since(began)/20, pollEvery), pollEveryMax)):
		}
	}
	return false, 0
}

// Exited waits for the end of the process and returns its exit code, or -1 if a signal ended the
// process.
func (n *Node) Exited() int {
	n.t.Helper()
	select {
	case <-n.live.exited:
		return n.live.code
	case <-time.After(must.BecomeMax):
		n.t.Fatalf("countd runs on:\n%s", n.Log())
		return 0
	}
}

// Kill kills the process with SIGKILL if it still runs.
func (n *Node) Kill() {
	n.live.kill(os.Kill)
}

// Signal sends a signal to the process. If the process has ended, Signal does nothing, so that a
// caller that waits for the end still gets the exit code.
func (n *Node) Signal(s syscall.Signal) {
	n.t.Helper()
	if err := n.live.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		n.t.Fatalf("cannot signal countd: %v", err)
	}
}

// Stop sends SIGTERM to the process, and requires exit code 0.
func (n *Node) Stop() {
	n.t.Helper()
	n.Signal(syscall.SIGTERM)
	if code := n.Exited(); code != 0 {
		n.t.Fatalf("countd stopped with exit code %d:\n%s", code, n.Log())
	}
}

// PID returns the id of the running process.
func (n *Node) PID() int { return n.live.cmd.Process.Pid }

// Log returns the output of the process since its last start.
func (n *Node) Log() string { return n.log.String() }

// Each test process reserves blocks of ports that no other test process uses. Otherwise two
// processes could find the same port free before one of them listens on it. FreePorts returns no
// port twice.
const (
	portsLow, portsHigh = 15_000, 32_000
	portsInBlock        = 50
)

var ports struct {
	sync.Mutex
	left  []int      // unused ports of the newest block
	locks []*os.File // locks of all blocks, held until the process ends
}

// FreePorts returns count free loopback addresses. The ports are below the range that the system
// uses for outgoing connections, so that a node's port is still free when it restarts.
func FreePorts(t testing.TB, count int) []string {
	t.Helper()
	ports.Lock()
	defer ports.Unlock()
	var addrs []string
	for len(addrs) < count {
		if len(ports.left) == 0 {
			takePorts(t)
		}
		addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(ports.left[0]))
		ports.left = ports.left[1:]
		if l, err := net.Listen("tcp", addr); err == nil {
			l.Close()
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// takePorts reserves a block of ports that no other test process of this machine has reserved.
func takePorts(t testing.TB) {
	t.Helper()
	dir := fmt.Sprintf("/tmp/countd-test-ports-%d", os.Getuid()) // not TMPDIR: it may differ between the processes
	must.Do(t, os.MkdirAll(dir, 0o700))
	const blocks = (portsHigh - portsLow) / portsInBlock
	for _, block := range rand.Perm(blocks) {
		lock, err := os.OpenFile(filepath.Join(dir, strconv.Itoa(block)), os.O_CREATE|os.O_RDWR, 0o600)
		must.Do(t, err)
		if syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			lock.Close()
			continue
		}
		ports.locks = append(ports.locks, lock)
		for i := range portsInBlock {
			ports.left = append(ports.left, portsLow+block*portsInBlock+i)
		}
		return
	}
	t.Fatalf("all %d blocks of ports are taken", blocks)
}

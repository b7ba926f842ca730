package proctest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
)

const (
	// nodesDefault is the smallest cluster that survives the loss of one node.
	nodesDefault = 3
	nodesMax     = 8
	// shardsDefault is the number of shards of each of the four built-in keyspaces. It is above the
	// product's, so that requests span shards.
	shardsDefault = 3
	// statusTimeout bounds a request for the status of one node, which may be paused.
	statusTimeout = 5 * time.Second
	// clusterPollEvery is the first interval between two polls. Intervals grow during a wait,
	// because polls of all nodes take processor time from the cluster.
	clusterPollEvery    = 20 * time.Millisecond
	clusterPollEveryMax = 200 * time.Millisecond
)

// Options configure NewCluster and StartCluster.
type Options struct {
	Nodes    int                 // number of nodes in the new cluster; 0 for three
	LogStore string              // shared or boltdb
	Args     []string            // further arguments of every node
	ArgsOf   map[string][]string // further arguments of single nodes, by name: n1, n2, …
	Shards   map[string]int      // number of shards by built-in keyspace; shardsDefault for the others
	// Cuttable gives each node a network of its own, which Cut needs. If the test lacks the rights
	// for that, it is skipped.
	Cuttable bool
}

// Cluster is the nodes of one cluster. Only the test's goroutine calls its methods; a
// concurrent load only reads Nodes.
type Cluster struct {
	t      testing.TB
	bin    Binaries
	opts   Options
	sites  []Site                    // sites of all nodes, including those that may be added later
	divide func(parts [][]int) error // cuts the network so that only nodes in the same part reach each other; nodes in no part form one more part; nil unless Cuttable

	mu struct {
		sync.RWMutex
		nodes []*Member // in the order in which they were added
	}
}

// Member is one node of a cluster.
type Member struct {
	*Node
	Name string
	at   int // index of the node's site in the network
}

// NewCluster starts a cluster and waits until every node can serve and every group has all its
// voters. The cluster ends with the test.
func NewCluster(t testing.TB, bin Binaries, opts Options) *Cluster {
	t.Helper()
	c := StartCluster(t, bin, opts)
	c.AwaitVoters(min(len(c.Nodes()), nodesDefault))
	c.AwaitAgreement(c.Nodes()...) // wait until each replica has applied an entry, because until then it cannot answer stale reads
	return c
}

// newNamespaces calls layNamespaces, and skips the test if that fails.
func newNamespaces(t testing.TB) ([]Site, func(parts [][]int) error) {
	t.Helper()
	sites, divide, err := layNamespaces(t)
	if err != nil {
		t.Skipf("nodes are cut off with network namespaces and a bridge, which takes root and the program ip (Debian: iproute2; .ci/run installs it): %v", err)
	}
	return sites, divide
}

// StartCluster is like NewCluster, but does not wait for voters.
func StartCluster(t testing.TB, bin Binaries, opts Options) *Cluster {
	t.Helper()
	if opts.Nodes == 0 {
		opts.Nodes = nodesDefault
	}
	c := &Cluster{t: t, bin: bin, opts: opts}
	if opts.Cuttable {
		c.sites, c.divide = newNamespaces(t)
	} else {
		for range nodesMax {
			c.sites = append(c.sites, FreeSite(t))
		}
	}
	for range opts.Nodes {
		c.prepare("--bootstrap-expect", strconv.Itoa(opts.Nodes))
	}
	for _, n := range c.Nodes() {
		n.Start()
	}
	c.AwaitReady(c.Nodes()...)
	return c
}

// Add starts one more node, which joins the cluster, and waits until it can
// serve.
func (c *Cluster) Add() *Member {
	c.t.Helper()
	n := c.prepare()
	n.Start()
	c.AwaitReady(n)
	return n
}

// prepare adds a node to the cluster, but does not start it.
func (c *Cluster) prepare(args ...string) *Member {
	c.mu.Lock()
	defer c.mu.Unlock()
	number := len(c.mu.nodes)
	name := "n" + strconv.Itoa(number+1)
	join := make([]string, nodesDefault)
	for i := range join {
		join[i] = c.sites[i].Gossip
	}
	args = slices.Concat([]string{"--node-id", name, "--join", strings.Join(join, ",")}, args, c.ShardArgs(), c.opts.Args, c.opts.ArgsOf[name])
	if c.opts.LogStore != "" {
		args = append(args, "--log-store", c.opts.LogStore)
	}
	n := &Member{
		Node: NewNodeAt(c.t, c.bin, filepath.Join(c.t.TempDir(), name), c.sites[number], args...),
		Name: name, at: number,
	}
	if c.opts.Cuttable { // needed because the addresses are beyond loopback; older programs ignore the variable
		n.Env = append(n.Env, "COUNTD_INSECURE=true")
	}
	c.mu.nodes = append(c.mu.nodes, n)
	return n
}

// Shards returns the number of shards of a built-in keyspace.
func (c *Cluster) Shards(keyspace string) int {
	return cmp.Or(c.opts.Shards[keyspace], shardsDefault)
}

// ShardArgs returns the arguments of a node that choose the numbers of shards.
func (c *Cluster) ShardArgs() (args []string) {
	for _, keyspace := range []string{"posts", "users", "unread", "feed"} {
		args = append(args, fmt.Sprintf("--shards=%s=%d", keyspace, c.Shards(keyspace)))
	}
	return args
}

// AllShards returns the number of shards of all built-in keyspaces.
func (c *Cluster) AllShards() int {
	return c.Shards("posts") + c.Shards("users") + c.Shards("unread") + c.Shards("feed")
}

// Nodes returns all nodes that were ever added.
func (c *Cluster) Nodes() []*Member {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return slices.Clone(c.mu.nodes)
}

// Others returns all nodes except the excluded ones.
func (c *Cluster) Others(excluded ...*Member) []*Member {
	return slices.DeleteFunc(c.Nodes(), func(n *Member) bool { return slices.Contains(excluded, n) })
}

// AwaitReady waits until the nodes can serve.
func (c *Cluster) AwaitReady(nodes ...*Member) {
	c.t.Helper()
	for _, n := range nodes {
		if ready, code := n.WaitReady(must.BecomeMax); !ready {
			var why json.RawMessage
			_, err := n.Call(http.MethodGet, "/readyz", nil, &why)
			c.t.Fatalf("%s is not ready (exit code %d, if it ended): %s %v\n%s", n.Name, code, why, err, n.Log())
		}
	}
}

// Pause suspends a node's process, as happens on a machine that swaps or is migrated.
func (n *Member) Pause() { n.Signal(syscall.SIGSTOP) }

// Resume continues a paused node.
func (n *Member) Resume() { n.Signal(syscall.SIGCONT) }

// Cut cuts the network so that only nodes in the same part reach each other, until Heal. Nodes in
// no part form one more part. Clients still reach all nodes. Packets across a cut are lost, not
// refused.
func (c *Cluster) Cut(parts ...[]*Member) {
	c.t.Helper()
	var numbers [][]int
	for _, part := range parts {
		var of []int
		for _, n := range part {
			of = append(of, n.at)
		}
		numbers = append(numbers, of)
	}
	if err := c.divide(numbers); err != nil {
		c.t.Fatalf("cannot cut nodes off: %v", err)
	}
}

// Heal lets all nodes reach each other.
func (c *Cluster) Heal() {
	c.t.Helper()
	c.Cut()
}

// status returns the status of a node, or an error if the node does not answer within
// statusTimeout.
func (n *Member) status(ctx context.Context) (ClusterStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	var s ClusterStatus
	status, err := n.Send(ctx, http.MethodGet, "/v1/cluster", nil, nil, &s)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d", status)
	}
	return s, err
}

// await polls until holds returns "", and returns how long that took. After the timeout it fails
// the test with the last result of holds.
func (c *Cluster) await(holds func() string) time.Duration {
	c.t.Helper()
	began := time.Now()
	for {
		wrong := holds()
		if wrong == "" {
			return time.Since(began)
		}
		waited := time.Since(began)
		if waited > must.BecomeMax {
			c.t.Fatalf("not in time: %s", wrong)
		}
		time.Sleep(min(max(waited/20, clusterPollEvery), clusterPollEveryMax))
	}
}

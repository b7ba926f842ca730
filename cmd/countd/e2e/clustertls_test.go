package e2e

import (
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/pki"
	"github.com/countd/countd/internal/proctest"
)

// nodeCerts are the certificate files of the nodes of a cluster.
type nodeCerts struct {
	t   *testing.T
	dir string
}

// newNodeCerts writes certificates of n1 to n4.
func newNodeCerts(t *testing.T, ca *must.Authority) nodeCerts {
	t.Helper()
	c := nodeCerts{t, t.TempDir()}
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		c.issue(ca, name)
	}
	c.trust(ca)
	return c
}

func (c nodeCerts) issue(ca *must.Authority, name string) {
	c.t.Helper()
	must.WriteCert(c.t, c.dir, name, ca.Issue(pki.Leaf{Name: name, Node: true}))
}

func (c nodeCerts) trust(cas ...*must.Authority) {
	c.t.Helper()
	var all [][]byte
	for _, ca := range cas {
		all = append(all, ca.Cert())
	}
	must.ReplaceFile(c.t, filepath.Join(c.dir, "ca.crt"), all...)
}

func (c nodeCerts) args(name string) []string {
	file := filepath.Join(c.dir, name)
	return []string{"--cluster-tls-cert", file + ".crt", "--cluster-tls-key", file + ".key", "--cluster-tls-ca", filepath.Join(c.dir, "ca.crt")}
}

// reload makes the nodes reread their certificate files, and waits until each node uses the new
// files.
func (c nodeCerts) reload(nodes []*proctest.Member) {
	c.t.Helper()
	for _, n := range nodes {
		const used = "took new certificate files into use"
		before := strings.Count(n.Log(), used)
		n.Signal(syscall.SIGHUP)
		eventually(c.t, n.Name+" uses its new files", func() bool { return strings.Count(n.Log(), used) > before })
	}
}

func restart(c *proctest.Cluster, n *proctest.Member) {
	n.Stop()
	n.Start()
	c.AwaitReady(n)
}

// mustRefusePlain checks that a node closes a connection without TLS to its cluster port.
func mustRefusePlain(t *testing.T, n *proctest.Member) {
	t.Helper()
	conn, err := net.Dial("tcp", n.Site().Cluster)
	must.Do(t, err)
	defer conn.Close()
	must.Do(t, conn.SetDeadline(time.Now().Add(must.BecomeMax)))
	_, err = io.WriteString(conn, "CNTD"+strings.Repeat("\x00", 40))
	must.Do(t, err)
	if answer, err := io.ReadAll(conn); err != nil && !strings.Contains(err.Error(), "reset") || len(answer) > 0 {
		t.Errorf("%q, %v", answer, err)
	}
	eventually(t, "the refusal is logged", func() bool { return strings.Contains(n.Log(), "it does not speak TLS") })
}

// mustRefuse checks that the node stray, which tried to join, is no member of the others' cluster.
func mustRefuse(t *testing.T, stray *proctest.Node, others ...*proctest.Member) {
	t.Helper()
	eventually(t, "the node knows why it is refused", func() bool { return strings.Contains(stray.Log(), "unknown authority") })
	if status, err := stray.Call(http.MethodGet, "/readyz", nil, nil); err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("the stray node's readiness is %d, %v", status, err)
	}
	for _, n := range others {
		for _, of := range n.Cluster().Nodes {
			if of.ID == "stray" {
				t.Errorf("%s counts the stray node: %+v", n.Name, of)
			}
		}
	}
}

// TestClusterTLS: a cluster with TLS between its nodes
//
//  1. admits a node with a certificate, and no node with an untrusted certificate or with another
//     name;
//  2. changes from one authority to another under load. In between, nodes trust both authorities.
//     Nodes restart before and after the change. No request fails, and no write is lost.
func TestClusterTLS(t *testing.T) {
	long(t)
	beside(t)
	old, next := must.NewAuthority(t), must.NewAuthority(t)
	certs := newNodeCerts(t, old)
	argsOf := map[string][]string{}
	for _, name := range []string{"n1", "n2", "n3", "n4"} {
		argsOf[name] = certs.args(name)
	}
	c := newCluster(t, proctest.Options{LogStore: "shared", ArgsOf: argsOf})
	l := startLoad(t, c)
	c.Add()
	first := c.Nodes()[0]
	mustRefusePlain(t, first)

	join := []string{"--join", first.Site().Gossip}
	rogue := newNodeCerts(t, next)
	rogue.issue(next, "stray")
	stray := proctest.NewNode(t, bin, t.TempDir(), slices.Concat([]string{"--node-id", "stray"}, join, rogue.args("stray"))...)
	stray.Start()
	eventually(t, "the refusal of another authority is logged", func() bool {
		return slices.ContainsFunc(c.Nodes(), func(n *proctest.Member) bool {
			return strings.Contains(n.Log(), "no trusted authority signed its certificate") || strings.Contains(n.Log(), "it did not accept this node's certificate")
		})
	})
	mustRefuse(t, stray, c.Nodes()...)
	stray.Kill()
	named := proctest.NewNode(t, bin, t.TempDir(), slices.Concat([]string{"--node-id", "n5"}, join, certs.args("n4"))...)
	named.Start()
	if code := named.Exited(); code != 2 || !strings.Contains(named.Log(), `it is of ["n4"], not of "n5"`) {
		t.Errorf("a node with the certificate of another: exit code %d\n%s", code, named.Log())
	}

	restart(c, c.Nodes()[1])
	certs.trust(old, next)
	certs.reload(c.Nodes())
	for _, n := range c.Nodes() {
		certs.issue(next, n.Name)
		certs.reload([]*proctest.Member{n})
	}
	restart(c, c.Nodes()[2]) // the restarted node's connections use the new certificates
	certs.trust(next)
	certs.reload(c.Nodes())
	restart(c, c.Nodes()[0])
	l.inTime(time.Now())
	l.End(c.Nodes()...) // replicas move to the fourth node meanwhile
}

// TestClusterTurnsTLSOn: two rolling restarts under load turn TLS on between the nodes. The first
// restarts each node with --cluster-tls-permissive, and the second without it. No request fails,
// and no write is lost.
func TestClusterTurnsTLSOn(t *testing.T) {
	long(t)
	beside(t)
	certs := newNodeCerts(t, must.NewAuthority(t))
	c := newCluster(t, proctest.Options{LogStore: "shared"})
	l := startLoad(t, c)
	before := map[string][]string{}
	for _, n := range c.Nodes() {
		before[n.Name] = n.Args
		n.Args = slices.Concat(n.Args, certs.args(n.Name), []string{"--cluster-tls-permissive"})
		restart(c, n)
	}
	if log := c.Nodes()[0].Log(); !strings.Contains(log, "a connection between nodes has no TLS") {
		t.Error("a node beside others without TLS does not say so:", log)
	}
	for _, n := range c.Nodes() {
		n.Args = slices.Concat(before[n.Name], certs.args(n.Name))
		restart(c, n)
	}
	mustRefusePlain(t, c.Nodes()[1])
	l.end(c.Nodes()...)
}

package certs

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/pki"
	"github.com/countd/countd/internal/proctest"
)

// peer is the Peers of one node of a test, with its log and the directory of its files.
type peer struct {
	*Peers
	log *proctest.Buffer
	dir string
}

// newPeer returns a node with the certificate pair that trusts the authorities cas. change, if not
// nil, changes its configuration.
func newPeer(t *testing.T, id string, pair pki.Pair, change func(*PeersConfig), cas ...*must.Authority) peer {
	t.Helper()
	p := peer{log: new(proctest.Buffer), dir: t.TempDir()}
	cfg := p.config(t, id, pair, cas...)
	if change != nil {
		change(&cfg)
	}
	var err error
	p.Peers, err = OpenPeers(cfg)
	must.Do(t, err)
	t.Cleanup(p.Close)
	return p
}

func (p peer) config(t *testing.T, id string, pair pki.Pair, cas ...*must.Authority) PeersConfig {
	t.Helper()
	f := must.WriteCert(t, p.dir, "node", pair)
	return PeersConfig{
		Setting: "cluster-tls", CASetting: "cluster-tls-ca", CertFile: f.Cert, KeyFile: f.Key, CAFile: p.trust(t, cas...),
		Logger: p.log.Logger(), NodeID: id,
	}
}

// trust writes the file of authorities.
func (p peer) trust(t *testing.T, cas ...*must.Authority) string {
	t.Helper()
	var all [][]byte
	for _, ca := range cas {
		all = append(all, ca.Cert())
	}
	return must.ReplaceFile(t, filepath.Join(p.dir, "ca"), all...)
}

func (p peer) listen(t *testing.T) string {
	t.Helper()
	return echo(t, p.ListenPeers(tcp(t)))
}

// reach dials a node and checks that the node answers.
func (p peer) reach(addr, node string) error {
	ctx, cancel := context.WithTimeout(context.Background(), must.BecomeMax)
	defer cancel()
	conn, err := p.Dial(ctx, addr, node)
	if err != nil {
		return err
	}
	defer conn.Close()
	answer, err := say(conn, "CNTD hello")
	if err == nil && answer != "CNTD hello" {
		err = errors.New("answered " + answer)
	}
	return err
}

// TestPeers checks which nodes reach each other, and why others do not.
func TestPeers(t *testing.T) {
	ca, rogue := must.NewAuthority(t), must.NewAuthority(t)
	expired := must.NodeLeaf("n2")
	expired.NotBefore, expired.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	shared := must.NodeLeaf("countd-node")
	named := func(c *PeersConfig) { c.Name = "countd-node" }
	for _, tc := range []struct {
		name           string
		server, client peer
		dialled        string
		why            string // part of the error; "" if the client reaches the server
	}{
		{"two nodes", newPeer(t, "n1", ca.Issue(must.NodeLeaf("n1")), nil, ca), newPeer(t, "n2", ca.Issue(must.NodeLeaf("n2")), nil, ca), "n1", ""},
		{"a node whose name nobody knows", newPeer(t, "n1", ca.Issue(must.NodeLeaf("n1")), nil, ca), newPeer(t, "n2", ca.Issue(must.NodeLeaf("n2")), nil, ca), "", ""},
		{"a node of another name", newPeer(t, "n1", ca.Issue(must.NodeLeaf("n1")), nil, ca), newPeer(t, "n2", ca.Issue(must.NodeLeaf("n2")), nil, ca), "n3", "names another node"},
		{"one name for all", newPeer(t, "n1", ca.Issue(shared), named, ca), newPeer(t, "n2", ca.Issue(shared), named, ca), "n1", ""},
		{"a server without the name of all", newPeer(t, "n1", ca.Issue(must.NodeLeaf("n1")), nil, ca), newPeer(t, "n2", ca.Issue(shared), named, ca), "n1", "names another node"},
		{"a client without the name of all", newPeer(t, "n1", ca.Issue(pki.Leaf{Name: "n1", Hosts: []string{"countd-node"}, Node: true}), named, ca), newPeer(t, "n2", ca.Issue(must.NodeLeaf("n2")), nil, ca), "n1", "refused this one: \"the certificate names another node"},
		{"a client that is not who it says", newPeer(t, "n1", ca.Issue(pki.Leaf{Name: "n1", Hosts: []string{"countd-node"}, Node: true}), nil, ca), newPeer(t, "n2", ca.Issue(pki.Leaf{Name: "countd-node", Hosts: []string{"n3"}, Node: true}), named, ca), "n1", "refused this one"},
		{"the client's authority is another", newPeer(t, "n1", ca.Issue(must.NodeLeaf("n1")), nil, ca), newPeer(t, "n2", rogue.Issue(must.NodeLeaf("n2")), nil, rogue, ca), "n1", "unknown certificate authority"},
		{"the server's authority is another", newPeer(t, "n1", rogue.Issue(must.NodeLeaf("n1")), nil, rogue, ca), newPeer(t, "n2", ca.Issue(must.NodeLeaf("n2")), nil, ca), "n1", "unknown authority"},
		{"the client's has expired", newPeer(t, "n1", ca.Issue(must.NodeLeaf("n1")), nil, ca), newPeer(t, "n2", ca.Issue(expired), nil, ca), "n1", "expired certificate"},
		{"the server's has expired", newPeer(t, "n2", ca.Issue(expired), nil, ca), newPeer(t, "n1", ca.Issue(must.NodeLeaf("n1")), nil, ca), "n2", "has expired"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			addr := tc.server.listen(t)
			err := tc.client.reach(addr, tc.dialled)
			if tc.why == "" && err != nil || tc.why != "" && (err == nil || !strings.Contains(err.Error(), tc.why)) {
				t.Errorf("%v, want %q", err, tc.why)
			}
			if tc.why != "" {
				must.Become(t, "the refusal is logged", func() bool { return tc.server.log.Has("refused a connection") && tc.server.log.Has("from=127.0.0.1:") })
			}
		})
	}
}

// TestPeersRefuseClients: a certificate that is valid only for clients does not identify a node,
// even if it carries a node's name.
func TestPeersRefuseClients(t *testing.T) {
	ca := must.NewAuthority(t)
	p := newPeer(t, "n1", ca.Issue(must.NodeLeaf("n1")), nil, ca)
	addr := p.listen(t)
	client := ca.Client(pki.Leaf{Name: "n2"})
	if _, err := call(addr, &tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{client}}); err == nil {
		t.Error("it is taken for a node")
	}
	must.Become(t, "it is logged", func() bool { return p.log.Has("must be good for servers and for clients") })
	plain, err := net.Dial("tcp", addr)
	must.Do(t, err)
	defer plain.Close()
	if answer, err := say(plain, "CNTD without TLS"); err == nil {
		t.Error("a node without TLS is served:", answer)
	}
	must.Become(t, "it is logged", func() bool { return p.log.Has("it does not speak TLS") })
}

// TestOpenPeersRefuses: a node with a certificate that no other node would accept does not start.
func TestOpenPeersRefuses(t *testing.T) {
	ca, rogue := must.NewAuthority(t), must.NewAuthority(t)
	for _, tc := range []struct {
		name string
		pair pki.Pair
		why  string
	}{
		{"another name", ca.Issue(must.NodeLeaf("n2")), `it is of ["n2" "localhost"], not of "n1"`},
		{"another authority", rogue.Issue(must.NodeLeaf("n1")), "unknown authority"},
		{"a client", ca.Issue(pki.Leaf{Name: "n1"}), "must be good for servers and for clients"},
	} {
		p := peer{log: new(proctest.Buffer), dir: t.TempDir()}
		if _, err := OpenPeers(p.config(t, "n1", tc.pair, ca)); !errors.Is(err, ErrBadFiles) || !strings.Contains(err.Error(), tc.why) {
			t.Errorf("%s: %v", tc.name, err)
		}
	}
}

// TestPermissive: with Permissive, nodes with and without TLS reach each other. So do nodes whose
// certificates would otherwise be refused.
func TestPermissive(t *testing.T) {
	ca, rogue := must.NewAuthority(t), must.NewAuthority(t)
	permissive := func(c *PeersConfig) { c.Permissive = true }
	p1 := newPeer(t, "n1", ca.Issue(must.NodeLeaf("n1")), permissive, ca)
	p2 := newPeer(t, "n2", ca.Issue(must.NodeLeaf("n2")), permissive, ca)
	strange := newPeer(t, "n2", rogue.Issue(must.NodeLeaf("n2")), permissive, rogue)
	strict := newPeer(t, "n2", ca.Issue(must.NodeLeaf("n2")), nil, ca)
	addr := p1.listen(t)
	plain, err := net.Dial("tcp", addr)
	must.Do(t, err)
	defer plain.Close()
	if answer, err := say(plain, "CNTD hello"); answer != "CNTD hello" {
		t.Error("a node without TLS is refused:", answer, err)
	}
	if n := p1.plain.Load(); n != 1 || !p1.log.Has("has no TLS") {
		t.Errorf("%d connections without TLS are counted:\n%s", n, p1.log.String())
	}
	for _, p := range []peer{p2, strict} {
		must.Do(t, p.reach(addr, "n1"))
	}
	if n := p1.plain.Load(); n != 1 || p2.plain.Load() != 0 {
		t.Errorf("nodes with TLS do without it: %d, %d", n, p2.plain.Load())
	}
	must.Do(t, strange.reach(addr, "n1"))
	must.Do(t, p2.reach(newPeer(t, "n1", ca.Issue(must.NodeLeaf("n1")), nil, ca).listen(t), "n1"))

	// A node without TLS closes connections that it does not understand.
	before := tcp(t)
	go func() {
		for {
			conn, err := before.Accept()
			if err != nil {
				return
			}
			begin := make([]byte, 4)
			if _, err := io.ReadFull(conn, begin); err == nil && string(begin) == "CNTD" {
				_, _ = conn.Write(begin)
				_, _ = io.Copy(conn, conn)
			}
			conn.Close()
		}
	}()
	defer before.Close()
	must.Do(t, p2.reach(before.Addr().String(), "n1"))
	if n := p2.plain.Load(); n != 1 || !p2.log.Has("node=n1") {
		t.Errorf("%d connections without TLS are counted:\n%s", n, p2.log.String())
	}
	if err := strict.reach(before.Addr().String(), "n1"); err == nil {
		t.Error("a node that is not permissive does without TLS")
	}
}

// TestPeersRotate: nodes change to certificates of a new authority. In between, they trust both
// authorities.
func TestPeersRotate(t *testing.T) {
	old, next := must.NewAuthority(t), must.NewAuthority(t)
	nodes := []peer{
		newPeer(t, "n1", old.Issue(must.NodeLeaf("n1")), nil, old),
		newPeer(t, "n2", old.Issue(must.NodeLeaf("n2")), nil, old),
	}
	addrs := []string{nodes[0].listen(t), nodes[1].listen(t)}
	check := func() {
		t.Helper()
		must.Do(t, nodes[0].reach(addrs[1], "n2"))
		must.Do(t, nodes[1].reach(addrs[0], "n1"))
	}
	check()
	for _, step := range []func(peer, string){
		func(p peer, _ string) { p.trust(t, old, next) },
		func(p peer, id string) { must.WriteCert(t, p.dir, "node", next.Issue(must.NodeLeaf(id))) },
		func(p peer, _ string) { p.trust(t, next) },
	} {
		for i, id := range []string{"n1", "n2"} {
			step(nodes[i], id)
			must.Do(t, nodes[i].Reload())
			check()
		}
	}
	if newPeer(t, "n2", old.Issue(must.NodeLeaf("n2")), nil, old, next).reach(addrs[0], "n1") == nil {
		t.Error("the old authority is trusted")
	}
}

package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/pki"
	"github.com/countd/countd/internal/proctest"
)

// tlsNode is a node that requires TLS and a client certificate.
type tlsNode struct {
	*proctest.Node
	dir string
}

func newTLSNode(t *testing.T, ca *must.Authority) tlsNode {
	t.Helper()
	dir := t.TempDir()
	f := must.WriteCert(t, dir, "tls", ca.Issue(must.NodeLeaf("node-0")))
	n := proctest.NewNode(t, bin, t.TempDir(), "--tls-cert", f.Cert, "--tls-key", f.Key,
		"--tls-client-ca", must.ReplaceFile(t, filepath.Join(dir, "ca.crt"), ca.Cert()))
	n.UseTLS(&tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{ca.Client(pki.Leaf{Name: "alice"})}})
	n.StartReady()
	return tlsNode{n, dir}
}

// reload makes the node reread its certificate files, and waits until it uses them.
func (n tlsNode) reload(t *testing.T, subject string) {
	t.Helper()
	n.Signal(syscall.SIGHUP)
	eventually(t, "the certificate of "+subject+" is used", func() bool { return strings.Contains(n.Log(), "CN="+subject+",") })
}

// redisPing sends PING over TLS and returns the reply.
func redisPing(addr string, config *tls.Config) (string, error) {
	conn, err := tls.Dial("tcp", addr, config)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "PING\r\n"); err != nil {
		return "", err
	}
	return bufio.NewReader(conn).ReadString('\n')
}

// TestTLSRotates: a node's certificate and the authorities of its clients change under load.
// Meanwhile
//
//  1. no HTTP request and no Redis command fails, on a new or an existing connection;
//  2. the node uses the new certificate, and ignores an invalid one;
//  3. the metrics show the certificate in use, and count the invalid one as a reload error.
func TestTLSRotates(t *testing.T) {
	t.Parallel()
	cas := []*must.Authority{must.NewAuthority(t), must.NewAuthority(t)}
	n := newTLSNode(t, cas[0])
	roots := x509.NewCertPool()
	for _, ca := range cas {
		roots.AppendCertsFromPEM(ca.Cert())
	}
	clients := []*tls.Config{
		{RootCAs: roots, Certificates: []tls.Certificate{cas[0].Client(pki.Leaf{Name: "alice"})}},
		{RootCAs: roots, Certificates: []tls.Certificate{cas[1].Client(pki.Leaf{Name: "bob"})}},
	}
	both := func() {
		must.ReplaceFile(t, filepath.Join(n.dir, "ca.crt"), cas[0].Cert(), cas[1].Cert())
	}
	both()
	must.WriteCert(t, n.dir, "tls", cas[1].Issue(must.NodeLeaf("node-1")))
	n.reload(t, "node-1")
	n.UseTLS(clients[1])

	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	var counted [4]int
	for i := range counted {
		load.Go(func() {
			transport := &http.Transport{TLSClientConfig: clients[i%2], DisableKeepAlives: i < 2}
			defer transport.CloseIdleConnections()
			for ctx.Err() == nil {
				resp, err := (&http.Client{Transport: transport}).Post(n.URL+"/v1/counters/posts/incr", "application/json",
					strings.NewReader(`{"ops":[{"id":"`+fmt.Sprint(i+1)+`","add":{"like":1}}]}`))
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
				if resp.StatusCode != http.StatusOK {
					t.Error(resp.Status)
					return
				}
				counted[i]++
				if reply, err := redisPing(n.Redis, clients[i%2]); reply != "+PONG\r\n" {
					t.Error(reply, err)
					return
				}
			}
		})
	}
	for i := 2; i < 6; i++ {
		name := fmt.Sprintf("node-%d", i)
		must.WriteCert(t, n.dir, "tls", cas[i%2].Issue(must.NodeLeaf(name)))
		n.reload(t, name)
	}
	must.ReplaceFile(t, filepath.Join(n.dir, "tls.key"), []byte("bad"))
	n.Signal(syscall.SIGHUP)
	eventually(t, "the bad key is counted", func() bool {
		return strings.Contains(n.Text("/metrics"), `countd_tls_reload_errors_total{setting="tls"} 1`)
	})
	stop()
	load.Wait()
	for i, row := range n.Rows("posts", []string{"1", "2", "3", "4"}) {
		if row.Counts["like"] != int64(counted[i]) || counted[i] == 0 {
			t.Errorf("row %s has %v, want %d", row.ID, row.Counts, counted[i])
		}
	}
	if text := n.Text("/metrics"); !strings.Contains(text, `countd_tls_cert_expiry_seconds{serial="`) || !strings.Contains(text, `setting="tls-client-ca"`) ||
		!strings.Contains(text, `subject="CN=node-5,O=countd"`) {
		t.Error("the certificates' ends are not told:", text)
	}
}

// TestBeyondLoopbackIsRefused checks that a node refuses an address beyond loopback before it
// writes any file.
func TestBeyondLoopbackIsRefused(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	n := proctest.NewNode(t, bin, dir, "--redis-addr", "0.0.0.0:1")
	n.Start()
	if code := n.Exited(); code != 2 || !strings.Contains(n.Log(), "is not a loopback address") {
		t.Errorf("exit code %d:\n%s", code, n.Log())
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Error("it has made its directory", err)
	}
}

// TestTLSRefusals checks that a node refuses clients without TLS and clients without a certificate.
// It answers in the client's protocol, HTTP or Redis, and logs the reason.
func TestTLSRefusals(t *testing.T) {
	t.Parallel()
	ca := must.NewAuthority(t)
	n := newTLSNode(t, ca)
	resp, err := http.Get("http://" + n.Addr + "/healthz")
	must.Do(t, err)
	body, err := io.ReadAll(resp.Body)
	must.Do(t, err)
	resp.Body.Close()
	if resp.StatusCode != http.StatusBadRequest || !strings.Contains(string(body), "HTTP request to an HTTPS server") {
		t.Errorf("%s %s", resp.Status, body)
	}
	conn, err := net.Dial("tcp", n.Redis)
	must.Do(t, err)
	defer conn.Close()
	_, err = io.WriteString(conn, "*1\r\n$4\r\nPING\r\n")
	must.Do(t, err)
	if reply, err := io.ReadAll(conn); !strings.HasPrefix(string(reply), "-ERR this port speaks TLS") {
		t.Errorf("%q, %v", reply, err)
	}
	if _, err := redisPing(n.Redis, &tls.Config{RootCAs: ca.Pool()}); err == nil || !strings.Contains(err.Error(), "certificate required") {
		t.Error(err)
	}
	for _, want := range []string{"it does not speak TLS", "didn't provide a certificate", "port=redis", "port=http"} {
		eventually(t, "the log has "+want, func() bool { return strings.Contains(n.Log(), want) })
	}
	n.Stop()
}

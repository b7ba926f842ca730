package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// The certificates work for a client and a server, only the owner can read a key file, and no file
// is overwritten.
func TestCert(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	i := invoke(t, "", Commands) // the commands of this test do not call a server
	if got := i.Run("cert", "node", "n1", "--dir", dir); got.Code != cli.ExitFail || !strings.Contains(got.Err, "create-ca") {
		t.Errorf("without an authority: exit %d: %s", got.Code, got.Err)
	}
	i.OK("cert", "create-ca", "--dir", dir)
	i.OK("cert", "node", "n1", "10.0.0.1", "--hosts", "n1.example,count.example", "--dir", dir)
	out := proctest.Decode[certOutput](t, i.OK("cert", "client", "alice", "--dir", dir, "--expires", "20000d", "-o", "json"))
	roots := x509.NewCertPool()
	authority, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	must.Do(t, err)
	roots.AppendCertsFromPEM(authority)
	for name, node := range map[string]bool{"n1": true, "alice": false} {
		path := filepath.Join(dir, name)
		pair, err := tls.LoadX509KeyPair(path+".crt", path+".key")
		must.Do(t, err)
		for usage, want := range map[x509.ExtKeyUsage]bool{x509.ExtKeyUsageServerAuth: node, x509.ExtKeyUsageClientAuth: true} {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{usage}}); (err == nil) != want {
				t.Errorf("%s for usage %d: %v", name, usage, err)
			}
		}
		if info, err := os.Stat(path + ".key"); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s.key: %v, %v", name, info.Mode(), err)
		}
		if name == "alice" && !pair.Leaf.NotAfter.Equal(out.Expires) {
			t.Errorf("%v, printed %v", pair.Leaf.NotAfter, out.Expires)
		}
		for _, host := range []string{"localhost", "127.0.0.1", "10.0.0.1", "n1.example", "count.example", "n1"} {
			if err := pair.Leaf.VerifyHostname(host); (err == nil) != node {
				t.Errorf("%s for %s: %v", name, host, err)
			}
		}
	}
	if out.Expires.After(time.Now().Add(caExpiresDefault)) {
		t.Error("it ends after its authority:", out.Expires)
	}
	before, err := os.ReadFile(filepath.Join(dir, "ca.key"))
	must.Do(t, err)
	for _, args := range [][]string{{"create-ca"}, {"node", "n1"}, {"client", "n1"}, {"client", "alice"}} {
		if got := i.Run(append([]string{"cert"}, append(args, "--dir", dir)...)...); got.Code != cli.ExitFail || !strings.Contains(got.Err, "file exists") || strings.Contains(got.Err, "move it away to renew") != (len(args) > 1) {
			t.Errorf("%v: exit %d: %s", args, got.Code, got.Err)
		}
	}
	if after, err := os.ReadFile(filepath.Join(dir, "ca.key")); err != nil || string(after) != string(before) {
		t.Error("the authority's key was overwritten", err)
	}
	must.Do(t, os.Remove(filepath.Join(dir, "alice.key")))
	if got := i.Run("cert", "client", "alice", "--dir", dir); got.Code != cli.ExitFail {
		t.Error(got)
	}
	if _, err := os.Stat(filepath.Join(dir, "alice.key")); err == nil {
		t.Error("a key without its certificate is left")
	}
	for _, args := range [][]string{{}, {"node"}, {"client", "a", "b"}, {"client", "../a"}, {"node", "ca"}, {"client", "x", "--expires", "0s"}} {
		if got := i.Run(append(append([]string{"cert"}, args...), "--dir", dir)...); got.Code != cli.ExitUsage {
			t.Errorf("%v: exit %d: %s", args, got.Code, got.Err)
		}
	}
}

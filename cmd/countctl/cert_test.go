package main

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/internal/countdtest"
	"github.com/countd/countd/internal/must"
)

// TestCert: the certificates serve a client and a server, keys are their owner's alone, and
// nothing is overwritten.
func TestCert(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	i := against(t, countdtest.New(t))
	if got := i.run("cert", "node", "n1", "--dir", dir); got.code != exitFail || !strings.Contains(got.err, "create-ca") {
		t.Errorf("without an authority: exit %d: %s", got.code, got.err)
	}
	i.ok("cert", "create-ca", "--dir", dir)
	i.ok("cert", "node", "n1", "10.0.0.1", "--hosts", "n1.example,count.example", "--dir", dir)
	out := decode[certOutput](t, i.ok("cert", "client", "alice", "--dir", dir, "--expires", "20000d", "-o", "json"))
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
		if got := i.run(append([]string{"cert"}, append(args, "--dir", dir)...)...); got.code != exitFail || !strings.Contains(got.err, "file exists") {
			t.Errorf("%v: exit %d: %s", args, got.code, got.err)
		}
	}
	if after, err := os.ReadFile(filepath.Join(dir, "ca.key")); err != nil || string(after) != string(before) {
		t.Error("the authority's key was overwritten", err)
	}
	must.Do(t, os.Remove(filepath.Join(dir, "alice.key")))
	if got := i.run("cert", "client", "alice", "--dir", dir); got.code != exitFail {
		t.Error(got)
	}
	if _, err := os.Stat(filepath.Join(dir, "alice.key")); err == nil {
		t.Error("a key without its certificate is left")
	}
	for _, args := range [][]string{{}, {"node"}, {"client", "a", "b"}, {"client", "../a"}, {"node", "ca"}, {"client", "x", "--expires", "0s"}} {
		if got := i.run(append(append([]string{"cert"}, args...), "--dir", dir)...); got.code != exitUsage {
			t.Errorf("%v: exit %d: %s", args, got.code, got.err)
		}
	}
}

// TestTLSFlags: what cannot be used is named before anything is sent.
func TestTLSFlags(t *testing.T) {
	dir := t.TempDir()
	i := against(t, countdtest.New(t))
	i.ok("cert", "create-ca", "--dir", dir)
	i.ok("cert", "client", "alice", "--dir", dir)
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, tc := range []struct {
		want string
		args []string
	}{
		{"--ca: open", []string{"--ca", file("none")}},
		{"has no certificate", []string{"--ca", file("alice.key")}},
		{"--cert-key needs --cert too", []string{"--cert-key", file("alice.key")}},
		{"--cert:", []string{"--cert", file("alice.crt")}},
		{"--cert:", []string{"--cert", file("alice.crt"), "--cert-key", file("ca.key")}},
	} {
		if got := i.run(append([]string{"status"}, tc.args...)...); got.code != exitUsage || !strings.Contains(got.err, tc.want) {
			t.Errorf("%v: exit %d: %s", tc.args, got.code, got.err)
		}
	}
	// The --key of a write is its Idempotency-Key, beside that of the certificate.
	i.ok("incr", "7", "like=1", "--key", "again", "--cert", file("alice.crt"), "--cert-key", file("alice.key"))
	both := file("both")
	var content []byte
	for _, name := range []string{"alice.crt", "alice.key"} {
		part, err := os.ReadFile(file(name))
		must.Do(t, err)
		content = append(content, part...)
	}
	must.Do(t, os.WriteFile(both, content, 0o600))
	i.ok("incr", "7", "like=1", "--addr", i.addr, "--cert", both)
}

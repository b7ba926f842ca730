// Package pkitest makes authorities and certificates for tests. What it writes lies in the
// directories of the test.
package pkitest

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/pki"
)

// Authority signs certificates for a test.
type Authority struct {
	t    testing.TB
	pair pki.Pair
}

// Files are the paths of a certificate and its key.
type Files struct{ Cert, Key string }

// New returns an authority.
func New(t testing.TB) *Authority {
	t.Helper()
	pair, err := pki.NewCA("an authority of "+t.Name(), time.Now().Add(60*24*time.Hour))
	must.Do(t, err)
	return &Authority{t, pair}
}

// Cert returns the certificate of the authority, in PEM.
func (a *Authority) Cert() []byte { return a.pair.Cert }

// Pool returns a pool with the authority alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.pair.Cert)
	return pool
}

// Issue returns a certificate, which is valid for 30 days unless the leaf says otherwise.
func (a *Authority) Issue(leaf pki.Leaf) pki.Pair {
	a.t.Helper()
	if leaf.NotAfter.IsZero() {
		leaf.NotAfter = time.Now().Add(30 * 24 * time.Hour)
	}
	pair, err := pki.Issue(a.pair, leaf)
	must.Do(a.t, err)
	return pair
}

// Client returns a certificate as clients use it.
func (a *Authority) Client(leaf pki.Leaf) tls.Certificate {
	a.t.Helper()
	pair := a.Issue(leaf)
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	must.Do(a.t, err)
	return cert
}

// Write writes a certificate and its key, NAME.crt and NAME.key, in place of those that
// were there.
func Write(t testing.TB, dir, name string, pair pki.Pair) Files {
	t.Helper()
	f := Files{Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key")}
	Replace(t, f.Cert, pair.Cert)
	Replace(t, f.Key, pair.Key)
	return f
}

// Replace writes a file as a whole, so that no reader sees a part of it.
func Replace(t testing.TB, path string, contents ...[]byte) string {
	t.Helper()
	var all []byte
	for _, content := range contents {
		all = append(all, content...)
	}
	must.Do(t, os.WriteFile(path+".new", all, 0o600))
	must.Do(t, os.Rename(path+".new", path))
	return path
}

// Node returns a certificate to sign, of a node that is reached on the loopback interface.
func Node(name string) pki.Leaf {
	return pki.Leaf{Name: name, Hosts: []string{"localhost", "127.0.0.1"}, Node: true}
}

package must

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/countd/countd/internal/pki"
)

// Authority signs certificates for a test.
type Authority struct {
	t    testing.TB
	pair pki.Pair
}

// CertFiles are the paths of a certificate and its key.
type CertFiles struct{ Cert, Key string }

// NewAuthority returns an authority.
func NewAuthority(t testing.TB) *Authority {
	t.Helper()
	pair, err := pki.NewCA("an authority of "+t.Name(), time.Now().Add(60*24*time.Hour))
	Do(t, err)
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
	Do(a.t, err)
	return pair
}

// Client issues a certificate and returns it in the form that tls.Config needs.
func (a *Authority) Client(leaf pki.Leaf) tls.Certificate {
	a.t.Helper()
	pair := a.Issue(leaf)
	cert, err := tls.X509KeyPair(pair.Cert, pair.Key)
	Do(a.t, err)
	return cert
}

// WriteCert writes a certificate to NAME.crt and its key to NAME.key. It replaces earlier files.
func WriteCert(t testing.TB, dir, name string, pair pki.Pair) CertFiles {
	t.Helper()
	f := CertFiles{Cert: filepath.Join(dir, name+".crt"), Key: filepath.Join(dir, name+".key")}
	ReplaceFile(t, f.Cert, pair.Cert)
	ReplaceFile(t, f.Key, pair.Key)
	return f
}

// ReplaceFile replaces a file atomically by the concatenated contents. It returns path.
func ReplaceFile(t testing.TB, path string, contents ...[]byte) string {
	t.Helper()
	var all []byte
	for _, content := range contents {
		all = append(all, content...)
	}
	Do(t, os.WriteFile(path+".new", all, 0o600))
	Do(t, os.Rename(path+".new", path))
	return path
}

// NodeLeaf returns the description of a certificate for a node on the loopback interface.
func NodeLeaf(name string) pki.Leaf {
	return pki.Leaf{Name: name, Hosts: []string{"localhost", "127.0.0.1"}, Node: true}
}

package brokertest

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/pki"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/sink/sinktest"
)

// Password is the password of the user countd at queues that need one.
const Password = "correct-horse"

// Access has the files for passwords and TLS of a source and its broker. Dir holds the source's
// files: password, ca.crt (its certificate authority), client.crt and client.key (its
// certificate).
type Access struct {
	Dir       string
	CA        string // file of the authority that signs clients' certificates, for the broker
	Server    must.CertFiles
	authority *must.Authority
}

// NewAccess creates the files.
func NewAccess(t testing.TB) *Access {
	t.Helper()
	dir, authority := t.TempDir(), must.NewAuthority(t)
	a := &Access{Dir: dir, authority: authority}
	a.CA = must.ReplaceFile(t, filepath.Join(dir, "clients.crt"), authority.Cert())
	a.Server = must.WriteCert(t, dir, "server", authority.Issue(pki.Leaf{Name: "broker", Hosts: []string{"127.0.0.1"}, Node: true}))
	a.restore(t)
	return a
}

// restore writes the valid files of the source again.
func (a *Access) restore(t testing.TB) {
	t.Helper()
	must.ReplaceFile(t, filepath.Join(a.Dir, "ca.crt"), a.authority.Cert())
	must.ReplaceFile(t, filepath.Join(a.Dir, "password"), []byte(Password+"\n"))
	must.WriteCert(t, a.Dir, "client", a.authority.Issue(pki.Leaf{Name: "countd"}))
}

// Fields returns the fields of a source that name the files.
func (a *Access) Fields() string {
	return "username: countd\npassword-file: password\ntls: {ca-file: ca.crt, cert-file: client.crt, key-file: client.key}\n"
}

// Secrets reads the files of the source.
func (a *Access) Secrets() source.Secrets { return source.Secrets{Dir: a.Dir} }

// Pool returns a pool with the certificate authority.
func (a *Access) Pool() *x509.CertPool { return a.authority.Pool() }

// Writer returns the TLS settings of the test's own client. The invalid files that Guarded writes
// do not affect them.
func (a *Access) Writer() *tls.Config {
	return &tls.Config{RootCAs: a.Pool(), Certificates: []tls.Certificate{a.authority.Client(pki.Leaf{Name: "writer"})}}
}

// Guarded tests a queue at 127.0.0.1 that accepts only the user and the certificates of an Access.
// A source with a wrong password, authority, address or certificate, or without TLS, must stall,
// count nothing and show no password. A source with the right password, address and certificates
// must count each message once. reasons maps a fault to the text that the stall's reason must
// contain.
func Guarded(t *testing.T, q *Queue, a *Access, reasons map[string]string) {
	t.Helper()
	const wrong = "battery-staple"
	another := must.NewAuthority(t)
	refused := func(t *testing.T, config, reason string) {
		t.Helper()
		stranger := *q
		stranger.Config = config
		c := sinktest.New(1, nil)
		r := stranger.Start(t, c)
		if reason != "" {
			r.Stalls(t, reason)
		}
		must.Become(t, "it does not go on", func() bool { return r.Status().Reason != "" })
		if reason := r.Status().Reason; strings.Contains(reason, Password) || strings.Contains(reason, wrong) {
			t.Errorf("the reason has a password: %s", reason)
		}
		if got := c.Sums(); len(got) != 0 {
			t.Errorf("counted %v", got)
		}
		r.Stop()
		a.restore(t)
	}
	q.Secrets = a.Secrets()
	q.Write(t, Like(2000, 1))
	t.Run("another password", func(t *testing.T) {
		must.ReplaceFile(t, filepath.Join(a.Dir, "password"), []byte(wrong))
		refused(t, q.Config, reasons["password"])
	})
	t.Run("another authority", func(t *testing.T) {
		must.ReplaceFile(t, filepath.Join(a.Dir, "ca.crt"), another.Cert())
		refused(t, q.Config, "signed by unknown authority")
	})
	t.Run("another address", func(t *testing.T) {
		refused(t, strings.ReplaceAll(q.Config, "127.0.0.1", "localhost"), "not localhost")
	})
	t.Run("another certificate", func(t *testing.T) {
		must.WriteCert(t, a.Dir, "client", another.Issue(pki.Leaf{Name: "countd"}))
		refused(t, q.Config, "tls: unknown certificate authority") // the broker's error
	})
	t.Run("no TLS", func(t *testing.T) {
		before, _, _ := strings.Cut(q.Config, "tls: ")
		refused(t, before, reasons["clear"])
	})
	Once(t, q)
}

// Documented returns the first submatch of a regular expression in docs/SOURCES.md.
func Documented(t *testing.T, expression string) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/SOURCES.md")
	must.Do(t, err)
	found := regexp.MustCompile(expression).FindSubmatch(text)
	if found == nil {
		t.Fatalf("docs/SOURCES.md has no %s", expression)
	}
	return string(found[1])
}

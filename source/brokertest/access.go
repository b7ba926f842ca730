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
	"github.com/countd/countd/internal/pki/pkitest"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/sink/sinktest"
)

// Password is the password of the user countd at queues that need one.
const Password = "correct-horse"

// Access is what a source and its broker need for passwords and TLS. Dir holds the source's files:
// password, ca.crt (its authority), and client.crt and client.key (its certificate).
type Access struct {
	Dir       string
	CA        string // file of the authority of the clients' certificates, for the broker
	Server    pkitest.Files
	authority *pkitest.Authority
}

// NewAccess makes the files.
func NewAccess(t testing.TB) *Access {
	t.Helper()
	dir, authority := t.TempDir(), pkitest.New(t)
	a := &Access{Dir: dir, authority: authority}
	a.CA = pkitest.Replace(t, filepath.Join(dir, "clients.crt"), authority.Cert())
	a.Server = pkitest.Write(t, dir, "server", authority.Issue(pki.Leaf{Name: "broker", Hosts: []string{"127.0.0.1"}, Node: true}))
	a.restore(t)
	return a
}

// restore writes the right files of the source.
func (a *Access) restore(t testing.TB) {
	t.Helper()
	pkitest.Replace(t, filepath.Join(a.Dir, "ca.crt"), a.authority.Cert())
	pkitest.Replace(t, filepath.Join(a.Dir, "password"), []byte(Password+"\n"))
	pkitest.Write(t, a.Dir, "client", a.authority.Issue(pki.Leaf{Name: "countd"}))
}

// Fields returns the fields of a source that name the files.
func (a *Access) Fields() string {
	return "username: countd\npassword-file: password\ntls: {ca-file: ca.crt, cert-file: client.crt, key-file: client.key}\n"
}

// Secrets reads the files of the source.
func (a *Access) Secrets() source.Secrets { return source.Secrets{Dir: a.Dir} }

// Pool returns the authority of the certificates.
func (a *Access) Pool() *x509.CertPool { return a.authority.Pool() }

// Writer returns the TLS settings of the test's own client. The faults of Guarded do not change
// them.
func (a *Access) Writer() *tls.Config {
	return &tls.Config{RootCAs: a.Pool(), Certificates: []tls.Certificate{a.authority.Client(pki.Leaf{Name: "writer"})}}
}

// Guarded tests a queue at 127.0.0.1 that accepts only the user and the certificates of an Access.
// A source with another password, authority, address or certificate must stall, count nothing and
// show no password. So must a source without TLS. The right source counts each message once.
// reasons maps a fault to the text that its stall must contain.
func Guarded(t *testing.T, q *Queue, a *Access, reasons map[string]string) {
	t.Helper()
	const wrong = "battery-staple"
	another := pkitest.New(t)
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
		pkitest.Replace(t, filepath.Join(a.Dir, "password"), []byte(wrong))
		refused(t, q.Config, reasons["password"])
	})
	t.Run("another authority", func(t *testing.T) {
		pkitest.Replace(t, filepath.Join(a.Dir, "ca.crt"), another.Cert())
		refused(t, q.Config, "signed by unknown authority")
	})
	t.Run("another address", func(t *testing.T) {
		refused(t, strings.ReplaceAll(q.Config, "127.0.0.1", "localhost"), "not localhost")
	})
	t.Run("another certificate", func(t *testing.T) {
		pkitest.Write(t, a.Dir, "client", another.Issue(pki.Leaf{Name: "countd"}))
		refused(t, q.Config, "tls: unknown certificate authority") // as the broker says
	})
	t.Run("no TLS", func(t *testing.T) {
		before, _, _ := strings.Cut(q.Config, "tls: ")
		refused(t, before, reasons["clear"])
	})
	Once(t, q)
}

// Documented returns the first group of a regular expression's match in docs/SOURCES.md.
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

package certs

import (
	"crypto/x509"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/pki"
	"github.com/countd/countd/internal/proctest"
)

// opened is a source and its log.
type opened struct {
	*Source
	log *proctest.Buffer
}

// open opens a source, and closes it when the test ends.
func open(t *testing.T, cfg Config) opened {
	t.Helper()
	log := new(proctest.Buffer)
	cfg.Setting, cfg.CASetting, cfg.Logger = "tls", "tls-client-ca", log.Logger()
	s, err := Open(cfg)
	must.Do(t, err)
	t.Cleanup(s.Close)
	return opened{s, log}
}

func (o opened) subject() string { return o.Current().Certificate.Leaf.Subject.CommonName }

// TestFilesThatChangeAreUsed: the source loads changed files by itself, even if only a link has
// changed.
func TestFilesThatChangeAreUsed(t *testing.T) {
	ca := must.NewAuthority(t)
	dir := t.TempDir()
	for _, version := range []string{"a", "b"} {
		must.Do(t, os.Mkdir(filepath.Join(dir, version), 0o700))
		must.WriteCert(t, filepath.Join(dir, version), "tls", ca.Issue(must.NodeLeaf("node-"+version)))
	}
	link := filepath.Join(dir, "data") // a link, as in a secret that Kubernetes mounts
	must.Do(t, os.Symlink("a", link))
	s := open(t, Config{CertFile: filepath.Join(link, "tls.crt"), KeyFile: filepath.Join(link, "tls.key"), pollEvery: time.Millisecond})
	if got := s.subject(); got != "node-a" {
		t.Fatal(got)
	}
	must.Do(t, os.Symlink("b", link+".new"))
	must.Do(t, os.Rename(link+".new", link))
	must.Become(t, "the new certificate is used", func() bool { return s.subject() == "node-b" })
}

// TestBadFilesKeepTheOldOnes: invalid files are counted and logged once, as long as they do not
// change. Later valid files are used.
func TestBadFilesKeepTheOldOnes(t *testing.T) {
	ca := must.NewAuthority(t)
	good := ca.Issue(must.NodeLeaf("good"))
	other := ca.Issue(must.NodeLeaf("other"))
	expired := ca.Issue(pki.Leaf{Name: "expired", NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)})
	future := ca.Issue(pki.Leaf{Name: "future", NotBefore: time.Now().Add(time.Hour)})
	for _, tc := range []struct {
		name     string
		cert, ca []byte
		key      []byte
		why      string
	}{
		{"no certificate", []byte("x"), ca.Cert(), good.Key, "tls-cert"},
		{"empty", nil, nil, nil, "tls-cert"},
		{"another key", other.Cert, ca.Cert(), good.Key, "private key does not match"},
		{"expired", expired.Cert, ca.Cert(), expired.Key, "it expired at"},
		{"not valid yet", future.Cert, ca.Cert(), future.Key, "it is valid from"},
		{"no authority", good.Cert, []byte("x"), good.Key, "tls-client-ca"},
		{"a broken authority", good.Cert, append([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"), ca.Cert()...), good.Key, "tls-client-ca"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			f := must.WriteCert(t, dir, "tls", good)
			caFile := must.ReplaceFile(t, filepath.Join(dir, "ca"), ca.Cert())
			s := open(t, Config{CertFile: f.Cert, KeyFile: f.Key, CAFile: caFile, pollEvery: time.Hour})
			before := s.Current()
			must.WriteCert(t, dir, "tls", pki.Pair{Cert: tc.cert, Key: tc.key})
			must.ReplaceFile(t, caFile, tc.ca)
			for range 4 { // poll loads files that two polls in a row have read
				s.poll()
			}
			if s.Current() != before || s.errors.Load() != 1 {
				t.Errorf("used: %v; %d errors", s.Current() != before, s.errors.Load())
			}
			if n := strings.Count(s.log.String(), "kept the certificate in use"); n != 1 || !s.log.Has(tc.why) {
				t.Errorf("logged %d times, want %q:\n%s", n, tc.why, s.log.String())
			}
			if err := s.Reload(); err == nil || s.errors.Load() != 2 {
				t.Errorf("a reload that was asked for: %v, %d errors", err, s.errors.Load())
			}
			if problem := s.Problem(time.Now()); !strings.Contains(problem, tc.why) {
				t.Errorf("the problem is %q, want %q", problem, tc.why)
			}
			if key := string(tc.key); key != "" && s.log.Has(key[40:60]) {
				t.Error("the log has the key")
			}
			must.WriteCert(t, dir, "tls", other)
			must.ReplaceFile(t, caFile, ca.Cert())
			s.poll()
			s.poll()
			if problem := s.Problem(time.Now()); problem != "" {
				t.Errorf("good files have the problem %q", problem)
			}
			ends := s.Current().Certificate.Leaf.NotAfter
			for before, why := range map[time.Duration]string{15 * 24 * time.Hour: "", 10 * 24 * time.Hour: "ends at", -time.Second: "ended at"} {
				if problem := s.Problem(ends.Add(-before)); why == "" && problem != "" || !strings.Contains(problem, why) {
					t.Errorf("%v before its end: %q, want %q", before, problem, why)
				}
			}
			if s.subject() != "other" {
				t.Error("good files after bad ones are not used:", s.subject())
			}
		})
	}
}

// TestFileThatIsGoneKeepsTheOldOne: while a file is missing, the previous set stays in use, and the
// problem is counted once.
func TestFileThatIsGoneKeepsTheOldOne(t *testing.T) {
	dir := t.TempDir()
	f := must.WriteCert(t, dir, "tls", must.NewAuthority(t).Issue(must.NodeLeaf("n1")))
	s := open(t, Config{CertFile: f.Cert, KeyFile: f.Key, pollEvery: time.Hour})
	must.Do(t, os.Remove(f.Key))
	for range 4 {
		s.poll()
	}
	if s.subject() != "n1" || s.errors.Load() != 1 || !s.log.Has("tls-key") {
		t.Errorf("%s, %d errors:\n%s", s.subject(), s.errors.Load(), s.log.String())
	}
}

// TestFilesAreReadOnceTheyHaveSettled: it is no error if the new certificate is written before its
// key.
func TestFilesAreReadOnceTheyHaveSettled(t *testing.T) {
	ca, dir := must.NewAuthority(t), t.TempDir()
	f := must.WriteCert(t, dir, "tls", ca.Issue(must.NodeLeaf("old")))
	s := open(t, Config{CertFile: f.Cert, KeyFile: f.Key, pollEvery: time.Hour})
	next := ca.Issue(must.NodeLeaf("new"))
	must.ReplaceFile(t, f.Cert, next.Cert)
	s.poll()
	must.ReplaceFile(t, f.Key, next.Key)
	s.poll()
	s.poll()
	if s.subject() != "new" || s.errors.Load() != 0 {
		t.Errorf("%s, %d errors", s.subject(), s.errors.Load())
	}
}

func TestOpenRefuses(t *testing.T) {
	ca, dir := must.NewAuthority(t), t.TempDir()
	f := must.WriteCert(t, dir, "tls", ca.Issue(must.NodeLeaf("n1")))
	log := new(proctest.Buffer)
	for name, cfg := range map[string]Config{
		"tls-cert":      {CertFile: filepath.Join(dir, "none"), KeyFile: f.Key},
		"tls-key":       {CertFile: f.Cert, KeyFile: filepath.Join(dir, "none")},
		"tls-client-ca": {CertFile: f.Cert, KeyFile: f.Key, CAFile: f.Key},
	} {
		cfg.Setting, cfg.CASetting, cfg.Logger = "tls", "tls-client-ca", log.Logger()
		if _, err := Open(cfg); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	old := ca.Issue(pki.Leaf{Name: "n1", NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour)})
	f = must.WriteCert(t, dir, "tls", old)
	if s := open(t, Config{CertFile: f.Cert, KeyFile: f.Key}); !s.log.Has("it expired at") {
		t.Error("an expired certificate is not logged:", s.log.String())
	}
}

func TestMetrics(t *testing.T) {
	ca, dir := must.NewAuthority(t), t.TempDir()
	f := must.WriteCert(t, dir, "tls", ca.Issue(must.NodeLeaf("n1")))
	caFile := must.ReplaceFile(t, filepath.Join(dir, "ca"), ca.Cert(), ca.Cert()) // the same authority twice
	s := open(t, Config{CertFile: f.Cert, KeyFile: f.Key, CAFile: caFile})
	m := NewMetrics()
	m.Add(s.Source)
	registry := prometheus.NewPedanticRegistry()
	must.Do(t, registry.Register(m))
	families, err := registry.Gather()
	must.Do(t, err)
	var got []string
	for _, f := range families {
		for _, metric := range f.Metric {
			if v := metric.GetGauge().GetValue(); f.GetName() == "countd_tls_cert_expiry_seconds" && (v < 3600 || v > 60*24*3600) {
				t.Errorf("a certificate expires in %v s", v)
			}
			for _, label := range metric.Label {
				if label.GetName() == "setting" {
					got = append(got, f.GetName()+" "+label.GetValue())
				}
			}
		}
	}
	want := "countd_tls_cert_expiry_seconds tls-cert,countd_tls_cert_expiry_seconds tls-client-ca,countd_tls_reload_errors_total tls"
	if slices.Sort(got); strings.Join(got, ",") != want {
		t.Error(got)
	}
}

func TestNames(t *testing.T) {
	c := &x509.Certificate{DNSNames: []string{"a", "b"}}
	c.Subject.CommonName = "c"
	if got := strings.Join(Names(c), ","); got != "a,b,c" {
		t.Error(got)
	}
}

package certs

import (
	"cmp"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// pollEvery is how often the files are read. Each poll reads the whole files, because sizes and
	// times do not show every change: a link may point to another file, or a new file may have the
	// same size and time.
	pollEvery = 2 * time.Second
	// fileBytesMax bounds a file. It is enough for hundreds of authorities.
	fileBytesMax = 1 << 20
	// A certificate that ends within expiresSoon is a problem, because an automatic renewal would
	// have replaced it weeks before its end.
	expiresSoon = 14 * 24 * time.Hour
)

// ErrBadFiles is returned for files that do not form a usable set.
var ErrBadFiles = errors.New("not a usable certificate")

// Config configures Open.
type Config struct {
	// Setting is the prefix of the settings that name the files, such as "tls" for tls-cert.
	// Errors, logs and metrics contain it.
	Setting string
	// CASetting is the setting that names CAFile.
	CASetting string
	// CertFile and KeyFile are the PEM files of a certificate with its chain, and of its key.
	// CAFile is the PEM file of the authorities that may have signed a peer's certificate; it may
	// be "".
	CertFile, KeyFile, CAFile string
	// Check returns an error if a valid set must not be used. It may be nil.
	Check func(*Set) error
	// CheckPeer, if not nil, checks the certificate of a client after TLS has verified it against
	// the authorities. An error ends the connection.
	CheckPeer func(set *Set, chain []*x509.Certificate) error
	Logger    *slog.Logger

	pollEvery time.Duration // 0 for the constant pollEvery
}

// Set is the result of one reading of the files. It is immutable.
type Set struct {
	Certificate tls.Certificate // Leaf is set
	CAs         *x509.CertPool  // nil without a CA file
	authorities []*x509.Certificate
	server      *tls.Config
}

// Source is a set of files, which it rereads when they change. It is safe for concurrent use.
type Source struct {
	cfg     Config
	current atomic.Pointer[Set]
	errors  atomic.Uint64
	refused atomic.Pointer[string] // why the current contents of the files are not in use; nil if they are
	stop    chan struct{}          // closed by Close
	stopped chan struct{}          // closed when follow has ended

	mu struct { // held while files are read
		sync.Mutex
		seen   [sha256.Size]byte // hash of the contents from which current was parsed
		failed [sha256.Size]byte // hash of the contents that were last refused
		begun  [sha256.Size]byte // hash of the contents that the last poll saw
	}
}

// Open reads the files, and follows their changes until Close. An expired certificate is not an
// error, because it may be replaced while the process runs.
func Open(cfg Config) (*Source, error) {
	s := &Source{cfg: cfg, stop: make(chan struct{}), stopped: make(chan struct{})}
	contents, err := s.read()
	if err != nil {
		return nil, err
	}
	set, err := s.parse(contents)
	if err != nil {
		return nil, err
	}
	s.current.Store(set)
	s.mu.seen = contents.sum()
	if err := set.outdated(time.Now()); err != nil {
		cfg.Logger.Error("a certificate is not valid now: others refuse it until it is replaced", "setting", cfg.Setting+"-cert", "file", cfg.CertFile, "err", err)
	}
	go s.follow()
	return s, nil
}

// Current returns the set in use.
func (s *Source) Current() *Set { return s.current.Load() }

// Problem returns a problem that an operator should solve, or "": the files cannot be used, or the
// certificate in use ends soon.
func (s *Source) Problem(now time.Time) string {
	leaf := s.Current().Certificate.Leaf
	ends := leaf.NotAfter.UTC().Format(time.RFC3339)
	switch refused := s.refused.Load(); {
	case refused != nil:
		return fmt.Sprintf("%s-cert: its files cannot be used, and the certificate in use ends at %s: %s", s.cfg.Setting, ends, *refused)
	case now.After(leaf.NotAfter):
		return fmt.Sprintf("%s-cert: the certificate ended at %s", s.cfg.Setting, ends)
	case leaf.NotAfter.Sub(now) < expiresSoon:
		return fmt.Sprintf("%s-cert: the certificate ends at %s", s.cfg.Setting, ends)
	}
	return ""
}

// Close stops reading the files. The set in use stays in use.
func (s *Source) Close() {
	close(s.stop)
	<-s.stopped
}

// follow polls the files until Close.
func (s *Source) follow() {
	defer close(s.stopped)
	ticker := time.NewTicker(cmp.Or(s.cfg.pollEvery, pollEvery))
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.poll()
		case <-s.stop:
			return
		}
	}
}

// poll reads the files. It loads changed contents only if the previous poll has read the same,
// because a certificate and its key are written one after the other.
func (s *Source) poll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	contents, err := s.read()
	sum := contents.sum()
	if err != nil {
		sum = sha256.Sum256([]byte(err.Error()))
	}
	settled := sum == s.mu.begun
	s.mu.begun = sum
	switch {
	case !settled:
	case sum == s.mu.seen:
		s.mu.failed = [sha256.Size]byte{}
		s.refused.Store(nil)
	default:
		_ = s.loadLocked(contents, sum, err) // loadLocked logs the error
	}
}

// Reload reads the files now. If it cannot use them, it keeps the set in use and returns the
// reason.
func (s *Source) Reload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	contents, err := s.read()
	sum := contents.sum()
	if err == nil && sum == s.mu.seen {
		s.refused.Store(nil)
		return nil
	}
	s.mu.failed = [sha256.Size]byte{} // so that loadLocked logs the same failure again, for whoever requested the reload
	return s.loadLocked(contents, sum, err)
}

// loadLocked parses contents and puts the result into use. If this fails, it counts and logs the
// error, but only once for the same contents. A later call tries the same contents again, because
// the certificate may have become valid.
func (s *Source) loadLocked(contents files, sum [sha256.Size]byte, err error) error {
	var set *Set
	if err == nil {
		set, err = s.parse(contents)
	}
	if err == nil {
		err = set.outdated(time.Now())
	}
	if err != nil {
		why := err.Error()
		s.refused.Store(&why)
		if sum != s.mu.failed {
			s.mu.failed = sum
			s.errors.Add(1)
			s.cfg.Logger.Warn("kept the certificate in use: its files changed and cannot be used", "setting", s.cfg.Setting+"-cert", "err", err)
		}
		return err
	}
	s.current.Store(set)
	s.refused.Store(nil)
	s.mu.seen, s.mu.failed = sum, [sha256.Size]byte{}
	s.cfg.Logger.Info("took new certificate files into use", "setting", s.cfg.Setting+"-cert",
		"subject", set.Certificate.Leaf.Subject.String(), "expires", set.Certificate.Leaf.NotAfter.UTC().Format(time.RFC3339))
	return nil
}

type files struct{ cert, key, ca []byte }

func (f files) sum() [sha256.Size]byte {
	h := sha256.New()
	for _, content := range [][]byte{f.cert, f.key, f.ca} {
		sum := sha256.Sum256(content)
		h.Write(sum[:])
	}
	return [sha256.Size]byte(h.Sum(nil))
}

func (s *Source) read() (f files, err error) {
	for _, one := range []struct {
		setting, path string
		into          *[]byte
	}{
		{s.cfg.Setting + "-cert", s.cfg.CertFile, &f.cert},
		{s.cfg.Setting + "-key", s.cfg.KeyFile, &f.key},
		{s.cfg.CASetting, s.cfg.CAFile, &f.ca},
	} {
		if one.path == "" {
			continue
		}
		if *one.into, err = readFile(one.path); err != nil {
			return files{}, fmt.Errorf("%s: %w: %w", one.setting, ErrBadFiles, err)
		}
	}
	return f, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, fileBytesMax+1))
	if err == nil && len(content) > fileBytesMax {
		err = fmt.Errorf("%s has over %d bytes", path, fileBytesMax)
	}
	return content, err
}

// parse returns the set that the files contain. Every error wraps ErrBadFiles.
func (s *Source) parse(f files) (*Set, error) {
	pair, err := tls.X509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("%s-cert %q with %s-key %q: %w: %w", s.cfg.Setting, s.cfg.CertFile, s.cfg.Setting, s.cfg.KeyFile, ErrBadFiles, err)
	}
	if pair.Leaf == nil {
		if pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0]); err != nil {
			return nil, fmt.Errorf("%s-cert %q: %w: %w", s.cfg.Setting, s.cfg.CertFile, ErrBadFiles, err)
		}
	}
	set := &Set{Certificate: pair}
	if s.cfg.CAFile != "" {
		if set.authorities, err = parseAuthorities(f.ca); err != nil {
			return nil, fmt.Errorf("%s %q: %w: %w", s.cfg.CASetting, s.cfg.CAFile, ErrBadFiles, err)
		}
		set.CAs = x509.NewCertPool()
		for _, ca := range set.authorities {
			set.CAs.AddCert(ca)
		}
	}
	if s.cfg.Check != nil {
		if err := s.cfg.Check(set); err != nil {
			return nil, fmt.Errorf("%s-cert %q: %w: %w", s.cfg.Setting, s.cfg.CertFile, ErrBadFiles, err)
		}
	}
	set.server = s.serverConfig(set)
	return set, nil
}

// serverConfig returns the configuration of handshakes that use a set. A resumed session would skip
// the check of the client's certificate. So a listener that checks client certificates does not
// resume sessions.
func (s *Source) serverConfig(set *Set) *tls.Config {
	c := &tls.Config{Certificates: []tls.Certificate{set.Certificate}, MinVersion: tls.VersionTLS12}
	if set.CAs == nil {
		return c
	}
	c.ClientCAs, c.ClientAuth, c.SessionTicketsDisabled = set.CAs, tls.RequireAndVerifyClientCert, true
	if s.cfg.CheckPeer != nil {
		c.VerifyConnection = func(state tls.ConnectionState) error { return s.cfg.CheckPeer(set, state.PeerCertificates) }
	}
	return c
}

// Server returns the configuration of a listener. Each handshake uses the current set.
func (s *Source) Server() *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.Current().server, nil },
	}
}

func parseAuthorities(content []byte) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		ca, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		all = append(all, ca)
	}
	if len(all) == 0 {
		return nil, errors.New("no certificate in PEM")
	}
	return all, nil
}

// outdated returns an error if the certificate is not valid at the time now. It does not check the
// authorities, because the file may still contain an expired authority beside the new one.
func (set *Set) outdated(now time.Time) error {
	leaf := set.Certificate.Leaf
	switch {
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("%w: it is valid from %s on", ErrBadFiles, leaf.NotBefore.UTC().Format(time.RFC3339))
	case now.After(leaf.NotAfter):
		return fmt.Errorf("%w: it expired at %s", ErrBadFiles, leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// Names returns the names in a certificate: its DNS names and its common name.
func Names(cert *x509.Certificate) []string {
	names := slices.Clone(cert.DNSNames)
	if cn := cert.Subject.CommonName; cn != "" && !slices.Contains(names, cn) {
		names = append(names, cn)
	}
	return names
}

package source

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strings"
)

// The mechanisms of Kafka's authentication.
const (
	MechanismPlain    = "plain"
	MechanismScram256 = "scram-sha-256"
	MechanismScram512 = "scram-sha-512"
)

var (
	// keywordPassword is a password in the form of libpq's keywords, or in the query of a URL.
	keywordPassword = regexp.MustCompile(`(?i)password\s*=`)
	// userPassword is a password before the host of an address without a scheme.
	userPassword = regexp.MustCompile(`:\S*@`)
	// urlPassword is a password before the host of a URL: where net/url reads it, and where libpq does.
	urlPassword = regexp.MustCompile(`^[^/?]*:[^/?]*@|^[^/@]*:[^/@]*@`)
	// hostList is what stands between :// and / if nobody logs in: hosts, each perhaps with a port.
	hostList = regexp.MustCompile(`^(\[[^]]*]|[^][:,]*)(:\d*)?(,(\[[^]]*]|[^][:,]*)(:\d*)?)*$`)
	// lateHost is a host after an @ in the path: what seems to be the path is the rest of a password.
	lateHost    = regexp.MustCompile(`^[^?]*@[^?]*[:/]`)
	percentCode = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)
)

// holdsPassword reports whether an address has a password: as a keyword, or before its host. It
// cannot leave that to a parser: an address that none accepts may hold a password all the same.
func holdsPassword(address string) bool {
	decoded := percentCode.ReplaceAllStringFunc(address, func(code string) string {
		text, _ := url.PathUnescape(code) // the code is valid
		return text
	})
	if keywordPassword.MatchString(decoded) {
		return true
	}
	_, rest, isURL := strings.Cut(address, "://")
	if !isURL {
		return userPassword.MatchString(address)
	}
	first, path, _ := strings.Cut(rest, "/")
	slashed := strings.Contains(path, "@") && !hostList.MatchString(first) // u:p/w@h; but h:1/d@b has a host and a port
	return slashed || lateHost.MatchString(path) || urlPassword.MatchString(rest)
}

// validateAccess checks how the broker is reached. It refuses passwords: everybody who may
// list sources would see them.
func (c *Config) validateAccess() error {
	const password = "holds a password: name a file on each node with password-file"
	for i, address := range c.Brokers {
		if strings.Contains(address, "@") { // no host has one
			return bad(fmt.Sprintf("brokers[%d]", i), password)
		}
	}
	switch {
	case holdsPassword(c.Addr) || strings.Contains(c.Addr, "@") && !strings.Contains(c.Addr, "://"):
		return bad("addr", password)
	case holdsPassword(c.DSN):
		return bad("dsn", password)
	case strings.Contains(c.URL, "@"): // a name without a password is a token
		return bad("url", "holds a password or a token: name a file on each node with password-file")
	}
	mechanisms := []string{MechanismPlain, MechanismScram256, MechanismScram512}
	switch {
	case c.PasswordFile != "" && c.Username == "" && c.Type == TypeKafka:
		return bad("username", "missing: there is a password-file")
	case c.Mechanism != "" && !slices.Contains(mechanisms, c.Mechanism):
		return bad("mechanism", "none of %s", strings.Join(mechanisms, ", "))
	case c.Type == TypeKafka && c.Username != "" && c.Mechanism == "":
		return bad("mechanism", "missing: there is a username")
	case c.TLS != nil && (c.TLS.CertFile == "") != (c.TLS.KeyFile == ""):
		return bad("tls", "cert-file and key-file belong together")
	}
	return nil
}

// untrusted reports whether an error means that one side of TLS does not accept the other.
func untrusted(err error) bool {
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, plain := errors.AsType[tls.RecordHeaderError](err) // the other side does not speak TLS
	alert, is := errors.AsType[*net.OpError](err)
	return certificate || plain || is && alert.Op == "remote error" // what crypto/tls calls an alert of the other side
}

// Password returns what is in the password file, without the newline at its end; nothing if
// there is no file.
func (c *Config) Password() (string, error) {
	if c.PasswordFile == "" {
		return "", nil
	}
	text, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("cannot read password-file: %w", err)
	}
	return strings.TrimRight(string(text), "\r\n"), nil
}

// FilesState returns a text that changes if a file changes that the configuration names.
func (c *Config) FilesState() string {
	files := []string{c.PasswordFile}
	if c.TLS != nil {
		files = append(files, c.TLS.CAFile, c.TLS.CertFile, c.TLS.KeyFile)
	}
	var state strings.Builder
	for _, file := range files {
		if file == "" {
			continue
		}
		if of, err := os.Stat(file); err != nil {
			fmt.Fprintln(&state, err)
		} else {
			fmt.Fprintln(&state, file, of.ModTime().UnixNano(), of.Size())
		}
	}
	return state.String()
}

// TLSConfig returns the settings of TLS; nil if there is none.
func (c *Config) TLSConfig() (*tls.Config, error) {
	if c.TLS == nil {
		return nil, nil
	}
	out := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.TLS.CAFile != "" {
		pem, err := os.ReadFile(c.TLS.CAFile)
		if err != nil {
			return nil, fmt.Errorf("cannot read tls.ca-file: %w", err)
		}
		out.RootCAs = x509.NewCertPool()
		if !out.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("tls.ca-file %s has no certificate", c.TLS.CAFile)
		}
	}
	if c.TLS.CertFile != "" {
		pair, err := tls.LoadX509KeyPair(c.TLS.CertFile, c.TLS.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("cannot read tls.cert-file and tls.key-file: %w", err)
		}
		out.Certificates = []tls.Certificate{pair}
	}
	return out, nil
}

package source

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// These are the mechanisms of Kafka's authentication.
const (
	MechanismPlain    = "plain"
	MechanismScram256 = "scram-sha-256"
	MechanismScram512 = "scram-sha-512"
)

var (
	// keywordPassword matches a password in the form of libpq's keywords, or in the query of a URL.
	keywordPassword = regexp.MustCompile(`(?i)password\s*=`)
	// userPassword matches a password before the host of an address without a scheme.
	userPassword = regexp.MustCompile(`:\S*@`)
	// urlPassword matches a password before the host of a URL, where net/url or libpq looks for it.
	urlPassword = regexp.MustCompile(`^[^/?]*:[^/?]*@|^[^/@]*:[^/@]*@`)
	// hostList matches a list of hosts with optional ports. That is the text between :// and / of a
	// URL without a user.
	hostList = regexp.MustCompile(`^(\[[^]]*]|[^][:,]*)(:\d*)?(,(\[[^]]*]|[^][:,]*)(:\d*)?)*$`)
	// lateHost matches the path that a parser finds in a URL, if the path has an @ and a host after
	// the @. The text before the @ is then the end of a password.
	lateHost    = regexp.MustCompile(`^[^?]*@[^?]*[:/]`)
	percentCode = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)
	// keywordFile matches a setting of libpq that names a file of the node, or a section of a
	// file.
	keywordFile = regexp.MustCompile(`(?i)\b(passfile|servicefile|service|sslcert|sslkey|sslrootcert|sslcrl|sslcrldir)\s*=`)
)

// holdsPassword reports whether an address has a password, as a keyword or before its host. It
// uses no parser, because an address that a parser refuses may still have a password.
func holdsPassword(address string) bool {
	if keywordPassword.MatchString(decoded(address)) {
		return true
	}
	_, rest, isURL := strings.Cut(address, "://")
	if !isURL {
		return userPassword.MatchString(address)
	}
	first, path, _ := strings.Cut(rest, "/")
	slashed := strings.Contains(path, "@") && !hostList.MatchString(first) // true for u:p/w@h, whose password has a slash; false for h:1/d@b, which begins with a host and a port
	return slashed || lateHost.MatchString(path) || urlPassword.MatchString(rest)
}

// decoded returns an address with each percent code replaced by its character.
func decoded(address string) string {
	return percentCode.ReplaceAllStringFunc(address, func(code string) string {
		text, _ := url.PathUnescape(code) // the code is valid
		return text
	})
}

// validateAccess checks addresses and credentials. It refuses passwords, because everybody who may
// list sources would see them.
func (c *Config) validateAccess() error {
	const password = "holds a password: name a file on each node with password-file"
	for i, address := range c.Brokers {
		if strings.Contains(address, "@") { // no host name has an @
			return bad(fmt.Sprintf("brokers[%d]", i), password)
		}
	}
	switch {
	case holdsPassword(c.Addr) || strings.Contains(c.Addr, "@") && !strings.Contains(c.Addr, "://"):
		return bad("addr", password)
	case holdsPassword(c.DSN):
		return bad("dsn", password)
	case strings.Contains(c.URL, "@"): // NATS takes a user without a password as a token
		return bad("url", "holds a password or a token: name a file on each node with password-file")
	}
	if file := keywordFile.FindStringSubmatch(decoded(c.DSN)); file != nil {
		return bad("dsn", "%s names a file of the node: files are in password-file and tls only", strings.ToLower(file[1]))
	}
	if strings.HasPrefix(strings.ToLower(strings.TrimSpace(c.Addr)), "unix:") {
		return bad("addr", "a socket of the node: a source is reached by host and port")
	}
	for _, f := range c.files() {
		if !filepath.IsLocal(f.name) {
			return bad(f.field, "not a path within the directory of --source-secrets-dir, such as %s", cmp.Or(filepath.Base(f.name), "password"))
		}
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

// untrusted reports whether an error means that a TLS handshake failed because one side does not
// accept the other.
func untrusted(err error) bool {
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, plain := errors.AsType[tls.RecordHeaderError](err) // the other side does not speak TLS
	alert, is := errors.AsType[*net.OpError](err)
	return certificate || plain || is && alert.Op == "remote error" // crypto/tls uses this Op for an alert that the peer sent
}

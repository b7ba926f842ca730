package source

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
)

// The mechanisms of Kafka's authentication.
const (
	MechanismPlain    = "plain"
	MechanismScram256 = "scram-sha-256"
	MechanismScram512 = "scram-sha-512"
)

// validateAccess checks how the broker is reached. It refuses passwords: everybody who may
// list sources would see them.
func (c *Config) validateAccess() error {
	for field, text := range map[string]string{"addr": c.Addr, "url": c.URL, "dsn": c.DSN} {
		u, err := url.Parse(text)
		hasPassword := strings.Contains(text, "password=")
		if err == nil && u.User != nil {
			_, inUser := u.User.Password()
			hasPassword = hasPassword || inUser
		}
		if hasPassword {
			return bad(field, "holds a password: name a file on each node with password-file")
		}
	}
	mechanisms := []string{MechanismPlain, MechanismScram256, MechanismScram512}
	switch {
	case c.PasswordFile != "" && c.Username == "" && c.Type != TypeRedis && c.Type != TypePostgres:
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

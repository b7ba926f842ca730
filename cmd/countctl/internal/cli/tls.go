package cli

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"os"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/countd/countd/client"
)

// tlsFlags holds the paths of the files for TLS.
type tlsFlags struct{ ca, cert, key string }

// Environment variables that set the defaults of the TLS flags.
const (
	caEnv   = "COUNTCTL_CA"
	certEnv = "COUNTCTL_CERT"
	keyEnv  = "COUNTCTL_CERT_KEY"
)

func (c *CLI) tlsFlags(flags *pflag.FlagSet) {
	flags.StringVar(&c.TLS.ca, "ca", c.Env(caEnv), "file with the authorities (PEM) that must have signed the servers' certificates, instead of the system's; "+caEnv+" sets it")
	flags.StringVar(&c.TLS.cert, "cert", c.Env(certEnv), "file with the client's certificate (PEM), for servers that ask for one; "+certEnv+" sets it")
	flags.StringVar(&c.TLS.key, "cert-key", c.Env(keyEnv), "file with the key of --cert (PEM), if the key is not in that file; "+keyEnv+" sets it")
}

// Config returns the TLS configuration, or nil if none of the flags is set.
func (f tlsFlags) Config() (*tls.Config, error) {
	if f == (tlsFlags{}) {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.ca != "" {
		content, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, Usagef("--ca: %v", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(content) {
			return nil, Usagef("--ca: %s has no certificate in PEM", f.ca)
		}
	}
	if f.key != "" && f.cert == "" {
		return nil, Usagef("--cert-key needs --cert too")
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, cmp.Or(f.key, f.cert))
		if err != nil {
			return nil, Usagef("--cert: %v (the key is that of --cert-key or %s, or in the file of --cert)", err, keyEnv)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// Dial returns a client of the servers at addrs, with the settings of the global flags.
func (c *CLI) Dial(addrs []string, retry client.Retry) (*client.Client, error) {
	config, err := c.TLS.Config()
	if err != nil {
		return nil, err
	}
	token, err := c.Token()
	if err != nil {
		return nil, err
	}
	usesTLS := slices.ContainsFunc(c.addrs, func(addr string) bool {
		return strings.HasPrefix(strings.ToLower(addr), "https://") || config != nil && !strings.Contains(addr, "://")
	})
	return client.New(client.Config{Addrs: addrs, Timeout: c.Timeout, Retry: retry, TLS: config, Token: token, TokenToAddrs: usesTLS})
}

// NodeURL returns the URL of a node whose reported address is httpAddr. If server (a client)
// already uses that address, NodeURL keeps the scheme. Otherwise the scheme is https if any address
// of server has https, so that no token is sent in the clear.
func NodeURL(server *client.Client, httpAddr string) string {
	addrs := server.Addrs()
	withTLS := func(addr string) bool { return strings.HasPrefix(addr, "https://") }
	plain, secure := "http://"+httpAddr, "https://"+httpAddr
	if !slices.ContainsFunc(addrs, withTLS) || slices.Contains(addrs, plain) && !slices.Contains(addrs, secure) {
		return plain
	}
	return secure
}

// Environment variables that contain the token, or the path of its file.
const (
	tokenEnv     = "COUNTCTL_TOKEN"
	tokenFileEnv = "COUNTCTL_TOKEN_FILE"
)

func (c *CLI) tokenFlags(flags *pflag.FlagSet) {
	flags.StringVar(&c.tokenFile, "token-file", c.Env(tokenFileEnv), "file with the token to send; "+tokenEnv+" may hold the token itself, which the file overrides")
}

// Token returns the token to send with requests, or "" if there is none.
func (c *CLI) Token() (string, error) {
	if c.tokenFile == "" {
		return strings.TrimSpace(c.Env(tokenEnv)), nil
	}
	text, err := os.ReadFile(c.tokenFile)
	if err != nil {
		return "", Usagef("--token-file: %v", err)
	}
	token := string(bytes.TrimSpace(text))
	if token == "" {
		return "", Usagef("--token-file: %s is empty", c.tokenFile)
	}
	return token, nil
}

package main

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/countd/countd/client"
)

// tlsFlags name the files for servers with TLS.
type tlsFlags struct{ ca, cert, key string }

// The variables that set the flags.
const (
	caEnv   = "COUNTCTL_CA"
	certEnv = "COUNTCTL_CERT"
	keyEnv  = "COUNTCTL_CERT_KEY"
)

func (c *cli) tlsFlags(flags *pflag.FlagSet) {
	flags.StringVar(&c.tls.ca, "ca", c.env(caEnv), "file with the authorities in PEM that servers' certificates must come from, in place of the system's; "+caEnv+" sets it")
	flags.StringVar(&c.tls.cert, "cert", c.env(certEnv), "file with the certificate in PEM that servers may ask for; "+certEnv+" sets it")
	flags.StringVar(&c.tls.key, "cert-key", c.env(keyEnv), "file with the key of --cert in PEM, if it is not in that file; "+keyEnv+" sets it")
}

// config returns how to speak TLS; nil if no flag says anything of it.
func (f tlsFlags) config() (*tls.Config, error) {
	if f == (tlsFlags{}) {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.ca != "" {
		content, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, usagef("--ca: %v", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(content) {
			return nil, usagef("--ca: %s has no certificate in PEM", f.ca)
		}
	}
	if f.key != "" && f.cert == "" {
		return nil, usagef("--cert-key needs --cert too")
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, cmp.Or(f.key, f.cert))
		if err != nil {
			return nil, usagef("--cert: %v (the key is that of --cert-key or %s, or in the file of --cert)", err, keyEnv)
		}
		config.Certificates = []tls.Certificate{pair}
	}
	return config, nil
}

// dial returns a client of some servers, with the global flags.
func (c *cli) dial(addrs []string, retry client.Retry) (*client.Client, error) {
	config, err := c.tls.config()
	if err != nil {
		return nil, err
	}
	token, err := c.token()
	if err != nil {
		return nil, err
	}
	return client.New(client.Config{Addrs: addrs, Timeout: c.timeout, Retry: retry, TLS: config, Token: token})
}

// nodeURL returns where a node is reached that says its address itself: its scheme is that
// of the server in use.
func nodeURL(server *client.Client, httpAddr string) string {
	scheme, _, _ := strings.Cut(server.Addr(), "://")
	return scheme + "://" + httpAddr
}

// The variables that set the token.
const (
	tokenEnv     = "COUNTCTL_TOKEN"
	tokenFileEnv = "COUNTCTL_TOKEN_FILE"
)

func (c *cli) tokenFlags(flags *pflag.FlagSet) {
	flags.StringVar(&c.tokenFile, "token-file", c.env(tokenFileEnv), "file with the token that calls bear; "+tokenEnv+" is a token itself, which the file overrides")
}

// token returns the token that calls bear, or "".
func (c *cli) token() (string, error) {
	if c.tokenFile == "" {
		return strings.TrimSpace(c.env(tokenEnv)), nil
	}
	text, err := os.ReadFile(c.tokenFile)
	if err != nil {
		return "", usagef("--token-file: %v", err)
	}
	token := string(bytes.TrimSpace(text))
	if token == "" {
		return "", usagef("--token-file: %s is empty", c.tokenFile)
	}
	return token, nil
}

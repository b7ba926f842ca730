package main

import (
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/cluster"
	"github.com/countd/countd/internal/certs"
)

// tlsFiles are the files of a certificate. CA contains the authorities, one of which must have
// signed a peer's certificate.
type tlsFiles struct{ Cert, Key, CA string }

func (f tlsFiles) set() bool { return f.Cert != "" }

func (f tlsFiles) scheme() string {
	if f.set() {
		return "https"
	}
	return "http"
}

func (c *config) tlsFlags() {
	c.flags.StringVar(&c.TLS.Cert, "tls-cert", "", "file with the certificate of this node and its chain (PEM). With it, HTTP and Redis clients need TLS 1.2 or later")
	c.flags.StringVar(&c.TLS.Key, "tls-key", "", "file with the key of --tls-cert, in PEM")
	c.flags.StringVar(&c.TLS.CA, "tls-client-ca", "", "file with the authorities (PEM) that must have signed the certificate of each client (default: clients need no certificate)")
	c.flags.StringVar(&c.ClusterTLS.Cert, "cluster-tls-cert", "", "file with the certificate (PEM) that this node shows other nodes; it is good for servers and clients and names the node id. With it, nodes talk to each other over TLS only")
	c.flags.StringVar(&c.ClusterTLS.Key, "cluster-tls-key", "", "file with the key of --cluster-tls-cert, in PEM")
	c.flags.StringVar(&c.ClusterTLS.CA, "cluster-tls-ca", "", "file with the authorities (PEM) that must have signed the certificates of nodes")
	c.flags.StringVar(&c.PeerName, "cluster-tls-name", "", "name that the certificates of all nodes carry (default: the certificate of each node carries its node id)")
	c.flags.BoolVar(&c.PermissiveTLS, "cluster-tls-permissive", false, "while a cluster turns on TLS between nodes: also accept nodes without TLS, and dial them without it")
	c.flags.BoolVar(&c.Insecure, "insecure", false, "allow addresses beyond loopback without TLS, --auth enforce and gossip keys: anybody who reaches them may read and change everything")
}

// validateTLS refuses a TLS setting without the other settings that it needs.
func (c *config) validateTLS() error {
	for _, f := range []struct{ name, value, with, other string }{
		{name: "tls-key", value: c.TLS.Key, with: "tls-cert", other: c.TLS.Cert},
		{name: "tls-cert", value: c.TLS.Cert, with: "tls-key", other: c.TLS.Key},
		{name: "tls-client-ca", value: c.TLS.CA, with: "tls-cert", other: c.TLS.Cert},
		{name: "cluster-tls-cert", value: c.ClusterTLS.Cert, with: "cluster-tls-key", other: c.ClusterTLS.Key},
		{name: "cluster-tls-cert", value: c.ClusterTLS.Cert, with: "cluster-tls-ca", other: c.ClusterTLS.CA},
		{name: "cluster-tls-key", value: c.ClusterTLS.Key, with: "cluster-tls-cert", other: c.ClusterTLS.Cert},
		{name: "cluster-tls-ca", value: c.ClusterTLS.CA, with: "cluster-tls-cert", other: c.ClusterTLS.Cert},
		{name: "cluster-tls-name", value: c.PeerName, with: "cluster-tls-cert", other: c.ClusterTLS.Cert},
	} {
		if f.value != "" && f.other == "" {
			return c.bad(f.name, "needs --"+f.with)
		}
	}
	if c.PermissiveTLS && !c.ClusterTLS.set() {
		return c.bad("cluster-tls-permissive", "needs --cluster-tls-cert")
	}
	return nil
}

// checkFiles returns an error for the first file that a start would refuse. checkFiles does not
// check the names in the certificates.
func (c *config) checkFiles() error {
	quiet := slog.New(slog.DiscardHandler)
	for _, one := range []struct {
		setting, ca string
		files       tlsFiles
	}{{"tls", "tls-client-ca", c.TLS}, {"cluster-tls", "cluster-tls-ca", c.ClusterTLS}} {
		if !one.files.set() {
			continue
		}
		source, err := certs.Open(certs.Config{
			Setting: one.setting, CASetting: one.ca, CertFile: one.files.Cert, KeyFile: one.files.Key, CAFile: one.files.CA, Logger: quiet,
		})
		if err != nil {
			return &configError{err.Error()}
		}
		source.Close()
	}
	if c.GossipKeys != "" {
		if _, err := cluster.ReadGossipKeys(c.GossipKeys); err != nil {
			return c.bad("gossip-key-file", err.Error())
		}
	}
	if c.Auth.Mode != auth.Off && c.Auth.RootToken != "" {
		if _, err := auth.New(auth.Config{Mode: c.Auth.Mode, RootToken: c.Auth.RootToken, Registry: prometheus.NewRegistry(), Logger: quiet}); err != nil {
			return c.bad("root-token-file", err.Error())
		}
	}
	return nil
}

// warnOfModes logs a warning for each file with keys that every user of the machine can read. It
// accepts files that only a group can read.
func (c *config) warnOfModes(logger *slog.Logger) {
	for setting, path := range map[string]string{"gossip-key-file": c.GossipKeys, "tls-key": c.TLS.Key, "cluster-tls-key": c.ClusterTLS.Key} {
		if info, err := os.Stat(path); path != "" && err == nil && info.Mode().Perm()&0o007 != 0 {
			logger.Warn("every user of this machine can read a file with keys", "setting", setting, "file", path, "mode", info.Mode().Perm().String())
		}
	}
}

// authConfig holds the settings of authentication and of the audit log.
type authConfig struct {
	Mode      auth.Mode
	RootToken string
	AuditLog  string
}

func (a *authConfig) add(c *config) {
	a.Mode = auth.Off
	c.flags.Var(&a.Mode, "auth", "whether callers need tokens: off, permissive (serves everybody, and logs and counts the calls that enforce would refuse) or enforce")
	c.flags.StringVar(&a.RootToken, "root-token-file", "", "file with a token of 32 bytes or more; whoever has it is an admin on this node (default: none)")
	c.flags.StringVar(&a.AuditLog, "audit-log", "", "file that gets a JSON line for each call that only an admin may make and each refused call, rotated at 64 MiB (default: none)")
}

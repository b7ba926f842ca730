package main

import (
	"io"
	"log/slog"
	"os"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/cluster"
	"github.com/countd/countd/internal/certs"
)

// checkFiles returns an error for the first file of the settings that a start would refuse. It
// does not check whom the certificates name.
func (c *config) checkFiles() error {
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
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

// warnOfModes warns of files with keys that every user of the machine can read. A group may
// share them.
func (c *config) warnOfModes(logger *slog.Logger) {
	for setting, path := range map[string]string{"gossip-key-file": c.GossipKeys, "tls-key": c.TLS.Key, "cluster-tls-key": c.ClusterTLS.Key} {
		if info, err := os.Stat(path); path != "" && err == nil && info.Mode().Perm()&0o007 != 0 {
			logger.Warn("every user of this machine can read a file with keys", "setting", setting, "file", path, "mode", info.Mode().Perm().String())
		}
	}
}

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/cluster"
	"github.com/countd/countd/internal/certs"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/rpc"
)

// tlsFiles are the files of a certificate. CA has the authorities that a peer's certificate
// must come from.
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

// validateTLS refuses a file without the files that it needs.
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

// transport holds the certificates of the process. The zero transport has no TLS.
type transport struct {
	clients *certs.Source // nil without --tls-cert
	peers   *certs.Peers  // nil without --cluster-tls-cert
	metrics *certs.Metrics
}

func (t *transport) open(c *config, p *process) error {
	t.metrics = certs.NewMetrics()
	if err := p.registry.Register(t.metrics); err != nil {
		return fmt.Errorf("cannot register the metrics of TLS: %w", err)
	}
	var err error
	if c.TLS.set() {
		t.clients, err = certs.Open(certs.Config{
			Setting: "tls", CASetting: "tls-client-ca", CertFile: c.TLS.Cert, KeyFile: c.TLS.Key, CAFile: c.TLS.CA, Logger: p.logger,
		})
		if err != nil {
			return &configError{err.Error()}
		}
		t.metrics.Add(t.clients)
	}
	if c.ClusterTLS.set() {
		t.peers, err = certs.OpenPeers(certs.PeersConfig{
			Setting: "cluster-tls", CASetting: "cluster-tls-ca", CertFile: c.ClusterTLS.Cert, KeyFile: c.ClusterTLS.Key, CAFile: c.ClusterTLS.CA,
			Logger: p.logger, NodeID: p.dir.Identity.NodeID, Name: c.PeerName, Permissive: c.PermissiveTLS,
		})
		if err != nil {
			t.close()
			return &configError{err.Error()}
		}
		t.metrics.AddPeers(t.peers)
	}
	return nil
}

// wrap puts TLS over the listeners.
func (t *transport) wrap(l *ports) {
	if t.clients != nil {
		l.http = t.listen(t.clients.Listen(l.http, certs.HTTP))
		if l.redis != nil {
			l.redis = t.listen(t.clients.Listen(l.redis, certs.Redis))
		}
	}
	l.cluster = t.wrapCluster(l.cluster)
}

// wrapCluster puts TLS over the listener for other nodes.
func (t *transport) wrapCluster(l net.Listener) net.Listener {
	if t.peers == nil {
		return l
	}
	return t.listen(t.peers.ListenPeers(l))
}

func (t *transport) listen(l *certs.Listener) net.Listener {
	t.metrics.AddListener(l)
	return l
}

// problems returns the problems of the certificates that an operator should solve.
func (t *transport) problems() (all []string) {
	if t.clients != nil {
		all = append(all, t.clients.Problem(time.Now()))
	}
	if t.peers != nil {
		all = append(all, t.peers.Problem(time.Now()))
	}
	return slices.DeleteFunc(all, func(problem string) bool { return problem == "" })
}

// reloadOn reads the files of certificates and of gossip keys at each signal. If it cannot use a
// file, it logs the reason, and the node keeps the previous certificates or keys.
func (p *process) reloadOn(signals <-chan os.Signal) {
	for range signals {
		p.tls.reload()
		if p.keys == nil {
			continue
		}
		if err := p.keys.Reload(); err != nil {
			p.logger.Error("gossip keys stay as they were", "err", err)
			continue
		}
		p.logger.Info("gossip keys were read again")
	}
}

// reload reads the files again. Package certs logs the files that it cannot use.
func (t *transport) reload() {
	if t.clients != nil {
		_ = t.clients.Reload()
	}
	if t.peers != nil {
		_ = t.peers.Reload()
	}
}

// close stops the watch over the files.
func (t *transport) close() {
	if t.clients != nil {
		t.clients.Close()
	}
	if t.peers != nil {
		t.peers.Close()
	}
}

// dialPeer returns the function that connects to other nodes, or nil for TCP without TLS.
func (p *process) dialPeer() rpc.DialPeer {
	if p.tls.peers == nil {
		return nil
	}
	return func(ctx context.Context, addr, replica string) (net.Conn, error) {
		return p.tls.peers.Dial(ctx, addr, p.peerName(addr, replica))
	}
}

// peerName returns the node id of a replica at addr, or "" if gossip does not know the
// address.
func (p *process) peerName(addr, replica string) string {
	key, _ := catalog.ParseReplicaID(replica)
	if name := cluster.NodeOfKey(key); name != "" {
		return name
	}
	name := ""
	for _, m := range p.gossip.Members() {
		if m.ClusterAddr == addr && (name == "" || m.Alive) {
			name = m.Name
		}
	}
	return name
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

// warnOfModes warns of files with keys that every user of the machine can read. A group may
// share them.
func (c *config) warnOfModes(logger *slog.Logger) {
	for setting, path := range map[string]string{"gossip-key-file": c.GossipKeys, "tls-key": c.TLS.Key, "cluster-tls-key": c.ClusterTLS.Key} {
		if info, err := os.Stat(path); path != "" && err == nil && info.Mode().Perm()&0o007 != 0 {
			logger.Warn("every user of this machine can read a file with keys", "setting", setting, "file", path, "mode", info.Mode().Perm().String())
		}
	}
}

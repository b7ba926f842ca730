package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"github.com/countd/countd/cluster"
	"github.com/countd/countd/internal/certs"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/rpc"
)

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

// wrap makes the listeners run TLS on each port for which TLS is configured.
func (t *transport) wrap(l *ports) {
	if t.clients != nil {
		l.http = t.listen(t.clients.Listen(l.http, certs.HTTP))
		if l.redis != nil {
			l.redis = t.listen(t.clients.Listen(l.redis, certs.Redis))
		}
	}
	l.cluster = t.wrapCluster(l.cluster)
}

// wrapCluster returns the listener for other nodes, with TLS if TLS is configured for it.
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

// reloadOn rereads the files of certificates and of gossip keys at each signal. If it cannot use a
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

// close stops following the files.
func (t *transport) close() {
	if t.clients != nil {
		t.clients.Close()
	}
	if t.peers != nil {
		t.peers.Close()
	}
}

// dialPeer returns the function that connects to other nodes over TLS, or nil without
// --cluster-tls-cert.
func (p *process) dialPeer() rpc.DialPeer {
	if p.tls.peers == nil {
		return nil
	}
	return func(ctx context.Context, addr, replica string) (net.Conn, error) {
		return p.tls.peers.Dial(ctx, addr, p.peerName(addr, replica))
	}
}

// peerName returns the node id of a replica. If the replica's Raft id does not contain the node id,
// peerName returns that of the node that gossip knows at addr, or "".
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

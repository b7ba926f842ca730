package certs

import (
	"crypto/x509"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics exports the sources and listeners of a process.
type Metrics struct {
	reloads, expiry, refused, plain *prometheus.Desc

	mu struct {
		sync.Mutex
		sources   []*Source
		peers     *Peers
		listeners []*Listener
	}
}

var _ prometheus.Collector = (*Metrics)(nil)

// NewMetrics returns metrics without values until Add or AddListener.
func NewMetrics() *Metrics {
	return &Metrics{
		reloads: prometheus.NewDesc("countd_tls_reload_errors_total", "Changes of certificate files that could not be used, so that the previous ones stay in use.", []string{"setting"}, nil),
		expiry:  prometheus.NewDesc("countd_tls_cert_expiry_seconds", "Seconds until a certificate in use expires, below 0 once it has.", []string{"setting", "subject", "serial"}, nil),
		refused: prometheus.NewDesc("countd_tls_handshakes_refused_total", "Connections that were refused because their TLS handshake failed.", []string{"port"}, nil),
		plain:   prometheus.NewDesc("countd_cluster_plain_connections_total", "Connections to and from other nodes that have no TLS, because of --cluster-tls-permissive.", nil, nil),
	}
}

// Add exports a source.
func (m *Metrics) Add(s *Source) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.sources = append(m.mu.sources, s)
}

// AddPeers exports the source of peers, and the number of connections without TLS.
func (m *Metrics) AddPeers(p *Peers) {
	m.Add(p.Source)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mu.peers = p
}

// AddListener exports a listener. It replaces a closed listener of the same port.
func (m *Metrics) AddListener(l *Listener) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, before := range m.mu.listeners {
		if before.protocol.Name == l.protocol.Name {
			l.failures.Add(before.failures.Load())
			m.mu.listeners[i] = l
			return
		}
	}
	m.mu.listeners = append(m.mu.listeners, l)
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(descs chan<- *prometheus.Desc) {
	descs <- m.reloads
	descs <- m.expiry
	descs <- m.refused
	descs <- m.plain
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(out chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.mu.sources {
		out <- prometheus.MustNewConstMetric(m.reloads, prometheus.CounterValue, float64(s.errors.Load()), s.cfg.Setting)
		set := s.Current()
		m.expiries(out, s.cfg.Setting+"-cert", set.Certificate.Leaf)
		m.expiries(out, s.cfg.CASetting, set.authorities...)
	}
	if m.mu.peers != nil {
		out <- prometheus.MustNewConstMetric(m.plain, prometheus.CounterValue, float64(m.mu.peers.plain.Load()))
	}
	for _, l := range m.mu.listeners {
		out <- prometheus.MustNewConstMetric(m.refused, prometheus.CounterValue, float64(l.failures.Load()), l.protocol.Name)
	}
}

// expiries exports the time until each certificate expires. It exports a certificate that a file
// repeats only once.
func (m *Metrics) expiries(out chan<- prometheus.Metric, setting string, all ...*x509.Certificate) {
	seen := map[string]bool{}
	for _, c := range all {
		labels := []string{setting, c.Subject.String(), fmt.Sprintf("%x", c.SerialNumber)}
		if id := fmt.Sprint(labels); !seen[id] {
			seen[id] = true
			out <- prometheus.MustNewConstMetric(m.expiry, prometheus.GaugeValue, time.Until(c.NotAfter).Seconds(), labels...)
		}
	}
}

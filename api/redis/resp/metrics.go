package resp

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics are the metrics of a server.
type Metrics struct {
	Conns        prometheus.Gauge
	ConnsRefused prometheus.Counter
	Timeouts     prometheus.Counter
	OutputFull   prometheus.Counter
	Panics       prometheus.Counter
	Received     prometheus.Counter
	Sent         prometheus.Counter
	Calls        *prometheus.CounterVec
	errors       map[string]prometheus.Counter // by code
}

// errorCodes are the first words of errors. Errors with other words count as ERR.
var errorCodes = []string{
	"ERR", "WRONGTYPE", "CROSSSLOT", "EXECABORT", "NOPROTO", "WRONGPASS", "OOM", "DISKFULL",
	"LEADERLESS", "OVERLOADED", "UNKNOWN", "CONFLICT", "EXPIRED", "DRAINING",
}

// Failed counts an error reply.
func (m *Metrics) Failed(text string) {
	code, _, _ := strings.Cut(text, " ")
	c := m.errors[code]
	if c == nil {
		c = m.errors["ERR"]
	}
	c.Inc()
}

// NewMetrics registers the metrics.
func NewMetrics(registry *prometheus.Registry) (*Metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "countd_redis_" + name, Help: help})
	}
	m := &Metrics{
		Conns:        prometheus.NewGauge(prometheus.GaugeOpts{Name: "countd_redis_connections", Help: "Open connections of the Redis protocol."}),
		ConnsRefused: counter("connections_refused_total", "Connections refused because too many were open."),
		Timeouts:     counter("timeouts_total", "Connections closed because no command, or no complete command, arrived in time."),
		OutputFull:   counter("output_full_total", "Connections closed because their client did not read its replies."),
		Panics:       counter("panics_total", "Commands that panicked."),
		Received:     counter("received_bytes_total", "Bytes of commands."),
		Sent:         counter("sent_bytes_total", "Bytes of replies."),
		errors:       map[string]prometheus.Counter{},
	}
	m.Calls = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "countd_redis_commands_total", Help: "Commands executed, including those of transactions.",
	}, []string{"command"})
	errors := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "countd_redis_errors_total", Help: "Errors answered, by their first word.",
	}, []string{"code"})
	for _, c := range []prometheus.Collector{
		m.Conns, m.ConnsRefused, m.Timeouts, m.OutputFull, m.Panics, m.Received, m.Sent, m.Calls, errors,
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("cannot register metrics: %w", err)
		}
	}
	for _, code := range errorCodes {
		m.errors[code] = errors.WithLabelValues(code)
	}
	return m, nil
}

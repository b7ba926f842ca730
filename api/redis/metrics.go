package redis

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the metrics of this server.
type metrics struct {
	conns        prometheus.Gauge
	connsRefused prometheus.Counter
	timeouts     prometheus.Counter
	outputFull   prometheus.Counter
	panics       prometheus.Counter
	received     prometheus.Counter
	sent         prometheus.Counter
	calls        *prometheus.CounterVec
	errors       map[string]prometheus.Counter // by code
}

// errorCodes are the first words of errors. Errors with other words count as ERR.
var errorCodes = []string{
	"ERR", "WRONGTYPE", "CROSSSLOT", "EXECABORT", "NOPROTO", "WRONGPASS", "OOM", "DISKFULL",
	"LEADERLESS", "OVERLOADED", "UNKNOWN", "CONFLICT", "EXPIRED", "DRAINING",
}

// failed counts an error reply.
func (m *metrics) failed(text string) {
	code, _, _ := strings.Cut(text, " ")
	c := m.errors[code]
	if c == nil {
		c = m.errors["ERR"]
	}
	c.Inc()
}

func newMetrics(registry *prometheus.Registry) (*metrics, error) {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "countd_redis_" + name, Help: help})
	}
	m := &metrics{
		conns:        prometheus.NewGauge(prometheus.GaugeOpts{Name: "countd_redis_connections", Help: "Open connections of the Redis protocol."}),
		connsRefused: counter("connections_refused_total", "Connections refused because too many were open."),
		timeouts:     counter("timeouts_total", "Connections closed because no command, or no complete command, arrived in time."),
		outputFull:   counter("output_full_total", "Connections closed because their client did not read its replies."),
		panics:       counter("panics_total", "Commands that panicked."),
		received:     counter("received_bytes_total", "Bytes of commands."),
		sent:         counter("sent_bytes_total", "Bytes of replies."),
		errors:       map[string]prometheus.Counter{},
	}
	m.calls = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "countd_redis_commands_total", Help: "Commands executed, including those of transactions.",
	}, []string{"command"})
	errors := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "countd_redis_errors_total", Help: "Errors answered, by their first word.",
	}, []string{"code"})
	for _, c := range []prometheus.Collector{
		m.conns, m.connsRefused, m.timeouts, m.outputFull, m.panics, m.received, m.sent, m.calls, errors,
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

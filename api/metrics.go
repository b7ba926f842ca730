package api

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// metrics are the api's own. Every series that a request can touch is resolved
// when the server is made, so that a request looks up no label.
type metrics struct {
	inFlight     prometheus.Gauge
	panics       prometheus.Counter
	conns        prometheus.Gauge
	connsRefused prometheus.Counter
	overloads    *prometheus.CounterVec

	durations *prometheus.HistogramVec
	received  *prometheus.CounterVec
	sent      *prometheus.CounterVec
}

// statusClasses are the values of the label code.
var statusClasses = [...]string{"1xx", "2xx", "3xx", "4xx", "5xx"}

// observers are the series of one endpoint.
type observers struct {
	durations [len(statusClasses)]prometheus.Observer
	received  prometheus.Counter
	sent      prometheus.Counter
}

func newMetrics(registry *prometheus.Registry) (*metrics, error) {
	m := &metrics{
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countd_http_requests_in_flight",
			Help: "Requests that are being served.",
		}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "countd_http_panics_total",
			Help: "Requests whose handler panicked.",
		}),
		conns: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countd_http_connections",
			Help: "Open connections.",
		}),
		connsRefused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "countd_http_connections_refused_total",
			Help: "Connections refused because too many were open.",
		}),
		overloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countd_http_overloaded_total",
			Help: "Requests refused before their body was looked at: in_flight, as many are being served as may be; wait, the writes before it would take more than a quarter of its deadline; bodies, no memory for its body.",
		}, []string{"reason"}),
		durations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "countd_http_request_duration_seconds",
			Help:    "From a request's last byte until its answer is ready to send.",
			Buckets: prometheus.ExponentialBuckets(25e-6, 2, 20), // 25 µs to 13 s
		}, []string{"endpoint", "code"}),
		received: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countd_http_request_bytes_total",
			Help: "Bytes of request bodies.",
		}, []string{"endpoint"}),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countd_http_response_bytes_total",
			Help: "Bytes of answer bodies.",
		}, []string{"endpoint"}),
	}
	for _, c := range []prometheus.Collector{
		m.inFlight, m.panics, m.conns, m.connsRefused, m.overloads, m.durations, m.received, m.sent,
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("cannot register metrics: %w", err)
		}
	}
	return m, registerRuntime(registry)
}

// registerRuntime adds the collectors of Go and of the process, unless the owner
// of the registry has.
func registerRuntime(registry *prometheus.Registry) error {
	for _, c := range []prometheus.Collector{
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		var registered prometheus.AlreadyRegisteredError
		if err := registry.Register(c); err != nil && !errors.As(err, &registered) {
			return fmt.Errorf("cannot register runtime metrics: %w", err)
		}
	}
	return nil
}

// observersOf returns the series of one endpoint.
func (m *metrics) observersOf(endpoint string) observers {
	o := observers{
		received: m.received.WithLabelValues(endpoint),
		sent:     m.sent.WithLabelValues(endpoint),
	}
	for i, class := range statusClasses {
		o.durations[i] = m.durations.WithLabelValues(endpoint, class)
	}
	return o
}

// observe counts one request that was answered.
func (o *observers) observe(status int, took time.Duration, received, sent int) {
	class := min(max(status/100-1, 0), len(statusClasses)-1)
	o.durations[class].Observe(took.Seconds())
	o.received.Add(float64(received))
	o.sent.Add(float64(sent))
}

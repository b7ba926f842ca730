package gate

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
)

// Metrics are the metrics of HTTP. An endpoint's first request resolves its series and keeps
// them. So later requests look up no label, and unused endpoints have no series.
type Metrics struct {
	InFlight     prometheus.Gauge
	Panics       prometheus.Counter
	Conns        prometheus.Gauge
	ConnsRefused prometheus.Counter
	Overloads    *prometheus.CounterVec
	Drift        *prometheus.CounterVec

	answers   [len(statusClasses)]prometheus.Counter
	durations *prometheus.HistogramVec
	received  *prometheus.CounterVec
	sent      *prometheus.CounterVec
}

// statusClasses are the values of the label code.
var statusClasses = [...]string{"1xx", "2xx", "3xx", "4xx", "5xx"}

// Observers holds the series of one endpoint by status class. A series is nil until the first
// answer of its class. If two first requests are concurrent, they resolve the same series.
type Observers struct {
	metrics  *Metrics
	endpoint string
	classes  [len(statusClasses)]atomic.Pointer[series]
}

// series counts the answers of one endpoint and status class.
type series struct {
	durations      prometheus.Observer
	received, sent prometheus.Counter // bytes of the endpoint, in all status classes
}

// NewMetrics registers the metrics.
func NewMetrics(registry *prometheus.Registry, version string) (*Metrics, error) {
	answers := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "countd_http_requests_total",
		Help: "Requests that were answered.",
	}, []string{"code"})
	m := &Metrics{
		Drift: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countd_reconcile_drift_total",
			Help: "Sum of the corrections of counts, in either direction.",
		}, []string{"keyspace"}),
		InFlight: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countd_http_requests_in_flight",
			Help: "Requests that are being served.",
		}),
		Panics: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "countd_http_panics_total",
			Help: "Requests whose handler panicked.",
		}),
		Conns: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "countd_http_connections",
			Help: "Open connections.",
		}),
		ConnsRefused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "countd_http_connections_refused_total",
			Help: "Connections refused because too many were open.",
		}),
		Overloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "countd_http_overloaded_total",
			Help: "Requests refused before their body was read. in_flight: too many requests in flight. wait: earlier writes would take more than a quarter of the deadline. bodies: no memory for the body.",
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
		m.InFlight, m.Panics, m.Conns, m.ConnsRefused, m.Overloads, answers, m.durations, m.received, m.sent, m.Drift, buildInfo(version),
	} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("cannot register metrics: %w", err)
		}
	}
	// Create these series at the start, because Prometheus sees no increase if a series begins with
	// the value 1.
	for i, class := range statusClasses {
		m.answers[i] = answers.WithLabelValues(class)
	}
	return m, registerRuntime(registry)
}

// buildInfo returns a gauge that is 1 and has the version as its label.
func buildInfo(version string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "countd_build_info", Help: "Always 1; the label is the program's version.",
		ConstLabels: prometheus.Labels{"version": version},
	}, func() float64 { return 1 })
}

// registerRuntime adds the collectors of Go and of the process, unless the registry has them.
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

// ObserversOf returns the observers of an endpoint that has none yet.
func (m *Metrics) ObserversOf(endpoint string) *Observers {
	return &Observers{metrics: m, endpoint: endpoint}
}

// Observe counts one request that was answered.
func (o *Observers) Observe(status int, took time.Duration, received, sent int) {
	class := min(max(status/100-1, 0), len(statusClasses)-1)
	s := o.classes[class].Load()
	if s == nil {
		s = o.resolve(class)
	}
	o.metrics.answers[class].Inc()
	s.durations.Observe(took.Seconds())
	s.received.Add(float64(received))
	s.sent.Add(float64(sent))
}

func (o *Observers) resolve(class int) *series {
	s := &series{
		durations: o.metrics.durations.WithLabelValues(o.endpoint, statusClasses[class]),
		received:  o.metrics.received.WithLabelValues(o.endpoint),
		sent:      o.metrics.sent.WithLabelValues(o.endpoint),
	}
	o.classes[class].Store(s)
	return s
}

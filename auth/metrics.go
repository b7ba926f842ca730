package auth

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	refused   [refusals]prometheus.Counter
	permitted [refusals]prometheus.Counter
}

func newMetrics(registry *prometheus.Registry, a *Authorizer) (*metrics, error) {
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "countd_auth_refused_total",
		Help: "Calls refused by --auth enforce: no_token, bad_token, expired_token, users_unproven (this node cannot prove that its users are current), permission_denied, overloaded (a limit of the user).",
	}, []string{"reason"})
	permitted := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "countd_auth_permitted_total",
		Help: "Calls that --auth permissive served and enforce would have refused, by the same reasons.",
	}, []string{"reason"})
	m := &metrics{}
	for r := Granted + 1; r < refusals; r++ {
		m.refused[r], m.permitted[r] = refused.WithLabelValues(r.String()), permitted.WithLabelValues(r.String())
	}
	for _, c := range []prometheus.Collector{refused, permitted, userMetrics{a}} {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("cannot register metrics: %w", err)
		}
	}
	return m, nil
}

// userMetrics exports, for each user, the number of calls that each limit refused. The number of
// users is bounded, and the series of a deleted user ends.
type userMetrics struct{ a *Authorizer }

var overloadedDesc = prometheus.NewDesc("countd_user_overloaded_total",
	"Calls of a user beyond one of its limits.", []string{"user", "limit"}, nil)

func (u userMetrics) Describe(to chan<- *prometheus.Desc) { to <- overloadedDesc }

// Collect sends a series for each limit that users have.
func (u userMetrics) Collect(to chan<- prometheus.Metric) {
	u.a.mu.Lock()
	defer u.a.mu.Unlock()
	for name, limiter := range u.a.mu.limiters {
		for l := range limits {
			if limiter.buckets[l].perSec > 0 || limiter.refused[l].Load() > 0 {
				to <- prometheus.MustNewConstMetric(overloadedDesc, prometheus.CounterValue, float64(limiter.refused[l].Load()), name, l.String())
			}
		}
	}
}

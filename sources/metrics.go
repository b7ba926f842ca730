package sources

import (
	"maps"
	"slices"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/source"
)

func described(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("countd_source_"+name, help, append([]string{"source"}, labels...), nil)
}

var (
	descPosition   = described("position", "Position of a partition that this node reads: all below it is applied. Of a Redis stream, milliseconds; of PostgreSQL, an LSN.", "partition")
	descEnd        = described("end", "Position of the message that will be written next, in the unit of countd_source_position.", "partition")
	descLag        = described("lag_messages", "Messages that wait in a partition that this node reads.", "partition")
	descLagSeconds = described("lag_seconds", "Age of the last applied message while later messages wait; absent if their times are unknown.", "partition")
	descState      = described("state", "1 for the state of a partition that this node reads: running or stalled.", "partition", "state")
	descErrors     = described("errors_total", "Messages rejected (reason rejected), and times that reading began anew: moved, because another node had read on; stalled; broker.", "reason")
)

// Describe implements prometheus.Collector.
func (s *Sources) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descPosition, descEnd, descLag, descLagSeconds, descState, descErrors} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Sources) Collect(to chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	newest := map[string]uint64{} // by name, because a reader may still be ending while a newer source of the same name is read
	for number, r := range s.mu.readers {
		newest[r.src.Name] = max(newest[r.src.Name], number)
	}
	for _, number := range slices.Sorted(maps.Values(newest)) {
		r := s.mu.readers[number]
		statuses, _ := r.status()
		counts := map[string]uint64{"rejected": 0, "moved": 0, "stalled": 0, "broker": 0}
		for _, number := range slices.Sorted(maps.Keys(statuses)) {
			status, partition := statuses[number], strconv.FormatUint(uint64(number), 10)
			gauge := func(d *prometheus.Desc, value float64, labels ...string) {
				to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, append([]string{r.src.Name, partition}, labels...)...)
			}
			if status.Known {
				gauge(descPosition, number64(status.Position))
				gauge(descEnd, number64(status.End))
				if lag, known := status.Lag(); known {
					gauge(descLag, float64(lag))
				}
				if status.LagSeconds >= 0 {
					gauge(descLagSeconds, status.LagSeconds)
				}
			}
			gauge(descState, 1, status.State)
			counts["rejected"] += status.Rejected
			for reason, n := range status.Errors {
				counts[reason] += n
			}
		}
		for _, reason := range slices.Sorted(maps.Keys(counts)) {
			to <- prometheus.MustNewConstMetric(descErrors, prometheus.CounterValue, float64(counts[reason]), r.src.Name, reason)
		}
	}
}

// number64 returns a position as one number for graphs. It drops a part of the position.
func number64(p source.Position) float64 {
	if p.Hi != 0 {
		return float64(p.Hi)
	}
	return float64(p.Lo)
}

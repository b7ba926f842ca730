package headroom

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/shard/metric"
)

// register registers the metrics of the last check.
func (h *Headroom) register(metrics prometheus.Registerer) error {
	flag := func(full *atomic.Bool) func() float64 {
		return func() float64 {
			if full.Load() {
				return 1
			}
			return 0
		}
	}
	bytes := func(n *atomic.Uint64) func() float64 { return func() float64 { return float64(n.Load()) } }
	return metric.Register(metrics,
		metric.Gauge("countd_memory_full", "1 while the node refuses requests that need more memory.", flag(&h.MemoryFull)),
		metric.Gauge("countd_disk_full", "1 while the node refuses requests that need more disk.", flag(&h.DiskFull)),
		metric.Gauge("countd_memory_limit_bytes", "The memory limit, beyond which new rows are refused; 0 for none.",
			func() float64 { return float64(h.MemoryLimit) }),
		metric.Gauge("countd_memory_needed_bytes", "Memory that counts towards the limit: the memory in use plus what the garbage collector needs.",
			bytes(&h.memoryNeeds)),
		metric.Gauge("countd_disk_reserve_bytes", "The disk reserve, 0 for none.",
			func() float64 { return float64(h.DiskReserve) }),
		metric.Gauge("countd_disk_needed_bytes", "Free disk space below which the node refuses writes: the reserve plus the size of the next snapshots.",
			bytes(&h.diskNeeds)),
		metric.Gauge("countd_disk_free_bytes", "Free space of the data directory's disk.", bytes(&h.diskFree)),
	)
}

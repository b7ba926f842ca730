package headroom

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/shard/metric"
)

// register registers the metrics of the last check.
func (h *Headroom) register(metrics prometheus.Registerer) error {
	flag := func(full *atomic.Bool) func() int {
		return func() (value int) {
			if full.Load() {
				value = 1
			}
			return value
		}
	}
	return metric.Register(metrics,
		metric.Gauge("countd_memory_full", "1 while the node refuses requests that need more memory.", flag(&h.MemoryFull)),
		metric.Gauge("countd_disk_full", "1 while the node refuses requests that need more disk.", flag(&h.DiskFull)),
		metric.Gauge("countd_memory_limit_bytes", "The memory limit, beyond which new rows are refused; 0 for none.",
			func() uint64 { return h.MemoryLimit }),
		metric.Gauge("countd_memory_needed_bytes", "Memory that counts towards the limit: the memory in use plus what the garbage collector needs.",
			h.memoryNeeds.Load),
		metric.Gauge("countd_disk_reserve_bytes", "The disk reserve, 0 for none.",
			func() uint64 { return h.DiskReserve }),
		metric.Gauge("countd_disk_needed_bytes", "Free disk space below which the node refuses writes: the reserve plus the size of the next snapshots.",
			h.diskNeeds.Load),
		metric.Gauge("countd_disk_free_bytes", "Free space of the data directory's disk.", h.diskFree.Load),
	)
}

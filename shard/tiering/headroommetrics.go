package tiering

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
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
	return Register(metrics,
		Gauge("countd_memory_full", "1 while the node refuses requests that need more memory.", flag(&h.MemoryFull)),
		Gauge("countd_disk_full", "1 while the node refuses requests that need more disk.", flag(&h.DiskFull)),
		Gauge("countd_memory_limit_bytes", "The memory limit, beyond which new rows are refused; 0 for none.",
			func() uint64 { return h.MemoryLimit }),
		Gauge("countd_memory_needed_bytes", "Memory that counts towards the limit: the memory in use plus what the garbage collector needs.",
			h.memoryNeeds.Load),
		Gauge("countd_disk_reserve_bytes", "The disk reserve, 0 for none.",
			func() uint64 { return h.DiskReserve }),
		Gauge("countd_disk_needed_bytes", "Free disk space below which the node refuses writes: the reserve plus the size of the next snapshots.",
			h.diskNeeds.Load),
		Gauge("countd_disk_free_bytes", "Free space of the data directory's disk.", h.diskFree.Load),
	)
}

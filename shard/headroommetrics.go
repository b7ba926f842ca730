package shard

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// register registers what look found last.
func (h *headroom) register(metrics prometheus.Registerer) error {
	flag := func(full *atomic.Bool) func() float64 {
		return func() float64 {
			if full.Load() {
				return 1
			}
			return 0
		}
	}
	bytes := func(n *atomic.Uint64) func() float64 { return func() float64 { return float64(n.Load()) } }
	return register(metrics,
		gauge("countd_memory_full", "1 while the node refuses what needs more memory.", flag(&h.memoryFull)),
		gauge("countd_disk_full", "1 while the node refuses what needs more disk.", flag(&h.diskFull)),
		gauge("countd_memory_limit_bytes", "The memory limit, past which rows that are not there are refused; 0 for none.",
			func() float64 { return float64(h.memoryLimit) }),
		gauge("countd_memory_needed_bytes", "What is held against the memory limit: what is in use, and what the collector needs besides.",
			bytes(&h.memoryNeeds)),
		gauge("countd_disk_reserve_bytes", "The disk reserve, 0 for none.",
			func() float64 { return float64(h.diskReserve) }),
		gauge("countd_disk_needed_bytes", "What the disk is to have free, or writes are refused: the reserve, and what the next snapshots may take.",
			bytes(&h.diskNeeds)),
		gauge("countd_disk_free_bytes", "What the data directory's disk has free.", bytes(&h.diskFree)),
	)
}

package shard

import (
	"fmt"
	"log/slog"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/countd/countd/engine"
)

const (
	// headroomTick is how often memory and disk are looked at. At 1 GB/s of log,
	// more than was ever seen, the default reserve outlasts one tick.
	headroomTick = 500 * time.Millisecond
	// collectorShare is what the collector needs beside what is alive: its goal
	// for large heaps is a quarter (cmd/countd), and a heap that is full of live
	// data would be collected without end.
	collectorShare = 4

	// DiskReserveDefault is kept free for the snapshots and log entries of
	// writes that were accepted.
	DiskReserveDefault = 1 << 30
)

// headroom knows whether the node may take more. Past its memory limit it takes
// no new rows; past its disk reserve it takes no writes, because each is an
// entry of a log, and a log that cannot be written ends the process.
//
// The zero headroom is without bounds. Its goroutine is started by watch and
// ended by close, which waits.
type headroom struct {
	memoryFull atomic.Bool
	diskFull   atomic.Bool

	memoryLimit uint64 // bytes; 0 for none
	diskReserve uint64 // bytes; 0 for none
	live        func() uint64
	free        func() (uint64, error)
	logger      *slog.Logger

	stop, stopped chan struct{}
}

// watch begins to look at the file system of dir and at this process's heap.
// cfg gives the bounds.
func (h *headroom) watch(cfg *Config) error {
	h.memoryLimit, h.diskReserve, h.logger = cfg.MemoryLimit, cfg.DiskReserve, cfg.Logger
	h.live = liveHeapBytes
	h.free = func() (uint64, error) { return freeBytes(cfg.Dir) }
	for name, full := range map[string]*atomic.Bool{"memory": &h.memoryFull, "disk": &h.diskFull} {
		err := cfg.Metrics.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "countd_" + name + "_full",
			Help: "1 while the node refuses what needs more " + name + ".",
		}, func() float64 {
			if full.Load() {
				return 1
			}
			return 0
		}))
		if err != nil {
			return fmt.Errorf("cannot register metrics: %w", err)
		}
	}
	h.stop, h.stopped = make(chan struct{}), make(chan struct{})
	h.look()
	go h.run()
	return nil
}

func (h *headroom) run() {
	defer close(h.stopped)
	tick := time.NewTicker(headroomTick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			h.look()
		case <-h.stop:
			return
		}
	}
}

func (h *headroom) close() {
	if h.stop == nil {
		return
	}
	close(h.stop)
	<-h.stopped
}

// look takes stock once. What was full counts as free again a little below the
// bound, so that it does not change with every request.
func (h *headroom) look() {
	live := h.live()
	h.turn(&h.memoryFull, h.memoryLimit > 0, live+live/collectorShare, h.memoryLimit, "memory")
	free, err := h.free()
	if err != nil {
		h.logger.Warn("cannot tell the free space of the disk", "err", err)
		return
	}
	h.turn(&h.diskFull, h.diskReserve > 0, h.diskReserve, free, "disk")
}

// turn sets full while used is not below limit, and until it is by a sixteenth.
func (h *headroom) turn(full *atomic.Bool, bounded bool, used, limit uint64, what string) {
	was := full.Load()
	now := bounded && (used >= limit || was && used >= limit-limit/16)
	if full.Store(now); now != was {
		h.logger.Warn("room for writes", "of", what, "full", now, "needs_bytes", used, "has_bytes", limit)
	}
}

// admit returns an error if the node has no room for what the write needs. Ops
// for groups that are led elsewhere are looked at there.
func (h *headroom) admit(w *Write, groups []*counterGroup) error {
	if h.diskFull.Load() {
		return ErrDiskFull
	}
	if !h.memoryFull.Load() {
		return nil
	}
	for i := range w.Ops {
		s, key := keyOf(w.Ops[i].ID, len(groups))
		r, err := groups[s].led()
		if err == nil && makesRow(&w.Ops[i]) && !r.fsm.Table().Has(key) {
			return &NewRowError{Op: i}
		}
	}
	return nil
}

// check returns what looks at each op of a forwarded section, nil while there is
// room for anything.
func (h *headroom) check(r *replica) func(key uint64, op *engine.Op) error {
	if !h.memoryFull.Load() {
		return nil
	}
	return func(key uint64, op *engine.Op) error {
		if makesRow(op) && !r.fsm.Table().Has(key) {
			return ErrMemoryFull
		}
		return nil
	}
}

// makesRow reports whether the op would leave a row where there is none.
func makesRow(op *engine.Op) bool {
	for _, c := range op.Cells {
		if c.Value != 0 {
			return true
		}
	}
	return false
}

func liveHeapBytes() uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

func freeBytes(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("cannot stat the file system of %s: %w", dir, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

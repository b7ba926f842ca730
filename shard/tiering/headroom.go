package tiering

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/shard/errs"
)

const (
	// HeadroomTick is the interval between checks of memory and disk. In one tick, a disk that
	// writes 1 GB per second uses half of the default reserve.
	HeadroomTick = 500 * time.Millisecond

	// collectEvery is the shortest interval between garbage collections that Look starts. A
	// collection takes milliseconds.
	collectEvery = 2 * time.Second

	// MemoryLimitMin is the smallest value of HeadroomConfig.MemoryLimit. A node without rows uses up to half
	// of it for running requests.
	MemoryLimitMin = 64 << 20

	// Memory is tight once the use is within 1/memoryTightShare of the limit. The margin is twice
	// that of the function turn, so that rows leave memory until the node accepts new rows again.
	memoryTightShare = 8

	// DiskReserveDefault is the disk space kept free for the log entries of accepted writes.
	DiskReserveDefault = 1 << 30
)

// HeadroomConfig configures a Headroom.
type HeadroomConfig struct {
	MemoryLimit      uint64                 // bytes; 0 for none
	DiskReserve      uint64                 // bytes; 0 for none
	CollectorPercent uint64                 // upper bound of GOGC in the estimates; 0 for none
	Tables           func() uint64          // present bytes of all tables
	Snapshots        func() uint64          // total size of the next snapshots of all groups
	Kept             func() uint64          // bytes of disk kept for growths; nil for none
	Free             func() (uint64, error) // free bytes of the disk
	Logger           *slog.Logger
}

// Headroom tracks whether the node may accept new rows and writes. At its memory limit, the node
// accepts no new rows. At its disk reserve, it accepts no writes, because each write is a log
// entry. A replica without disk space for its log can neither store entries nor vote.
//
// The zero Headroom has no bounds. Watch starts its goroutine; Close ends it and waits.
type Headroom struct {
	MemoryFull atomic.Bool
	// MemoryTight is set once the use is within 1/memoryTightShare of the limit. Then rows leave
	// memory, before any write is refused.
	MemoryTight atomic.Bool
	MemoryOver  atomic.Uint64 // bytes of tables to move out of memory so that memory is no longer tight, as of the last check that found memory tight
	DiskFull    atomic.Bool
	VotersFull  atomic.Int64              // number of groups led here that accept no writes, because this node or too many voters have no disk space
	DiskHangs   atomic.Int64              // number of local replicas with a hanging write to the log
	recoveredAt atomic.Pointer[time.Time] // when a write to a log last stopped hanging; nil for never

	// These are results of the last Look, so that readers need not wait for the disk.
	memoryNeeds atomic.Uint64 // bytes, including the garbage collector's share
	diskNeeds   atomic.Uint64 // bytes: the reserve plus the size of the next snapshots
	diskFree    atomic.Uint64 // bytes

	HeadroomConfig
	Live      func() uint64 // bytes of the live heap as of the last collection
	Collector func() uint64 // additional memory for the garbage collector, in percent of the memory in use
	collect   func()        // runs the garbage collector; nil for never
	collected time.Time     // time of the last call of collect; only Look's goroutine uses it

	stop, stopped chan struct{}
}

// Watch starts the checks of the disk and of this process's memory.
func (h *Headroom) Watch(cfg HeadroomConfig, metrics prometheus.Registerer) error {
	h.HeadroomConfig = cfg
	h.Live, h.collect = func() uint64 { return RuntimeMetric("/gc/heap/live:bytes") }, runtime.GC
	h.Collector = func() uint64 { return collectorPercent(cfg.CollectorPercent) }
	if err := h.register(metrics); err != nil {
		return err
	}
	h.stop, h.stopped = make(chan struct{}), make(chan struct{})
	h.Look()
	go h.run()
	return nil
}

func (h *Headroom) run() {
	defer close(h.stopped)
	tick := time.NewTicker(HeadroomTick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			h.Look()
		case <-h.stop:
			return
		}
	}
}

func (h *Headroom) Close() {
	if h.stop == nil {
		return
	}
	close(h.stop)
	<-h.stopped
	h.stop = nil
}

// Look checks memory and disk once.
func (h *Headroom) Look() {
	// The live heap is known only as of the last collection. Mainly the tables have grown since
	// then, so needs also considers their present size.
	needs := h.needs()
	if h.worthCollecting(needs) {
		h.collect()
		needs, h.collected = h.needs(), time.Now()
	}
	h.memoryNeeds.Store(needs)
	turn(&h.MemoryFull, h.MemoryLimit > 0, needs, h.MemoryLimit)
	from := h.MemoryLimit - h.MemoryLimit/memoryTightShare
	tight := h.MemoryLimit > 0 && needs >= from
	if tight {
		h.MemoryOver.Store((needs - from) * 100 / (100 + h.Collector()))
	}
	h.MemoryTight.Store(tight)
	free, err := h.Free()
	if err != nil {
		h.Logger.Warn("cannot tell the free space of the disk", "err", err)
		return
	}
	reserved := h.DiskReserve + h.Snapshots()
	if h.Kept != nil {
		reserved += h.Kept()
	}
	h.diskNeeds.Store(reserved)
	h.diskFree.Store(free)
	turn(&h.DiskFull, h.DiskReserve > 0, reserved, free)
}

// hasRoom reports whether the disk has room for bytes besides the next snapshots, and will not be full afterwards.
func (h *Headroom) hasRoom(bytes uint64) bool {
	free := h.diskFree.Load()
	return h.Free == nil || h.diskNeeds.Load()+bytes < free-free/fullShare
}

// needs returns the memory in use plus the garbage collector's share.
func (h *Headroom) needs() uint64 {
	used := max(h.Live(), h.Tables())
	return used + used*h.Collector()/100
}

// worthCollecting reports whether a garbage collection may bring the use below the limit, because
// the tables alone are below the limit. A node that refuses requests allocates little, and so would
// not start a collection by itself.
func (h *Headroom) worthCollecting(needs uint64) bool {
	if h.collect == nil || h.MemoryLimit == 0 || needs < h.MemoryLimit || time.Since(h.collected) < collectEvery {
		return false
	}
	tables := h.Tables()
	return tables+tables*h.Collector()/100 < h.MemoryLimit
}

// turn sets the flag full once used reaches limit, and clears it once used is 1/fullShare of limit below
// limit. So the flag does not change with every request.
func turn(full *atomic.Bool, bounded bool, used, limit uint64) {
	full.Store(bounded && (used >= limit || full.Load() && used >= limit-limit/fullShare))
}

const fullShare = 16

// hangKept is how long a node should lead no group after its disk has hung. A leadership that
// returned at once would have to leave again at the next hang.
const hangKept = time.Minute

// NoteHang records that a write to a local log hangs, or that the write has stopped hanging.
func (h *Headroom) NoteHang(hangs bool) {
	if hangs {
		h.DiskHangs.Add(1)
		return
	}
	now := time.Now()
	h.recoveredAt.Store(&now)
	h.DiskHangs.Add(-1)
}

// Unfit returns an error if the node should lead no group, because its disk is full, hangs, or
// hung within hangKept.
func (h *Headroom) Unfit() error {
	if at := h.recoveredAt.Load(); h.DiskHangs.Load() > 0 || at != nil && time.Since(*at) < hangKept {
		return errDiskHangs
	}
	return h.DiskError()
}

// errDiskHangs is returned while a write to a log hangs, because the disk hangs or is full, and
// for hangKept after that.
var errDiskHangs = errors.New("the disk hangs or is full, or did a moment ago")

// DiskError returns a *errs.DiskFullError while the disk is full.
func (h *Headroom) DiskError() error {
	if !h.DiskFull.Load() {
		return nil
	}
	return &errs.DiskFullError{FreeBytes: h.diskFree.Load(), NeededBytes: h.diskNeeds.Load(), ReserveBytes: h.DiskReserve}
}

// collectorPercent returns GOGC, or bound if bound is smaller and not 0. The bound is needed
// because the process sets a higher GOGC, but only while its heap is small. If GOGC is off, it
// returns 0, because the collector then follows only GOMEMLIMIT.
func collectorPercent(bound uint64) uint64 {
	percent := RuntimeMetric("/gc/gogc:percent")
	if percent == math.MaxUint64 {
		return 0
	}
	if bound > 0 {
		return min(percent, bound)
	}
	return percent
}

func RuntimeMetric(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

func FreeBytes(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("cannot stat the file system of %s: %w", dir, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// Package headroom tracks how much memory and disk this node may still use, and divides the
// free disk among snapshots that are written at the same time.
//
// It never refuses a request itself: the code that admits requests asks it.
//
// Invariant: once the use has reached a bound, the bound counts as reached until the use is a
// sixteenth below it.
package headroom

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
)

const (
	// Tick is the interval between checks of memory and disk. In that time a disk that writes 1 GB
	// a second uses half of the default reserve. The size of snapshots is reserved in addition.
	Tick = 500 * time.Millisecond

	// collectEvery is the least interval between collections that check whether memory is full. A
	// collection scans the headers of segments, which takes milliseconds.
	collectEvery = 2 * time.Second

	// MemoryLimitMin is the least value of Config.MemoryLimit. A node without rows uses up to half
	// of it for running requests.
	MemoryLimitMin = 64 << 20

	// Memory is tight once the use is within 1/memoryTightShare of the limit. That is twice the
	// margin of turn, so that rows keep leaving memory until new ones are accepted again.
	memoryTightShare = 8

	// DiskReserveDefault is kept free for the log entries of accepted writes.
	DiskReserveDefault = 1 << 30
)

// Config configures a Headroom.
type Config struct {
	MemoryLimit      uint64                 // bytes; 0 for none
	DiskReserve      uint64                 // bytes; 0 for none
	CollectorPercent uint64                 // upper bound of the collector's goal; 0 for the runtime's goal
	Tables           func() uint64          // bytes of all tables now
	Snapshots        func() uint64          // total size of the next snapshots of all groups
	Free             func() (uint64, error) // free bytes of the disk
	Logger           *slog.Logger
}

// Headroom tracks whether the node may accept more. At its memory limit it accepts no new rows. At
// its disk reserve it accepts no writes, because each write is a log entry, and a replica whose
// log has no room can neither store entries nor vote.
//
// The zero Headroom has no bounds. Watch starts its goroutine; Close ends it and waits.
type Headroom struct {
	MemoryFull atomic.Bool
	// MemoryTight is set once the use is within memoryTightShare of the limit. Then rows that may
	// leave memory do so, before anything is refused.
	MemoryTight atomic.Bool
	MemoryOver  atomic.Uint64 // bytes of tables by which the use exceeded the bound of MemoryTight, as of the last check that found memory tight
	DiskFull    atomic.Bool
	VotersFull  atomic.Int64              // groups led here that accept no writes: too few voters have disk space, or this node has none
	DiskHangs   atomic.Int64              // local replicas whose log takes no entries
	recoveredAt atomic.Pointer[time.Time] // when a log last recovered; nil for never

	// The results of the last Look. Metrics, Usage and others read them without waiting for the disk.
	memoryNeeds atomic.Uint64 // bytes, including what the collector needs
	diskNeeds   atomic.Uint64 // bytes: the reserve plus the size of the next snapshots
	diskFree    atomic.Uint64 // bytes

	Config
	Live      func() uint64 // bytes of the live heap as of the last collection
	Collector func() uint64 // percent of the memory in use that the collector needs in addition
	collect   func()        // runs the collector; nil for never
	collected time.Time     // when collect last ran; used only by Look's goroutine

	stop, stopped chan struct{}
}

// Watch starts the checks of the disk and of this process's memory.
func (h *Headroom) Watch(cfg Config, metrics prometheus.Registerer) error {
	h.Config = cfg
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
	tick := time.NewTicker(Tick)
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

// Look checks once. A full resource counts as free only a little below its bound, so that the
// state does not change with every request.
func (h *Headroom) Look() {
	// Between collections only the tables grow much.
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
	h.diskNeeds.Store(reserved)
	h.diskFree.Store(free)
	turn(&h.DiskFull, h.DiskReserve > 0, reserved, free)
}

// needs returns the memory in use plus what the collector needs.
func (h *Headroom) needs() uint64 {
	used := max(h.Live(), h.Tables())
	return used + used*h.Collector()/100
}

// worthCollecting reports whether the use is above the limit although the tables alone are not.
// The rest may be garbage of earlier requests. A node that refuses requests would not run the
// collector by itself.
func (h *Headroom) worthCollecting(needs uint64) bool {
	if h.collect == nil || h.MemoryLimit == 0 || needs < h.MemoryLimit || time.Since(h.collected) < collectEvery {
		return false
	}
	tables := h.Tables()
	return tables+tables*h.Collector()/100 < h.MemoryLimit
}

// turn sets full when used reaches limit, and clears it once used is a sixteenth below.
func turn(full *atomic.Bool, bounded bool, used, limit uint64) {
	full.Store(bounded && (used >= limit || full.Load() && used >= limit-limit/16))
}

// hangKept is how long a node whose disk hung leads nothing. Groups that returned at once would
// leave again at the next hang.
const hangKept = time.Minute

// NoteHang records that one more local log has stopped taking entries, or has recovered.
func (h *Headroom) NoteHang(hangs bool) {
	if hangs {
		h.DiskHangs.Add(1)
		return
	}
	now := time.Now()
	h.recoveredAt.Store(&now)
	h.DiskHangs.Add(-1)
}

// Unfit returns why the node should lead nothing, because its disk is full, hangs, or hung within
// hangKept; or nil.
func (h *Headroom) Unfit() error {
	if at := h.recoveredAt.Load(); h.DiskHangs.Load() > 0 || at != nil && time.Since(*at) < hangKept {
		return errDiskHangs
	}
	return h.DiskError()
}

// errDiskHangs is returned while a write of a log does not end, because the disk hangs or is full,
// and for hangKept afterwards.
var errDiskHangs = errors.New("the disk hangs or is full, or did a moment ago")

// DiskError returns a *DiskFullError while the disk is full.
func (h *Headroom) DiskError() error {
	if !h.DiskFull.Load() {
		return nil
	}
	return &DiskFullError{FreeBytes: h.diskFree.Load(), NeededBytes: h.diskNeeds.Load(), ReserveBytes: h.DiskReserve}
}

// collectorPercent returns the collector's goal, GOGC, or bound if that is smaller and not 0. The
// process sets a higher GOGC only while its heap is small. A collector that is turned off has no goal
// but GOMEMLIMIT.
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

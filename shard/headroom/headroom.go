// Package headroom tracks how much memory and disk this node may still use, and divides the
// free disk among snapshots that are written at the same time.
//
// It never refuses a request itself: the code that admits requests asks it.
//
// Invariant: a bound that the use has reached stays reached until the use is a sixteenth below it.
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
	// Tick is how often memory and disk are looked at. Meanwhile a disk
	// that takes 1 GB a second takes half of the default reserve; what snapshots
	// take is reserved besides.
	Tick = 500 * time.Millisecond

	// collectEvery is how often the collector is run at most to find out whether memory
	// is full: a cycle looks at the headers of segments, and takes milliseconds.
	collectEvery = 2 * time.Second

	// MemoryLimitMin is the least that Config.MemoryLimit may be. A node without a row
	// takes up to half of it, while requests are under way.
	MemoryLimitMin = 64 << 20

	// memoryTightShare of the limit is twice the room that turn waits for, so that rows keep
	// moving out of memory until new ones are accepted again.
	memoryTightShare = 8

	// DiskReserveDefault is kept free for the log entries of writes that were
	// accepted.
	DiskReserveDefault = 1 << 30
)

// Config says what a headroom checks.
type Config struct {
	MemoryLimit      uint64                 // bytes; 0 for none
	DiskReserve      uint64                 // bytes; 0 for none
	CollectorPercent uint64                 // what the collector's goal is brought down to; 0 where it stays
	Tables           func() uint64          // bytes of all tables now
	Snapshots        func() uint64          // bytes that the next snapshot of each group may take
	Free             func() (uint64, error) // bytes of the disk
	Logger           *slog.Logger
}

// Headroom knows whether the node may take more. Past its memory limit it takes
// no new rows; past its disk reserve it takes no writes, because each is an
// entry of a log, and a log that cannot be written ends the process.
//
// The zero headroom is without bounds. Its goroutine is started by watch and
// ended by close, which waits.
type Headroom struct {
	MemoryFull atomic.Bool
	// MemoryTight is set from memoryTightShare below the limit on: rows that may leave
	// memory are to, before anything is refused.
	MemoryTight atomic.Bool
	MemoryOver  atomic.Uint64 // bytes of tables that were too many when it last was
	DiskFull    atomic.Bool
	VotersFull  atomic.Int64              // groups led here that take no writes: too few voters have room, or this node has none
	DiskHangs   atomic.Int64              // replicas here whose log takes entries no more
	hungAt      atomic.Pointer[time.Time] // when one last took them again; nil for never

	// What look found, for the metrics: a scrape does not wait for the disk.
	memoryNeeds atomic.Uint64 // bytes, what the collector needs included
	diskNeeds   atomic.Uint64 // bytes: the reserve and what snapshots may take
	diskFree    atomic.Uint64 // bytes

	Config
	Live      func() uint64 // bytes of the heap in use when it was last collected
	Collector func() uint64 // percent of what is in use that the collector needs besides
	collect   func()        // runs the collector; nil never does
	collected time.Time     // when it was run last; of look's goroutine

	stop, stopped chan struct{}
}

// Watch begins to look at the disk and at this process's memory.
func (h *Headroom) Watch(cfg Config, metrics prometheus.Registerer) error {
	h.Config = cfg
	h.Live, h.collect = liveHeapBytes, runtime.GC
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

// Look takes stock once. What was full counts as free again a little below the
// bound, so that it does not change with every request.
func (h *Headroom) Look() {
	// The tables have grown since the last collection, and nothing else grows much.
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

// needs returns the memory in use, with what the collector needs besides.
func (h *Headroom) needs() uint64 {
	used := max(h.Live(), h.Tables())
	return used + used*h.Collector()/100
}

// worthCollecting reports whether too much is in use, and the tables alone would not be:
// the rest may be what requests had that were under way when the collector ran last,
// and a node that takes none does not run it.
func (h *Headroom) worthCollecting(needs uint64) bool {
	if h.collect == nil || h.MemoryLimit == 0 || needs < h.MemoryLimit || time.Since(h.collected) < collectEvery {
		return false
	}
	tables := h.Tables()
	return tables+tables*h.Collector()/100 < h.MemoryLimit
}

// turn sets full while used is not below limit, and until it is by a sixteenth.
func turn(full *atomic.Bool, bounded bool, used, limit uint64) {
	full.Store(bounded && (used >= limit || full.Load() && used >= limit-limit/16))
}

// hangKept is for how long a node whose disk hung leads nothing: groups that came back to it at once
// would leave it again at the next hang.
const hangKept = time.Minute

// NoteHang notes that the log of one more replica here takes entries no more, or takes them again.
func (h *Headroom) NoteHang(hangs bool) {
	if hangs {
		h.DiskHangs.Add(1)
		return
	}
	now := time.Now()
	h.hungAt.Store(&now)
	h.DiskHangs.Add(-1)
}

// Unfit returns why the node should lead nothing: its disk is full, or hangs or hung within hangKept.
// It returns nil otherwise.
func (h *Headroom) Unfit() error {
	if at := h.hungAt.Load(); h.DiskHangs.Load() > 0 || at != nil && time.Since(*at) < hangKept {
		return errDiskHangs
	}
	return h.DiskError()
}

// errDiskHangs is returned while writes of the log do not end, as the disk hangs or is full, and for
// hangKept after that.
var errDiskHangs = errors.New("the disk hangs or is full, or did a moment ago")

// DiskError returns a *DiskFullError while the disk is full.
func (h *Headroom) DiskError() error {
	if !h.DiskFull.Load() {
		return nil
	}
	return &DiskFullError{FreeBytes: h.diskFree.Load(), NeededBytes: h.diskNeeds.Load(), ReserveBytes: h.DiskReserve}
}

func liveHeapBytes() uint64 { return RuntimeMetric("/gc/heap/live:bytes") }

// collectorPercent is the collector's goal, GOGC, or least where it is brought down to
// that for a heap that is not small. A heap that is full of live data would be collected
// without end. A collector that is turned off has no goal but GOMEMLIMIT.
func collectorPercent(least uint64) uint64 {
	percent := RuntimeMetric("/gc/gogc:percent")
	if percent == math.MaxUint64 {
		return 0
	}
	if least > 0 {
		return min(percent, least)
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

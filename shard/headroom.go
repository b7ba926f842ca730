package shard

import (
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
)

const (
	// headroomTick is how often memory and disk are looked at. Meanwhile a disk
	// that takes 1 GB a second takes half of the default reserve; what snapshots
	// take is reserved besides.
	headroomTick = 500 * time.Millisecond

	// collectEvery is how often the collector is run at most to find out whether memory
	// is full: a cycle looks at the headers of segments, and takes milliseconds.
	collectEvery = 2 * time.Second

	// MemoryLimitMin is the least that Config.MemoryLimit may be. A node without a row
	// takes up to half of it, while requests are under way.
	MemoryLimitMin = 64 << 20

	// memoryTightShare of the limit is twice what turn waits for: moving rows out of
	// memory goes on until new ones are taken again.
	memoryTightShare = 8

	// DiskReserveDefault is kept free for the log entries of writes that were
	// accepted.
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
	// memoryTight is set from memoryTightShare below the limit on: rows that may leave
	// memory are to, before anything is refused.
	memoryTight atomic.Bool
	memoryOver  atomic.Uint64 // bytes of tables that were too many when it last was
	diskFull    atomic.Bool
	votersFull  atomic.Int64 // groups led here of which too few voters have room

	// What look found, for the metrics: a scrape does not wait for the disk.
	memoryNeeds atomic.Uint64 // bytes, what the collector needs included
	diskNeeds   atomic.Uint64 // bytes: the reserve and what snapshots may take
	diskFree    atomic.Uint64 // bytes

	memoryLimit uint64        // bytes; 0 for none
	diskReserve uint64        // bytes; 0 for none
	live        func() uint64 // bytes of the heap in use when it was last collected
	tables      func() uint64 // bytes of all tables now
	collector   func() uint64 // percent of what is in use that the collector needs besides
	collect     func()        // runs the collector; nil never does
	collected   time.Time     // when it was run last; of look's goroutine
	snapshots   func() uint64 // bytes that the next snapshot of each group may take
	free        func() (uint64, error)
	logger      *slog.Logger

	stop, stopped chan struct{}
}

// watch begins to look at the file system of the node's directory and at this
// process's memory.
func (h *headroom) watch(n *Node) error {
	cfg := &n.cfg
	h.memoryLimit, h.diskReserve, h.logger = cfg.MemoryLimit, cfg.DiskReserve, n.mux.Limited()
	h.live, h.tables, h.snapshots, h.collect = liveHeapBytes, n.tableBytes, n.snapshotBytes, runtime.GC
	h.collector = func() uint64 { return collectorPercent(cfg.CollectorPercent) }
	h.free = n.room.free
	if err := h.register(cfg.Metrics); err != nil {
		return err
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
	// The tables have grown since the last collection, and nothing else grows much.
	needs := h.needs(0)
	if h.worthCollecting(needs) {
		h.collect()
		needs, h.collected = h.needs(0), time.Now()
	}
	h.memoryNeeds.Store(needs)
	turn(&h.memoryFull, h.memoryLimit > 0, needs, h.memoryLimit)
	from := h.memoryLimit - h.memoryLimit/memoryTightShare
	tight := h.memoryLimit > 0 && needs >= from
	if tight {
		h.memoryOver.Store((needs - from) * 100 / (100 + h.collector()))
	}
	h.memoryTight.Store(tight)
	free, err := h.free()
	if err != nil {
		h.logger.Warn("cannot tell the free space of the disk", "err", err)
		return
	}
	reserved := h.diskReserve + h.snapshots()
	h.diskNeeds.Store(reserved)
	h.diskFree.Store(free)
	turn(&h.diskFull, h.diskReserve > 0, reserved, free)
}

// needs returns the memory of what is in use, and of so much more, with what the
// collector needs besides.
func (h *headroom) needs(more uint64) uint64 {
	used := max(h.live(), h.tables()) + more
	return used + used*h.collector()/100
}

// worthCollecting reports whether too much is in use, and the tables alone would not be:
// the rest may be what requests had that were under way when the collector ran last,
// and a node that takes none does not run it.
func (h *headroom) worthCollecting(needs uint64) bool {
	if h.collect == nil || h.memoryLimit == 0 || needs < h.memoryLimit || time.Since(h.collected) < collectEvery {
		return false
	}
	tables := h.tables()
	return tables+tables*h.collector()/100 < h.memoryLimit
}

// lacks returns how many bytes more than there is room for tables would need that grew by
// so much, before rows are moved out of memory for want of it; 0 if they fit.
func (h *headroom) lacks(bytes uint64) uint64 {
	if h.memoryLimit == 0 {
		return 0
	}
	needs, has := h.needs(bytes), h.memoryLimit-h.memoryLimit/memoryTightShare
	return needs - min(needs, has)
}

// turn sets full while used is not below limit, and until it is by a sixteenth.
func turn(full *atomic.Bool, bounded bool, used, limit uint64) {
	full.Store(bounded && (used >= limit || full.Load() && used >= limit-limit/16))
}

// diskError returns a *DiskFullError while the disk is full.
func (h *headroom) diskError() error {
	if !h.diskFull.Load() {
		return nil
	}
	return &DiskFullError{FreeBytes: h.diskFree.Load(), NeededBytes: h.diskNeeds.Load(), ReserveBytes: h.diskReserve}
}

// admit returns an error if the node has no room for what the write needs. Ops
// for groups that are led elsewhere are looked at there.
func (h *headroom) admit(w *Write, groups []*shardReplica) error {
	if err := h.diskError(); err != nil {
		return err
	}
	memoryFull := h.memoryFull.Load()
	if !memoryFull && h.votersFull.Load() == 0 {
		return nil
	}
	for i := range w.Ops {
		s, key := w.slot(i, groups[0].route)
		r, err := groups[s].led()
		if err != nil {
			continue
		}
		if r.votersFull.Load() {
			return ErrDiskFull
		}
		if !memoryFull {
			continue
		}
		if w.Feeds != nil && r.growsFeed(key, &w.Feeds[i]) || r.growsTable(w.Table, key, &w.Ops[i], w.Deadline) {
			return &NewRowError{Op: i}
		}
		if r.widensTable(w.Table, key, &w.Ops[i]) {
			return &NewRowError{Op: i, Wider: true}
		}
	}
	return nil
}

// growsTable reports whether an op makes a row where there is none. Whether there is one
// may take the disk to tell, as long as there is time.
func (r *localReplica) growsTable(t Table, key uint64, op *engine.Op, deadline time.Time) bool {
	return r.table(t) != nil && op.HasValue() && !r.has(t, key, deadline)
}

// widensTable reports whether an op counts in a column that takes memory in all rows
// near its own.
func (r *localReplica) widensTable(t Table, key uint64, op *engine.Op) bool {
	keyed := *op
	keyed.ID = key
	return r.table(t) != nil && r.table(t).Widens(&keyed)
}

// growsFeed reports whether an op may give a user more followees than there are: no
// such op is taken while there is no memory.
func (r *localReplica) growsFeed(key uint64, op *FeedOp) bool {
	fsm, ok := r.fsm.(*raftfsm.Feed)
	if !ok || op.Kind != raftfsm.FeedReset && op.Kind != raftfsm.FeedFollow || len(op.Followees) == 0 {
		return false
	}
	was, inMemory := fsm.Followees(nil, key)
	return op.Kind == raftfsm.FeedFollow || !inMemory || len(was) < len(op.Followees)
}

// check returns what looks at each op of a forwarded section by its deadline, at none
// while there is room for anything.
func (h *headroom) check(r *localReplica, deadline time.Time) raftfsm.SectionVisitor {
	if !h.memoryFull.Load() {
		return raftfsm.SectionVisitor{}
	}
	return raftfsm.SectionVisitor{
		Op: func(table Table, key uint64, op *engine.Op) error {
			if r.growsTable(table, key, op, deadline) || r.widensTable(table, key, op) {
				return ErrMemoryFull
			}
			return nil
		},
		Feed: func(key uint64, op *FeedOp) error {
			if r.growsFeed(key, op) {
				return ErrMemoryFull
			}
			return nil
		},
	}
}

func liveHeapBytes() uint64 { return runtimeMetric("/gc/heap/live:bytes") }

// collectorPercent is the collector's goal, GOGC, or least where it is brought down to
// that for a heap that is not small. A heap that is full of live data would be collected
// without end. A collector that is turned off has no goal but GOMEMLIMIT.
func collectorPercent(least uint64) uint64 {
	percent := runtimeMetric("/gc/gogc:percent")
	if percent == math.MaxUint64 {
		return 0
	}
	if least > 0 {
		return min(percent, least)
	}
	return percent
}

func runtimeMetric(name string) uint64 {
	sample := []metrics.Sample{{Name: name}}
	metrics.Read(sample)
	return sample[0].Value.Uint64()
}

// tableBytes is the memory of all tables of this node, those that are being read from
// disk too.
func (n *Node) tableBytes() uint64 {
	total := uint64(0)
	for _, g := range n.groups.Load().all {
		r := g.replica.Load()
		if r == nil {
			r = g.opening.Load()
		}
		if r != nil {
			total += r.fsm.Bytes()
		}
	}
	return total
}

func freeBytes(dir string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("cannot stat the file system of %s: %w", dir, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// Package tiering decides whether rows and feeds are unpacked in memory, packed in memory, or on
// disk. It moves them by age and when memory is short, runs the jobs of operators, and scrubs
// everything on disk to detect damage. Headroom tracks how much memory and disk the node may still
// use. Machine reads what a replica has in memory and on disk, and Admission checks and prepares the
// ops of a write before they are proposed.
//
// The package never changes a count, proposes an entry or opens a replica.
//
// Invariant: memory releases a row only after the row is durable and readable on disk. When the use
// of memory or disk reaches a bound, the bound counts as reached until the use is a sixteenth below
// it.
package tiering

import (
	"cmp"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/spill"
	"github.com/countd/countd/shard/rpc"
)

const (
	// coldQuietMax is the time without writes after which the rows of a segment may be packed or
	// moved; a shorter configured age shortens it. Rows that are still being written are not cold
	// at any age.
	coldQuietMax = time.Minute
	coldQuietMin = 200 * time.Millisecond
	// coldSnapshotShare is the share (1/8) of a shard's rows that must leave memory before Run
	// takes a snapshot. A snapshot writes all rows in memory, so Run should not take snapshots more
	// often.
	coldSnapshotShare = 8
	// coldShare is the share (1/8) of one core that moving and packing rows may use while memory is
	// not tight. This share moves about 200,000 rows per second to disk, far more than a service
	// creates.
	coldShare = 8
	// Relieve moves the idle rows in relieveTurns turns. Each turn moves the same share of every
	// shard, so that the oldest rows of all shards move first.
	relieveTurns = 16
	// tightFoldsMax bounds the shared segments of a shard that a round writes again while memory is tight. The node may
	// always be short of memory, but the next round must soon relieve it.
	tightFoldsMax = 32
)

// Tiering packs rows in memory, moves rows between memory and disk, and runs the jobs of
// operators. Its only lock is the lock of its queue; no other code runs under it.
//
// Its goroutines are Run, Scrub.Run and Scrub.RunSuspects. The node starts them and waits for
// them.
type Tiering struct {
	cfg     Config
	calls   *rpc.Calls                    // set by Connect
	limited *slog.Logger                  // rate-limited; set by Connect
	store   atomic.Pointer[cold.Store]    // nil before OpenStore
	sets    atomic.Pointer[members.Store] // nil before OpenSets

	Scrub    Scrub
	Queue    Queue
	moved    atomic.Uint64 // rows written to disk, including rows with an older copy there
	due      atomic.Int64  // number of rows in memory due to move to disk, as of the last check
	Sealed   atomic.Uint64 // number of times that a row was packed
	Repaired atomic.Uint64 // number of replicas restored from another node; the node increments it
	ages     ages
	sealNext int // shard with which the next round of packing begins; only Run uses it
}

// Config configures a Tiering. Every field must be set.
type Config struct {
	Key      string // key of this node
	Cold     ColdConfig
	Catalog  *catalog.Catalog
	Headroom *Headroom
	Shards   func() []*Shard // returns the present shards on this node
	// Read runs a query on the only shard of a keyspace, by any replica, however much that lags.
	Read     func(keyspace string, q raftfsm.Query, deadline time.Time) error
	Draining *atomic.Bool
	Stopping <-chan struct{}
	Logger   *slog.Logger
}

// New returns a Tiering. Call OpenStore, OpenSets and Connect before Run.
func New(cfg Config) *Tiering {
	t := &Tiering{cfg: cfg, Scrub: Scrub{shards: cfg.Shards, every: cfg.Cold.ScrubEvery, logger: cfg.Logger, stopping: cfg.Stopping}}
	t.Scrub.stored = t.sets.Load
	t.Queue.asked = make(chan struct{}, 1)
	return t
}

// OpenStore opens the store of cold rows, in dir unless ColdConfig.Dir is set.
func (t *Tiering) OpenStore(dir string, fatal func(error)) (*cold.Store, error) {
	store, err := cold.Open(cold.Config{Dir: cmp.Or(t.cfg.Cold.Dir, dir), CacheBytes: t.cfg.Cold.CacheBytes, Logger: t.cfg.Logger, Fatal: fatal})
	if err == nil {
		t.store.Store(store)
	}
	return store, err
}

// OpenSets opens the store of sets of members.
func (t *Tiering) OpenSets(cfg members.Config) (*members.Store, error) {
	cfg.Logger = t.cfg.Logger
	store, err := members.Open(cfg)
	if err == nil {
		t.sets.Store(store)
	}
	return store, err
}

// Connect lets Tiering call other nodes, and registers the handlers for their calls.
func (t *Tiering) Connect(calls *rpc.Calls, limited *slog.Logger) {
	t.calls, t.limited = calls, limited
	calls.Handle(methodColdReport, rpc.JSON(t.report))
	calls.Handle(methodColdOrder, rpc.JSON(t.followCold))
}

// OpenCounters creates the state machine of a shard, with its sets of members and the place for
// its idle outboxes. It returns the store of the shard's cold rows.
func (t *Tiering) OpenCounters(s *Shard, sets *members.Group, outboxes spill.Place) (*cold.Group, error) {
	rows, err := t.store.Load().Group(s.Group)
	if err == nil {
		s.FSM = counters.New(raftfsm.Places{Cold: rows, Members: sets, Bodies: outboxes, Seal: t.OldToSeal(s)})
	}
	return rows, err
}

// Leaving is the move of one shard's rows out of memory.
type Leaving struct {
	*Shard
	idle  *counters.Idle
	rows  int // rows written to disk, including rows with an older copy there
	began time.Time
}

// Watch finds the idle segments among those that isOld selects, and those with rows that the shard shares, if shares is
// set. It returns the number of rows in
// memory in all segments that isOld selects, idle or not.
func (l *Leaving) Watch(isOld func(first, last uint64) bool, shares bool) int {
	l.idle = l.FSM.Watch(isOld, shares)
	l.due.Store(int64(l.idle.Due()))
	return l.idle.Due()
}

// Leaving returns a Leaving for each local shard for which match returns true.
func (t *Tiering) Leaving(match func(*Shard) bool) (all []*Leaving) {
	for _, s := range t.cfg.Shards() {
		if match(s) {
			all = append(all, &Leaving{Shard: s, began: time.Now()})
		}
	}
	return all
}

// Run packs old rows in memory, and moves older rows to disk. It skips segments that are being
// written. Near the memory limit it moves young rows too. It also runs the jobs of operators
// (queue.go), so that only one goroutine moves rows. Open starts it; Close stops it and waits.
func (t *Tiering) Run() {
	quiet := coldQuietMax
	for _, after := range []time.Duration{t.cfg.Cold.After, t.cfg.Cold.SealAfter} {
		if after > 0 {
			quiet = min(quiet, max(after, coldQuietMin))
		}
	}
	tick := time.NewTicker(quiet)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if tight := t.cfg.Headroom.MemoryTight.Load(); !t.SealOld() || !tight {
				t.MoveCold()
			}
		case <-t.Queue.asked:
			t.workCold()
		case <-t.cfg.Stopping:
			return
		}
	}
}

// MoveCold runs one round. It moves only rows of segments without a write since the previous round.
func (t *Tiering) MoveCold() {
	all, may, due := t.Leaving(AnyShard), t.cfg.Cold.After > 0, 0
	tight := t.cfg.Headroom.MemoryTight.Load()
	if may && tight {
		due = t.moveIdle(all)
	}
	for _, l := range all {
		switch {
		case may && !tight:
			due += t.moveOld(l, t.old(l.Shard, t.cfg.Cold.After))
		case l.FSM.Shares():
			t.fold(l, tight)
		}
		t.keepCold(l)
	}
	t.due.Store(int64(due))
}

// moveOld moves the old and idle rows of a shard out of memory, and returns the number of due
// rows. It also writes rows on disk again that the shard shares with other parts of the shard that it was.
func (t *Tiering) moveOld(l *Leaving, old func(first, last uint64) bool) (due int) {
	due = l.Watch(old, t.mayFold(l.Shard))
	_ = t.freeze(l, l.idle.Segments(), t.rest) // freeze logs the error, and the next round retries
	return due
}

// fold writes rows on disk again that the shard shares with other parts of the shard that it was. Such rows take little
// memory, so while memory is tight, it writes few.
func (t *Tiering) fold(l *Leaving, tight bool) {
	l.idle = l.FSM.Watch(noAge, t.mayFold(l.Shard))
	segments := l.idle.Segments()
	if tight {
		segments = min(segments, tightFoldsMax)
	}
	_ = t.freeze(l, segments, t.rest) // freeze logs the error, and the next round retries
}

// moveIdle moves idle rows of any age out of memory while memory is tight, and returns the number
// of rows in memory.
func (t *Tiering) moveIdle(all []*Leaving) (due int) {
	for _, l := range all {
		due += l.Watch(AnyAge, false) // MoveCold folds shares afterwards
		if layout := t.layout(l.Shard); layout.Unit > 0 {
			l.idle.PutLast(layout.firstKey(l.PerKey))
		}
	}
	t.Relieve(all, t.cfg.Headroom.MemoryTight.Load)
	return due
}

// mayFold reports whether the disk has room for the rows that a shard shares. The generations that it shares go only
// once no part of the split shard needs them, so a fold that begins on a nearly full disk could fill it, and the node
// would refuse writes.
func (t *Tiering) mayFold(s *Shard) bool {
	return t.cfg.Headroom.hasRoom(s.FSM.State().SharedBytes)
}

// MayFreeze reports whether rows may move now: the node is not stopping and its disk is not full.
func (t *Tiering) MayFreeze() bool { return !t.cfg.Draining.Load() && !t.cfg.Headroom.DiskFull.Load() }

// rest pauses after a step, for coldShare-1 times as long as the step took, so that moving rows
// uses 1/coldShare of a core. The pause ends early if the node stops or memory is tight, because
// after a step that waited for the disk the pause may last minutes.
func (t *Tiering) rest(took time.Duration) {
	for left := took * (coldShare - 1); left > 0 && !t.cfg.Headroom.MemoryTight.Load(); left -= HeadroomTick {
		select {
		case <-time.After(min(left, HeadroomTick)):
		case <-t.cfg.Stopping:
			return
		}
	}
}

// freeze moves the rows of at most segmentsMax segments to disk, and calls pause after each step.
// It does not move rows of a segment whose cold rows cannot be read. It returns an error if a step
// fails for another reason.
func (t *Tiering) freeze(l *Leaving, segmentsMax int, pause func(took time.Duration)) error {
	for stop := max(0, l.idle.Segments()-segmentsMax); l.idle.Segments() > stop && t.MayFreeze(); {
		began := time.Now()
		rows, err := l.FSM.FreezeSome(l.idle, l.idle.Segments()-stop)
		l.rows += rows
		t.moved.Add(uint64(rows))
		if errors.Is(err, cold.ErrDamaged) {
			l.Damage.Note(err)
		} else if err != nil {
			t.limited.Warn("rows stay in memory, and it is tried again", "group", l.Group, "err", err)
			return err
		}
		pause(time.Since(began))
	}
	return nil
}

// AnyShard selects all shards.
func AnyShard(*Shard) bool { return true }

// AnyAge selects all rows, noAge none.
func AnyAge(uint64, uint64) bool { return true }
func noAge(uint64, uint64) bool  { return false }

// While tight returns true, Relieve moves idle rows out of memory, a share of each shard in turn.
func (t *Tiering) Relieve(all []*Leaving, tight func() bool) {
	turn := make([]int, len(all))
	for i, l := range all {
		turn[i] = l.idle.Segments()/relieveTurns + 1
	}
	for range relieveTurns {
		for i, l := range all {
			if !tight() {
				return
			}
			_ = t.freeze(l, turn[i], func(time.Duration) {}) // freeze logs the error, and the next round retries
		}
	}
}

// keepCold logs the moved rows, and takes a snapshot once coldSnapshotShare of the rows has left
// memory. If no snapshot named the moved rows as cold, a restart would load them into memory again.
func (t *Tiering) keepCold(l *Leaving) {
	if l.rows > 0 {
		t.cfg.Logger.Info("rows are cold", "group", l.Group, "rows", l.rows, "after", time.Since(l.began).Round(time.Millisecond).String())
	}
	l.moved += uint64(l.rows) + l.FSM.Carried()
	l.rows = 0
	if l.moved == 0 || l.moved*coldSnapshotShare < l.FSM.State().Rows || !t.MayFreeze() {
		return
	}
	if err := l.Replica.Snapshotter().Take(); err != nil {
		l.Replica.Snapshotter().Note(err) // the next round retries
		return
	}
	l.moved = 0
}

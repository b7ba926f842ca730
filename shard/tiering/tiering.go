// Package tiering owns where rows and feeds are: unpacked or packed in memory, or on disk.
// It moves them by age and when memory is short, carries out the jobs of operators, and reads
// everything on disk to detect damage.
//
// It never changes a count, proposes an entry or opens a replica.
//
// Invariant: a row that left memory is on disk, durable and readable, before memory lets
// go of it.
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
	"github.com/countd/countd/raftfsm/spill"
	"github.com/countd/countd/shard/headroom"
	"github.com/countd/countd/shard/rpc"
)

const (
	// coldQuietMax is for how long nobody may have written to a segment that is
	// sealed or frozen, unless their ages are less: rows that are written to are not
	// cold, however old.
	coldQuietMax = time.Minute
	coldQuietMin = 200 * time.Millisecond
	// coldSnapshotShare is how many of a shard's rows, as a share, leave memory before
	// a snapshot is taken for that. It writes those that stay: so often that is
	// little.
	coldSnapshotShare = 8
	// coldShare is the part of one core, as a share, that moving rows, and packing them,
	// takes while memory is not tight: some 200,000 rows a second to disk, which is far
	// more than a service makes, and leaves the processors to reads.
	coldShare = 8
	// relieveTurns is in how many turns all that is idle would leave memory: each takes
	// as large a part of every shard, so that the oldest of all go first.
	relieveTurns = 16
)

// Tiering packs rows in memory, moves rows between memory and disk, and does what operators
// order about that. It has no lock but that of
// its queue, under which it calls nothing.
//
// Its goroutines: Run, and Run and RunSuspects of Scrub, which the node starts and waits for.
type Tiering struct {
	cfg     Config
	calls   *rpc.Calls                    // set by connect
	limited *slog.Logger                  // limits what repeats; set by connect
	store   atomic.Pointer[cold.Store]    // nil before OpenStore
	sets    atomic.Pointer[members.Store] // nil before OpenSets

	Scrub    Scrub
	Queue    Queue
	moved    atomic.Uint64 // rows that became cold, or were written anew
	due      atomic.Int64  // rows in memory that the last look found were to become so
	Sealed   atomic.Uint64 // rows that were sealed, each time
	Repaired atomic.Uint64 // replicas that were replaced by another node's: the node counts them
	sealNext int           // at which of the shards the next round begins: run's
}

// Config configures a tiering. Every field must be set.
type Config struct {
	Key      string // of this node
	Cold     ColdConfig
	Catalog  *catalog.Catalog
	Headroom *headroom.Headroom
	Shards   func() []*Shard // that this node has now
	Draining *atomic.Bool
	Stopping <-chan struct{}
	Logger   *slog.Logger
}

// New returns a tiering that waits for its store, its connection and run.
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

// Connect has tiering ask other nodes by calls, and answer them once calls are served.
func (t *Tiering) Connect(calls *rpc.Calls, limited *slog.Logger) {
	t.calls, t.limited = calls, limited
	calls.Handle(methodColdReport, t.serveReport)
	calls.Handle(methodColdOrder, t.serveOrder)
}

// OpenCounters makes the state machine of a shard with sets of members, whose idle outboxes go
// to a place, and returns where its rows may be beside memory.
func (t *Tiering) OpenCounters(s *Shard, sets *members.Group, outboxes spill.Place) (*cold.Group, error) {
	rows, err := t.store.Load().Group(s.Group)
	if err == nil {
		s.FSM = raftfsm.NewCountersOver(raftfsm.Tiers{Cold: rows, Members: sets, Outboxes: outboxes, Seal: t.OldToSeal(s)})
	}
	return rows, err
}

// Leaving is what of one shard is on its way out of memory.
type Leaving struct {
	*Shard
	idle  *raftfsm.Idle
	rows  int // that became cold, or were written anew
	began time.Time
}

// Watch finds what is idle of the rows that old says so of, and returns how many that are.
func (l *Leaving) Watch(old func(first, last uint64) bool) int {
	l.idle = l.FSM.Watch(old)
	l.due.Store(int64(l.idle.Due()))
	return l.idle.Due()
}

// Leaving returns the shards here that are asked for.
func (t *Tiering) Leaving(of func(*Shard) bool) (all []*Leaving) {
	for _, s := range t.cfg.Shards() {
		if of(s) {
			all = append(all, &Leaving{Shard: s, began: time.Now()})
		}
	}
	return all
}

// Run packs rows in memory, and moves them out of it, once they are old and nobody
// writes to them, and near the memory limit those that are not old too; and does what
// operators ask for (queue.go), so that one thing moves rows at a time. Open starts it,
// Close stops and waits for it.
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

// MoveCold is one round of run. What was not written to since the round before is
// idle.
func (t *Tiering) MoveCold() {
	all, may, due := t.Leaving(AnyShard), t.mayMove(), 0
	tight := t.cfg.Headroom.MemoryTight.Load()
	if may && tight {
		due = t.moveIdle(all)
	}
	for _, l := range all {
		if may && !tight {
			due += t.moveOld(l)
		}
		t.keepCold(l)
	}
	t.due.Store(int64(due))
}

// moveOld moves what is old and idle of a shard out of memory, and returns how many rows
// were to leave.
func (t *Tiering) moveOld(l *Leaving) (due int) {
	old := t.cfg.Cold.Layouts[l.Keyspace].old(time.Now(), t.cfg.Cold.After, l.PerKey)
	due = l.Watch(old)
	_ = t.freeze(l, l.idle.Segments(), t.rest) // it is told, and tried again
	return due
}

// moveIdle moves whatever is idle out of memory while that is tight, and returns how
// many rows might leave.
func (t *Tiering) moveIdle(all []*Leaving) (due int) {
	for _, l := range all {
		due += l.Watch(AnyAge)
		if layout := t.cfg.Cold.Layouts[l.Keyspace]; layout.Unit > 0 {
			l.idle.PutLast(layout.firstKey(l.PerKey))
		}
	}
	t.Relieve(all, t.cfg.Headroom.MemoryTight.Load)
	return due
}

// mayMove reports whether rows are to leave memory at all.
func (t *Tiering) mayMove() bool { return t.cfg.Cold.After > 0 }

// MayFreeze reports whether there is time and room for it.
func (t *Tiering) MayFreeze() bool { return !t.cfg.Draining.Load() && !t.cfg.Headroom.DiskFull.Load() }

// rest waits after some rows were moved, for as much longer than that took as leaves
// others their share, or until the node is stopping. Want of memory knows no rest, and
// ends one: a step that waited for its disk may have it last for minutes.
func (t *Tiering) rest(took time.Duration) {
	for left := took * (coldShare - 1); left > 0 && !t.cfg.Headroom.MemoryTight.Load(); left -= headroom.Tick {
		select {
		case <-time.After(min(left, headroom.Tick)):
		case <-t.cfg.Stopping:
			return
		}
	}
}

func (t *Tiering) isStopping() bool {
	select {
	case <-t.cfg.Stopping:
		return true
	default:
		return false
	}
}

// noRest is a rest that does not pause, for urgent moves.
func noRest(time.Duration) {}

// freeze moves rows of that many segments, or of all that there are, and rests after
// each step. Those that cannot be read on disk stay as they are. Its error is of rows
// that stay in memory.
func (t *Tiering) freeze(l *Leaving, segments int, rest func(took time.Duration)) error {
	for stop := max(0, l.idle.Segments()-segments); l.idle.Segments() > stop && t.MayFreeze(); {
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
		rest(time.Since(began))
	}
	return nil
}

// AnyShard is of all shards.
func AnyShard(*Shard) bool { return true }

// AnyAge is of all rows.
func AnyAge(uint64, uint64) bool { return true }

// Relieve moves what is idle out of memory, the first segments of all shards first,
// while memory is tight.
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
			_ = t.freeze(l, turn[i], noRest) // it is told, and tried again
		}
	}
}

// keepCold tells what has become cold, and takes a snapshot once a good part of the rows
// has left memory: without one that names them, a restart would begin with all of them
// in memory, or write all anew that came with a snapshot of another node.
func (t *Tiering) keepCold(l *Leaving) {
	if l.rows > 0 {
		t.cfg.Logger.Info("rows are cold", "group", l.Group, "rows", l.rows, "after", time.Since(l.began).Round(time.Millisecond).String())
	}
	l.moved += uint64(l.rows) + l.FSM.Carried()
	l.rows = 0
	if l.moved == 0 || l.moved*coldSnapshotShare < l.FSM.State().Rows || !t.MayFreeze() {
		return
	}
	if err := l.Replica.TakeSnapshot(); err != nil {
		l.Replica.NoteSnapshot(err) // it is tried again
		return
	}
	l.moved = 0
}

package shard

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/headroom"
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
	// more than a service makes, and leaves the processors to those who read.
	coldShare = 8
	// relieveTurns is in how many turns all that is idle would leave memory: each takes
	// as large a part of every shard, so that the oldest of all go first.
	relieveTurns = 16
)

// tiering packs rows in memory, moves rows between memory and disk, and does what operators
// order about that. It reads which replicas there are from the registry.
//
// Its goroutine: run, which Node starts and waits for.
type tiering struct {
	registry *registry
	cfg      *ColdConfig
	catalog  *catalog.Catalog // for the cluster version
	headroom *headroom.Headroom
	logger   *slog.Logger
	limited  *slog.Logger // limits what repeats; set before run
	stopping <-chan struct{}
	draining *atomic.Bool

	queue    tieringQueue
	moved    atomic.Uint64 // rows that became cold, or were written anew
	due      atomic.Int64  // rows in memory that the last look found were to become so
	warmed   atomic.Uint64 // rows that came back into memory because an operator asked for it
	sealed   atomic.Uint64 // rows that were sealed, each time
	sealNext int           // at which of the groups the next round begins: run's
}

// wire has tiering read from a node what it needs.
func (t *tiering) wire(n *Node) {
	t.registry, t.cfg, t.catalog, t.headroom = &n.registry, &n.cfg.Cold, n.catalog, &n.headroom
	t.logger, t.stopping, t.draining = n.cfg.Logger, n.stopping, &n.draining
	t.queue.asked = make(chan struct{}, 1)
}

// run packs rows in memory, and moves them out of it, once they are old and nobody
// writes to them, and near the memory limit those that are not old too; and does what
// operators ask for (tieringqueue.go), so that one thing moves rows at a time. Open starts it,
// Close stops and waits for it.
func (t *tiering) run() {
	quiet := coldQuietMax
	for _, after := range []time.Duration{t.cfg.After, t.cfg.SealAfter} {
		if after > 0 {
			quiet = min(quiet, max(after, coldQuietMin))
		}
	}
	tick := time.NewTicker(quiet)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if tight := t.headroom.MemoryTight.Load(); !t.sealOld() || !tight {
				t.moveCold()
			}
		case <-t.queue.asked:
			t.workCold()
		case <-t.stopping:
			return
		}
	}
}

// moveCold is one round of run. What was not written to since the round before is
// idle.
func (t *tiering) moveCold() {
	all, may, due := t.registry.leaving(anyShard), t.mayMove(), 0
	tight := t.headroom.MemoryTight.Load()
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
func (t *tiering) moveOld(l *leaving) (due int) {
	old := t.cfg.Layouts[l.g.keyspace].old(time.Now(), t.cfg.After, l.g.route)
	due = l.watch(t.queue.unlessKept(l.g, old))
	_ = t.freeze(l, l.idle.Segments(), t.rest) // it is told, and tried again
	return due
}

// moveIdle moves whatever is idle out of memory while that is tight, and returns how
// many rows might leave.
func (t *tiering) moveIdle(all []*leaving) (due int) {
	for _, l := range all {
		due += l.watch(anyAge)
		if layout := t.cfg.Layouts[l.g.keyspace]; layout.Unit > 0 {
			l.idle.PutLast(layout.firstKey(l.g.route))
		}
	}
	t.relieve(all, t.headroom.MemoryTight.Load)
	return due
}

// mayMove reports whether rows are to leave memory at all.
func (t *tiering) mayMove() bool { return t.cfg.After > 0 && t.catalog.View().ColdRows() }

// mayFreeze reports whether there is time and room for it.
func (t *tiering) mayFreeze() bool { return !t.draining.Load() && !t.headroom.DiskFull.Load() }

// rest waits after some rows were moved, for as much longer than that took as leaves
// others their share, or until the node is stopping. Want of memory knows no rest, and
// ends one: a step that waited for its disk may have it last for minutes.
func (t *tiering) rest(took time.Duration) {
	for left := took * (coldShare - 1); left > 0 && !t.headroom.MemoryTight.Load(); left -= headroom.Tick {
		select {
		case <-time.After(min(left, headroom.Tick)):
		case <-t.stopping:
			return
		}
	}
}

func (t *tiering) isStopping() bool {
	select {
	case <-t.stopping:
		return true
	default:
		return false
	}
}

// noRest is rest for who is in a hurry.
func noRest(time.Duration) {}

// freeze moves rows of that many segments, or of all that there are, and rests after
// each step. Those that cannot be read on disk stay as they are. Its error is of rows
// that stay in memory.
func (t *tiering) freeze(l *leaving, segments int, rest func(took time.Duration)) error {
	for stop := max(0, l.idle.Segments()-segments); l.idle.Segments() > stop && t.mayFreeze(); {
		began := time.Now()
		rows, err := l.fsm.FreezeSome(l.idle, l.idle.Segments()-stop)
		l.rows += rows
		t.moved.Add(uint64(rows))
		if errors.Is(err, cold.ErrDamaged) {
			l.r.noteDamage(err)
		} else if err != nil {
			t.limited.Warn("rows stay in memory, and it is tried again", "group", l.g.number, "err", err)
			return err
		}
		rest(time.Since(began))
	}
	return nil
}

// anyAge is of all rows.
func anyAge(uint64, uint64) bool { return true }

// relieve moves what is idle out of memory, the first segments of all shards first,
// while memory is tight.
func (t *tiering) relieve(all []*leaving, tight func() bool) {
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
func (t *tiering) keepCold(l *leaving) {
	r := l.r
	if l.rows > 0 {
		t.logger.Info("rows are cold", "group", l.g.number, "rows", l.rows, "after", time.Since(l.began).Round(time.Millisecond).String())
	}
	r.moved += uint64(l.rows) + l.fsm.Carried()
	l.rows = 0
	if r.moved == 0 || r.moved*coldSnapshotShare < r.fsm.State().Rows || !t.mayFreeze() {
		return
	}
	if err := r.group.TakeSnapshot(); err != nil {
		r.group.NoteSnapshot(err) // it is tried again
		return
	}
	r.moved = 0
}

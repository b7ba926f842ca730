// Package restore owns the order in which the rows of a snapshot are written into a shard,
// through the shard's log. Each write has a number, and a repeat of the write has the same
// number.
//
// It never touches a replica: it writes to, and reads from, the node that leads the shard.
//
// Invariant: once a restore has begun, the shard applies no write of an earlier restore. It
// applies no section of a source until it holds all restored rows.
package restore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/keyspace"
	"github.com/countd/countd/shard/retry"
)

const (
	// restoreOpsMax is the rows of one write of a restore: as much as a client may
	// send at once.
	restoreOpsMax = 10_000
	// restoreInFlightMax keeps the group's log busy while the next rows are read,
	// and leaves most of the queue to others.
	restoreInFlightMax = 4
	// restoreTryTimeout bounds one try of a write of a restore. Its repeats have its
	// number, so it may be repeated whatever became of it.
	restoreTryTimeout = 10 * time.Second
	// restoreWindow is how many numbers may be in flight: as many as the window in
	// which a shard remembers the requests of a producer. Behind a window of them the
	// next one waits for all.
	restoreWindow = 64
	// restoreAheadMax bounds how far the clock of the node of an earlier restore can
	// have been ahead.
	restoreAheadMax = 100 * 365 * 24 * time.Hour
	// restoreFolloweesMax bounds the followees of one write.
	restoreFolloweesMax = 20_000
	// restorePostsMax bounds the posts in the outboxes of one write.
	restorePostsMax = 50_000
	// restoreReadTimeout bounds the reads that look at what is there.
	restoreReadTimeout = 30 * time.Second
)

// ErrNotEmpty is returned by Shard for a shard that has rows, outboxes or members.
var ErrNotEmpty = errors.New("the shard has rows, outboxes or members")

// ErrBadSnapshot is returned by Shard for a stream that is no whole
// snapshot of a shard of that keyspace. Rows before the fault may have been
// written.
var ErrBadSnapshot = errors.New("not a snapshot that this shard can take")

// ErrRestoredOther is returned by Shard when the shard's digest is not the
// snapshot's: something else wrote to it meanwhile.
var ErrRestoredOther = errors.New("the shard does not hold what was restored")

// ErrOtherRestore is returned by Shard when another restore of the shard began
// later: from then on the shard takes none of this one's writes.
var ErrOtherRestore = errors.New("another restore of the shard has begun")

// Options says how a shard is restored.
type Options struct {
	Force bool // deletes the rows, outboxes and members that are there first
	// Columns has the names of the snapshot's columns at their numbers, "" for a column that
	// was dropped, whose counts are left out. Counts go to the columns of these names. nil
	// says that the columns of the snapshot are those of the keyspace.
	Columns []string
}

// Node is what a restore needs of the node that runs it.
type Node interface {
	// Write applies w to the shard, on whatever node leads it, or returns why not.
	Write(w *Write) error
	// WritePositions sets the positions of sources of the shard, likewise.
	WritePositions(id dedup.RequestID, deadline time.Time) error
	// Rows returns the ids of some rows of a table of the shard, in order from a key on:
	// none if there are no more.
	Rows(ctx context.Context, table raftfsm.Table, from uint64) ([]uint64, error)
	// Leader describes the replica that leads the shard. ErrNoLeader is returned if none does.
	Leader(ctx context.Context) (State, error)
	// BoardEnd returns the most that cursors can be.
	BoardEnd(deadline time.Time) (*[engine.ColumnsMax]int64, error)
}

// State is what a replica holds.
type State struct {
	Rows     uint64
	Outboxes uint64 // authors with an outbox
	Members  uint64 // of all rows, also of those without counts, which are no rows
	Digest   string // 16 hex digits
}

// Write is one write of a restore.
type Write struct {
	ID       dedup.RequestID
	Table    raftfsm.Table
	Ops      []engine.Op
	Feeds    []raftfsm.FeedOp
	Board    *raftfsm.BoardOp
	Outbox   []outbox.Op
	Deadline time.Time

	Refused bool // the answer: an op was refused
}

// Config configures Shard. Every field must be set.
type Config struct {
	Keyspace *keyspace.Keyspace
	Shard    int
	Kind     codec.Kind
	Node     Node
	Catalog  *catalog.Catalog
	CatchUp  func(context.Context) error // returns once Catalog has all that was acknowledged
	Draining *atomic.Bool                // the node is stopping
}

// Shard sets the rows of a shard to those of a snapshot that OpenSnapshot
// gave, through the log, as any write: replicas and crashes need nothing of their
// own, and a second run, with force, ends what a first one left. The shard must
// be empty, or force deletes its rows first. It waits for leaders until ctx ends.
// What the shard remembered of requests is forgotten first and not restored: the rows
// know nothing of them. The board is restored before
// the shards of unread numbers, whose cursors are bounded by it.
//
// Each write has a number (raftfsm.ByRestore) that its repeats share, so a copy that
// comes late, from this restore or one before it, changes nothing. The numbers are the
// time in nanoseconds when the restore began and what follows it: a restore has higher
// ones than all before it.
//
// raft's own Restore is not used: it gives the leader the new state before any
// other has agreed. A leader that dies then comes back with entries that the
// others do not have and that raft does not take from it.
func Shard(ctx context.Context, cfg Config, stream io.Reader, o Options) (raftfsm.SnapshotFacts, error) {
	r := &restore{
		cfg: cfg, ctx: ctx, route: cfg.Keyspace.Route(),
		seq: uint64(time.Now().UnixNano()), slots: make(chan struct{}, restoreInFlightMax),
	}
	var err error
	if r.places, err = placesOf(r.cfg.Keyspace, o.Columns); err != nil {
		return raftfsm.SnapshotFacts{}, err
	}
	snapshot, err := raftfsm.OpenSnapshot(stream, r.cfg.Kind, codec.Route{Modulus: uint32(r.route.Shards), Residue: uint32(r.cfg.Shard)})
	if err != nil {
		return raftfsm.SnapshotFacts{}, fmt.Errorf("%w: %w", ErrBadSnapshot, err)
	}
	if err := r.empty(o.Force); err != nil {
		return raftfsm.SnapshotFacts{}, err
	}
	facts, err := snapshot.Visit(raftfsm.SnapshotVisitor{
		Members: r.member,
		Rows:    r.counts,
		Cursors: r.cursors,
		Feed:    r.feed,
		Outbox:  r.outbox,
		Board:   r.board,
		Positions: func(all []dedup.PositionRecord, digest uint64) error {
			r.positions, r.positionsDigest = all, digest
			return nil
		},
	})
	if failed := errors.Join(r.flush(), ctx.Err()); failed != nil {
		return facts, failed
	}
	if err != nil {
		return facts, fmt.Errorf("%w: %w", ErrBadSnapshot, err)
	}
	facts.Rows += r.changed.Rows
	facts.Digest += r.changed.Digest - facts.MembersGone
	facts.MembersGone = 0
	facts.CursorsSetBack = r.changed.CursorsSetBack
	if err := r.check(facts); err != nil {
		return facts, err
	}
	return facts, r.openPositions()
}

// restore is one shard's restore under way. page and flush are one goroutine's;
// each write has one of its own, which ends with ctx and is waited for by flush.
type restore struct {
	cfg   Config
	ctx   context.Context
	route keyspace.Route

	places    []int                     // of each column of the snapshot: its number here, or leftOut
	end       *[engine.ColumnsMax]int64 // of the cursors; nil until the first row of them
	positions []dedup.PositionRecord    // of the snapshot
	// positionsDigest is what positions contribute to the snapshot's digest.
	positionsDigest uint64
	closed          bool                  // the shard applies no section of a source
	changed         raftfsm.SnapshotFacts // what the shard is to hold less what the snapshot does

	seq     uint64 // of the last write
	sent    int    // writes
	next    batch
	slots   chan struct{} // a token for each write in flight
	writing sync.WaitGroup

	mu struct {
		sync.Mutex
		failed error // the first write's that did
	}
}

// batch is the next write of a restore.
type batch struct {
	Write                   // the cells of its ops are in one array
	cells     []engine.Cell // that array
	followees int           // of Feeds
	posts     int           // of Outbox
}

// add adds an op, and writes once there are enough.
func (r *restore) add(table raftfsm.Table, op engine.Op) error {
	if table != r.next.Table && len(r.next.Ops) > 0 {
		if err := r.send(); err != nil {
			return err
		}
	}
	r.next.Table = table
	r.next.Ops = append(r.next.Ops, op)
	if len(r.next.Ops) < restoreOpsMax {
		return nil
	}
	return r.send()
}

// send begins to write what was added. It returns why an earlier write failed.
func (r *restore) send() error {
	select {
	case r.slots <- struct{}{}:
	case <-r.ctx.Done():
		return r.ctx.Err()
	}
	if r.sent++; r.sent%restoreWindow == 0 {
		r.writing.Wait()
	}
	r.seq++
	r.next.ID = dedup.ByRestore(r.seq, false)
	next := r.next
	r.next = batch{} // it is the write's, from now on
	r.writing.Go(func() {
		defer func() { <-r.slots }()
		if err := r.write(next); err != nil {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.mu.failed == nil {
				r.mu.failed = err
			}
		}
	})
	return r.failed()
}

func (r *restore) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.mu.failed
}

// begin has the shard forget the requests of clients, and refuse the writes of all
// restores before this one. op changes nothing of a shard that is empty. If its number
// is not above theirs, the clock of a node was ahead, and it begins further ahead.
func (r *restore) begin(op batch) error {
	for step := time.Minute; ; step *= 2 {
		op.ID = dedup.ByRestore(r.seq, true)
		err := r.write(op)
		if !errors.Is(err, ErrOtherRestore) || step > restoreAheadMax {
			return err
		}
		r.seq += uint64(step)
	}
}

// write repeats a write, under its number, until it is done.
func (r *restore) write(next batch) error {
	return r.repeat(func(deadline time.Time) error {
		w := next.Write
		w.Deadline = deadline
		err := r.cfg.Node.Write(&w)
		if err == nil && w.Refused {
			err = fmt.Errorf("%w: the shard refused what it holds", ErrBadSnapshot)
		}
		return err
	})
}

// repeat calls try until it succeeds or fails for good.
func (r *restore) repeat(try func(deadline time.Time) error) (err error) {
	retry.Until(r.ctx, func() bool {
		ctx, cancel := context.WithTimeout(r.ctx, restoreTryTimeout)
		defer cancel()
		deadline, _ := ctx.Deadline()
		if err = try(deadline); errors.Is(err, errs.ErrExpired) {
			err = fmt.Errorf("%w: %w", ErrOtherRestore, err)
		}
		return err == nil || !mayTryAgain(err) || r.cfg.Draining.Load()
	})
	return err
}

// mayTryAgain reports whether a write that failed so may be repeated: it was not applied, or
// its repeat will not be.
func mayTryAgain(err error) bool {
	for _, passing := range []error{errs.ErrOutcomeUnknown, errs.ErrNoLeader, errs.ErrDraining, errs.ErrOverloaded} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// flush writes what is left, waits for all writes, and returns why one failed.
func (r *restore) flush() error {
	var err error
	if len(r.next.Ops) > 0 {
		err = r.send()
	}
	r.writing.Wait()
	return errors.Join(r.failed(), err)
}

// empty sees to it that the shard has no rows and that sources add none, and begins.
func (r *restore) empty(force bool) error {
	if !r.takesPositions() {
		return r.clear(force)
	}
	tables, counters := []raftfsm.Table{raftfsm.TableCounts}, r.cfg.Kind == codec.KindCounters
	if !counters {
		tables = append(tables, raftfsm.TableCursors)
	}
	for _, table := range tables {
		if ids, err := r.rowsFrom(table, 0); err != nil {
			return err
		} else if len(ids) > 0 && !force {
			return r.notEmpty()
		}
	}
	if counters && !force {
		if led, err := r.leader(); err != nil {
			return err
		} else if led.Outboxes+led.Members > 0 { // of rows with counts or without
			return r.notEmpty()
		}
	}
	first := engine.Op{ID: r.route.LeastID(r.cfg.Shard), Kind: engine.OpAdd, Cells: []engine.Cell{{}}} // changes nothing
	if err := r.begin(batch{Write: Write{Ops: []engine.Op{first}}}); err != nil {
		return err
	}
	if err := r.closePositions(); err != nil {
		return err
	}
	if counters {
		r.next.Ops = []engine.Op{{ID: first.ID, Kind: engine.OpClearMembers}}
		if err := r.flush(); err != nil {
			return err
		}
	}
	for _, table := range tables {
		if err := r.emptyTable(table); err != nil {
			return err
		}
	}
	if counters { // a deleted row takes its outbox along; this clears those of authors without a row
		r.next.Ops, r.next.Outbox = []engine.Op{{ID: first.ID}}, []outbox.Op{{Kind: outbox.Clear}}
	}
	return r.flush()
}

func (r *restore) notEmpty() error {
	return fmt.Errorf("%w: shard %d of keyspace %s", ErrNotEmpty, r.cfg.Shard, r.cfg.Keyspace.Name)
}

func (r *restore) emptyTable(table raftfsm.Table) error {
	for from := uint64(0); ; {
		ids, err := r.rowsFrom(table, from)
		if err != nil {
			return err
		}
		if len(ids) == 0 {
			return r.flush()
		}
		for _, id := range ids {
			if err := r.add(table, engine.Op{ID: id, Kind: engine.OpDelete}); err != nil {
				return errors.Join(err, r.flush())
			}
		}
		_, last := r.route.KeyOf(slices.Max(ids))
		from = last + 1
	}
}

// rowsFrom returns the ids of the next rows from a key on.
func (r *restore) rowsFrom(table raftfsm.Table, key uint64) ([]uint64, error) {
	ctx, cancel := context.WithTimeout(r.ctx, restoreReadTimeout)
	defer cancel()
	return r.cfg.Node.Rows(ctx, table, key)
}

// check holds the shard's digest against the snapshot's, where it is led, before a source
// changes it.
func (r *restore) check(facts raftfsm.SnapshotFacts) error {
	led, err := r.leader()
	if err != nil {
		return err
	}
	digest := facts.Digest - r.positionsDigest
	if r.closed {
		digest += dedup.ClosedDigest
	}
	if want := fmt.Sprintf("%016x", digest); led.Digest != want || led.Rows != facts.Rows {
		return fmt.Errorf("%w: %d rows of digest %s, restored were %d of %s", ErrRestoredOther, led.Rows, led.Digest, facts.Rows, want)
	}
	return nil
}

// leader describes the replica that leads the shard, once there is one.
func (r *restore) leader() (led State, err error) {
	ctx, cancel := context.WithTimeout(r.ctx, restoreReadTimeout)
	defer cancel()
	err = retry.WaitFor(ctx, func() error {
		var err error
		led, err = r.cfg.Node.Leader(ctx)
		return err
	})
	return led, err
}

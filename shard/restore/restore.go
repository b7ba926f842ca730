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
	"github.com/countd/countd/raftfsm/board"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/raftfsm/rows"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/keyspace"
)

const (
	// restoreOpsMax bounds the rows of one write of a restore: as many as a client may send at once.
	restoreOpsMax = 10_000
	// restoreInFlightMax keeps the group's log busy while the restore reads the next rows, and leaves
	// most of the queue to others.
	restoreInFlightMax = 4
	// restoreTryTimeout bounds one try of a write. Its repeats have its number, so the restore may
	// repeat it whatever its outcome.
	restoreTryTimeout = 10 * time.Second
	// restoreWindow bounds the numbers in flight to the window in which a shard remembers the requests
	// of a producer. After each window, the restore waits for all its writes.
	restoreWindow = 64
	// restoreAheadMax bounds how far ahead the clock of an earlier restore's node can have been.
	restoreAheadMax = 100 * 365 * 24 * time.Hour
	// restoreFolloweesMax bounds the followees of one write.
	restoreFolloweesMax = 20_000
	// restorePostsMax bounds the posts in the outboxes of one write.
	restorePostsMax = 50_000
	// restoreReadTimeout bounds a read of the shard's present state.
	restoreReadTimeout = 30 * time.Second
)

// ErrNotEmpty is returned by Shard for a shard that has rows, outboxes or members.
var ErrNotEmpty = errors.New("the shard has rows, outboxes or members")

// ErrBadSnapshot is returned by Shard for a stream that is not a whole snapshot of a shard of that
// keyspace. Rows before the fault may have been written.
var ErrBadSnapshot = errors.New("not a snapshot that this shard can take")

// ErrRestoredOther is returned by Shard if the shard's digest is not the snapshot's, because something
// else wrote to the shard meanwhile.
var ErrRestoredOther = errors.New("the shard does not hold what was restored")

// ErrOtherRestore is returned by Shard if another restore of the shard began later. From then on, the
// shard refuses the writes of this one.
var ErrOtherRestore = errors.New("another restore of the shard has begun")

// Options are the options of Shard.
type Options struct {
	Force bool // first delete the shard's rows, outboxes and members
	// Columns has the names of the snapshot's columns by number, or "" for a dropped column, whose counts
	// are left out. Counts go to the keyspace's columns of these names. nil means that the snapshot has
	// the keyspace's columns.
	Columns []string
}

// Node gives a restore access to the shard, through the node that runs it.
type Node interface {
	// Write applies w on the node that leads the shard, or returns an error.
	Write(w *Write) error
	// WritePositions sets the shard's positions of sources in the same way.
	WritePositions(id dedup.RequestID, deadline time.Time) error
	// Rows returns the ids of the next rows of a table of the shard, in order from a key on, or none if
	// there are no more.
	Rows(ctx context.Context, table raftfsm.Table, from uint64) ([]uint64, error)
	// Leader describes the replica that leads the shard, or returns errs.ErrNoLeader.
	Leader(ctx context.Context) (State, error)
	// BoardEnd returns the greatest valid cursors.
	BoardEnd(deadline time.Time) (*[engine.ColumnsMax]int64, error)
}

// State describes the state of a replica.
type State struct {
	Rows     uint64
	Outboxes uint64 // authors with an outbox
	Members  uint64 // of all sets, including those of ids without counts
	Digest   string // 16 hex digits
}

// Write is one write of a restore.
type Write struct {
	ID       dedup.RequestID
	Table    raftfsm.Table
	Ops      []engine.Op
	Feeds    []feed.Op
	Board    *board.Op
	Outbox   []outbox.Op
	Deadline time.Time

	Refused bool // set by Node.Write: the shard refused an op
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

// Shard sets the rows of a shard to those of a snapshot of OpenSnapshot. It writes them through the log
// like any write, so replicas and crashes need no special care, and a second run, with Force,
// completes a first one. The shard must be empty, unless Force deletes its rows first. Shard waits for
// leaders until ctx ends. Restore the board before the shards of unread numbers, because it bounds
// their cursors.
//
// The first write makes the shard forget all requests of clients, and the restore brings none back.
// So a repeat of any earlier request counts: the restored rows lack the requests from after the
// backup, and do not show which ones those are.
//
// Each write has a number (dedup.ByRestore) that its repeats share. So a late copy, from this restore or
// an earlier one, changes nothing. The numbers count up from the time in nanoseconds at which the
// restore began, so those of a later restore are greater.
//
// Shard does not use raft's own Restore, which gives the leader the new state before any other voter has
// agreed. If that leader crashes and returns, it has entries that the others lack, and raft does not
// remove them.
func Shard(ctx context.Context, cfg Config, stream io.Reader, o Options) (raftfsm.SnapshotFacts, error) {
	r := &restore{
		cfg: cfg, ctx: ctx, route: cfg.Keyspace.Route(),
		seq: uint64(time.Now().UnixNano()), slots: make(chan struct{}, restoreInFlightMax),
	}
	var err error
	if r.places, err = placesOf(r.cfg.Keyspace, o.Columns); err != nil {
		return raftfsm.SnapshotFacts{}, err
	}
	snapshot, err := kinds.All.OpenSnapshot(stream, r.cfg.Kind, codec.Route{Modulus: uint32(r.route.Shards), Residue: uint32(r.cfg.Shard)})
	if err != nil {
		return raftfsm.SnapshotFacts{}, fmt.Errorf("%w: %w", ErrBadSnapshot, err)
	}
	if err := r.empty(o.Force); err != nil {
		return raftfsm.SnapshotFacts{}, err
	}
	facts, err := snapshot.Visit(raftfsm.SnapshotVisitor{
		Members: r.member,
		Rows:    r.rows,
		Body:    r.body,
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
	facts.Digest += r.changed.Digest - facts.Gone
	facts.Gone = 0
	facts.SetBack = r.changed.SetBack
	if err := r.check(facts); err != nil {
		return facts, err
	}
	return facts, r.openPositions()
}

// restore is a running restore of one shard. The goroutine of Shard owns it, except cfg, ctx and mu. Each
// write in flight has a goroutine of its own, which ends with ctx; flush waits for it.
type restore struct {
	cfg   Config
	ctx   context.Context
	route raftfsm.Route

	places    []int                     // by column of the snapshot: its number here, or leftOut
	end       *[engine.ColumnsMax]int64 // bounds the cursors; nil before the first row of them
	positions []dedup.PositionRecord    // of the snapshot
	// positionsDigest is the part of positions in the snapshot's digest.
	positionsDigest uint64
	closed          bool                  // the shard applies no section of a source
	changed         raftfsm.SnapshotFacts // the expected state of the shard minus that of the snapshot

	seq     uint64 // number of the last write
	sent    int    // number of writes sent
	next    batch
	slots   chan struct{} // a token for each write in flight
	writing sync.WaitGroup

	mu struct {
		sync.Mutex
		failed error // of the first write that failed
	}
}

// batch is the next write of a restore.
type batch struct {
	Write                   // the ops share the memory of cells
	cells     []engine.Cell // cells of all ops
	followees int           // number in Feeds
	posts     int           // number in Outbox
}

// add adds an op to the next write, and sends the write once it is full.
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

// send starts the next write. It returns the error of an earlier write.
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
	r.next = batch{} // the goroutine owns the old one now
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

// begin makes the shard forget the requests of clients, and refuse the writes of all earlier restores. op
// must not change an empty shard. If the number of op is not greater than theirs, the clock of an
// earlier node was ahead; begin then tries greater numbers.
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

// write repeats a write, with the same number, until it succeeds or fails for good.
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

// repeat calls attempt until it succeeds or fails for good.
func (r *restore) repeat(attempt func(deadline time.Time) error) (err error) {
	errs.RetryUntil(r.ctx, func() bool {
		ctx, cancel := context.WithTimeout(r.ctx, restoreTryTimeout)
		defer cancel()
		deadline, _ := ctx.Deadline()
		if err = attempt(deadline); errors.Is(err, errs.ErrExpired) {
			err = fmt.Errorf("%w: %w", ErrOtherRestore, err)
		}
		return err == nil || !mayTryAgain(err) || r.cfg.Draining.Load()
	})
	return err
}

// mayTryAgain reports whether a write that failed with err may be repeated: the shard did not apply it, or
// will not apply its repeat.
func mayTryAgain(err error) bool {
	for _, passing := range []error{errs.ErrOutcomeUnknown, errs.ErrNoLeader, errs.ErrDraining, errs.ErrOverloaded} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// flush sends the next write, waits for all writes, and returns the error of one.
func (r *restore) flush() error {
	var err error
	if len(r.next.Ops) > 0 {
		err = r.send()
	}
	r.writing.Wait()
	return errors.Join(r.failed(), err)
}

// empty begins the restore: it empties the shard, and stops the sources from adding rows. Without force
// it returns ErrNotEmpty for a shard that is not empty.
func (r *restore) empty(force bool) error {
	if !r.takesPositions() {
		return r.clear(force)
	}
	tables, counters := []raftfsm.Table{rows.Counts}, r.cfg.Kind == codec.KindCounters
	if !counters {
		tables = append(tables, unread.Cursors)
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

// rowsFrom is Node.Rows with a timeout.
func (r *restore) rowsFrom(table raftfsm.Table, key uint64) ([]uint64, error) {
	ctx, cancel := context.WithTimeout(r.ctx, restoreReadTimeout)
	defer cancel()
	return r.cfg.Node.Rows(ctx, table, key)
}

// check compares the leader's digest and rows with the snapshot's, before a source may change them.
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
	err = errs.WaitFor(ctx, func() error {
		var err error
		led, err = r.cfg.Node.Leader(ctx)
		return err
	})
	return led, err
}

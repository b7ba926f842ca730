package admin

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
)

const (
	// restoreOpsMax bounds the rows of one write of a restore. Clients' requests have the same
	// bound.
	restoreOpsMax = 10_000
	// restoreInFlightMax bounds the writes in flight. These writes keep the group's log busy while
	// the restore reads the next rows. They leave most of the group's queue to other writes.
	restoreInFlightMax = 4
	// restoreTryTimeout bounds one try of a write. A try of unknown outcome may be repeated,
	// because the repeat has the same number.
	restoreTryTimeout = 10 * time.Second
	// restoreWindow is the number of a producer's last requests that a shard remembers. After
	// that many writes, the restore waits until all of them have ended.
	restoreWindow = 64
	// restoreAheadMax bounds the steps by which begin raises the write numbers, in case the clock
	// was ahead during an earlier restore.
	restoreAheadMax = 100 * 365 * 24 * time.Hour
	// restoreIDsMax bounds a write: the restore sends the write once it has restoreIDsMax followees
	// or posts.
	restoreIDsMax = 20_000
	// restoreReadTimeout bounds one read of the shard.
	restoreReadTimeout = 30 * time.Second
	// restoreScanRows is the number of rows that a restore reads at once. With all columns, they
	// take some megabytes.
	restoreScanRows = 4096
)

// ErrShardNotEmpty is returned by RestoreShard for a shard that has rows, outboxes or members.
var ErrShardNotEmpty = errors.New("the shard has rows, outboxes or members")

// ErrBadSnapshot is returned by RestoreShard for a stream that is not a complete snapshot of a
// shard of the same keyspace. Rows before the fault may have been written.
var ErrBadSnapshot = errors.New("not a snapshot that this shard can take")

// errWrongIDs is returned for a snapshot whose ids, computed with RestoreOptions.Divisor, are not of its shard.
var errWrongIDs = errors.New("its keys are of other ids")

// ErrRestoredOther is returned by RestoreShard if the shard's digest differs from the snapshot's,
// because of other writes during the restore.
var ErrRestoredOther = errors.New("the shard does not hold what was restored")

// ErrOtherRestore is returned by RestoreShard if another restore of the shard began later. The shard then
// refuses the writes of this restore.
var ErrOtherRestore = errors.New("another restore of the shard has begun")

// ErrOtherNames is returned by RestoreShard if a text has another number in the shard than in the snapshot, or a number
// another text. Then the counts of the backup would be those of other ids.
var ErrOtherNames = errors.New("texts have other numbers in the cluster than in the backup: restore into a new cluster, or drop the keyspace whose ids they are")

// RestoreOptions are the options of RestoreShard.
type RestoreOptions struct {
	Force bool // first delete the shard's rows, outboxes and members
	// Columns has the names of the snapshot's columns by number; "" for a dropped column, whose
	// counts are omitted. Counts are written to the keyspace's columns of the same names. nil
	// means that the snapshot has the keyspace's columns.
	Columns []string
	// Divisor, if not 0, restores by ids, from shards of a keyspace with any number of shards. The stream then has
	// snapshots, each after its length in 8 bytes, little-endian. Their key of an id is id div Divisor: Divisor is the
	// number of shards at the creation of their keyspace, or 1 by hash. The restore leaves out the rows of other shards.
	Divisor int
}

// RestoreNode is the part of a node that a restore needs. *shard.Node implements it.
type RestoreNode interface {
	// ShardOf returns the keyspace and the number of the shard of a group.
	ShardOf(group uint32) (*shard.Keyspace, int, error)
	Keyspace(name string) *shard.Keyspace
	Write(ks *shard.Keyspace, w *shard.Write) error
	Read(ks *shard.Keyspace, q raftfsm.Query, ids []uint64, opt *shard.ReadOptions) error
	// Reports returns the reports of all nodes that answer, by node key.
	Reports(ctx context.Context) map[string]shard.NodeReport
	Catalog() *catalog.View
	// CatchUp waits until Catalog has all changes acknowledged before the call.
	CatchUp(ctx context.Context) error
	// Stopping reports whether the node is closing.
	Stopping() bool
}

// RestoreShard writes the rows of a snapshot from shard.Node.OpenSnapshot into the shard of a
// group. It writes them through the log like any write, so replicas and crashes need no special
// handling. After an incomplete restore, a second run with Force restores all rows. The shard must
// be empty, unless Force deletes its rows first. RestoreShard waits for leaders until ctx ends.
// Restore the board before the shards of unread numbers, because the board bounds their cursors.
//
// A restore by ids gives the shard the positions of sources that all its snapshots have. If they differ, a message may be
// in the rows of one snapshot and not in those of another, so no position is right. Then the restore fails, and the
// shard stays closed.
//
// The first write makes the shard forget all requests of clients, and the snapshot's requests are
// not restored either. So the shard applies a repeat of any earlier request. This is necessary,
// because the restored rows lack the requests since the backup, and do not show which requests
// these are.
//
// Each write has a number (dedup.ByRestore) that its repeats share. So a late copy of a write,
// from this restore or an earlier one, changes nothing. The numbers count up from the time in
// nanoseconds at which the restore began, so a later restore has greater numbers.
//
// RestoreShard does not use raft's own Restore, which sets the leader's state before any other voter has
// it. If that leader crashes and returns, it has entries that the others lack, and raft does not
// remove them.
func RestoreShard(ctx context.Context, n RestoreNode, group uint32, stream io.Reader, o RestoreOptions) (raftfsm.SnapshotFacts, error) {
	ks, number, err := n.ShardOf(group)
	if err != nil {
		return raftfsm.SnapshotFacts{}, err
	}
	kind, _ := codec.KindOf(ks.Kind)
	r := &restore{
		node: n, ctx: ctx, keyspace: ks, group: group, shard: number, kind: kind, route: ks.Route(), byIDs: o.Divisor > 0,
		seq: uint64(time.Now().UnixNano()), slots: make(chan struct{}, restoreInFlightMax),
	}
	if r.places, err = placesOf(ks, o.Columns); err != nil {
		return raftfsm.SnapshotFacts{}, err
	}
	snapshot, err := r.open(stream, o)
	if err != nil {
		return raftfsm.SnapshotFacts{}, fmt.Errorf("%w: %w", ErrBadSnapshot, err)
	}
	if err := r.empty(o.Force); err != nil {
		return raftfsm.SnapshotFacts{}, err
	}
	var facts raftfsm.SnapshotFacts
	for snapshot != nil {
		some, err := r.visit(snapshot)
		if failed := errors.Join(r.flush(), ctx.Err()); failed != nil {
			return some, failed
		}
		some.Rows, some.Digest, some.Gone = some.Rows+facts.Rows, some.Digest-some.Gone+facts.Digest, 0
		facts, snapshot = some, nil
		if err == nil && r.byIDs {
			snapshot, err = r.open(stream, o)
		}
		if errors.Is(err, errWrongIDs) { // some earlier rows may have wrong ids too
			r.seq++
			err = errors.Join(err, r.empty(true))
		}
		if err != nil {
			return facts, fmt.Errorf("%w: %w", ErrBadSnapshot, err)
		}
	}
	facts.Rows += r.changed.Rows
	facts.Digest += r.changed.Digest
	facts.SetBack = r.changed.SetBack
	if err := r.check(facts); err != nil {
		return facts, err
	}
	return facts, r.openPositions()
}

// open reads the head of the next snapshot of the stream. It returns nil at the end of a stream of several snapshots.
func (r *restore) open(stream io.Reader, o RestoreOptions) (*raftfsm.SnapshotReader, error) {
	if !r.byIDs {
		of := r.route.Of(r.shard)
		snapshot, err := kinds.All.OpenSnapshot(stream, r.kind, of)
		if err != nil {
			return nil, err
		}
		r.from, r.divisor = of, r.route.Divisor
		return snapshot, of.Check(snapshot.Route()) // the same keys may be other ids in a shard of a later route
	}
	var length [8]byte
	switch _, err := io.ReadFull(stream, length[:]); {
	case err == io.EOF && len(r.positions) > 0:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("the length of a snapshot: %w", err)
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > math.MaxInt64 {
		return nil, fmt.Errorf("a snapshot of %d bytes", n)
	}
	snapshot, err := kinds.All.OpenAnySnapshot(io.LimitReader(stream, int64(n)), r.kind)
	switch {
	case err != nil:
		return nil, err
	case kinds.All.Traits(r.keyspace.Kind).Undivided:
		return nil, fmt.Errorf("a shard of %s is not restored by ids, because it is always the only one", r.kind)
	case int(snapshot.Route().Modulus)%o.Divisor != 0:
		return nil, fmt.Errorf("%s is not of a keyspace that was created with %d shards", snapshot.Route(), o.Divisor)
	}
	r.from, r.divisor = snapshot.Route(), uint64(o.Divisor)
	r.spreads = []raftfsm.Route{raftfsm.NewRoute(o.Divisor, int(r.from.Modulus), false)}
	if o.Divisor == 1 {
		r.spreads = append(r.spreads, raftfsm.NewRoute(1, int(r.from.Modulus), true))
	}
	return snapshot, nil
}

// visit writes the contents of a snapshot.
func (r *restore) visit(snapshot *raftfsm.SnapshotReader) (raftfsm.SnapshotFacts, error) {
	r.positions = append(r.positions, nil)
	return snapshot.Visit(raftfsm.SnapshotVisitor{
		Members: r.member,
		Rows:    r.rows,
		Body:    r.body,
		Positions: func(all []dedup.PositionRecord, digest uint64) error {
			r.positions[len(r.positions)-1] = all
			r.positionsDigest += digest
			return nil
		},
	})
}

// restore is a running restore of one shard. The goroutine of RestoreShard owns it, except ctx, mu and
// fields that never change. Each write in flight has a goroutine, which ends at the latest with
// ctx; flush waits for it.
type restore struct {
	node     RestoreNode
	ctx      context.Context
	keyspace *shard.Keyspace
	group    uint32
	shard    int
	kind     codec.Kind
	route    raftfsm.Route
	byIDs    bool // RestoreOptions.Divisor is set

	from      codec.Route               // route of the snapshot that is being read
	divisor   uint64                    // an id div divisor is its key in the snapshot
	places    []int                     // for each column of the snapshot: its number in the keyspace, or leftOut
	end       *[engine.ColumnsMax]int64 // upper bounds of the cursors, by column; nil before the first row of cursors
	spreads   []raftfsm.Route           // by ids: the routes by which all ids so far are of the shard of the snapshot
	positions [][]dedup.PositionRecord  // positions in each snapshot
	// positionsDigest is the contribution of positions to the digests of the snapshots.
	positionsDigest uint64
	merges          bool                  // the shard has given numbers, which the restore keeps, so it may have more than the snapshot
	closed          bool                  // closePositions was called
	changed         raftfsm.SnapshotFacts // expected difference between the facts of the shard and the sum of the facts of the snapshots

	seq     uint64 // number of the last write
	sent    int    // number of writes sent
	next    restoreWrite
	slots   chan struct{} // a token for each write in flight
	writing sync.WaitGroup

	mu struct {
		sync.Mutex
		failed error // error of the first failed write
	}
}

// restoreWrite is the next write of a restore.
type restoreWrite struct {
	ops   raftfsm.Ops   // nil, or a pointer to a slice of ops, whose cells are in the field cells
	cells []engine.Cell // cells of all ops
	ids   int           // number of followees or posts
}

// opsOf returns a pointer to the ops of the next write. The caller may append to them. If the next
// write has ops of another type, opsOf sends it first.
func opsOf[T any, P interface {
	*T
	raftfsm.Ops
}](r *restore) (P, error) {
	if ops, same := r.next.ops.(P); same {
		return ops, nil
	}
	if r.next.ops != nil {
		if err := r.send(); err != nil {
			return nil, err
		}
	}
	ops := P(new(T))
	r.next.ops = ops
	return ops, nil
}

// added sends the next write if it is full. Call it after adding an op.
func (r *restore) added() error {
	if r.next.ops.Len() < restoreOpsMax && r.next.ids < restoreIDsMax {
		return nil
	}
	return r.send()
}

// add adds an op on a row to the next writes.
func (r *restore) add(table raftfsm.Table, op engine.Op) error {
	if table == unread.Cursors {
		ops, err := opsOf[unread.CursorOps](r)
		if err != nil {
			return err
		}
		*ops = append(*ops, op)
		return r.added()
	}
	ops, err := opsOf[counters.Ops](r)
	if err != nil {
		return err
	}
	*ops = append(*ops, op)
	return r.added()
}

// send starts the next write. If an earlier write has failed, it returns that error.
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
	id, ops := dedup.ByRestore(r.seq, false), r.next.ops
	r.next = restoreWrite{} // the goroutine owns the previous write
	r.writing.Go(func() {
		defer func() { <-r.slots }()
		if err := r.write(id, ops); err != nil {
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

// begin makes the shard forget the requests of clients, and refuse the writes of all earlier
// restores. The parameter op must be without effect on an empty shard. If an earlier restore had
// greater numbers, because its node's clock was ahead, begin tries greater numbers.
func (r *restore) begin(op raftfsm.Ops) error {
	for step := time.Minute; ; step *= 2 {
		err := r.write(dedup.ByRestore(r.seq, true), op)
		if !errors.Is(err, ErrOtherRestore) || step > restoreAheadMax {
			return err
		}
		r.seq += uint64(step)
	}
}

// write repeats a write, with the same number, until it succeeds or fails with a lasting error.
func (r *restore) write(id dedup.RequestID, ops raftfsm.Ops) error {
	return r.repeat(func(deadline time.Time) error {
		w := &shard.Write{Ops: ops, ID: id, Deadline: deadline}
		err := r.node.Write(r.keyspace, w)
		if err == nil && len(w.Overflows) > 0 && r.kind == codec.KindNames {
			err = fmt.Errorf("keyspace %s: %w", r.keyspace.Name, ErrOtherNames)
		} else if err == nil && len(w.Overflows) > 0 {
			err = fmt.Errorf("%w: the shard refused what it holds", ErrBadSnapshot)
		}
		return err
	})
}

// repeat calls attempt until it succeeds or fails with a lasting error.
func (r *restore) repeat(attempt func(deadline time.Time) error) (err error) {
	errs.RetryUntil(r.ctx, func() bool {
		ctx, cancel := context.WithTimeout(r.ctx, restoreTryTimeout)
		defer cancel()
		deadline, _ := ctx.Deadline()
		if err = attempt(deadline); errors.Is(err, errs.ErrExpired) {
			err = fmt.Errorf("%w: %w", ErrOtherRestore, err)
		}
		return err == nil || !mayTryAgain(err) || r.node.Stopping()
	})
	return err
}

// mayTryAgain reports whether a write that failed with err may succeed if it is repeated.
func mayTryAgain(err error) bool {
	for _, passing := range []error{errs.ErrOutcomeUnknown, errs.ErrNoLeader, errs.ErrDraining, errs.ErrOverloaded} {
		if errors.Is(err, passing) {
			return true
		}
	}
	return false
}

// flush sends the next write, waits for all writes, and returns the first error.
func (r *restore) flush() error {
	var err error
	if r.next.ops != nil {
		err = r.send()
	}
	r.writing.Wait()
	return errors.Join(r.failed(), err)
}

// read runs a linearizable query of a keyspace.
func (r *restore) read(ks *shard.Keyspace, q raftfsm.Query) error {
	ctx, cancel := context.WithTimeout(r.ctx, restoreReadTimeout)
	defer cancel()
	opt := &shard.ReadOptions{Consistency: shard.Linearizable}
	opt.Deadline, _ = ctx.Deadline()
	return r.node.Read(ks, q, nil, opt)
}

// check compares the leader's digest and number of rows with the snapshot's. Call it before
// openPositions: sources change both.
func (r *restore) check(facts raftfsm.SnapshotFacts) error {
	led, err := r.leader()
	if err != nil {
		return err
	}
	if r.merges { // the shard has refused each pair that it has not
		if led.Rows < facts.Rows {
			return fmt.Errorf("%w: %d texts, restored were %d", ErrRestoredOther, led.Rows, facts.Rows)
		}
		return nil
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

// leader waits until the shard has a leader, and returns the report of its replica.
func (r *restore) leader() (led *shard.ReplicaReport, err error) {
	ctx, cancel := context.WithTimeout(r.ctx, restoreReadTimeout)
	defer cancel()
	err = errs.WaitFor(ctx, func() error {
		led = nil
		for _, report := range r.node.Reports(ctx) {
			for i, replica := range report.Replicas {
				if replica.ID == r.group && replica.Role == "leader" && (led == nil || replica.Term > led.Term) {
					led = &report.Replicas[i]
				}
			}
		}
		if led == nil {
			return errs.ErrNoLeader
		}
		return nil
	})
	return led, err
}

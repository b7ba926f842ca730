package propose

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// Proposal is the part of a request that concerns one group. The answer is set when Wait has
// returned nil or any error except ErrOutcomeUnknown.
type Proposal struct {
	owner   *Proposer // nil if another node has the proposal, or if it was settled from the beginning
	section []byte    // owned by the proposer until done; immutable once queued
	Ops     int       // number of ops in the section
	Width   int       // columns of each result row; 0 for none
	clocked bool      // the request's identity or its ops need the log's time
	since   time.Time // time of queueing

	queued bool          // the proposal waits in a line; guarded by Proposer.mu
	done   chan struct{} // closed once the fields below are set

	Err    error
	Result *raftfsm.Result // result of the whole entry
	number int             // index of the proposal in the entry
	First  int             // index of its first op in the entry
}

// load returns the proposal's part of QueueOpsMax. A proposal without ops counts as one op, because
// it uses memory too.
func (q *Proposal) load() int { return max(q.Ops, 1) }

// large reports whether the proposal waits in the line of large proposals.
func (q *Proposal) large() bool { return len(q.section) > smallBytesMax }

// Wait blocks until the request is settled and returns its error. At the deadline, Wait withdraws a
// queued request and returns ErrOverloaded, or stops waiting for a proposed request and returns
// ErrOutcomeUnknown. For a Pending proposal, Wait ignores the deadline and blocks until Settle,
// because only the caller of Pending knows whether the proposal was sent.
func (q *Proposal) Wait(deadline *time.Timer) error {
	select {
	case <-q.done: // the usual case for later parts of a request; cheaper than the timer
		return q.answer()
	default:
	}
	select {
	case <-q.done:
		return q.answer()
	case <-deadline.C:
		deadline.Reset(0) // fires again at once for the request's other groups
	}
	if q.owner == nil {
		<-q.done
		return q.answer()
	}
	if q.owner.withdraw(q) {
		return fmt.Errorf("%w: %w", errs.ErrOverloaded, errs.ErrTooLate)
	}
	select {
	case <-q.done:
		return q.answer()
	default:
		return errs.ErrOutcomeUnknown
	}
}

// answer returns an error if a settled proposal was not applied.
func (q *Proposal) answer() error {
	if q.Err != nil {
		return q.Err
	}
	switch q.Outcome() {
	case dedup.Conflict:
		return errs.ErrConflict
	case dedup.Expired:
		return errs.ErrExpired
	case dedup.Misrouted:
		return rpc.ErrMisrouted(q.Result.Modulus, fmt.Sprintf("the replica is of %d shards", q.Result.Modulus))
	case dedup.Full:
		return fmt.Errorf("%w: the key cannot be remembered now", errs.ErrOverloaded)
	}
	return nil
}

func (q *Proposal) Outcome() dedup.Outcome { return q.Result.Outcome(q.number) }

// Use returns how the request used its idempotency key, as decided by the shard.
func (q *Proposal) Use() dedup.Use { return q.Result.Use(q.number) }

// Position returns the new position of the partition of a source's section.
func (q *Proposal) Position() (answer dedup.PositionAnswer, ok bool) {
	return q.Result.Position(q.number)
}

// Row returns the first width counts in the result row of op i.
func (q *Proposal) Row(i, width int) []int64 {
	at := (q.First + i) * q.Result.Width
	return q.Result.Rows[at : at+width]
}

// Refused returns the refusals of the proposal's ops. Op numbers count all ops of the entry.
func (q *Proposal) Refused() []engine.Overflow {
	return ofOps(q, q.Result.Overflows, func(o engine.Overflow, op int) int { return cmp.Compare(o.Op, op) })
}

// Cuts returns the deltas of the proposal's ops that bounds changed. Op numbers count all ops of
// the entry.
func (q *Proposal) Cuts() []engine.Cut {
	return ofOps(q, q.Result.Cuts, func(c engine.Cut, op int) int { return cmp.Compare(c.Op, op) })
}

// Changed returns the op numbers of the proposal's ops that changed a set of members. Op numbers
// count all ops of the entry.
func (q *Proposal) Changed() []int { return ofOps(q, q.Result.Changed, cmp.Compare[int]) }

// ofOps returns the items of an entry's list that belong to the proposal.
func ofOps[T any](q *Proposal, all []T, byOp func(T, int) int) []T {
	from, _ := slices.BinarySearchFunc(all, q.First, byOp)
	to, _ := slices.BinarySearchFunc(all, q.First+q.Ops, byOp)
	return all[from:to]
}

// Overflow returns the refusal of op i, if the entry refused it. Call it with increasing i. The
// caller sets *place to 0 before the first call. Overflow keeps its position among the entry's
// refusals in *place between calls.
func (q *Proposal) Overflow(i int, place *int) (engine.Overflow, bool) {
	all := q.Result.Overflows
	for *place < len(all) && all[*place].Op < q.First+i {
		*place++
	}
	if *place < len(all) && all[*place].Op == q.First+i {
		return all[*place], true
	}
	return engine.Overflow{}, false
}

// Settled returns an answered proposal. Its answer is err or, if err is nil, the fields that the
// caller sets.
func Settled(err error) *Proposal {
	q := &Proposal{Err: err, done: make(chan struct{})}
	close(q.done)
	return q
}

// Pending returns a proposal that is sent to another node. The caller must set the answer and then
// call Settle by the deadline, because Wait blocks until Settle.
func Pending() *Proposal { return &Proposal{done: make(chan struct{})} }

// Settle wakes the waiters of a Pending proposal.
func (q *Proposal) Settle() { close(q.done) }

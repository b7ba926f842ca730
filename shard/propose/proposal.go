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
)

// Proposal is the part of a request that concerns one group. Its answer is set once Wait returns
// anything but ErrOutcomeUnknown.
type Proposal struct {
	owner   *Proposer // nil if another node has the proposal, or if it is settled
	section []byte    // owned by the proposer until done; immutable once queued
	Ops     int       // in the section
	Width   int       // columns of each result row; 0 for none
	clocked bool      // the request's identity or its ops need the leader's time
	since   time.Time // when it was queued

	queued bool          // waits in a line; guarded by Proposer.mu
	done   chan struct{} // closed once the fields below are set

	Err    error
	Result *raftfsm.Result // of the whole entry
	number int             // index of the proposal in the entry
	First  int             // index of its first op in the entry
}

// load is the proposal's part of QueueOpsMax. A proposal without ops, a read confirmed through the
// log, uses memory too.
func (q *Proposal) load() int { return max(q.Ops, 1) }

// large reports whether the proposal waits in the line of large ones.
func (q *Proposal) large() bool { return len(q.section) > smallBytesMax }

// Wait blocks until the request is settled and returns its error. At the deadline it withdraws a
// queued request (ErrOverloaded) and gives up one that was proposed (ErrOutcomeUnknown). For a
// Pending proposal, Wait blocks until Settle, because only the caller of Pending knows whether the
// proposal was sent.
func (q *Proposal) Wait(deadline *time.Timer) error {
	select {
	case <-q.done: // the usual case for a request's later parts; cheaper than the timer
		return q.answer()
	default:
	}
	select {
	case <-q.done:
		return q.answer()
	case <-deadline.C:
		deadline.Reset(0) // for the request's other groups
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

// answer returns why a settled proposal was not applied, or nil.
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
		return errs.ErrMisrouted
	case dedup.Full:
		return fmt.Errorf("%w: the key cannot be remembered now", errs.ErrOverloaded)
	}
	return nil
}

func (q *Proposal) Outcome() dedup.Outcome { return q.Result.Outcome(q.number) }

// Use returns how the request used its key, as the shard decided.
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

// Refused returns the refusals of the proposal's ops. Ops are numbered in the entry.
func (q *Proposal) Refused() []engine.Overflow {
	return ofOps(q, q.Result.Overflows, func(o engine.Overflow, op int) int { return cmp.Compare(o.Op, op) })
}

// Cuts returns the deltas of the proposal's ops that floors cut short. Ops are numbered in the
// entry.
func (q *Proposal) Cuts() []engine.Cut {
	return ofOps(q, q.Result.Cuts, func(c engine.Cut, op int) int { return cmp.Compare(c.Op, op) })
}

// Changed returns the proposal's ops that changed a set of members. Ops are numbered in the entry.
func (q *Proposal) Changed() []int { return ofOps(q, q.Result.Changed, cmp.Compare[int]) }

// ofOps returns the items of an entry's list that belong to the proposal's ops.
func ofOps[T any](q *Proposal, all []T, byOp func(T, int) int) []T {
	from, _ := slices.BinarySearchFunc(all, q.First, byOp)
	to, _ := slices.BinarySearchFunc(all, q.First+q.Ops, byOp)
	return all[from:to]
}

// Overflow returns the refusal of op i, if the entry refused it. Calls must come with increasing i;
// next holds the place in the entry's refusals between them.
func (q *Proposal) Overflow(i int, next *int) (engine.Overflow, bool) {
	all := q.Result.Overflows
	for *next < len(all) && all[*next].Op < q.First+i {
		*next++
	}
	if *next < len(all) && all[*next].Op == q.First+i {
		return all[*next], true
	}
	return engine.Overflow{}, false
}

// Settled returns a proposal that is already answered, with err or with what the caller sets.
func Settled(err error) *Proposal {
	q := &Proposal{Err: err, done: make(chan struct{})}
	close(q.done)
	return q
}

// Pending returns a proposal that another node has. The caller must set the answer and then call
// Settle, at the deadline at the latest, because Wait blocks until then.
func Pending() *Proposal { return &Proposal{done: make(chan struct{})} }

// Settle wakes the waiters of a Pending proposal.
func (q *Proposal) Settle() { close(q.done) }

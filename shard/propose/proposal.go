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

// Proposal is one request's part for one group. Its answer is set once Wait has
// returned something other than ErrOutcomeUnknown.
type Proposal struct {
	owner   *Proposer // nil if another node has it, or if it is settled
	section []byte    // the proposer's until done; never changed once it is queued
	Ops     int       // in the section
	Width   int       // columns of each result row; 0 for none
	clocked bool      // the request needs the leader's time: for its identity, or its ops do
	since   time.Time // it was queued

	queued bool          // in its line; guarded by Proposer.mu
	done   chan struct{} // closed when the answer below is set

	Err    error
	Result *raftfsm.Result // of the whole entry
	number int             // of the proposal in the entry
	First  int             // number of its first op in the entry
}

// load is what a proposal counts against QueueOpsMax. One without ops, a read
// that is confirmed through the log, takes memory too.
func (q *Proposal) load() int { return max(q.Ops, 1) }

// large reports which line it waits in.
func (q *Proposal) large() bool { return len(q.section) > smallBytesMax }

// Wait returns the request's error once it is settled. At the deadline it
// withdraws a request that is still queued (ErrOverloaded) and gives one that
// was proposed up (ErrOutcomeUnknown). What became of a Pending one is its caller's to
// say, who knows whether it was sent.
func (q *Proposal) Wait(deadline *time.Timer) error {
	select {
	case <-q.done: // as most of a request's later parts are; the timer costs more to look at
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

// Use returns the use of the request's key, as the shard judged it.
func (q *Proposal) Use() dedup.Use { return q.Result.Use(q.number) }

// Position returns where the partition of a section of a source is.
func (q *Proposal) Position() (answer dedup.PositionAnswer, ok bool) {
	return q.Result.Position(q.number)
}

// Row returns the first width counts of the row of the proposal's op i.
func (q *Proposal) Row(i, width int) []int64 {
	at := (q.First + i) * q.Result.Width
	return q.Result.Rows[at : at+width]
}

// Refused returns the refusals of the proposal's ops, by number in the entry.
func (q *Proposal) Refused() []engine.Overflow {
	return ofOps(q, q.Result.Overflows, func(o engine.Overflow, op int) int { return cmp.Compare(o.Op, op) })
}

// Cuts is refused for the deltas that floors cut short.
func (q *Proposal) Cuts() []engine.Cut {
	return ofOps(q, q.Result.Cuts, func(c engine.Cut, op int) int { return cmp.Compare(c.Op, op) })
}

// Changed returns the proposal's ops that changed a set of members, by number in the entry.
func (q *Proposal) Changed() []int { return ofOps(q, q.Result.Changed, cmp.Compare[int]) }

// ofOps returns those of an entry's notes that are of the proposal's ops.
func ofOps[T any](q *Proposal, all []T, byOp func(T, int) int) []T {
	from, _ := slices.BinarySearchFunc(all, q.First, byOp)
	to, _ := slices.BinarySearchFunc(all, q.First+q.Ops, byOp)
	return all[from:to]
}

// Overflow returns the refusal of the proposal's op i, if it was refused. from
// is where to look in the entry's refusals; calls come with rising i.
func (q *Proposal) Overflow(i int, from *int) (engine.Overflow, bool) {
	all := q.Result.Overflows
	for *from < len(all) && all[*from].Op < q.First+i {
		*from++
	}
	if *from < len(all) && all[*from].Op == q.First+i {
		return all[*from], true
	}
	return engine.Overflow{}, false
}

// Settled returns a proposal that has its answer already: err, or what its caller sets.
func Settled(err error) *Proposal {
	q := &Proposal{Err: err, done: make(chan struct{})}
	close(q.done)
	return q
}

// Pending returns a proposal that another node has. Its caller sets the answer, then
// calls Settle, at the deadline at the latest: Wait waits for that.
func Pending() *Proposal { return &Proposal{done: make(chan struct{})} }

// Settle ends the waits for a Pending proposal.
func (q *Proposal) Settle() { close(q.done) }

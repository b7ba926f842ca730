package shard

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
)

// proposal is one request's part for one group.
type proposal struct {
	owner   *proposer // nil for one that is settled or that another node has
	section []byte    // the proposer's until done; never changed
	ops     int
	width   int
	clocked bool // the request needs the leader's time: for its identity, or its ops do
	since   time.Time

	queued bool          // in its line; guarded by proposer.mu
	done   chan struct{} // closed when the answer below is set

	err    error
	result *raftfsm.Result
	number int // of the proposal in the entry
	first  int // number of its first op there
}

// load is what a proposal counts against queueOpsMax. One without ops, a read
// that is confirmed through the log, takes memory too.
func (q *proposal) load() int { return max(q.ops, 1) }

// large says which line it waits in.
func (q *proposal) large() bool { return len(q.section) > smallBytesMax }

// wait returns the request's error once it is settled. At the deadline it
// withdraws a request that is still queued (ErrOverloaded) and gives one that
// was proposed up (ErrOutcomeUnknown).
func (q *proposal) wait(deadline *time.Timer) error {
	select {
	case <-q.done:
		return q.answer()
	case <-deadline.C:
		deadline.Reset(0) // for the request's other groups
	}
	if q.owner != nil && q.owner.withdraw(q) {
		return fmt.Errorf("%w: %w", ErrOverloaded, ErrTooLate)
	}
	select {
	case <-q.done:
		return q.answer()
	default:
		return ErrOutcomeUnknown
	}
}

// answer returns why a settled proposal was not applied, or nil.
func (q *proposal) answer() error {
	if q.err != nil {
		return q.err
	}
	switch q.outcome() {
	case raftfsm.Conflict:
		return ErrConflict
	case raftfsm.Expired:
		return ErrExpired
	case raftfsm.Full:
		return fmt.Errorf("%w: no room to remember another key", ErrOverloaded)
	}
	return nil
}

func (q *proposal) outcome() raftfsm.Outcome { return q.result.Outcome(q.number) }

// arrived returns when a request by a key came first, if it came before, by the log's
// time in Unix milliseconds; else 0.
func (q *proposal) arrived() int64 { return q.result.Arrived(q.number) }

// row returns the first width counts of the row of the proposal's op i.
func (q *proposal) row(i, width int) []int64 {
	at := (q.first + i) * q.result.Width
	return q.result.Rows[at : at+width]
}

// refused returns the refusals of the proposal's ops, by number in the entry.
func (q *proposal) refused() []engine.Overflow {
	return ofOps(q, q.result.Overflows, func(o engine.Overflow, op int) int { return cmp.Compare(o.Op, op) })
}

// cuts is refused for the deltas that floors cut short.
func (q *proposal) cuts() []engine.Cut {
	return ofOps(q, q.result.Cuts, func(c engine.Cut, op int) int { return cmp.Compare(c.Op, op) })
}

// ofOps returns those of an entry's notes that are of the proposal's ops.
func ofOps[T any](q *proposal, all []T, byOp func(T, int) int) []T {
	from, _ := slices.BinarySearchFunc(all, q.first, byOp)
	to, _ := slices.BinarySearchFunc(all, q.first+q.ops, byOp)
	return all[from:to]
}

// overflow returns the refusal of the proposal's op i, if it was refused. from
// is where to look in the entry's refusals; calls come with rising i.
func (q *proposal) overflow(i int, from *int) (engine.Overflow, bool) {
	all := q.result.Overflows
	for *from < len(all) && all[*from].Op < q.first+i {
		*from++
	}
	if *from < len(all) && all[*from].Op == q.first+i {
		return all[*from], true
	}
	return engine.Overflow{}, false
}

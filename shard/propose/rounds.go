package propose

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// gatherMax bounds how long a round waits for those to come back who were answered by
	// the one before, which is also never longer than gatherRounds times what that one took.
	gatherRounds = 2
	gatherMax    = 10 * time.Millisecond
	// gatherShare/gatherOf of them are waited for: some do not come back.
	gatherShare, gatherOf = 3, 4
	// A round waits for the entries of the one before for no longer than slowRounds times
	// what the last took, within these bounds: a group that is slower is left behind, and
	// takes part again once its entry is answered.
	slowRounds   = 2
	roundWaitMin = time.Millisecond
	roundWaitMax = gatherMax
)

// Rounds has the groups of a node propose together: the logs of all replicas then sync
// once for the entries of a round, and one call carries them to a follower. A round
// begins when none of the entries of the round before is in flight, and takes all
// proposals that wait in any group. Who was answered by the last round is likely to come
// again at once, so the next also waits for most of them. One caller alone waits for
// nobody.
//
// It has no goroutine; its timer runs only while a round waits.
type Rounds struct {
	expect func(entries int) // see NewRounds

	mu struct { // taken with a proposer's lock held; no proposer's is taken under it
		sync.Mutex
		waiting []*roundMember // those with proposals that may take part in the next round
		total   int            // proposals that wait in all groups

		number   uint64    // of the last round
		flying   int       // its entries without an answer; 0 once it has ended
		began    time.Time // of it
		answered int       // proposals that it has answered
		behind   int       // proposals that waited when its first entry was answered

		gather      int // the next round waits for so many proposals,
		gatherUntil time.Time
		took        time.Duration // the last round

		timer *time.Timer
		at    time.Time // the timer goes off; zero while it does not run
	}
}

// roundMember is one proposer as rounds knows it. Fields are guarded by rounds' lock
// unless they say otherwise.
type roundMember struct {
	rounds *Rounds
	wake   chan struct{} // the proposer's
	queued bool          // in rounds' waiting
	count  int           // proposals that wait
	// turn is the number of the round in which the proposer is to propose what waits, 0
	// for none. It gives the turn back by take. Read without a lock.
	turn atomic.Uint64
}

// NewRounds returns the rounds of a node. Right before a round proposes its entries it calls
// expect, unless nil, with their number. expect must not block.
func NewRounds(expect func(entries int)) *Rounds { return &Rounds{expect: expect} }

func (r *Rounds) join(wake chan struct{}) *roundMember { return &roundMember{rounds: r, wake: wake} }

// report says how many proposals wait, and whether the proposer has no entry in flight.
// The proposer's lock is held.
func (m *roundMember) report(waiting int, free bool) {
	r := m.rounds
	r.mu.Lock()
	defer r.mu.Unlock()
	r.countLocked(m, waiting, free)
	r.beginLocked()
}

// take ends the proposer's turn, if it has one, once it has proposed an entry or found
// that it has none to propose. It returns the round of the entry, 0 for none. The
// proposer's lock is held.
func (m *roundMember) take(proposed bool, waiting int, free bool) (round uint64) {
	r := m.rounds
	r.mu.Lock()
	defer r.mu.Unlock()
	turn := m.turn.Swap(0)
	r.countLocked(m, waiting, free)
	if turn != 0 && !proposed {
		r.landLocked(turn, 0)
		turn = 0
	}
	r.beginLocked()
	return turn
}

// land counts an entry of a round, 0 for one of none, with that many proposals as
// answered. The proposer's lock is held.
func (m *roundMember) land(round uint64, proposals, waiting int, free bool) {
	r := m.rounds
	r.mu.Lock()
	defer r.mu.Unlock()
	r.countLocked(m, waiting, free)
	if round != 0 {
		r.landLocked(round, proposals)
	}
	r.beginLocked()
}

func (r *Rounds) countLocked(m *roundMember, waiting int, free bool) {
	r.mu.total += waiting - m.count
	m.count = waiting
	queued := waiting > 0 && free && m.turn.Load() == 0
	if queued == m.queued {
		return
	}
	if m.queued = queued; queued {
		r.mu.waiting = append(r.mu.waiting, m)
	} else {
		r.mu.waiting = slices.DeleteFunc(r.mu.waiting, func(other *roundMember) bool { return other == m })
	}
}

// landLocked ends the round with its last entry, and says what the next waits for.
func (r *Rounds) landLocked(round uint64, proposals int) {
	if round != r.mu.number || r.mu.flying == 0 {
		return // it was left behind
	}
	if r.mu.answered == 0 {
		r.mu.behind = r.mu.total
	}
	r.mu.answered += proposals
	if r.mu.flying--; r.mu.flying > 0 {
		return
	}
	now := time.Now()
	r.mu.took = now.Sub(r.mu.began)
	r.mu.gather = r.mu.behind + r.mu.answered*gatherShare/gatherOf
	r.mu.gatherUntil = now.Add(min(gatherRounds*r.mu.took, gatherMax))
}

// beginLocked begins a round if it is time to, and otherwise has the timer look again.
func (r *Rounds) beginLocked() {
	if len(r.mu.waiting) == 0 {
		return
	}
	now := time.Now()
	if r.mu.flying > 0 {
		patience := min(max(slowRounds*r.mu.took, roundWaitMin), roundWaitMax)
		if until := r.mu.began.Add(patience); now.Before(until) {
			r.lookAtLocked(until, now)
			return
		}
		r.mu.took = patience
	} else if r.mu.total < r.mu.gather && now.Before(r.mu.gatherUntil) {
		r.lookAtLocked(r.mu.gatherUntil, now)
		return
	}
	r.mu.number++
	r.mu.began, r.mu.flying, r.mu.answered, r.mu.gather = now, len(r.mu.waiting), 0, 0
	if r.expect != nil {
		r.expect(len(r.mu.waiting))
	}
	for i, m := range r.mu.waiting {
		m.queued = false
		m.turn.Store(r.mu.number)
		wake(m.wake)
		r.mu.waiting[i] = nil
	}
	r.mu.waiting = r.mu.waiting[:0]
}

func (r *Rounds) lookAtLocked(at, now time.Time) {
	switch {
	case r.mu.at.Equal(at):
		return
	case r.mu.timer == nil:
		r.mu.timer = time.AfterFunc(at.Sub(now), r.look)
	default:
		r.mu.timer.Reset(at.Sub(now))
	}
	r.mu.at = at
}

func (r *Rounds) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mu.at = time.Time{}
	r.beginLocked()
}

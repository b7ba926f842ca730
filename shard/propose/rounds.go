package propose

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// Callers often propose again at once after a round has answered them. The next round waits for
	// their proposals, at most gatherMax and at most gatherRounds times the length of the previous
	// round.
	gatherRounds = 2
	gatherMax    = 10 * time.Millisecond
	// The next round waits only for gatherShare/gatherOf of these callers, because some do not
	// propose again.
	gatherShare, gatherOf = 3, 4
	// A round ends when its entries are answered. The next round waits for this end at most
	// slowRounds times the length of the previous round, within roundWaitMin and roundWaitMax. A
	// group whose entry is slower takes part again after the entry is answered.
	slowRounds   = 2
	roundWaitMin = time.Millisecond
	roundWaitMax = gatherMax
)

// Rounds makes the groups of a node propose together, so that one sync stores all entries of a
// round, and one write sends them to a follower. A round begins when no entry of the previous round
// is in flight, and proposes all waiting requests of all groups. Callers that the last round
// answered probably propose again at once, so the next round waits for most of them. A round with a
// single caller does not wait.
//
// Rounds has no goroutine. Its timer runs only while a round waits.
type Rounds struct {
	expect func(entries int) // called right before a round proposes; see NewRounds

	mu struct { // acquire it after a proposer's lock, never before
		sync.Mutex
		waiting []*roundMember // members with proposals that may take part in the next round
		total   int            // number of waiting proposals of all groups

		number   uint64    // number of the last round
		flying   int       // number of unanswered entries of the last round; 0 after its end
		began    time.Time // start of the last round
		answered int       // number of proposals of the round answered so far
		behind   int       // number of proposals that waited when the round's first entry was answered

		gather      int // the next round waits until this number of proposals waits, or until gatherUntil
		gatherUntil time.Time
		took        time.Duration // length of the last round

		timer *time.Timer
		at    time.Time // time at which the timer fires; zero while it is stopped
	}
}

// roundMember is the state of one proposer in Rounds. Rounds.mu guards its fields, except turn.
type roundMember struct {
	rounds *Rounds
	wake   chan struct{} // Proposer.wake
	queued bool          // the member is in Rounds.mu.waiting
	count  int           // number of waiting proposals
	// turn is the number of the round in which the proposer should propose, or 0. The method take
	// ends the turn. Readers of turn need no lock.
	turn atomic.Uint64
}

// NewRounds returns the Rounds of a node. Right before a round proposes, Rounds calls expect with
// the number of the round's entries, unless expect is nil. expect must not block.
func NewRounds(expect func(entries int)) *Rounds { return &Rounds{expect: expect} }

func (r *Rounds) join(wake chan struct{}) *roundMember { return &roundMember{rounds: r, wake: wake} }

// report sets the number of waiting proposals. The argument free means that the proposer has no
// entry in flight. The caller holds the proposer's lock.
func (m *roundMember) report(waiting int, free bool) {
	r := m.rounds
	r.mu.Lock()
	defer r.mu.Unlock()
	r.countLocked(m, waiting, free)
	r.beginLocked()
}

// take ends the proposer's turn, if it has one. The argument proposed reports whether the proposer
// proposed an entry. take returns the round of the entry, or 0. The caller holds the proposer's
// lock.
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

// land counts an entry and its proposals as answered. round is 0 for an entry outside of a round.
// The caller holds the proposer's lock.
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

// landLocked counts an answered entry. After the last entry, it ends the round and decides for how
// many proposals the next round waits.
func (r *Rounds) landLocked(round uint64, proposals int) {
	if round != r.mu.number || r.mu.flying == 0 {
		return // a later round has begun without waiting for this entry
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

// beginLocked begins a round if one is due. Otherwise it sets the timer to check again.
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

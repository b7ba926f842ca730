package propose

import "slices"

// The bounds of the requests of one group that wait or are in flight. Bytes and ops bound
// the memory (a result row is at most 512 B an op), whatever the number of callers.
const (
	// The slowest disk seen (a sync of 10 ms) commits as many in a second.
	QueueOpsMax   = 200_000
	QueueBytesMax = 16 << 20
	// largeShare is the part of both, 1/largeShare, that large requests may
	// take, so that small ones find room however many large ones come.
	largeShare = 2
	// smallBytesMax is how long a section may be to be a small one: some 250 ops.
	smallBytesMax = 4 << 10
	// An entry is closed at either of these; a larger single request is an
	// entry by itself. Above some 10,000 ops an entry no longer gets cheaper
	// by the op, it only makes the ones behind it wait.
	EntryOpsMax   = 16_384
	EntryBytesMax = 256 << 10
)

// proposalQueue holds the proposals that wait for one group, and counts what
// they and those in flight take. Small and large ones wait in lines of their
// own: each has half of an entry for itself while the other line is not empty,
// so that who brings single ops waits for one or two entries and not for all
// the batches that came before, and the other way round. Who stands behind a
// proposal is not known here; a client that sends many requests gets as many
// turns.
//
// Its proposer's mutex guards it.
type proposalQueue struct {
	small, large line
	largeFirst   bool // in the next entry
	load         load // of both lines, of rooms taken for them and of entries in flight
	largeLoad    load // the part of large ones
}

// load is what proposals take.
type load struct{ ops, bytes int }

func (l *load) add(q *Proposal, sign int) {
	l.ops += sign * q.load()
	l.bytes += sign * len(q.section)
}

// fits reports whether q fits beside what is there. Where nothing is, anything
// does: no request is larger than the bounds for ever.
func (l *load) fits(q *Proposal, share int) bool {
	return l.ops == 0 || l.ops+q.load() <= QueueOpsMax/share && l.bytes+len(q.section) <= QueueBytesMax/share
}

// take takes room for a proposal, or reports that there is none.
func (u *proposalQueue) take(q *Proposal) bool {
	if !u.load.fits(q, 1) || q.large() && !u.largeLoad.fits(q, largeShare) {
		return false
	}
	u.count(q, 1)
	return true
}

// give gives a proposal's room back.
func (u *proposalQueue) give(q *Proposal) { u.count(q, -1) }

func (u *proposalQueue) count(q *Proposal, sign int) {
	u.load.add(q, sign)
	if q.large() {
		u.largeLoad.add(q, sign)
	}
}

func (u *proposalQueue) lineOf(q *Proposal) *line {
	if q.large() {
		return &u.large
	}
	return &u.small
}

// waiting returns how many proposals wait, and what they take.
func (u *proposalQueue) waiting() (int, load) {
	count := len(u.small.waiting) + len(u.large.waiting) - u.small.withdrawn - u.large.withdrawn
	return count, load{u.small.load.ops + u.large.load.ops, u.small.load.bytes + u.large.load.bytes}
}

// next removes the proposals of the next entry, none if none waits.
func (u *proposalQueue) next() []*Proposal {
	e := entry{}
	first, second := &u.small, &u.large
	if u.largeFirst {
		first, second = second, first
	}
	first.moveTo(&e, 2)
	second.moveTo(&e, 1)
	first.moveTo(&e, 1)
	if len(e.proposals) > 0 {
		u.largeFirst = !u.largeFirst
	}
	return e.proposals
}

// entry is a log entry that is being filled.
type entry struct {
	proposals []*Proposal
	ops       int
	bytes     int
}

// line is a queue in order of arrival.
type line struct {
	waiting   []*Proposal
	withdrawn int  // of waiting; never more than half of it
	load      load // of the others
}

func (l *line) push(q *Proposal) {
	q.queued = true
	l.load.add(q, 1)
	l.waiting = append(l.waiting, q)
}

// withdraw marks a proposal that waits. The line is closed up when half of it is
// withdrawn: while a disk hangs nothing takes from it, and callers with short
// deadlines come and go.
func (l *line) withdraw(q *Proposal) {
	q.queued = false
	l.load.add(q, -1)
	l.withdrawn++
	if l.withdrawn > len(l.waiting)/2 {
		l.waiting = slices.DeleteFunc(l.waiting, func(q *Proposal) bool { return !q.queued })
		l.withdrawn = 0
	}
}

// moveTo moves proposals from the front to an entry until that is full to the
// 1/share-th. An empty entry takes any one.
func (l *line) moveTo(e *entry, share int) {
	n := 0
	for _, q := range l.waiting {
		if !q.queued {
			l.withdrawn--
			n++
			continue
		}
		if len(e.proposals) > 0 && (e.ops+q.Ops > EntryOpsMax/share || e.bytes+len(q.section) > EntryBytesMax/share) {
			break
		}
		q.queued = false
		l.load.add(q, -1)
		e.proposals = append(e.proposals, q)
		e.ops += q.Ops
		e.bytes += len(q.section)
		n++
	}
	rest := copy(l.waiting, l.waiting[n:])
	clear(l.waiting[rest:])
	l.waiting = l.waiting[:rest]
}

package propose

import "slices"

// These constants bound the waiting and in-flight requests of one group. So they bound the memory
// of these requests, however many callers there are. A result row takes at most 512 B for each op.
const (
	// Even the slowest measured disk, which needs 10 ms for a sync, commits QueueOpsMax ops in a
	// second.
	QueueOpsMax   = 200_000
	QueueBytesMax = 16 << 20
	// Large requests may use 1/largeShare of QueueOpsMax and of QueueBytesMax, so that small
	// requests always find space.
	largeShare = 2
	// smallBytesMax bounds the section of a small request. It allows about 250 ops.
	smallBytesMax = 4 << 10
	// An entry is full at EntryOpsMax or at EntryBytesMax. A larger request is an entry by itself.
	// An entry of more than about 10,000 ops costs no less per op, but delays later entries.
	EntryOpsMax   = 16_384
	EntryBytesMax = 256 << 10
)

// proposalQueue holds the proposals that wait for one group, and counts the ops and bytes of all
// proposals, waiting and in flight. Small and large proposals wait in separate lines. If proposals
// wait in both lines, each line fills half of an entry. So a single op waits only for one or two
// entries, and not for all large batches before it. A batch does not wait for all single ops. The
// queue does not divide space by client.
//
// Proposer.mu guards it.
type proposalQueue struct {
	small, large line
	largeFirst   bool // the large line fills the next entry first
	load         load // load of all proposals: in both lines, reserved and in flight
	largeLoad    load // part of load that belongs to large proposals
}

// load is the total size of some proposals.
type load struct{ ops, bytes int }

func (l *load) add(q *Proposal, sign int) {
	l.ops += sign * q.load()
	l.bytes += sign * len(q.section)
}

// fits reports whether l plus q is within 1/share of the bounds. If l is zero, any proposal fits.
// Without this rule, a request above that share could never be accepted.
func (l *load) fits(q *Proposal, share int) bool {
	return l.ops == 0 || l.ops+q.load() <= QueueOpsMax/share && l.bytes+len(q.section) <= QueueBytesMax/share
}

// take reserves space for a proposal. It returns false if there is not enough space.
func (u *proposalQueue) take(q *Proposal) bool {
	if !u.load.fits(q, 1) || q.large() && !u.largeLoad.fits(q, largeShare) {
		return false
	}
	u.count(q, 1)
	return true
}

// give releases a proposal's space.
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

// waiting returns the number and the load of the waiting proposals.
func (u *proposalQueue) waiting() (int, load) {
	count := len(u.small.waiting) + len(u.large.waiting) - u.small.withdrawn - u.large.withdrawn
	return count, load{u.small.load.ops + u.large.load.ops, u.small.load.bytes + u.large.load.bytes}
}

// next removes and returns the proposals of the next entry, if any.
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

// line is a FIFO queue.
type line struct {
	waiting   []*Proposal
	withdrawn int  // number of withdrawn proposals in waiting; at most half of them
	load      load // load of the proposals that are not withdrawn
}

func (l *line) push(q *Proposal) {
	q.queued = true
	l.load.add(q, 1)
	l.waiting = append(l.waiting, q)
}

// withdraw marks a waiting proposal as withdrawn. When half of the line is withdrawn, withdraw
// compacts the line: while a disk hangs, nothing else removes proposals whose deadlines have
// passed.
func (l *line) withdraw(q *Proposal) {
	q.queued = false
	l.load.add(q, -1)
	l.withdrawn++
	if l.withdrawn > len(l.waiting)/2 {
		l.waiting = slices.DeleteFunc(l.waiting, func(q *Proposal) bool { return !q.queued })
		l.withdrawn = 0
	}
}

// moveTo moves proposals from the front of the line to an entry, until 1/share of the entry is
// full. An empty entry accepts a proposal of any size.
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

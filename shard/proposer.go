package shard

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
)

// entriesInFlightMax lets raft write one entry while it applies the one before;
// what comes meanwhile waits here and grows into the next entry.
const entriesInFlightMax = 2

// proposer gathers the requests that wait for one group into log entries: the
// entry that is next takes all that has come while the ones before it are being
// written. There is no timer: one caller alone waits for nobody.
//
// Its goroutines, propose and settle, are started by newProposer and end with
// close, which waits for them.
type proposer struct {
	group   proposeGroup
	kind    raftfsm.Kind
	metrics *stageMetrics
	logger  *slog.Logger
	limits  raftfsm.Limits
	clock   *logClock // propose's

	mu struct {
		sync.Mutex
		queue  proposalQueue
		closed bool
	}
	wake    chan struct{} // one token: the queue may have become non-empty
	slots   chan struct{} // one token for each entry in flight
	flights chan flight   // from propose to settle, in log order
	wg      sync.WaitGroup
}

// proposeGroup is what a proposer needs of its group.
type proposeGroup interface {
	apply(entry []byte, timeout time.Duration) raft.ApplyFuture
	failed() <-chan struct{}
}

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

// flight is one entry that was handed to raft.
type flight struct {
	proposals []*proposal
	future    raft.ApplyFuture
	proposed  time.Time
}

func newProposer(g proposeGroup, kind raftfsm.Kind, clock *logClock, limits raftfsm.Limits, metrics *stageMetrics, logger *slog.Logger) *proposer {
	p := &proposer{group: g, kind: kind, clock: clock, limits: limits, metrics: metrics, logger: logger,
		wake:    make(chan struct{}, 1),
		slots:   make(chan struct{}, entriesInFlightMax),
		flights: make(chan flight, entriesInFlightMax),
	}
	p.wg.Go(p.propose)
	p.wg.Go(p.settle)
	return p
}

// submit queues a request section of that many ops. The section belongs to the
// proposer until it is settled. It returns ErrOverloaded if the queue is full,
// ErrDraining if the proposer is closed.
func (p *proposer) submit(section []byte, ops int, clocked bool, width int) (*proposal, error) {
	q, err := p.reserve(section, ops, clocked, width)
	if err != nil {
		return nil, err
	}
	return q, p.enqueue(q)
}

// reserve is the first half of submit: it takes the section's room in the queue,
// which enqueue or cancel must follow. Whoever writes to several groups takes
// all rooms before it proposes anything.
func (p *proposer) reserve(section []byte, ops int, clocked bool, width int) (*proposal, error) {
	q := &proposal{owner: p, section: section, ops: ops, width: width, clocked: clocked, done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return nil, ErrDraining
	}
	if !p.mu.queue.take(q) {
		p.metrics.refused.Inc()
		return nil, ErrOverloaded
	}
	return q, nil
}

// cancel gives the room of a reserved proposal back.
func (p *proposer) cancel(q *proposal) {
	p.mu.Lock()
	p.mu.queue.give(q)
	p.mu.Unlock()
}

// enqueue is the second half of submit. It returns ErrDraining if the proposer
// was closed meanwhile.
func (p *proposer) enqueue(q *proposal) error {
	q.since = time.Now()
	p.mu.Lock()
	if p.mu.closed {
		p.mu.queue.give(q)
		p.mu.Unlock()
		return ErrDraining
	}
	p.mu.queue.lineOf(q).push(q)
	p.mu.Unlock()
	select {
	case p.wake <- struct{}{}:
	default:
	}
	return nil
}

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

// withdraw takes a proposal out of the queue, unless it was taken.
func (p *proposer) withdraw(q *proposal) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !q.queued {
		return false
	}
	p.mu.queue.lineOf(q).withdraw(q)
	p.mu.queue.give(q)
	q.section = nil
	return true
}

// take removes the next entry's proposals from the queue. It returns none, and
// true, once the proposer is closed and the queue is empty for ever.
func (p *proposer) take() (batch []*proposal, ended bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	batch = p.mu.queue.next()
	return batch, len(batch) == 0 && p.mu.closed
}

// propose turns the queue into entries until the proposer is closed and the
// queue is empty.
func (p *proposer) propose() {
	defer close(p.flights)
	for range p.wake {
		for {
			p.slots <- struct{}{} // waits while entries are in flight; the queue grows
			batch, ended := p.take()
			if ended {
				return
			}
			if len(batch) == 0 {
				<-p.slots
				break
			}
			p.flights <- p.launch(batch)
		}
	}
}

// launch hands one entry to raft.
func (p *proposer) launch(batch []*proposal) flight {
	f := flight{proposals: batch, proposed: time.Now()}
	bytes, width, first, clocked := 0, 0, 0, false
	for i, q := range batch {
		bytes += len(q.section)
		width = max(width, q.width)
		clocked = clocked || q.clocked
		q.number, q.first = i, first
		first += q.ops
	}
	entry := raftfsm.BeginEntry(make([]byte, 0, bytes+raftfsm.EntryOverhead), p.kind, width)
	if clocked {
		entry = raftfsm.AppendClock(entry, p.clock.now(), p.limits)
	}
	for _, q := range batch {
		entry = append(entry, q.section...)
		p.metrics.queue.Observe(f.proposed.Sub(q.since).Seconds())
	}
	f.future = p.group.apply(raftfsm.SealEntry(entry), enqueueTimeoutMax)
	return f
}

// settle answers the proposals of each entry, in log order. It ends when
// propose has ended and every entry is answered.
func (p *proposer) settle() {
	for f := range p.flights {
		result, err := p.outcome(f)
		p.mu.Lock() // first: who has an answer finds the room that it took free again
		for _, q := range f.proposals {
			p.mu.queue.give(q)
		}
		p.mu.Unlock()
		for _, q := range f.proposals {
			q.result, q.err = result, err
			if err == nil && q.outcome() == raftfsm.Full {
				p.metrics.keysRefused.Inc()
			}
			close(q.done)
		}
		<-p.slots
	}
}

// outcome waits for an entry to be applied here. A group that has failed no
// longer answers its futures.
func (p *proposer) outcome(f flight) (*raftfsm.Result, error) {
	answer := make(chan error, 1)
	go func() { answer <- f.future.Error() }() // ends with the future, or with the process of a failed group
	var err error
	select {
	case err = <-answer:
	case <-p.group.failed():
		return nil, ErrOutcomeUnknown
	}
	switch {
	case err == nil:
		r := f.future.Response().(applied)
		p.metrics.log.Observe(r.began.Sub(f.proposed).Seconds())
		return r.answer.(*raftfsm.Result), nil
	case neverProposed(err):
		return nil, fmt.Errorf("%w: %w", ErrNoLeader, err)
	default:
		p.logger.Warn("a log entry has no known outcome", "err", err, "requests", len(f.proposals))
		return nil, ErrOutcomeUnknown
	}
}

// close refuses further requests, and returns when those that wait are
// answered.
func (p *proposer) close() {
	p.mu.Lock()
	again := p.mu.closed
	p.mu.closed = true
	p.mu.Unlock()
	if !again {
		select {
		case p.wake <- struct{}{}:
		default:
		}
	}
	p.wg.Wait()
}

// row returns the first width counts of the row of the proposal's op i.
func (q *proposal) row(i, width int) []int64 {
	at := (q.first + i) * q.result.Width
	return q.result.Rows[at : at+width]
}

// refused returns the refusals of the proposal's ops, by number in the entry.
func (q *proposal) refused() []engine.Overflow {
	all := q.result.Overflows
	byOp := func(o engine.Overflow, op int) int { return cmp.Compare(o.Op, op) }
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

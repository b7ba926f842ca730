package shard

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/errs"
)

const (
	// entriesInFlightMax lets raft write one entry while it applies the one before.
	entriesInFlightMax = 2
	// A second entry is made only of so much: one costs each replica two syncs and
	// some 0.5 ms of processor, which by then is little an op. Less waits, and grows.
	secondEntryOps   = 1024
	secondEntryBytes = 64 << 10
)

// proposer gathers the requests that wait for one group into log entries: the
// entry that is next takes all that has come while the one before it was written.
// Entries of the node's groups are made together, in rounds, which say when; only one
// that is large by itself is made beside them.
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
	round   *roundMember

	mu struct {
		sync.Mutex
		queue    proposalQueue
		inFlight int // entries
		closed   bool
	}
	wake    chan struct{} // one token: an entry may have become due
	flights chan flight   // from propose to settle, in log order
	wg      sync.WaitGroup
}

// proposeGroup is what a proposer needs of its group.
type proposeGroup interface {
	apply(entry []byte, timeout time.Duration) raft.ApplyFuture
	failed() <-chan struct{}
}

// flight is one entry that was handed to raft.
type flight struct {
	proposals []*proposal
	future    raft.ApplyFuture
	proposed  time.Time
	round     uint64 // 0 for none
}

func newProposer(g proposeGroup, rounds *rounds, kind raftfsm.Kind, clock *logClock, limits raftfsm.Limits, metrics *stageMetrics, logger *slog.Logger) *proposer {
	p := &proposer{group: g, kind: kind, clock: clock, limits: limits, metrics: metrics, logger: logger,
		wake:    make(chan struct{}, 1),
		flights: make(chan flight, entriesInFlightMax),
	}
	p.round = rounds.join(p.wake)
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
	due := p.dueLocked()
	p.round.report(p.stateLocked())
	p.mu.Unlock()
	if due {
		wake(p.wake)
	}
	return nil
}

// stateLocked returns how many proposals wait, and whether no entry is in flight.
func (p *proposer) stateLocked() (waiting int, free bool) {
	waiting, _ = p.mu.queue.waiting()
	return waiting, p.mu.inFlight == 0
}

// dueLocked reports whether the next entry is to be proposed now.
func (p *proposer) dueLocked() bool {
	waiting, load := p.mu.queue.waiting()
	enough := load.ops >= secondEntryOps || load.bytes >= secondEntryBytes
	switch p.mu.inFlight {
	case entriesInFlightMax:
		return false
	case 0:
		enough = enough || p.round.turn.Load() != 0
	}
	return waiting > 0 && (enough || p.mu.closed)
}

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
	p.round.report(p.stateLocked())
	return true
}

// take removes the next entry's proposals from the queue, none if it is not due, and
// returns the entry's round. It returns true once the proposer is closed and the queue is
// empty for ever.
func (p *proposer) take() (batch []*proposal, round uint64, ended bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dueLocked() {
		batch = p.mu.queue.next()
		p.mu.inFlight++
	}
	waiting, free := p.stateLocked()
	round = p.round.take(len(batch) > 0, waiting, free)
	return batch, round, len(batch) == 0 && waiting == 0 && p.mu.closed
}

// propose turns the queue into entries until the proposer is closed and the
// queue is empty.
func (p *proposer) propose() {
	defer close(p.flights)
	for range p.wake {
		for {
			batch, round, ended := p.take()
			if ended {
				return
			}
			if len(batch) == 0 {
				break // who makes an entry due wakes again
			}
			f := p.launch(batch)
			f.round = round
			p.flights <- f
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
		p.land(f) // first: who has an answer finds the room that it took free again
		for _, q := range f.proposals {
			q.result, q.err = result, err
			if err == nil && q.outcome() == raftfsm.Full {
				p.metrics.keysRefused.Inc()
			}
			close(q.done)
		}
	}
}

// land counts an entry as no longer in flight.
func (p *proposer) land(f flight) {
	p.mu.Lock()
	for _, q := range f.proposals {
		p.mu.queue.give(q)
	}
	p.mu.inFlight--
	waiting, free := p.stateLocked()
	p.round.land(f.round, len(f.proposals), waiting, free)
	due := p.dueLocked() || p.mu.closed
	p.mu.Unlock()
	if due {
		wake(p.wake)
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
		if stuck, ok := r.answer.(error); ok { // it is committed, and applied elsewhere
			p.logger.Warn("a log entry is not applied here", "err", stuck, "requests", len(f.proposals))
			return nil, ErrOutcomeUnknown
		}
		return r.answer.(*raftfsm.Result), nil
	case errs.NeverProposed(err):
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
		wake(p.wake)
	}
	p.wg.Wait()
}

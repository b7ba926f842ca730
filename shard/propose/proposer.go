// Package propose combines the requests that wait for a Raft group into log entries, and gives each
// request its part of the entry's result. It owns a group's queue, the rounds in which a node's
// groups propose together, the clock that stamps entries, and the tokens that name the entries of a
// write.
//
// It never routes, forwards, retries, reads a row, or calls another node. Invariant: every enqueued
// request is answered exactly once, and a request for which Proposal.Wait returns ErrOverloaded is
// in no entry.
package propose

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/shard/errs"
)

const (
	// EntriesInFlightMax allows raft to write one entry while it applies the previous one.
	EntriesInFlightMax = 2
	// While an entry is in flight, the next one is proposed only if it has at least this many ops;
	// a smaller one waits and grows. Each entry costs every replica two syncs and about 0.5 ms of
	// processor time, which is little per op at this size.
	secondEntryOps   = 1024
	secondEntryBytes = 64 << 10
	// stampEvery bounds the age of the log's time while entries arrive. The hot lists of counters
	// need a recent log time even if the ops of an entry need none. A stamp takes 37 bytes.
	stampEvery = time.Second
)

// Proposer combines the requests that wait for one group into log entries. Each entry has the
// requests that arrived while the previous entry was written. Rounds decides when the groups of a
// node propose, so that one write stores the entries of several groups. A large enough entry does
// not wait for a round.
//
// Its goroutines are propose and settle. New starts them; Close stops them and waits.
type Proposer struct {
	group   Group
	kind    codec.Kind
	metrics *Metrics
	logger  *slog.Logger
	limits  func() dedup.Limits
	clock   *Clock    // only propose uses it
	stamped time.Time // when propose last stamped an entry
	round   *roundMember

	mu struct {
		sync.Mutex
		queue    proposalQueue
		inFlight int // number of entries in flight
		closed   bool
	}
	wake    chan struct{} // capacity 1; a token means that an entry may be due
	flights chan flight   // entries on their way from propose to settle, in log order
	wg      sync.WaitGroup
}

// Group is the part of a group that a proposer needs.
type Group interface {
	Apply(entry []byte) raft.ApplyFuture
	Failed() <-chan struct{}
}

// flight is an entry that was passed to raft.
type flight struct {
	proposals []*Proposal
	future    raft.ApplyFuture
	proposed  time.Time
	round     uint64 // 0 if the entry was proposed outside of a round
}

// Config configures New. Every field must be set.
type Config struct {
	Group   Group
	Rounds  *Rounds // rounds of the node
	Kind    codec.Kind
	Clock   *Clock              // only this proposer may use it
	Limits  func() dedup.Limits // must be safe for concurrent use
	Metrics *Metrics
	Logger  *slog.Logger
}

// New starts a proposer.
func New(cfg Config) *Proposer {
	p := &Proposer{group: cfg.Group, kind: cfg.Kind, clock: cfg.Clock, limits: cfg.Limits, metrics: cfg.Metrics, logger: cfg.Logger,
		wake:    make(chan struct{}, 1),
		flights: make(chan flight, EntriesInFlightMax),
	}
	p.round = cfg.Rounds.join(p.wake)
	p.wg.Go(p.propose)
	p.wg.Go(p.settle)
	return p
}

// Submit queues a section with the given number of ops. The proposer owns the section until the
// proposal is settled. Submit returns ErrOverloaded if the queue is full, and ErrDraining if the
// proposer is closed.
func (p *Proposer) Submit(section []byte, ops int, clocked bool, width int) (*Proposal, error) {
	q, err := p.Reserve(section, ops, clocked, width)
	if err != nil {
		return nil, err
	}
	return q, q.Enqueue()
}

// Reserve is the first half of Submit: it reserves space in the queue. The caller must then call
// Enqueue or Cancel. Before that, the caller may change the section, but not its length. So a
// request to several groups can reserve space in all groups before it enqueues any part.
func (p *Proposer) Reserve(section []byte, ops int, clocked bool, width int) (*Proposal, error) {
	q := &Proposal{owner: p, section: section, Ops: ops, Width: width, clocked: clocked, done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.closed {
		return nil, errs.ErrDraining
	}
	if !p.mu.queue.take(q) {
		p.metrics.refused.Inc()
		return nil, errs.ErrOverloaded
	}
	return q, nil
}

// Cancel releases the space of a reserved proposal.
func (q *Proposal) Cancel() {
	p := q.owner
	p.mu.Lock()
	p.mu.queue.give(q)
	p.mu.Unlock()
}

// Enqueue is the second half of Submit. It returns ErrDraining if the proposer is closed.
func (q *Proposal) Enqueue() error {
	p := q.owner
	q.since = time.Now()
	p.mu.Lock()
	if p.mu.closed {
		p.mu.queue.give(q)
		p.mu.Unlock()
		return errs.ErrDraining
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

// stateLocked returns the number of waiting proposals, and whether no entry is in flight.
func (p *Proposer) stateLocked() (waiting int, free bool) {
	waiting, _ = p.mu.queue.waiting()
	return waiting, p.mu.inFlight == 0
}

// dueLocked reports whether the next entry must be proposed now.
func (p *Proposer) dueLocked() bool {
	waiting, load := p.mu.queue.waiting()
	enough := load.ops >= secondEntryOps || load.bytes >= secondEntryBytes
	switch p.mu.inFlight {
	case EntriesInFlightMax:
		return false
	case 0:
		enough = enough || p.round.turn.Load() != 0
	}
	return waiting > 0 && (enough || p.mu.closed)
}

// withdraw removes a proposal from the queue. It returns false if the proposal is already in an
// entry.
func (p *Proposer) withdraw(q *Proposal) bool {
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

// take removes the proposals of the next entry from the queue, if an entry is due, and returns the
// entry's round. ended is true once the proposer is closed and its queue is empty.
func (p *Proposer) take() (batch []*Proposal, round uint64, ended bool) {
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

// propose makes entries from the queue until the proposer is closed and the queue is empty.
func (p *Proposer) propose() {
	defer close(p.flights)
	for range p.wake {
		for {
			batch, round, ended := p.take()
			if ended {
				return
			}
			if len(batch) == 0 {
				break // every event that makes an entry due sends another token
			}
			f := p.launch(batch)
			f.round = round
			p.flights <- f
		}
	}
}

// launch encodes one entry and passes it to raft.
func (p *Proposer) launch(batch []*Proposal) flight {
	f := flight{proposals: batch, proposed: time.Now()}
	bytes, width, first, clocked := 0, 0, 0, false
	for i, q := range batch {
		bytes += len(q.section)
		width = max(width, q.Width)
		clocked = clocked || q.clocked
		q.number, q.First = i, first
		first += q.Ops
	}
	entry := codec.BeginEntry(make([]byte, 0, bytes+codec.EntryOverhead), p.kind, width)
	if clocked || f.proposed.Sub(p.stamped) >= stampEvery {
		p.stamped = f.proposed
		entry = dedup.AppendClock(entry, p.clock.now(), p.limits())
	}
	for _, q := range batch {
		entry = append(entry, q.section...)
		p.metrics.queue.Observe(f.proposed.Sub(q.since).Seconds())
	}
	f.future = p.group.Apply(codec.AppendChecksum(entry))
	return f
}

// settle answers the proposals of each entry, in log order. It ends when propose has ended and
// every entry is answered.
func (p *Proposer) settle() {
	for f := range p.flights {
		result, err := p.outcome(f)
		p.land(f) // free the space before a caller gets its answer, so that the caller's next request fits
		for _, q := range f.proposals {
			q.Result, q.Err = result, err
			if err == nil && q.Outcome() == dedup.Full {
				p.metrics.keysRefused.Inc()
			}
			close(q.done)
		}
	}
}

// land counts an entry as no longer in flight, and releases its space.
func (p *Proposer) land(f flight) {
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

// outcome waits until an entry is applied here or the group fails. If the group fails, raft may
// never answer the future.
func (p *Proposer) outcome(f flight) (*raftfsm.Result, error) {
	answer := make(chan error, 1)
	go func() { answer <- f.future.Error() }() // ends when the future is answered; if the group has failed, that may be never
	var err error
	select {
	case err = <-answer:
	case <-p.group.Failed():
		return nil, errs.ErrOutcomeUnknown
	}
	switch {
	case err == nil:
		r := f.future.Response().(applied)
		p.metrics.log.Observe(r.began.Sub(f.proposed).Seconds())
		if stuck, ok := r.answer.(error); ok { // the entry is committed, and other nodes apply it, but this node does not know the outcome
			p.logger.Warn("a log entry is not applied here", "err", stuck, "requests", len(f.proposals))
			return nil, errs.ErrOutcomeUnknown
		}
		return r.answer.(*raftfsm.Result), nil
	case errs.NeverProposed(err):
		return nil, fmt.Errorf("%w: %w", errs.ErrNoLeader, err)
	default:
		p.logger.Warn("a log entry has no known outcome", "err", err, "requests", len(f.proposals))
		return nil, errs.ErrOutcomeUnknown
	}
}

// Close refuses further requests, and blocks until all waiting requests are answered.
func (p *Proposer) Close() {
	p.mu.Lock()
	again := p.mu.closed
	p.mu.closed = true
	p.mu.Unlock()
	if !again {
		wake(p.wake)
	}
	p.wg.Wait()
}

// Behind returns how far the next entry's stamp would be behind the machine's clock.
func (p *Proposer) Behind() time.Duration { return p.clock.Behind() }

// wake puts a token into a channel of capacity 1, unless the channel has one.
func wake(token chan struct{}) {
	select {
	case token <- struct{}{}:
	default:
	}
}

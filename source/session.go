package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/source/sink"
)

// session is one connected run of a partition: low ≤ every shard ≤ high.
type session struct {
	*Runner
	reader Reader
	at     Position  // all below it is applied, so far as a shard has any of it
	low    Position  // the lowest shard
	high   Position  // the highest shard
	even   bool      // every shard is at at
	late   bool      // a shard did not answer, so that low may not be the lowest, until even
	behind string    // why not every shard is moved
	met    time.Time // when the shards were last asked
	last   sink.Mark // of the messages below at that the session has read, if it has read one
	found  sink.Mark // of the shards, the highest that the queue has the message of

	waiting      []Message
	waitingBytes int
	next         Position // after waiting; below all that was not fetched
}

// errEnding is returned by a session that Ending has ended.
var errEnding = errors.New("the runner is to end")

// session reads until an error. It returns the lowest position of the shards.
func (r *Runner) session(ctx context.Context) (low Position, err error) {
	s := &session{Runner: r}
	if err = s.begin(ctx); err == nil {
		err = s.read(ctx)
	}
	s.remember(err)
	return s.low, s.advise(err)
}

// begin finds where to read, and refuses to if the queue is another, or has lost messages.
func (s *session) begin(ctx context.Context) error {
	shards, err := s.find(ctx)
	if err != nil {
		return err
	}
	there, err := s.verify(ctx, shards)
	if err != nil {
		return err
	}
	if err := s.recall(there); err != nil {
		return err
	}
	return s.open(ctx)
}

// find reads where the partition begins, and the positions of the shards, and compares them with the end of
// the queue.
func (s *session) find(ctx context.Context) ([]sink.ShardPosition, error) {
	ctx, cancel := context.WithTimeout(ctx, s.times.call)
	defer cancel()
	b, partition := s.cfg.Broker, s.cfg.Partition
	identity, err := b.Identity(ctx)
	if err != nil {
		return nil, s.brokerError("find the queue", err)
	}
	first, end, err := b.Bounds(ctx, partition)
	if err != nil {
		return nil, s.brokerError("read the queue's bounds", err)
	}
	begin := s.cfg.Source.startAt(partition, first, end)
	if s.cfg.Late {
		begin = first
	}
	start, err := s.cfg.Sink.Start(ctx, s.cfg.Number, partition, sink.Start{Position: begin, Identity: identity})
	if err != nil {
		return nil, wrap("record the start", err)
	}
	if err := sameQueue(start.Identity, identity); err != nil {
		return nil, err
	}
	shards, err := s.positions(ctx)
	if err != nil {
		return nil, err
	}
	// The positions may be of a later seek than start: the catalog was read anew for them.
	if now, err := s.cfg.Sink.Start(ctx, s.cfg.Number, partition, start); err != nil || now != start {
		return nil, wrap("record the start", cmp.Or(err, sink.ErrMoved))
	}
	if start != s.start { // after a seek, messages are decided anew
		s.start, s.truncated = start, truncated{}
		s.decided = decided{refused: map[Position]*refusal{}}
	}
	s.low, s.high = sink.Span(shards, start.Position)
	s.late = slices.ContainsFunc(shards, func(p sink.ShardPosition) bool { return p.Late })
	s.at, s.next = s.low, s.low
	return shards, s.look(ctx) // after the positions: another reader may just have moved them
}

// open begins to read.
func (s *session) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.times.call)
	defer cancel()
	reader, err := s.cfg.Broker.Read(ctx, s.cfg.Partition, s.at, s.found)
	if err != nil {
		return s.brokerError("read", err)
	}
	// The reader reads the queue that there is now. No queue gets the identity of another.
	identity, err := s.cfg.Broker.Identity(ctx)
	if err == nil {
		err = sameQueue(s.start.Identity, identity)
	}
	if err != nil {
		_ = reader.Close() // err says more
	}
	s.reader = reader
	return s.brokerError("find the queue", err)
}

func sameQueue(recorded, found string) error {
	if recorded == found {
		return nil
	}
	return Stalled("the queue is not the one that was read before: it was %s and is %s; seek to go on", recorded, found)
}

// positions returns the positions of the shards.
func (s *session) positions(ctx context.Context) ([]sink.ShardPosition, error) {
	shards, err := s.cfg.Sink.Positions(ctx, s.cfg.Number, s.cfg.Partition)
	s.met = time.Now()
	return shards, wrap("read the positions", err)
}

// look reads the end of the queue.
func (s *session) look(ctx context.Context) error {
	looked := time.Now()
	_, end, err := s.cfg.Broker.Bounds(ctx, s.cfg.Partition)
	if err != nil {
		return s.brokerError("read the queue's bounds", err)
	}
	if end.Less(s.high) { // a shard that is there would skip what is written below
		return Truncated(end, "position %s is beyond the end of the queue, %s: the queue was truncated or made anew; seek to go on", s.high, end)
	}
	s.status.setEnd(end, looked)
	s.status.setPosition(s.at, time.Time{})
	return nil
}

// wrap adds what failed to an error, unless it says so itself.
func wrap(verb string, err error) error {
	if _, is := errors.AsType[*StalledError](err); err == nil || is || errors.Is(err, sink.ErrMoved) {
		return err
	}
	return fmt.Errorf("cannot %s: %w", verb, err)
}

// brokerError is wrap for what the broker returned. An error that only another password, certificate
// or permission can mend becomes a *StalledError. An error of the Sink must not: nodes of countd use
// TLS too.
func (s *session) brokerError(verb string, err error) error {
	err = wrap(verb, err)
	if _, is := errors.AsType[*StalledError](err); err != nil && !is && (untrusted(err) || s.cfg.Broker.Denied(err)) {
		return Stalled("%s", err)
	}
	return err
}

// advise adds to the reason of a stall where a seek would go on, if there is such a position.
// A seek moves all shards. One that is behind loses what is between, which is gone; one that
// is ahead would count it twice, so no position below the highest is named.
func (s *session) advise(err error) error {
	stalled, is := errors.AsType[*StalledError](err)
	if !is || stalled.Next == (Position{}) {
		return err
	}
	return Stalled("%s; seek to %s to go on without them", stalled.Reason, higher(stalled.Next, s.high))
}

// read reads until an error, and moves all shards to where it ended. Only then may what
// messages mean be changed. Where it fails, the next reader does it.
func (s *session) read(ctx context.Context) error {
	fetching, cancel := context.WithCancel(ctx)
	fetched := make(chan fetch)
	go s.fetch(fetching, fetched)
	err := s.loop(ctx, fetched)
	if !s.even && !errors.Is(err, sink.ErrMoved) {
		if err := s.apply(ctx, sink.Batch{Next: s.at}, nil); err != nil && !errors.Is(err, sink.ErrStopped) {
			s.cfg.Logger.Debug("a reader of a source ended with its shards apart", "source", s.cfg.Source.Name, "partition", s.cfg.Partition, "err", err)
		}
	}
	s.rejects.recorded = 0
	if err := s.recordRejects(context.WithoutCancel(ctx), s.at); err != nil {
		s.cfg.Logger.Warn("what a source rejected is not counted for long", "source", s.cfg.Source.Name, "partition", s.cfg.Partition, "err", err)
	}
	cancel()
	for range fetched { // until the goroutine has ended
	}
	_ = s.reader.Close() // what was applied does not depend on it
	return err
}

// fetch is what the fetching goroutine hands over.
type fetch struct {
	Fetched
	err error
}

// fetch reads ahead by one fetch, until an error or the end of ctx, and closes out.
func (s *session) fetch(ctx context.Context, out chan<- fetch) {
	defer close(out)
	for {
		got, err := s.reader.Next(ctx, s.cfg.Source.Batch.Messages)
		select {
		case out <- fetch{got, err}:
		case <-ctx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// loop gathers messages into batches until an error.
func (s *session) loop(ctx context.Context, fetched <-chan fetch) error {
	tick := time.NewTicker(s.times.tick)
	defer tick.Stop()
	linger := time.NewTimer(0)
	defer linger.Stop()
	<-linger.C
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-s.cfg.Ending:
			return errEnding
		case f := <-fetched:
			if f.err != nil {
				if lost, is := errors.AsType[*StalledError](f.err); is && lost.Next != (Position{}) { // what was read below is there
					if err := s.flush(ctx); err != nil {
						return err
					}
				}
				return s.brokerError("read", f.err)
			}
			s.status.set(func() {
				s.status.mu.left = f.Left
				if n := len(f.Messages); n > 0 {
					s.status.mu.timeless = !isTime(f.Messages[n-1].Time)
				}
			})
			if len(s.waiting) == 0 && len(f.Messages) > 0 {
				linger.Reset(time.Duration(s.cfg.Source.Batch.Linger))
			}
			if err := s.gather(ctx, f.Fetched); err != nil {
				return err
			}
		case <-linger.C:
			if err := s.flush(ctx); err != nil {
				return err
			}
		case <-tick.C:
			if err := s.tick(ctx); err != nil {
				return err
			}
		}
	}
}

// gather adds what was fetched to the batch, and flushes a full one.
func (s *session) gather(ctx context.Context, f Fetched) error {
	most, bytes := s.cfg.Source.Batch.Messages, f.Bytes()
	if len(s.waiting) > 0 && (len(s.waiting)+len(f.Messages) > most || s.waitingBytes+bytes > FetchBytesMax) {
		if err := s.flush(ctx); err != nil {
			return err
		}
	}
	s.waiting = append(s.waiting, f.Messages...)
	s.waitingBytes += bytes
	s.status.set(func() { s.status.mu.waiting = int64(len(s.waiting)) })
	s.next = higher(s.next, f.Next)
	if len(s.waiting) >= most || s.waitingBytes >= FetchBytesMax {
		return s.flush(ctx)
	}
	return nil
}

// tick moves all shards to one position, looks at the queue's bounds, and tells the broker
// what every shard has.
func (s *session) tick(ctx context.Context) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	s.status.rate(s.times.tick)
	s.rejects.recorded = 0
	if err := s.recordRejects(ctx, s.at); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.times.call)
	defer cancel()
	if err := s.look(ctx); err != nil {
		return err
	}
	if !s.late {
		if err := s.reader.Commit(ctx, s.low); err != nil {
			return s.brokerError("commit", err)
		}
	}
	if len(s.waiting) == 0 { // otherwise flush tells
		s.status.idle()
	}
	return nil
}

// settle moves all shards to one position. Where all are there already, it looks now and then
// whether they still are: one may have been restored from a backup, and then reads again.
//
// While a shard does not answer, the others go on. The next session asks it again.
func (s *session) settle(ctx context.Context) error {
	if s.behind != "" && time.Since(s.met) >= s.times.late {
		return sink.ErrMoved
	}
	next := s.at
	if len(s.waiting) == 0 {
		next = s.next
	}
	if !s.even || s.at.Less(next) {
		return s.apply(ctx, sink.Batch{Next: next}, nil)
	}
	if time.Since(s.met) < s.times.meet {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.times.call)
	defer cancel()
	shards, err := s.positions(ctx)
	if err != nil {
		return err
	}
	if low, high := sink.Span(shards, s.at); low != s.at || high != s.at {
		return sink.ErrMoved
	}
	return nil
}

// apply hands a batch to the Sink and moves on. messages are those of the batch.
func (s *session) apply(ctx context.Context, b sink.Batch, messages []Message) error {
	b.Source, b.Partition, b.From, b.Mark = s.cfg.Number, s.cfg.Partition, s.at, s.marks(messages)
	call, cancel := context.WithTimeout(ctx, s.times.call)
	defer cancel()
	s.decided.hand(b.From, b.Next)
	done, err := s.cfg.Sink.Apply(call, &b)
	s.high = higher(s.high, b.Next) // after an error too: some shards may be there
	// After an error too, ops may have been rejected: their position has passed in their shard,
	// so that nobody will hear of them again.
	late := s.lateRejections(ctx, b.Ops, messages, done.Rejected)
	if err != nil {
		return wrap("apply a batch", err)
	}
	s.at, s.even = b.Next, len(b.Ops) == 0 && done.Behind == ""
	if n := len(messages); n > 0 { // before what follows fails: the mark is that of at
		s.last = MarkOf(&messages[n-1])
	}
	if len(b.Ops) == 0 {
		s.behind = done.Behind
		s.status.set(func() { s.status.mu.shard = done.Behind })
	}
	if s.even {
		s.late = false
		s.low, s.met = s.at, time.Now()
		s.decided.forget(s.low)
	}
	if err := s.recordRejects(ctx, s.at); late == nil {
		late = err
	}
	s.status.setPosition(s.at, time.Time{})
	return late
}

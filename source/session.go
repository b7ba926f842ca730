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

// session reads a partition until an error. The positions of all shards that answered are between
// low and high.
type session struct {
	*Runner
	reader Reader
	at     Position             // all ops of messages below it are applied or refused
	low    Position             // position of the lowest shard
	high   Position             // position of the highest shard
	even   bool                 // all shards have reached the session's position
	behind string               // text about a shard that did not answer when all positions were last read, or ""; that shard may be below low or above high
	late   []sink.ShardPosition // the shards that did not answer when their positions were last read
	met    time.Time            // when the positions of all shards were last read
	heard  bool                 // the broker has sent something since the last tick
	last   sink.Mark            // mark of the last message that this session has read below the position at; zero for none
	found  sink.Mark            // the highest mark, among all shards, whose message the queue still has
	passed Position             // position of the shard that has the mark found; the queue has no message between that mark and this position

	waiting      []Message
	waitingBytes int
	next         Position // all messages below it are applied or in waiting
}

// errEnding is returned by a session after Ending was closed.
var errEnding = errors.New("the runner is to end")

// session runs a session until its end. It returns the lowest position of the shards.
func (r *Runner) session(ctx context.Context) (low Position, err error) {
	s := &session{Runner: r}
	if err = s.begin(ctx); err == nil {
		err = s.read(ctx)
	}
	s.remember(err)
	return s.low, s.advise(err)
}

// begin finds the position to read from, and opens the reader. It returns a *StalledError if the
// queue was replaced or has lost messages.
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

// find reads the recorded start of the partition, the positions of the shards and the end of the
// queue. It returns a *StalledError if the end is below a shard's position.
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
	// Check that there was no seek between the two calls, because Positions may have read a newer
	// catalog than Start.
	if now, err := s.cfg.Sink.Start(ctx, s.cfg.Number, partition, start); err != nil || now != start {
		return nil, wrap("record the start", cmp.Or(err, sink.ErrMoved))
	}
	if start != s.start { // after a seek, forget all decisions on messages
		s.start, s.truncated = start, truncated{}
		s.decided = decided{refused: map[Position]*refusal{}}
	}
	s.low, s.high = sink.Span(shards, start.Position)
	s.at, s.next = s.low, s.low
	return shards, s.look(ctx) // read the end after the positions, because another reader may just have moved the shards
}

// open opens the reader of the queue.
func (s *session) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.times.call)
	defer cancel()
	reader, err := s.cfg.Broker.Read(ctx, s.cfg.Partition, s.at, s.found)
	if err != nil {
		return s.brokerError("read", err)
	}
	// Compare the identity after opening the reader. No two queues have the same identity, so the
	// recorded identity shows that the reader reads the recorded queue.
	identity, err := s.cfg.Broker.Identity(ctx)
	if err == nil {
		err = sameQueue(s.start.Identity, identity)
	}
	if err != nil {
		_ = reader.Close() // err already says why
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
	if err != nil {
		return nil, wrap("read the positions", err)
	}
	s.met = time.Now()
	s.late = slices.DeleteFunc(slices.Clone(shards), func(p sink.ShardPosition) bool { return !p.Late })
	behind := ""
	if len(s.late) > 0 {
		behind = sink.Silent(s.late[0].Keyspace, s.late[0].Shard)
	}
	s.setBehind(behind)
	return shards, nil
}

// setBehind sets behind, in the session and in the status.
func (s *session) setBehind(behind string) {
	if s.behind = behind; behind == "" {
		s.late = nil
	}
	s.status.set(func() { s.status.mu.shard = behind })
}

// look reads the end of the queue, and returns a *StalledError if the end is below the highest
// shard.
func (s *session) look(ctx context.Context) error {
	looked := time.Now()
	_, end, err := s.cfg.Broker.Bounds(ctx, s.cfg.Partition)
	if err != nil {
		return s.brokerError("read the queue's bounds", err)
	}
	if end.Less(s.high) { // the highest shard would skip messages that are written below its position
		return Truncated(end, "position %s is beyond the end of the queue, %s: the queue was truncated or made anew; seek to go on", s.high, end)
	}
	s.status.setEnd(end, looked)
	s.status.setPosition(s.at, time.Time{})
	return nil
}

// wrap adds the failed action to an error. It returns a *StalledError and ErrMoved unchanged.
func wrap(verb string, err error) error {
	if _, is := errors.AsType[*StalledError](err); err == nil || is || errors.Is(err, sink.ErrMoved) {
		return err
	}
	return fmt.Errorf("cannot %s: %w", verb, err)
}

// brokerError wraps an error of the broker. An error that only another password, certificate or
// permission can resolve becomes a *StalledError. Do not use it for errors of the Sink, because
// calls between nodes of countd use TLS too.
func (s *session) brokerError(verb string, err error) error {
	err = wrap(verb, err)
	if _, is := errors.AsType[*StalledError](err); err != nil && !is && (untrusted(err) || s.cfg.Broker.Denied(err)) {
		return Stalled("%s", err)
	}
	return err
}

// If err is a stall for lost or replaced messages, advise adds the position to seek to.
func (s *session) advise(err error) error {
	stalled, is := errors.AsType[*StalledError](err)
	switch {
	case is && stalled.Replaced:
		return Stalled("%s; seek to where it lost them, or below, to count what stands there; or %s", stalled.Reason, s.seekPast(Position{}, "to go on without it"))
	case is && stalled.Next != Position{}:
		return Stalled("%s; %s", stalled.Reason, s.seekPast(stalled.Next, "to go on without them"))
	}
	return err
}

// seekPast advises the operator to seek to the higher of p and the highest shard's position. A
// lower position would make that shard count messages twice. After the seek, lower shards skip
// messages that are gone or that other shards have counted. While a shard is late, seekPast names
// no position, because that shard may be the highest.
func (s *session) seekPast(p Position, purpose string) string {
	if s.behind != "" {
		return purpose + ", wait: " + s.behind + ", and once all shards answer, this says where to seek"
	}
	return fmt.Sprintf("seek to %s %s", higher(p, s.high), purpose)
}

// read reads until an error, and then moves all shards to one position. A new configuration may
// change the meaning of messages only when all shards are at one position. If the move fails, the
// next session repeats it.
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
	for range fetched { // wait for the end of fetch
	}
	// Do not confirm after a stall, because a queue that was replaced may never have had the
	// session's position.
	if _, stalled := errors.AsType[*StalledError](err); s.even && !stalled && !errors.Is(err, sink.ErrMoved) {
		if err := s.confirm(ctx, lastConfirmMax); err != nil { // ignore the error: the broker still has the position of the last tick
			s.remember(err)
			s.cfg.Logger.Debug("the last position of a reader of a source was not confirmed", "source", s.cfg.Source.Name, "partition", s.cfg.Partition, "err", err)
		}
	}
	_ = s.reader.Close() // ignore the error: all applied ops stay applied
	return err
}

// lastConfirmMax bounds the last confirm of a session, because a broker that does not answer may
// be the reason for the end.
const lastConfirmMax = time.Second

// confirm commits to the broker the lowest position of the shards. The next reader uses the
// committed position to notice lost messages. confirm commits nothing if the queue ends below a
// shard, or if a shard does not answer.
func (s *session) confirm(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := s.look(ctx); err != nil || s.behind != "" {
		return err
	}
	return s.brokerError("commit", s.reader.Commit(ctx, s.low))
}

// fetch is a result of Reader.Next.
type fetch struct {
	Fetched
	err error
}

// fetch calls Reader.Next and sends the results to out, until an error or the end of ctx. At the
// end it closes out. It calls Next again as soon as the session has received the previous result,
// so it fetches ahead.
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
				if lost, is := errors.AsType[*StalledError](f.err); is && lost.Next != (Position{}) { // the messages before the lost ones can be applied
					if err := s.flush(ctx); err != nil {
						return err
					}
				}
				return s.brokerError("read", f.err)
			}
			s.heard = s.heard || !f.Silent
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

// gather adds fetched messages to the batch, and flushes a full batch. It returns a *StalledError
// for a message between s.found and s.passed. When verify compared the mark, the queue had no
// message between these positions. So the message is new, and the shard at s.passed would skip it.
func (s *session) gather(ctx context.Context, f Fetched) error {
	for i := range f.Messages {
		if at := f.Messages[i].Position; s.found.Position.Less(at) && at.Less(s.passed) {
			return replaced(s.found, s.passed, (&Again{Messages: f.Messages[i : i+1]}).Differs(s.found))
		}
	}
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

// tick moves all shards to one position, reads the end of the queue, and commits the lowest position.
func (s *session) tick(ctx context.Context) error {
	if err := s.settle(ctx); err != nil {
		return err
	}
	s.status.rate(s.times.tick)
	s.rejects.recorded = 0
	if err := s.recordRejects(ctx, s.at); err != nil {
		return err
	}
	if err := s.confirm(ctx, s.times.call); err != nil {
		return err
	}
	if len(s.waiting) == 0 && s.heard { // while messages wait, flush sets the state
		s.status.idle()
	}
	s.heard = false
	return nil
}

// settle moves all shards to one position. If all shards are at that position already, settle
// reads their positions again from time to time. If a shard was restored from a backup, settle
// ends the session.
//
// While a shard does not answer, the other shards continue, and the status names that shard. settle
// reads the positions again from time to time. Once the shard answers, settle ends the session,
// because the next session must compare the shard's position and mark. The session does not end
// before that, because PostgreSQL may take long to send the first message to a new session.
func (s *session) settle(ctx context.Context) error {
	next := s.at
	if len(s.waiting) == 0 {
		next = s.next
	}
	if !s.even || s.at.Less(next) {
		if err := s.apply(ctx, sink.Batch{Next: next}, nil); err != nil {
			return err
		}
	}
	every := s.times.meet
	if s.behind != "" {
		every = s.times.late
	}
	if time.Since(s.met) < every {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.times.call)
	defer cancel()
	were := s.late
	shards, err := s.positions(ctx)
	if err != nil {
		return err
	}
	low, high := sink.Span(shards, s.at)
	answers := slices.ContainsFunc(were, func(p sink.ShardPosition) bool { return !slices.Contains(s.late, p) })
	if low != s.at || s.high.Less(high) || answers {
		return sink.ErrMoved
	}
	s.even = s.even && s.behind == "" // do not set even to true here: only apply may, because it also sets low
	return nil
}

// apply applies a batch and moves the session's position past it. messages holds the messages of
// the batch.
func (s *session) apply(ctx context.Context, b sink.Batch, messages []Message) error {
	b.Source, b.Partition, b.From, b.Mark = s.cfg.Number, s.cfg.Partition, s.at, s.marks(messages)
	call, cancel := context.WithTimeout(ctx, s.times.call)
	defer cancel()
	s.decided.hand(b.From, b.Next)
	done, err := s.cfg.Sink.Apply(call, &b)
	s.high = higher(s.high, b.Next) // even after an error, because some shards may have reached b.Next
	// Handle rejected ops even after an error: shards have passed the positions of these ops, and
	// report them only once.
	late := s.lateRejections(ctx, b.Ops, messages, done.Rejected)
	if err != nil {
		return wrap("apply a batch", err)
	}
	s.at, s.even = b.Next, len(b.Ops) == 0 && done.Behind == ""
	if n := len(messages); n > 0 { // set last together with s.at, before anything below can fail
		s.last = MarkOf(&messages[n-1])
	}
	if len(b.Ops) == 0 {
		s.setBehind(done.Behind)
	}
	if s.even {
		s.low, s.met = s.at, time.Now()
		s.decided.forget(s.low)
	}
	if err := s.recordRejects(ctx, s.at); late == nil {
		late = err
	}
	s.status.setPosition(s.at, time.Time{})
	return late
}

package source

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/countd/countd/source/sink"
)

// The times of a runner. Tests shorten them.
var defaultTimes = times{
	backoffMin: 100 * time.Millisecond,
	backoffMax: 30 * time.Second,
	tick:       time.Second,
	call:       30 * time.Second,
}

type times struct {
	backoffMin, backoffMax time.Duration
	tick                   time.Duration // between looks at the bounds, and before an idle batch
	call                   time.Duration // one call of the broker or the Sink
}

// RunnerConfig is what a runner needs. All but Late, Logger and Ending is.
type RunnerConfig struct {
	Number    uint64 // of the source
	Source    *Config
	Partition uint32
	// Late is set where Begin has recorded the partitions of the time. Another begins at the
	// earliest: its first messages are younger than the source.
	Late   bool
	Broker Broker
	Sink   sink.Sink
	Logger *slog.Logger
	// Ending, once closed, ends the runner when its batch is applied and the shards are at one
	// position; nil for a runner that only its context ends.
	Ending <-chan struct{}
}

// Runner reads one partition until it is told to end. Two runners of a partition, on two
// nodes or one after the other, are harmless.
//
// Run's goroutine does everything but the fetching: a goroutine of each session fetches
// ahead, and ends before the session does.
type Runner struct {
	cfg      RunnerConfig
	times    times
	status   status
	decoder  *Decoder
	reported error // last logged
}

// NewRunner returns a runner. Run starts it.
func NewRunner(cfg RunnerConfig) *Runner {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	r := &Runner{cfg: cfg, times: defaultTimes, decoder: NewDecoder(cfg.Source)}
	r.status.mu.Status = Status{State: StateRunning, Errors: map[string]uint64{}}
	return r
}

// Status returns the state of the partition.
func (r *Runner) Status() Status { return r.status.get() }

// Run reads until ctx ends, or until the Sink says that the source is paused or deleted.
// After an error it begins again, at the positions that the shards have, and waits longer
// each time.
func (r *Runner) Run(ctx context.Context) {
	wait := r.times.backoffMin
	for {
		progress, err := r.session(ctx)
		if ctx.Err() != nil || errors.Is(err, sink.ErrStopped) || errors.Is(err, errEnding) {
			return
		}
		r.report(err)
		if progress || errors.Is(err, sink.ErrMoved) {
			wait = r.times.backoffMin
		}
		select {
		case <-ctx.Done():
			return
		case <-r.cfg.Ending:
			return
		case <-time.After(wait/2 + rand.N(wait/2+1)):
		}
		wait = min(2*wait, r.times.backoffMax)
	}
}

// report sets the state after a session ended with err, and logs an error that is new.
func (r *Runner) report(err error) {
	if errors.Is(err, sink.ErrMoved) {
		r.status.count(reasonMoved)
		return
	}
	stalled, is := errors.AsType[*StalledError](err)
	if is {
		r.status.setState(StateStalled, stalled.Reason)
		r.status.count(reasonStalled)
	} else {
		r.status.setState(StateRunning, err.Error())
		r.status.count(reasonBroker)
	}
	if r.reported == nil || r.reported.Error() != err.Error() {
		r.cfg.Logger.Warn("a source does not go on", "source", r.cfg.Source.Name, "partition", r.cfg.Partition,
			"stalled", is, "err", err)
	}
	r.reported = err
}

// session is one connected run of a partition.
type session struct {
	*Runner
	reader Reader
	at     Position // every shard has handled all below it
	end    Position // of the queue, as last seen
	idle   bool     // every shard is at at

	waiting  []Message
	next     Position // after waiting; below all that was not fetched
	progress bool
}

// session reads until an error.
func (r *Runner) session(ctx context.Context) (progress bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	s := &session{Runner: r}
	if err := s.begin(ctx); err != nil {
		cancel()
		return false, err
	}
	fetched := make(chan fetch)
	go s.fetch(ctx, fetched)
	err = s.loop(ctx, fetched)
	if errors.Is(err, errEnding) || errors.Is(err, sink.ErrStopped) {
		s.even(ctx)
	}
	cancel()
	for range fetched { // until the goroutine has ended
	}
	_ = s.reader.Close() // what was applied does not depend on it
	return s.progress, err
}

// errEnding is returned by a session that Ending has ended.
var errEnding = errors.New("the runner is to end")

// even moves all shards to where the session ends. Only then may what messages mean be
// changed. Where it fails, the next reader does it.
func (s *session) even(ctx context.Context) {
	if s.idle {
		return
	}
	if err := s.apply(ctx, sink.Batch{Next: s.at}, nil); err != nil && !errors.Is(err, sink.ErrStopped) {
		s.cfg.Logger.Debug("a reader of a source ended with its shards apart", "source", s.cfg.Source.Name, "partition", s.cfg.Partition, "err", err)
	}
}

// begin finds where to read, and refuses to if the queue is another, or has lost messages.
func (s *session) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.times.call)
	defer cancel()
	b, partition := s.cfg.Broker, s.cfg.Partition
	identity, err := b.Identity(ctx)
	if err != nil {
		return wrap("find the queue", err)
	}
	looked := time.Now()
	first, end, err := b.Bounds(ctx, partition)
	if err != nil {
		return wrap("read the queue's bounds", err)
	}
	begin := s.cfg.Source.startAt(partition, first, end)
	if s.cfg.Late {
		begin = first
	}
	start, err := s.cfg.Sink.Start(ctx, s.cfg.Number, partition, sink.Start{Position: begin, Identity: identity})
	if err != nil {
		return wrap("record the start", err)
	}
	if start.Identity != identity {
		return Stalled("the queue is not the one that was read before: it was %s and is %s; seek to go on", start.Identity, identity)
	}
	if err := s.findPosition(ctx, start.Position); err != nil {
		return err
	}
	if end.Less(s.at) {
		return Stalled("position %s is beyond the end of the queue, %s: the queue was truncated or made anew; seek to go on", s.at, end)
	}
	s.end, s.next = end, s.at
	s.status.setPosition(s.at, end, time.Time{})
	s.status.looked(looked)
	s.reader, err = b.Read(ctx, partition, s.at)
	return wrap("read", err)
}

// findPosition sets at from the shards.
func (s *session) findPosition(ctx context.Context, start Position) error {
	shards, err := s.cfg.Sink.Positions(ctx, s.cfg.Number, s.cfg.Partition)
	if err != nil {
		return wrap("read the positions", err)
	}
	found := false
	for _, shard := range shards {
		if !shard.Known {
			continue
		}
		if !found || shard.Position.Less(s.at) {
			s.at = shard.Position
		}
		found = true
	}
	if !found {
		s.at = start
	}
	return nil
}

// wrap adds what failed to an error, unless it says so itself.
func wrap(verb string, err error) error {
	if _, is := errors.AsType[*StalledError](err); err == nil || is || errors.Is(err, sink.ErrMoved) {
		return err
	}
	return fmt.Errorf("cannot %s: %w", verb, err)
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
				return wrap("read", f.err)
			}
			s.status.setLeft(f.Left)
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
	most := s.cfg.Source.Batch.Messages
	if len(s.waiting) > 0 && len(s.waiting)+len(f.Messages) > most {
		if err := s.flush(ctx); err != nil {
			return err
		}
	}
	s.waiting = append(s.waiting, f.Messages...)
	if s.next.Less(f.Next) {
		s.next = f.Next
	}
	if len(s.waiting) >= most {
		return s.flush(ctx)
	}
	return nil
}

// tick moves idle shards, tells the broker the position and looks at the queue's bounds.
func (s *session) tick(ctx context.Context) error {
	if len(s.waiting) == 0 && (!s.idle || s.at.Less(s.next)) {
		if err := s.apply(ctx, sink.Batch{Next: s.next}, nil); err != nil {
			return err
		}
		s.idle = true
	}
	s.status.rate(s.times.tick)
	ctx, cancel := context.WithTimeout(ctx, s.times.call)
	defer cancel()
	if err := s.reader.Commit(ctx, s.at); err != nil {
		return wrap("commit", err)
	}
	looked := time.Now()
	_, end, err := s.cfg.Broker.Bounds(ctx, s.cfg.Partition)
	if err != nil {
		return wrap("read the queue's bounds", err)
	}
	if end.Less(s.at) {
		return Stalled("position %s is beyond the end of the queue, %s: the queue was truncated or made anew; seek to go on", s.at, end)
	}
	s.end = end
	s.status.setPosition(s.at, end, time.Time{})
	s.status.looked(looked)
	s.status.running()
	return nil
}

// flush applies the messages that wait.
func (s *session) flush(ctx context.Context) error {
	if len(s.waiting) == 0 {
		return nil
	}
	messages, next := s.waiting, s.next
	bad, stop := s.decode(messages)
	if stop != nil {
		messages, next = messages[:stop.at], messages[stop.at].Position
	}
	bad, err := s.check(ctx, messages, bad)
	if err != nil {
		return err
	}
	if i := firstBad(bad); i >= 0 && s.cfg.Source.OnError == OnErrorStop {
		stop = &stopAt{i, Stalled("message at position %s: %v; on-error is stop", messages[i].Position, bad[i])}
		messages, next = messages[:i], messages[i].Position
		s.dropFrom(next)
		bad = nil
	}
	if err := s.refuse(ctx, messages, bad); err != nil {
		return err
	}
	s.dropBad(messages, bad)
	if err := s.apply(ctx, sink.Batch{Next: next, Ops: s.decoder.Ops}, messages); err != nil {
		return err
	}
	s.idle = false
	s.status.applied(len(messages) - len(bad))
	if len(messages) > 0 {
		s.status.setPosition(s.at, s.end, messages[len(messages)-1].Time)
	}
	clear(s.waiting) // do not keep their bytes alive
	s.waiting = s.waiting[:0]
	if stop != nil {
		return stop.err
	}
	return nil
}

// stopAt is a message that ends the batch before it.
type stopAt struct {
	at  int
	err error
}

func firstBad(bad map[int]string) int {
	first := -1
	for i := range bad {
		if first < 0 || i < first {
			first = i
		}
	}
	return first
}

// decode decodes messages into the decoder's ops. bad has the reasons of those that cannot be.
func (s *session) decode(messages []Message) (bad map[int]string, stop *stopAt) {
	s.decoder.Reset()
	for i := range messages {
		err := s.decoder.Decode(&messages[i])
		if err == nil {
			continue
		}
		if stalled, is := errors.AsType[*StalledError](err); is {
			return bad, &stopAt{i, Stalled("message at position %s: %s", messages[i].Position, stalled.Reason)}
		}
		if bad == nil {
			bad = map[int]string{}
		}
		bad[i] = err.Error()
	}
	return bad, nil
}

// check adds the messages with an op that no shard would take to bad.
func (s *session) check(ctx context.Context, messages []Message, bad map[int]string) (map[int]string, error) {
	ctx, cancel := context.WithTimeout(ctx, s.times.call)
	defer cancel()
	rejected, err := s.cfg.Sink.Check(ctx, s.decoder.Ops)
	if err != nil || len(rejected) == 0 {
		return bad, wrap("check a batch", err)
	}
	if bad == nil {
		bad = map[int]string{}
	}
	for _, r := range rejected {
		if i := messageOf(messages, s.decoder.Ops[r.Op].Position); i >= 0 && bad[i] == "" {
			bad[i] = r.Reason
		}
	}
	return bad, nil
}

// messageOf returns the index of the message at a position, or -1.
func messageOf(messages []Message, p Position) int {
	low, high := 0, len(messages)
	for low < high {
		if mid := (low + high) / 2; messages[mid].Position.Less(p) {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if low < len(messages) && messages[low].Position == p {
		return low
	}
	return -1
}

// dropFrom drops the ops of messages at or above a position.
func (s *session) dropFrom(p Position) {
	ops := s.decoder.Ops
	for i := range ops {
		if !ops[i].Position.Less(p) {
			s.decoder.Ops = ops[:i]
			return
		}
	}
}

// dropBad drops the ops of bad messages.
func (s *session) dropBad(messages []Message, bad map[int]string) {
	if len(bad) == 0 {
		return
	}
	kept := s.decoder.Ops[:0]
	for _, op := range s.decoder.Ops {
		if _, is := bad[messageOf(messages, op.Position)]; !is {
			kept = append(kept, op)
		}
	}
	s.decoder.Ops = kept
}

// refuse writes the dead letters of bad messages, if they have any, before their position
// passes.
func (s *session) refuse(ctx context.Context, messages []Message, bad map[int]string) error {
	if len(bad) == 0 {
		return nil
	}
	if s.cfg.Source.OnError == OnErrorDeadLetter {
		letters := make([]Letter, 0, len(bad))
		for i := range messages {
			if reason, is := bad[i]; is {
				letters = append(letters, s.letter(&messages[i], reason))
			}
		}
		if err := s.send(ctx, letters); err != nil {
			return err
		}
	}
	s.status.rejected(len(bad))
	return nil
}

func (s *session) letter(m *Message, reason string) Letter {
	return Letter{
		Source:    s.cfg.Source.Name,
		Partition: s.cfg.Partition,
		Position:  m.Position,
		Reason:    reason,
		Value:     m.Value,
	}
}

func (s *session) send(ctx context.Context, letters []Letter) error {
	ctx, cancel := context.WithTimeout(ctx, s.times.call)
	defer cancel()
	return wrap("write the dead letters", s.cfg.Broker.DeadLetter(ctx, letters))
}

// apply hands a batch to the Sink and moves on. messages are those of the batch.
func (s *session) apply(ctx context.Context, b sink.Batch, messages []Message) error {
	b.Source, b.Partition, b.From = s.cfg.Number, s.cfg.Partition, s.at
	call, cancel := context.WithTimeout(ctx, s.times.call)
	defer cancel()
	done, err := s.cfg.Sink.Apply(call, &b)
	// After an error too, ops may have been rejected: their position has passed in their shard,
	// so that nobody will hear of them again.
	late := s.lateRejections(ctx, b.Ops, messages, done.Rejected)
	if err != nil {
		return wrap("apply a batch", err)
	}
	if s.at != b.Next {
		s.progress = true
		s.status.running()
	}
	s.at = b.Next
	return late
}

// lateRejections writes dead letters for ops that the Sink rejected although Check had not:
// their sums left 64 bits. Their position has passed.
func (s *session) lateRejections(ctx context.Context, ops []sink.Op, messages []Message, rejected []sink.Rejection) error {
	if len(rejected) == 0 {
		return nil
	}
	letters := make([]Letter, 0, len(rejected))
	for _, r := range rejected {
		op := &ops[r.Op]
		if at := messageOf(messages, op.Position); at >= 0 {
			l := s.letter(&messages[at], r.Reason)
			l.Op = opJSON(op)
			letters = append(letters, l)
		}
	}
	s.status.rejected(len(letters))
	if s.cfg.Source.OnError == OnErrorSkip {
		return nil
	}
	if err := s.send(ctx, letters); err != nil {
		s.cfg.Logger.Error("ops were not applied, and their dead letters not written", "source", s.cfg.Source.Name,
			"partition", s.cfg.Partition, "ops", len(letters), "first", letters[0].Op, "reason", letters[0].Reason, "err", err)
		return err
	}
	if s.cfg.Source.OnError == OnErrorStop {
		return Stalled("op at position %s: %s; on-error is stop", letters[0].Position, letters[0].Reason)
	}
	return nil
}

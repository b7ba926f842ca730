package nats

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/countd/countd/source"
)

const (
	// waitMax bounds the wait of Next for a message; after it, Next checks the stream.
	waitMax = time.Second
	// pullMax bounds the messages of one request to the server. If the bound were only a few
	// thousand, the reader would often wait for the answer to its next request.
	pullMax = 10_000
	// readyMax bounds the received messages that wait for Next.
	readyMax = 2_000
	// heartbeat is the interval at which the server sends heartbeats, by which the reader notices
	// a lost consumer.
	heartbeat = time.Second
	// pullAnswerMax bounds the library's wait for the server. It must be longer than two
	// heartbeats.
	pullAnswerMax = 3 * heartbeat
)

// reader reads through its own consumer. A consumer ends with its stream, so all messages are from
// the stream in which it was created.
type reader struct {
	b        *Broker
	identity string
	stream   jetstream.Stream
	consume  jetstream.ConsumeContext
	messages chan jetstream.Msg // never closed; deliver blocks while it is full
	buffered *source.Buffered   // bounds messages
	failed   chan error
	ended    chan struct{} // closed by Close
	at       uint64        // next sequence number of the stream to read
	seen     uint64        // number of messages that the consumer has delivered
	broken   error         // error for the message after those that Next returned last; the next call of Next returns it
}

// Read returns a reader. It returns a *source.StalledError if messages at or above position from
// are gone.
func (b *Broker) Read(ctx context.Context, _ uint32, from source.Position, _ source.Mark) (source.Reader, error) {
	stream, info, err := b.stream(ctx)
	if err != nil {
		return nil, err
	}
	r := &reader{
		b:        b,
		identity: identity(info),
		stream:   stream,
		messages: make(chan jetstream.Msg, readyMax),
		buffered: source.NewBuffered(),
		failed:   make(chan error, 1),
		ended:    make(chan struct{}),
		at:       max(1, from.Lo),
	}
	if err := r.judge(info); err != nil {
		return nil, err
	}
	making, cancel := context.WithTimeout(ctx, requestMax)
	defer cancel()
	asked := time.Now()
	consumer, err := stream.CreateConsumer(making, jetstream.ConsumerConfig{
		DeliverPolicy:     jetstream.DeliverByStartSequencePolicy,
		OptStartSeq:       r.at,
		AckPolicy:         jetstream.AckNonePolicy,
		MemoryStorage:     true,
		Replicas:          1,
		InactiveThreshold: time.Minute,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make a consumer: %w", b.explain(err, asked))
	}
	// Check again, because the stream may have been created again before the consumer was created.
	if _, info, err = b.stream(ctx); err == nil {
		err = r.judge(info)
	}
	if err != nil {
		return nil, err
	}
	// The bound of a request must exceed any message with its headers; otherwise that message
	// would never arrive.
	pullBytes := max(source.FetchBytesMax, 2*int(b.payloadMax()))
	r.consume, err = consumer.Consume(r.deliver, jetstream.PullMaxMessagesWithBytesLimit(pullMax, pullBytes),
		jetstream.PullHeartbeat(heartbeat), jetstream.PullExpiry(10*heartbeat),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			err = b.explain(err, time.Now().Add(-pullAnswerMax))
			select {
			case r.failed <- err:
			default: // one error is enough
			}
		}))
	if err != nil {
		return nil, fmt.Errorf("cannot consume: %w", err)
	}
	return r, nil
}

// deliver buffers a message for Next. The library calls it for one message at a time.
func (r *reader) deliver(m jetstream.Msg) {
	if !r.buffered.Add(len(m.Data()), r.ended) {
		return
	}
	select {
	case r.messages <- m:
	case <-r.ended:
	}
}

// judge returns a *source.StalledError if the stream was created again, or has lost unread
// messages.
func (r *reader) judge(info *jetstream.StreamInfo) error {
	switch now := identity(info); {
	case now != r.identity:
		return source.Stalled("the stream is not the one that was read before: it was %s and is %s; seek to go on", r.identity, now)
	case info.State.FirstSeq > r.at:
		return r.lost(info.State.FirstSeq)
	case info.State.LastSeq+1 < r.at:
		return source.Truncated(source.Position{Lo: info.State.LastSeq + 1}, "position %d is beyond the last message, %d: the stream lost messages; seek to go on", r.at, info.State.LastSeq)
	}
	return nil
}

// removed returns a *source.StalledError if the next message was removed. The method take would
// notice the removal only when a later message arrives.
func (r *reader) removed(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, requestMax)
	defer cancel()
	asked := time.Now()
	info, err := r.stream.Info(ctx, jetstream.WithDeletedDetails(true))
	if err != nil {
		return r.b.explain(err, asked)
	}
	if err := r.judge(info); err != nil {
		return err
	}
	next := r.at
	for slices.Contains(info.State.Deleted, next) {
		next++
	}
	if next > r.at {
		return r.lost(next)
	}
	return nil
}

func (r *reader) lost(next uint64) error {
	return source.Lost(source.Position{Lo: next}, "messages %d to %d were removed before they were read", r.at, next-1)
}

// Next returns messages, or none after waitMax.
func (r *reader) Next(ctx context.Context, limit int) (source.Fetched, error) {
	var got source.Fetched
	if r.broken != nil {
		return got, r.broken
	}
	wait := time.NewTimer(waitMax)
	defer wait.Stop()
	select {
	case <-ctx.Done():
		return got, ctx.Err()
	case err := <-r.failed:
		return got, fmt.Errorf("cannot consume: %w", err)
	case m := <-r.messages:
		if err := r.take(&got, m); err != nil {
			return got, err
		}
	case <-wait.C:
		// Check the stream only if no message waits in messages, because a waiting message is not
		// lost.
		if _, info, err := r.b.stream(ctx); err != nil {
			return got, err
		} else if len(r.messages) == 0 {
			if err := r.judge(info); err != nil {
				return got, err
			}
			if info.State.LastSeq >= r.at {
				if err := r.removed(ctx); err != nil {
					return got, err
				}
			}
		}
	}
	for bytes := got.Bytes(); len(got.Messages) < limit && bytes < source.FetchBytesMax; {
		select {
		case m := <-r.messages:
			bytes += len(m.Data())
			if r.broken = r.take(&got, m); r.broken == nil {
				continue
			}
			// First return the messages before the failed one, so that a seek past the lost
			// messages does not skip them.
		default:
		}
		break
	}
	got.Next = source.Position{Lo: r.at}
	return got, nil
}

// take appends a message to fetched. It returns an error if the message does not have the next
// sequence number.
func (r *reader) take(fetched *source.Fetched, m jetstream.Msg) error {
	r.buffered.Remove(len(m.Data()))
	meta, err := m.Metadata()
	if err != nil {
		return err
	}
	r.seen++
	switch seq := meta.Sequence.Stream; {
	case meta.Sequence.Consumer != r.seen:
		return fmt.Errorf("message %d of the consumer follows %d: some were lost on their way", meta.Sequence.Consumer, r.seen-1)
	case seq < r.at:
		return fmt.Errorf("message %d follows %d", seq, r.at-1)
	case seq > r.at:
		return r.lost(seq)
	}
	fetched.Messages = append(fetched.Messages, source.Message{Position: source.Position{Lo: r.at}, Value: m.Data(), Time: meta.Timestamp})
	r.at++
	return nil
}

// Again returns the message at sequence number from. JetStream does not skip sequence numbers, so a
// missing message was removed.
func (b *Broker) Again(ctx context.Context, _ uint32, from, _ source.Position, _ func()) (source.Again, error) {
	stream, _, err := b.stream(ctx)
	if err != nil {
		return source.Again{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, requestMax)
	defer cancel()
	asked := time.Now()
	m, err := stream.GetMsg(ctx, from.Lo)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return source.Again{}, nil
	}
	if err != nil {
		return source.Again{}, b.explain(err, asked)
	}
	return source.Again{Messages: []source.Message{{Position: from, Value: m.Data, Time: m.Time}}, Whole: true}, nil
}

// Commit does nothing, because the consumer ends with the reader.
func (r *reader) Commit(context.Context, source.Position) error { return nil }

// Close ends the consumer.
func (r *reader) Close() error {
	close(r.ended)
	r.consume.Stop()
	return nil
}

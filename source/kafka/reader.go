package kafka

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/countd/countd/source"
)

const (
	// waitMax bounds the wait of Next for a message.
	waitMax = time.Second
	// decompressedMax bounds a producer's batch after decompression.
	decompressedMax = 2 * source.MessageBytesMax
)

// reader reads a partition through a separate client.
type reader struct {
	b         *Broker
	client    *kgo.Client
	partition uint32
	identity  string
	at        uint64 // the next offset to read
}

// Read returns a reader. It returns a *source.StalledError if messages at or above position from
// are gone.
func (b *Broker) Read(ctx context.Context, partition uint32, from source.Position, _ source.Mark) (source.Reader, error) {
	identity, err := b.Identity(ctx)
	if err != nil {
		return nil, err
	}
	first, end, err := b.Bounds(ctx, partition)
	if err != nil {
		return nil, err
	}
	if from.Less(first) || end.Less(from) {
		return nil, outside(from, first, end)
	}
	if err := b.compacted(ctx); err != nil {
		return nil, err
	}
	// With NoResetOffset and At, the client returns an error for a missing offset instead of
	// choosing another one.
	start := kgo.NoResetOffset().At(int64(from.Lo))
	b.mu.Lock()
	if epoch, known := b.mu.epochs[partition]; known {
		start = start.WithEpoch(epoch)
	}
	b.mu.Unlock()
	options := append([]kgo.Opt{
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{b.cfg.Topic: {int32(partition): start}}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // return control records too, so that the position passes them
		kgo.KeepRetryableFetchErrors(),
		kgo.FetchMaxWait(500 * time.Millisecond),
		kgo.FetchMaxBytes(source.FetchBytesMax),
		kgo.MaxDecompressBatchBytes(decompressedMax),
	}, b.options...)
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	return &reader{b: b, client: client, partition: partition, identity: identity, at: from.Lo}, nil
}

func outside(at, first, end source.Position) error {
	if at.Less(first) {
		return source.Lost(first, "position %s is outside of the topic, which has %s to %s: messages were removed before they were read", at, first, end)
	}
	ended := end
	if !end.Less(at) { // the log ended below the position when the broker refused the position, and has grown since
		ended = source.Position{Lo: max(at.Lo, 1) - 1}
	}
	return source.Truncated(ended, "position %s is outside of the topic, which has %s to %s: the log was truncated; seek to go on", at, first, end)
}

// Next returns messages, or none after waitMax. After each fetch it checks that the topic was not
// created again since the reader began.
func (r *reader) Next(ctx context.Context, limit int) (source.Fetched, error) {
	var got source.Fetched
	wait, cancel := context.WithTimeout(ctx, waitMax)
	fetches := r.client.PollRecords(wait, limit)
	cancel()
	if err := ctx.Err(); err != nil {
		return got, err
	}
	for _, f := range fetches.Errors() {
		if errors.Is(f.Err, context.DeadlineExceeded) {
			continue // the fetch returned no messages
		}
		return got, r.explain(ctx, f.Err)
	}
	epoch := int32(-1)
	for records := fetches.RecordIter(); !records.Done(); {
		rec := records.Next()
		if uint64(rec.Offset) < r.at {
			return got, fmt.Errorf("offset %d follows %d", rec.Offset, r.at-1)
		}
		r.at, epoch = uint64(rec.Offset)+1, rec.LeaderEpoch
		if !rec.Attrs.IsControl() {
			got.Messages = append(got.Messages, source.Message{Position: source.Position{Lo: uint64(rec.Offset)}, Value: rec.Value, Time: rec.Timestamp, Key: rec.Key})
		}
	}
	got.Next = source.Position{Lo: r.at}
	if epoch >= 0 {
		r.b.mu.Lock()
		r.b.mu.epochs[r.partition] = epoch
		r.b.mu.Unlock()
	}
	return got, r.same(ctx)
}

// Again returns the first two messages from one offset up to another. A source does not read
// compacted topics, so only messages at the start of the log can be missing.
func (b *Broker) Again(ctx context.Context, partition uint32, from, to source.Position, progress func()) (source.Again, error) {
	again := source.Again{Whole: true}
	for from.Less(to) {
		err := b.again(ctx, partition, from, to, &again, progress)
		lost, is := errors.AsType[*source.StalledError](err)
		if !is || lost.Next == (source.Position{}) {
			return again, err
		}
		again.Whole, from = false, lost.Next
	}
	return again, nil
}

func (b *Broker) again(ctx context.Context, partition uint32, from, to source.Position, again *source.Again, progress func()) error {
	r, err := b.Read(ctx, partition, from, source.Mark{})
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		got, err := r.Next(ctx, 2)
		if err != nil {
			return err
		}
		for _, m := range got.Messages {
			if m.Position.Less(to) && len(again.Messages) < 2 {
				again.Messages = append(again.Messages, m)
			}
		}
		if !got.Next.Less(to) || len(again.Messages) == 2 {
			return nil
		}
		if from.Less(got.Next) { // the skipped offsets are of control records and aborted messages
			from = got.Next
			progress()
		}
	}
}

// same returns a *source.StalledError if the topic was created again since the reader began.
func (r *reader) same(ctx context.Context) error {
	now, err := r.b.Identity(ctx)
	if err == nil && now != r.identity {
		return source.Stalled("the topic is not the one that was read before: it was %s and is %s; seek to go on", r.identity, now)
	}
	return err
}

// explain returns the error for a failed fetch: a *source.StalledError if messages are gone or
// replaced, or if a batch is too large.
func (r *reader) explain(ctx context.Context, err error) error {
	if same := r.same(ctx); same != nil {
		return same
	}
	var loss *kgo.ErrDataLoss
	if errors.As(err, &loss) {
		return source.Replaced("the topic has other messages than were read: a leader without the messages from %d on took over", loss.ResetTo)
	}
	if _, large := errors.AsType[*kgo.ErrDecompressTooLarge](err); large {
		return source.Stalled("a batch of messages at position %d or above has over %d bytes once it is decompressed, which no reader holds", r.at, decompressedMax)
	}
	if errors.Is(err, kerr.OffsetOutOfRange) {
		first, end, boundsErr := r.b.Bounds(ctx, r.partition)
		if boundsErr != nil {
			return boundsErr
		}
		return outside(source.Position{Lo: r.at}, first, end)
	}
	return err
}

// Commit does nothing, because there is no consumer group.
func (r *reader) Commit(context.Context, source.Position) error { return nil }

// Close closes the client.
func (r *reader) Close() error {
	r.client.Close()
	return nil
}

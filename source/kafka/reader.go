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

// waitMax is how long Next waits for a message.
const waitMax = time.Second

// reader reads a partition with a client of its own.
type reader struct {
	b         *Broker
	client    *kgo.Client
	partition uint32
	identity  string
	at        uint64 // next to read
}

// Read returns a reader. It stalls if messages at or above from are gone.
func (b *Broker) Read(ctx context.Context, partition uint32, from source.Position) (source.Reader, error) {
	identity, err := b.Identity(ctx)
	if err != nil {
		return nil, err
	}
	first, end, err := b.Bounds(ctx, partition)
	if err != nil {
		return nil, err
	}
	if from.Less(first) || end.Less(from) {
		return nil, outside(from.Lo, first, end)
	}
	// NoResetOffset and At: an offset that is not there is an error, and never another offset.
	start := kgo.NoResetOffset().At(int64(from.Lo))
	options := append([]kgo.Opt{
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{b.cfg.Topic: {int32(partition): start}}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.KeepControlRecords(), // so that the position passes them
		kgo.KeepRetryableFetchErrors(),
		kgo.FetchMaxWait(500 * time.Millisecond),
	}, b.options...)
	client, err := kgo.NewClient(options...)
	if err != nil {
		return nil, err
	}
	return &reader{b: b, client: client, partition: partition, identity: identity, at: from.Lo}, nil
}

func outside(at uint64, first, end source.Position) error {
	return source.Stalled("position %d is outside of the topic, which has %s to %s: messages were removed before they were read, or the log was truncated; seek to go on", at, first, end)
}

// Next returns messages, or none after a while. The topic is still the one that the reader
// began with after the messages were fetched, so they are of that topic.
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
			continue // nothing came
		}
		return got, r.explain(ctx, f.Err)
	}
	for records := fetches.RecordIter(); !records.Done(); {
		rec := records.Next()
		if uint64(rec.Offset) < r.at {
			return got, fmt.Errorf("offset %d follows %d", rec.Offset, r.at-1)
		}
		r.at = uint64(rec.Offset) + 1
		if !rec.Attrs.IsControl() {
			got.Messages = append(got.Messages, source.Message{Position: source.Position{Lo: uint64(rec.Offset)}, Value: rec.Value, Time: rec.Timestamp})
		}
	}
	got.Next = source.Position{Lo: r.at}
	return got, r.same(ctx)
}

// same returns a *source.StalledError if the topic is another.
func (r *reader) same(ctx context.Context) error {
	now, err := r.b.Identity(ctx)
	if err == nil && now != r.identity {
		return source.Stalled("the topic is not the one that was read before: it was %s and is %s; seek to go on", r.identity, now)
	}
	return err
}

// explain returns a *source.StalledError if a fetch failed because messages are gone.
func (r *reader) explain(ctx context.Context, err error) error {
	if same := r.same(ctx); same != nil {
		return same
	}
	var loss *kgo.ErrDataLoss
	if errors.Is(err, kerr.OffsetOutOfRange) || errors.As(err, &loss) {
		first, end, boundsErr := r.b.Bounds(ctx, r.partition)
		if boundsErr != nil {
			return boundsErr
		}
		return outside(r.at, first, end)
	}
	return err
}

// Commit does nothing: there is no consumer group.
func (r *reader) Commit(context.Context, source.Position) error { return nil }

// Close closes the client.
func (r *reader) Close() error {
	r.client.Close()
	return nil
}

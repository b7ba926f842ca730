package source

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/countd/countd/source/sink"
)

// TestWhoDenies: if the broker denies any call, the source stalls. The same error from the Sink
// does not stall the source, because the error may come from the TLS between nodes of countd.
func TestWhoDenies(t *testing.T) {
	t.Parallel()
	alert := &net.OpError{Op: "remote error", Err: tls.AlertError(48)}
	for call, state := range map[string]string{
		"Identity": StateStalled, "Bounds": StateStalled, "Read": StateStalled, "Next": StateStalled,
		"Commit": StateStalled, "DeadLetter": StateStalled,
		"Start": StateRunning, "Positions": StateRunning, "Check": StateRunning, "Apply": StateRunning,
	} {
		for _, denied := range []error{alert, errDenied} {
			t.Run(fmt.Sprintf("%s: %v", call, denied), func(t *testing.T) {
				t.Parallel()
				q, c := newFakes(1, nil)
				q.add(like(1, 1), "poison")
				d := denier{call, denied}
				r := NewRunner(RunnerConfig{Number: 1, Source: testConfig(t, ""), Broker: denyingQueue{q, d}, Sink: denyingSink{c.Node(), d}})
				ctx, cancel := context.WithCancel(t.Context())
				ended := make(chan struct{})
				go func() { defer close(ended); r.Run(ctx) }()
				defer func() { cancel(); <-ended }()
				var s Status
				eventually(t, "it fails", func() bool { s = r.Status(); return strings.Contains(s.Reason, denied.Error()) })
				if s.State != state {
					t.Errorf("it is %s: %s", s.State, s.Reason)
				}
			})
		}
	}
}

// denier makes one call fail with the error denied.
type denier struct {
	call   string
	denied error
}

func (d denier) err(call string) error {
	if call == d.call {
		return fmt.Errorf("%s: %w", call, d.denied)
	}
	return nil
}

type denyingQueue struct {
	*fakeQueue
	d denier
}

func (q denyingQueue) Identity(ctx context.Context) (string, error) {
	identity, err := q.fakeQueue.Identity(ctx)
	return identity, errors.Join(err, q.d.err("Identity"))
}

func (q denyingQueue) Bounds(ctx context.Context, partition uint32) (first, end Position, err error) {
	first, end, err = q.fakeQueue.Bounds(ctx, partition)
	return first, end, errors.Join(err, q.d.err("Bounds"))
}

func (q denyingQueue) Read(ctx context.Context, partition uint32, from Position, found Mark) (Reader, error) {
	r, err := q.fakeQueue.Read(ctx, partition, from, found)
	return denyingReader{r, q.d}, errors.Join(err, q.d.err("Read"))
}

func (q denyingQueue) DeadLetter(ctx context.Context, letters []Letter) error {
	return errors.Join(q.fakeQueue.DeadLetter(ctx, letters), q.d.err("DeadLetter"))
}

type denyingReader struct {
	Reader
	d denier
}

func (r denyingReader) Next(ctx context.Context, limit int) (Fetched, error) {
	f, err := r.Reader.Next(ctx, limit)
	return f, errors.Join(err, r.d.err("Next"))
}

func (r denyingReader) Commit(ctx context.Context, p Position) error {
	return errors.Join(r.Reader.Commit(ctx, p), r.d.err("Commit"))
}

type denyingSink struct {
	sink.Sink
	d denier
}

func (s denyingSink) Start(ctx context.Context, number uint64, partition uint32, start sink.Start) (sink.Start, error) {
	start, err := s.Sink.Start(ctx, number, partition, start)
	return start, errors.Join(err, s.d.err("Start"))
}

func (s denyingSink) Positions(ctx context.Context, number uint64, partition uint32) ([]sink.ShardPosition, error) {
	all, err := s.Sink.Positions(ctx, number, partition)
	return all, errors.Join(err, s.d.err("Positions"))
}

func (s denyingSink) Check(ctx context.Context, b *sink.Batch) ([]sink.Rejection, error) {
	rejected, err := s.Sink.Check(ctx, b)
	return rejected, errors.Join(err, s.d.err("Check"))
}

func (s denyingSink) Apply(ctx context.Context, b *sink.Batch) (sink.Applied, error) {
	done, err := s.Sink.Apply(ctx, b)
	return done, errors.Join(err, s.d.err("Apply"))
}

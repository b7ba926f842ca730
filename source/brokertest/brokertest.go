// Package brokertest has the tests that every broker of package source must pass.
package brokertest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/source"
	"github.com/countd/countd/source/sink/sinktest"
)

// Queue is a queue under test.
type Queue struct {
	Config string // YAML
	Open   func(*source.Config, source.Access) (source.Broker, error)
	// Secrets has the directory of the files that Config names.
	Secrets source.Secrets
	Write   func(t *testing.T, values ...string)
	// Letters returns the messages that the dead letters contain.
	Letters func(t *testing.T) []string
	// Restart restarts the broker without a loss of data. It is nil if the broker cannot restart.
	Restart func(t *testing.T)
}

// Like returns a message that adds n likes to a post.
func Like(id uint64, n int64) string {
	return fmt.Sprintf(`{"keyspace":%q,"id":%d,"add":{"like":%d}}`, sinktest.Keyspace, id, n)
}

// Reader is a runner with its broker, for a test.
type Reader struct {
	*source.Runner
	Broker source.Broker
	Stop   func()
}

// BrokerOf opens a broker, and closes it at the end of the test.
func BrokerOf[B source.Broker](t testing.TB, config string, access source.Access, open func(*source.Config, source.Access) (B, error)) B {
	t.Helper()
	cfg, err := source.ParseConfig([]byte(config))
	must.Do(t, err)
	b, err := open(cfg, access)
	must.Do(t, err)
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// open parses a configuration and opens its broker. The caller closes the broker.
func (q *Queue) open(t testing.TB, config string) (*source.Config, source.Broker) {
	t.Helper()
	cfg, err := source.ParseConfig([]byte(config))
	must.Do(t, err)
	access, err := q.Secrets.Access(cfg)
	must.Do(t, err)
	broker, err := q.Open(cfg, access)
	must.Do(t, err)
	return cfg, broker
}

// Start runs a runner of partition 0 until Stop is called or the test ends.
func (q *Queue) Start(t testing.TB, c *sinktest.Cluster) *Reader {
	t.Helper()
	cfg, broker := q.open(t, q.Config)
	r := &Reader{Runner: source.NewRunner(source.RunnerConfig{Number: 1, Source: cfg, Broker: broker, Sink: c.Node()}), Broker: broker}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Run(ctx)
		broker.Close()
	}()
	r.Stop = func() { cancel(); <-ended }
	t.Cleanup(r.Stop)
	return r
}

// Stalls waits until the reader is stalled with that reason.
func (r *Reader) Stalls(t *testing.T, reason string) {
	t.Helper()
	must.Become(t, "it stalls: "+reason, func() bool {
		s := r.Status()
		return s.State == source.StateStalled && strings.Contains(s.Reason, reason)
	})
}

// Counts waits until row 1 has the sum want. The test fails if the sum is larger.
func (r *Reader) Counts(t *testing.T, c *sinktest.Cluster, want int64) {
	t.Helper()
	must.Become(t, fmt.Sprintf("row 1 is %d: %v, %+v", want, c.Sums(), r.Status()), func() bool {
		return c.Sums()[1] >= want
	})
	if got := c.Sums()[1]; got != want {
		t.Fatalf("row 1 is %d, want %d", got, want)
	}
}

// Bounded tests that a reader buffers and returns only a few megabytes at a time if many large
// messages wait. It also tests that a broker can write many dead letters of one large message.
func Bounded(t *testing.T, q *Queue, holds func(source.Reader) int) {
	t.Helper()
	const messages = 24             // some 2.5 times what a reader may buffer
	random := make([]byte, 450<<10) // random, so that a batch cannot compress it
	_, _ = rand.Read(random)
	large := hex.EncodeToString(random) // small enough for a Kafka topic
	for range messages {
		q.Write(t, large)
	}
	b := BrokerOf(t, q.Config, source.Access{}, q.Open)
	var first source.Position
	repeat(t, "the bounds", func() (err error) { first, _, err = b.Bounds(t.Context(), 0); return err })
	var r source.Reader
	next := first
	for n := 0; n < messages; {
		var got source.Fetched
		repeat(t, "a fetch", func() (err error) {
			if r == nil {
				opened, err := b.Read(t.Context(), 0, next, source.Mark{})
				if err != nil {
					return err
				}
				r = opened
			}
			time.Sleep(50 * time.Millisecond) // time for the reader to buffer as much as it can
			if held := holds(r); held > source.FetchBytesMax+1<<20 {
				t.Fatalf("it holds %d MiB", held>>20)
			}
			if got, err = r.Next(t.Context(), 10_000); err != nil {
				r.Close()
				r = nil
			}
			return err
		})
		next = got.Next
		if n += len(got.Messages); got.Bytes() > 2*source.FetchBytesMax {
			t.Fatalf("a fetch has %d messages of %d MiB", len(got.Messages), got.Bytes()>>20)
		}
	}
	defer r.Close()
	letters := make([]source.Letter, messages)
	for i := range letters {
		letters[i] = source.Letter{Source: "likes", Position: first, Reason: "a column was dropped", Op: fmt.Sprint(i), Value: []byte(large)}
	}
	tries, written := 0, 0
	repeat(t, "the letters", func() error { tries++; return b.DeadLetter(t.Context(), letters) })
	for _, letter := range q.Letters(t) {
		if letter == large {
			written++
		}
	}
	if written < len(letters) || written > tries*len(letters) {
		t.Errorf("%d letters of %d, written in %d tries", written, len(letters), tries)
	}
}

// repeat calls a broker until it returns no error, as a runner does: an answer may come too late on
// a busy machine. A stall ends the test.
func repeat(t *testing.T, what string, call func() error) {
	t.Helper()
	for end := time.Now().Add(must.BecomeMax); ; time.Sleep(10 * time.Millisecond) {
		err := call()
		if err == nil {
			return
		}
		var stalled *source.StalledError
		if errors.As(err, &stalled) || time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// Once tests that several readers of the same partition, which end and start again, count each
// message once. It also tests that bad messages become dead letters, and that the broker may
// restart.
func Once(t *testing.T, q *Queue) {
	t.Helper()
	c := sinktest.New(3, nil)
	total := map[uint64]int64{}
	write := func(n int) {
		var values []string
		for i := range n {
			id, add := uint64(i%7), int64(i%5)-1
			values = append(values, Like(id, add))
			total[id] += add
		}
		q.Write(t, values...)
	}
	write(500)
	q.Write(t, "poison 1")
	first := q.Start(t, c)
	write(500)
	second := q.Start(t, c)
	first.Stop()
	write(500)
	q.Write(t, "poison 2")
	third := q.Start(t, c)
	second.Stop()
	if q.Restart != nil {
		q.Restart(t)
	}
	write(500)
	q.Write(t, Like(1000, 1)) // the last message
	t.Cleanup(func() {
		if s := third.Status(); t.Failed() {
			t.Logf("the last reader: %+v", s)
		}
	})
	must.Become(t, "the last message is counted", func() bool { return c.Sums()[1000] == 1 })
	for id, want := range total {
		if got := c.Sums()[id]; got != want {
			t.Errorf("row %d is %d, want %d", id, got, want)
		}
	}
	letters := slices.Compact(slices.Sorted(slices.Values(q.Letters(t))))
	if !slices.Equal(letters, []string{"poison 1", "poison 2"}) {
		t.Errorf("dead letters %q", letters)
	}
	must.Become(t, fmt.Sprintf("there is no lag: %+v", third.Status()), func() bool {
		s := third.Status()
		lag, known := s.Lag()
		return known && lag == 0 && s.State == source.StateRunning
	})
}

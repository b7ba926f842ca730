package source

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/source/sink"
	"github.com/countd/countd/source/sink/sinktest"
)

// manySink is a Sink with separate shards for each partition.
type manySink struct {
	sink.Sink
	partitions map[uint32]sink.Sink
}

func (s *manySink) Begin(ctx context.Context, n uint64, starts map[uint32]sink.Position, identity string) error {
	for p, at := range starts {
		if _, err := s.Start(ctx, n, p, sink.Start{Position: at, Identity: identity}); err != nil {
			return err
		}
	}
	return nil
}

func (s *manySink) Start(ctx context.Context, n uint64, p uint32, start sink.Start) (sink.Start, error) {
	return s.partitions[p].Start(ctx, n, p, start)
}

func (s *manySink) Positions(ctx context.Context, n uint64, p uint32) ([]sink.ShardPosition, error) {
	return s.partitions[p].Positions(ctx, n, p)
}

func (s *manySink) Check(ctx context.Context, b *sink.Batch) ([]sink.Rejection, error) {
	return s.partitions[b.Partition].Check(ctx, b)
}

func (s *manySink) Apply(ctx context.Context, b *sink.Batch) (sink.Applied, error) {
	return s.partitions[b.Partition].Apply(ctx, b)
}

// manyQueue is a queue of several partitions, which all have the same messages.
type manyQueue struct {
	*fakeQueue
	mu   sync.Mutex
	list []uint32
}

func (q *manyQueue) Partitions(context.Context) ([]uint32, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.list == nil {
		return nil, errBroken
	}
	return q.list, nil
}

func (q *manyQueue) setList(list ...uint32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.list = list
}

// TestConsumerAfterPause: a consumer continues to run while the Sink reports that the source is
// paused.
func TestConsumerAfterPause(t *testing.T) {
	q, shards := newFakes(2, nil)
	q.add(like(1, 1))
	s := &pausedSink{Sink: shards.Node()}
	s.set(true)
	c := NewConsumer(ConsumerConfig{RunnerConfig: RunnerConfig{Number: 1, Source: testConfig(t, ""), Broker: q, Sink: s}, Owns: func(uint32) bool { return true }})
	c.times.owners = time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); c.Run(ctx) }()
	defer func() { cancel(); <-ended }()
	eventually(t, "the Sink was asked", func() bool { return s.asked() > 1 })
	s.set(false)
	eventually(t, "it is counted", func() bool { return shards.Sums()[1] == 1 })
}

type pausedSink struct {
	sink.Sink
	mu     sync.Mutex
	paused bool
	calls  int
	last   sink.Batch // the last applied batch
}

// evened reports whether the last batch moved all shards to a position.
func (s *pausedSink) evened(to uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.last.Ops) == 0 && s.last.Next == Position{Lo: to}
}

func (s *pausedSink) set(paused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = paused
}

func (s *pausedSink) asked() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *pausedSink) Start(ctx context.Context, n uint64, p uint32, start sink.Start) (sink.Start, error) {
	s.mu.Lock()
	s.calls++
	paused := s.paused
	s.mu.Unlock()
	if paused {
		return sink.Start{}, sink.ErrStopped
	}
	return s.Sink.Start(ctx, n, p, start)
}

// While the source is paused, Apply accepts only batches without ops, like the nodes of a cluster.
func (s *pausedSink) Apply(ctx context.Context, b *sink.Batch) (sink.Applied, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused && len(b.Ops) > 0 {
		return sink.Applied{}, sink.ErrStopped
	}
	s.last = *b
	return s.Sink.Apply(ctx, b)
}

// TestConsumers: two nodes read the partitions that they own, also after the owners change. A
// partition that is found later begins at its first message, even if start is latest.
func TestConsumers(t *testing.T) {
	fake, _ := newFakes(1, nil)
	q := &manyQueue{fakeQueue: fake, list: []uint32{0, 1}}
	var shards []*sinktest.Cluster
	for range 3 {
		shards = append(shards, sinktest.New(2, nil))
	}
	fake.add(like(1, 100)) // before the source begins
	cfg := testConfig(t, "start: latest")
	var mu sync.Mutex
	owner := map[uint32]int{0: 0, 1: 1, 2: 1}
	var consumers []*Consumer
	for node := range 2 {
		s := &manySink{partitions: map[uint32]sink.Sink{}}
		for p := range shards {
			s.partitions[uint32(p)] = shards[p].Node()
		}
		if err := Begin(t.Context(), 1, cfg, q, s); err != nil {
			t.Fatal(err)
		}
		c := NewConsumer(ConsumerConfig{RunnerConfig: RunnerConfig{Number: 1, Source: cfg, Broker: q, Sink: s}, Owns: func(p uint32) bool {
			mu.Lock()
			defer mu.Unlock()
			return owner[p] == node
		}})
		c.times = consumerTimes{time.Millisecond, time.Millisecond, time.Second}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() { defer close(ended); c.Run(ctx) }()
		defer func() { cancel(); <-ended }()
		consumers = append(consumers, c)
	}
	fake.add(like(1, 1))
	counted := func(want ...int64) func() bool {
		return func() bool {
			for p := range want {
				if shards[p].Sums()[1] != want[p] {
					return false
				}
			}
			return true
		}
	}
	eventually(t, "both partitions are counted", counted(1, 1, 0))
	reads := func(node int, want ...uint32) func() bool {
		return func() bool {
			all, err := consumers[node].Status()
			for _, p := range want {
				if _, ok := all[p]; !ok {
					return false
				}
			}
			return err == nil && len(all) == len(want)
		}
	}
	eventually(t, "each node reads one", func() bool { return reads(0, 0)() && reads(1, 1)() })
	mu.Lock()
	owner[0], owner[1] = 1, 0
	mu.Unlock()
	eventually(t, "they have changed", func() bool { return reads(0, 1)() && reads(1, 0)() })
	fake.add(like(1, 1))
	eventually(t, "both go on", counted(2, 2, 0))
	q.setList(0, 1, 2)
	eventually(t, "the new one is counted from its first message", counted(2, 2, 102))
	q.setList()
	eventually(t, "the error is shown", func() bool { _, err := consumers[0].Status(); return err != nil })
	fake.add(like(1, 1))
	eventually(t, "readers go on meanwhile", counted(3, 3, 103))
}

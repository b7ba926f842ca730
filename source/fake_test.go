package source

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/countd/countd/source/sink"
)

var errBroken = errors.New("broken")

// fakeQueue is a queue of one partition. Message i has position i.
type fakeQueue struct {
	mu       sync.Mutex
	values   []string
	first    uint64
	identity string
	letters  map[string]Letter // by ID
	rng      *rand.Rand        // nil: nothing fails
	deadDown bool              // dead letters are refused
}

// fails reports, one time in n, that a call shall fail.
func (q *fakeQueue) fails(n int) bool { return q.rng != nil && q.rng.IntN(n) == 0 }

func (q *fakeQueue) add(values ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.values = append(q.values, values...)
}

func (q *fakeQueue) set(change func()) {
	q.mu.Lock()
	defer q.mu.Unlock()
	change()
}

func (q *fakeQueue) Identity(context.Context) (string, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fails(20) {
		return "", errBroken
	}
	return q.identity, nil
}

func (q *fakeQueue) Partitions(context.Context) ([]uint32, error) { return []uint32{0}, nil }

func (q *fakeQueue) Bounds(context.Context, uint32) (first, end Position, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return Position{Lo: q.first}, Position{Lo: uint64(len(q.values))}, nil
}

func (q *fakeQueue) Read(_ context.Context, _ uint32, from Position) (Reader, error) {
	return &fakeReader{q: q, at: from.Lo}, nil
}

func (q *fakeQueue) DeadLetter(_ context.Context, letters []Letter) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.deadDown {
		return errBroken
	}
	for i, l := range letters {
		q.letters[l.ID()] = l
		if i < len(letters)-1 && q.fails(10) {
			return errBroken // some were written
		}
	}
	return nil
}

func (q *fakeQueue) Close() error { return nil }

type fakeReader struct {
	q  *fakeQueue
	at uint64
}

func (r *fakeReader) Next(ctx context.Context, limit int) (Fetched, error) {
	for {
		r.q.mu.Lock()
		if r.at < r.q.first {
			r.q.mu.Unlock()
			return Fetched{}, Stalled("position %d is below the first retained, %d", r.at, r.q.first)
		}
		if r.q.fails(50) {
			r.q.mu.Unlock()
			return Fetched{}, errBroken
		}
		if left := uint64(len(r.q.values)) - r.at; left > 0 {
			n := min(left, uint64(limit))
			if r.q.rng != nil {
				n = 1 + r.q.rng.Uint64N(n)
			}
			var f Fetched
			for range n {
				f.Messages = append(f.Messages, Message{Position: Position{Lo: r.at}, Value: []byte(r.q.values[r.at])})
				r.at++
			}
			f.Next = Position{Lo: r.at}
			r.q.mu.Unlock()
			return f, nil
		}
		r.q.mu.Unlock()
		if err := pause(ctx); err != nil {
			return Fetched{}, err
		}
	}
}

func (r *fakeReader) Commit(context.Context, Position) error { return nil }
func (r *fakeReader) Close() error                           { return nil }

// fakeShard is what a shard has: its position, and the sums by id.
type fakeShard struct {
	has  bool
	at   Position
	sums map[uint64]int64
}

// fakeCluster obeys the rule of the state machine: a section applies if and only if the
// shard's position is the one that its sender names.
type fakeCluster struct {
	mu     sync.Mutex
	start  *sink.Start
	shards []fakeShard
	rng    *rand.Rand // nil: nothing fails
}

// fakeSink is the sink of one node: it knows the positions that it saw last.
type fakeSink struct {
	c    *fakeCluster
	seen []fakeShard // has and at only
}

func (s *fakeSink) Start(_ context.Context, _ uint64, _ uint32, start sink.Start) (sink.Start, error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	if s.c.start == nil {
		s.c.start = &start
	}
	return *s.c.start, nil
}

func (s *fakeSink) Positions(context.Context, uint64, uint32) ([]sink.ShardPosition, error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.seen = slices.Clone(s.c.shards)
	var out []sink.ShardPosition
	for i, shard := range s.c.shards {
		out = append(out, sink.ShardPosition{Keyspace: "posts", Shard: i, Position: shard.at, Known: shard.has})
	}
	return out, nil
}

func (s *fakeSink) Check(_ context.Context, ops []sink.Op) (bad []sink.Rejection, err error) {
	for i := range ops {
		if ops[i].Keyspace != "posts" {
			bad = append(bad, sink.Rejection{Op: i, Reason: "no such keyspace"})
		}
	}
	return bad, nil
}

func (s *fakeSink) Apply(_ context.Context, b *sink.Batch) (sink.Applied, error) {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	var done sink.Applied
	for i := range s.c.shards { // shards without a position have one before any moves
		if s.c.rng != nil && s.c.rng.IntN(40) == 0 {
			return sink.Applied{}, errBroken
		}
		if shard, seen := &s.c.shards[i], &s.seen[i]; !shard.has && !seen.has {
			shard.has, shard.at = true, b.From
			seen.has, seen.at = true, b.From
		}
	}
	for i := range s.c.shards {
		if s.c.rng != nil && s.c.rng.IntN(40) == 0 {
			return sink.Applied{}, errBroken // some shards have applied their part
		}
		shard, seen := &s.c.shards[i], &s.seen[i]
		if shard.has != seen.has || shard.at != seen.at {
			return sink.Applied{}, sink.ErrMoved
		}
		for n, op := range b.Ops {
			if op.ID%uint64(len(s.c.shards)) != uint64(i) || op.Position.Less(shard.at) {
				continue
			}
			if op.ID == fullRow {
				done.Rejected = append(done.Rejected, sink.Rejection{Op: n, Reason: "overflow"})
				continue
			}
			shard.sums[op.ID] += op.Cells[0].Value
		}
		if shard.at.Less(b.Next) {
			shard.at = b.Next
		}
		seen.at = shard.at
		if s.c.rng != nil && s.c.rng.IntN(40) == 0 {
			return sink.Applied{}, errBroken // the answer was lost
		}
	}
	return done, nil
}

// fullRow is a row that can hold no more.
const fullRow = 999

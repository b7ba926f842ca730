package source

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"
)

var errBroken = errors.New("broken")

// fakeQueue is a queue of one partition. Message i has position i. An empty value is a gap: no message ever had
// that position.
type fakeQueue struct {
	mu          sync.Mutex
	values      []string
	first       uint64
	identity    string
	letters     map[string]Letter                                // by ID
	rng         *rand.Rand                                       // nil: nothing fails
	deadDown    bool                                             // DeadLetter fails
	lostAnswers bool                                             // DeadLetter writes the letters, but returns an error
	commits     func(Position)                                   // called by Commit, if it is set
	reads       func()                                           // called by Read, if it is set
	next        func(ctx context.Context) error                  // called by Next, if it is set
	bounds      func()                                           // if set, called by Bounds after it has read the bounds
	again       func(ctx context.Context, progress func()) error // called by Again, if it is set
	dated       bool                                             // messages have the time when they were written
	times       []time.Time                                      // when each message was written; only if dated is set
	silent      bool                                             // a reader without a message reports that the broker is silent
	oneByOne    bool                                             // messages are fetched one by one
	behind      uint64                                           // number of messages that Bounds does not know yet
	deleted     map[uint64]bool                                  // messages that were removed one by one
}

// fails returns true for one call in n.
func (q *fakeQueue) fails(n int) bool { return q.rng != nil && q.rng.IntN(n) == 0 }

func (q *fakeQueue) add(values ...string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.values = append(q.values, values...)
	for range values {
		q.times = append(q.times, time.Now())
	}
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

// errDenied is the error of a fakeQueue that refuses the user.
var errDenied = errors.New("wrong password")

func (q *fakeQueue) Denied(err error) bool { return errors.Is(err, errDenied) }

func (q *fakeQueue) Partitions(context.Context) ([]uint32, error) { return []uint32{0}, nil }

func (q *fakeQueue) Bounds(context.Context, uint32) (first, end Position, err error) {
	q.mu.Lock()
	first, end = Position{Lo: q.first}, Position{Lo: uint64(len(q.values)) - q.behind}
	then := q.bounds
	q.mu.Unlock()
	if then != nil {
		then()
	}
	return first, end, nil
}

func (q *fakeQueue) Read(_ context.Context, _ uint32, from Position, _ Mark) (Reader, error) {
	if q.reads != nil {
		q.reads()
	}
	return &fakeReader{q: q, at: from.Lo}, nil
}

func (q *fakeQueue) Again(ctx context.Context, _ uint32, from, to Position, progress func()) (Again, error) {
	if q.again != nil {
		if err := q.again(ctx, progress); err != nil {
			return Again{}, err
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.fails(20) {
		return Again{}, errBroken
	}
	again := Again{Whole: q.first <= from.Lo && !q.deleted[from.Lo]}
	for at := max(q.first, from.Lo); at < min(to.Lo, uint64(len(q.values))) && len(again.Messages) < 2; at++ {
		if q.has(at) {
			m := q.message(at)
			m.Position.Hi = from.Hi
			again.Messages = append(again.Messages, m)
		}
	}
	return again, nil
}

// has reports whether there is a message at a position. The caller holds mu.
func (q *fakeQueue) has(at uint64) bool { return q.values[at] != "" && !q.deleted[at] }

// message returns the message at a position. The caller holds mu.
func (q *fakeQueue) message(at uint64) Message {
	m := Message{Position: Position{Lo: at}, Value: []byte(q.values[at])}
	if q.dated {
		m.Time = q.times[at]
	}
	return m
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
	if q.lostAnswers {
		return errBroken
	}
	return nil
}

func (q *fakeQueue) Close() error { return nil }

type fakeReader struct {
	q  *fakeQueue
	at uint64
}

func (r *fakeReader) Next(ctx context.Context, limit int) (Fetched, error) {
	r.q.mu.Lock()
	next := r.q.next
	r.q.mu.Unlock()
	if next != nil {
		if err := next(ctx); err != nil {
			return Fetched{}, err
		}
	}
	for range 5 {
		r.q.mu.Lock()
		if r.at < r.q.first {
			r.q.mu.Unlock()
			return Fetched{}, Lost(Position{Lo: r.q.first}, "position %d is below the first retained, %d", r.at, r.q.first)
		}
		if r.q.fails(50) {
			r.q.mu.Unlock()
			return Fetched{}, errBroken
		}
		if end := uint64(len(r.q.values)); r.at < end {
			n := min(end-r.at, uint64(limit))
			if r.q.oneByOne {
				n = 1
			}
			if r.q.rng != nil {
				n = 1 + r.q.rng.Uint64N(n)
			}
			var f Fetched
			for range n {
				if r.q.has(r.at) {
					f.Messages = append(f.Messages, r.q.message(r.at))
				}
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
	r.q.mu.Lock()
	defer r.q.mu.Unlock()
	return Fetched{Next: Position{Lo: r.at}, Silent: r.q.silent}, nil
}

func (r *fakeReader) Commit(_ context.Context, p Position) error {
	if r.q.commits != nil {
		r.q.commits(p)
	}
	return nil
}
func (r *fakeReader) Close() error { return nil }

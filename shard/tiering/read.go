package tiering

import (
	"context"
	"sync"
	"time"

	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/raftfsm/spill"
)

const (
	// ReadMax bounds a read of rows or bodies on disk, which a disk answers in a fraction of
	// a millisecond. Past it another replica is asked.
	ReadMax = 2 * time.Second
	// ReadsAtOnce is how many rows or bodies of one page are read at once, and how many reads
	// of cold rows are under way at another node.
	ReadsAtOnce = 16
)

// EachRead calls read, which may wait for the disk, with 0 to n-1, ReadsAtOnce at once, by the
// deadline and within ReadMax. It returns the first error, which ends the others.
func EachRead(n int, deadline time.Time, read func(ctx context.Context, i int) error) error {
	if end := time.Now().Add(ReadMax); end.Before(deadline) {
		deadline = end
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	next := make(chan int, n)
	for i := range n {
		next <- i
	}
	close(next)
	var first error
	var once sync.Once
	work := func() {
		for i := range next {
			if err := read(ctx, i); err != nil {
				once.Do(func() { first = err; cancel() })
				return
			}
		}
	}
	var readers sync.WaitGroup
	for range min(n, ReadsAtOnce) - 1 {
		readers.Go(work) // ends with the context
	}
	work()
	readers.Wait()
	return first
}

// ReadOutboxes sets the bodies of outboxes on disk, given the bodies and the key of each
// author.
func ReadOutboxes(missing []outbox.Missing, deadline time.Time, of func(author int) (*spill.Bodies, uint64)) error {
	return EachRead(len(missing), deadline, func(ctx context.Context, i int) (err error) {
		bodies, key := of(missing[i].Author)
		missing[i].Body, err = bodies.FetchMark(ctx, key, missing[i].Mark)
		return err
	})
}

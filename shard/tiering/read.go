package tiering

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/raftfsm/spill"
)

const (
	// ReadMax bounds a read of rows or bodies on disk. A disk needs a fraction of a millisecond.
	// After ReadMax, the caller asks another replica.
	ReadMax = 2 * time.Second
	// ReadsAtOnce bounds the parallel reads of the rows or bodies of one page, and the parallel
	// reads of cold rows from another node.
	ReadsAtOnce = 16
)

// EachRead calls read for each i in [0, n), up to ReadsAtOnce at once, until the deadline or
// ReadMax passes. read may wait for the disk. EachRead returns the first error, which cancels the
// other reads.
func EachRead(n int, deadline time.Time, read func(ctx context.Context, i int) error) error {
	if end := time.Now().Add(ReadMax); end.Before(deadline) {
		deadline = end
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	if n == 1 { // the usual case needs no goroutine
		return read(ctx, 0)
	}
	reads, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(n, ReadsAtOnce) {
		reads.Go(func() error {
			for i := int(next.Add(1)); i <= n; i = int(next.Add(1)) {
				if err := read(ctx, i-1); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return reads.Wait()
}

// ReadOutboxes reads missing outbox bodies from disk. bodiesOf returns the bodies and the key of an
// author.
func ReadOutboxes(missing []outbox.Missing, deadline time.Time, bodiesOf func(author int) (*spill.Bodies, uint64)) error {
	return EachRead(len(missing), deadline, func(ctx context.Context, i int) (err error) {
		bodies, key := bodiesOf(missing[i].Author)
		missing[i].Body, err = bodies.FetchMark(ctx, key, missing[i].Mark)
		return err
	})
}

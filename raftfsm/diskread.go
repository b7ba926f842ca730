package raftfsm

import (
	"context"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	// DiskReadMax bounds a read of rows or bodies on disk. A disk needs a fraction of a millisecond.
	// After DiskReadMax, the caller asks another replica.
	DiskReadMax = 2 * time.Second
	// DiskReadsAtOnce bounds the parallel reads of the rows or bodies of one page, and the parallel
	// reads of cold rows from another node.
	DiskReadsAtOnce = 16
)

// EachRead calls read for each i in [0, n), up to DiskReadsAtOnce at once, until the deadline or
// DiskReadMax passes. read may wait for the disk. EachRead returns the first error, which cancels the
// other reads.
func EachRead(n int, deadline time.Time, read func(ctx context.Context, i int) error) error {
	if end := time.Now().Add(DiskReadMax); end.Before(deadline) {
		deadline = end
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	if n == 1 { // the usual case needs no goroutine
		return read(ctx, 0)
	}
	reads, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	for range min(n, DiskReadsAtOnce) {
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

package raftfsm

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
)

const (
	// DiskReadMax bounds a read of rows or bodies on disk, because a healthy disk needs only a
	// fraction of a millisecond. After DiskReadMax, the caller reads from another replica.
	DiskReadMax = 2 * time.Second
	// DiskReadsAtOnce bounds the parallel reads of the rows or bodies of one page, and the parallel
	// reads of cold rows from another node.
	DiskReadsAtOnce = 16
)

// EachRead calls the function read for each i in [0, n), up to DiskReadsAtOnce at once, until the
// deadline or DiskReadMax passes. read may wait for the disk. The first error cancels the other
// reads, and EachRead returns it.
func EachRead(n int, deadline time.Time, read func(ctx context.Context, i int) error) error {
	if n == 0 { // usual for a page of posts, because posts are in memory
		return nil
	}
	if end := time.Now().Add(DiskReadMax); end.Before(deadline) {
		deadline = end
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	if n == 1 { // a single read needs no goroutine
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

// ReadRows reads rows of a table into dst, width counts for each key. Unless disk is set, it
// returns ErrNotInMemory if a row is on disk. If disk is set, it waits for the disk until the
// deadline.
func ReadRows(m Machine, t Table, keys []uint64, width int, dst []int64, disk bool, deadline time.Time) error {
	table := m.TableOf(t)
	if table == nil {
		return ErrOtherKind
	}
	missing := table.GetMany(keys, width, dst, nil)
	switch {
	case len(missing) == 0:
		return nil
	case !disk:
		return ErrNotInMemory
	}
	return TableFailure(m, t, table, EachRead(len(missing), deadline, func(ctx context.Context, i int) error {
		at := missing[i]
		return table.ReadCold(ctx, keys[at], dst[at*width:(at+1)*width])
	}))
}

// TableFailure returns the error of a read of a table's cold rows. If a snapshot has replaced the
// table meanwhile, the error does not wrap ErrDamaged: the cold rows of the old table are not
// damaged, but were removed.
func TableFailure(m Machine, t Table, table *engine.Table, err error) error {
	if errors.Is(err, cold.ErrDamaged) && m.TableOf(t) != table {
		return fmt.Errorf("a snapshot has replaced the table: %s", err.Error())
	}
	return err
}

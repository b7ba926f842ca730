package shard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
)

const (
	// coldReadMax bounds a read of cold rows, which a disk answers in a fraction of a
	// millisecond. Past it another replica is asked.
	coldReadMax = 2 * time.Second
	// coldAtOnce is how many rows of one page are read at once, and how many reads of
	// cold rows are under way at another node.
	coldAtOnce = 16
)

// get fills rows, width counts a key, from a table of this replica, cold rows too. The error is
// one for which another replica may be asked, or ErrOverloaded.
func (r *localReplica) get(of Table, keys []uint64, width int, rows []int64, deadline time.Time) error {
	table := r.fsm.TableOf(of)
	missing := table.GetMany(keys, width, rows, nil)
	if len(missing) == 0 {
		return nil
	}
	return r.readCold(table, keys, missing, width, rows, deadline)
}

// readCold fills the rows of keys that GetMany found missing.
func (r *localReplica) readCold(table *engine.Table, keys []uint64, missing []int, width int, rows []int64, deadline time.Time) error {
	err := eachCold(len(missing), deadline, func(ctx context.Context, m int) error {
		i := missing[m]
		return table.ReadCold(ctx, keys[i], rows[i*width:(i+1)*width])
	})
	return r.tableFailure(table, err)
}

// eachCold calls read, which may wait for the disk, with 0 to n-1, coldAtOnce at once, by
// the deadline and within coldReadMax. It returns the first error, which ends the others.
func eachCold(n int, deadline time.Time, read func(ctx context.Context, i int) error) error {
	if end := time.Now().Add(coldReadMax); end.Before(deadline) {
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
	for range min(n, coldAtOnce) - 1 {
		readers.Go(work) // ends with the context
	}
	work()
	readers.Wait()
	return first
}

// eachFeed calls read, which may wait for the disk, for each key, some at once, until one
// fails. Its error is as that of get.
func (r *localReplica) eachFeed(keys []uint64, deadline time.Time, read func(ctx context.Context, i int) error) error {
	err := eachCold(len(keys), deadline, read)
	if errors.Is(err, cold.ErrDamaged) {
		r.damage.Note(err)
	}
	return coldFailure(err)
}

// tableFailure is coldFailure for the cold rows of a table, which are repaired if they are
// damaged. A table that was replaced by a snapshot meanwhile has let go of its own.
func (r *localReplica) tableFailure(table *engine.Table, err error) error {
	if errors.Is(err, cold.ErrDamaged) && r.fsm.TableOf(raftfsm.TableCounts) == table {
		r.damage.Note(err)
	}
	return coldFailure(err)
}

// coldFailure says what an error of reading the disk means to who asked.
func coldFailure(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, cold.ErrBusy):
		return fmt.Errorf("%w: %w", ErrOverloaded, err)
	default:
		return fmt.Errorf("%w: %w", ErrNoQuorum, err)
	}
}

// failedAlone is err, of rows that this node could not read and no other node has.
func (g *shardReplica) failedAlone(err error) error {
	if errors.Is(err, cold.ErrDamaged) || errors.Is(err, members.ErrDamaged) {
		return &UnreadableError{Keyspace: g.keyspace, Shard: g.shard, Err: err}
	}
	return fmt.Errorf("shard %d of keyspace %s: %w", g.shard, g.keyspace, err)
}

// has reports whether there is a row other than zeros, or it cannot be told by the deadline.
func (r *localReplica) has(of Table, key uint64, deadline time.Time) bool {
	var row [engine.ColumnsMax]int64
	if !r.fsm.TableOf(of).Get(key, row[:]) && r.get(of, []uint64{key}, len(row), row[:], deadline) != nil {
		return true
	}
	return row != [engine.ColumnsMax]int64{}
}

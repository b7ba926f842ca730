// Package sinktest has in-memory shards for tests of readers. Like the state machine, a shard
// applies a batch only if it is at the position that the sender saw last.
package sinktest

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/countd/countd/source/sink"
)

// Keyspace is the keyspace of the shards. Each delta to row FullRow overflows.
const (
	Keyspace = "posts"
	FullRow  = 999
)

// ErrBroken is returned by calls that fail at random.
var ErrBroken = errors.New("broken")

// Cluster holds the shards of one partition.
type Cluster struct {
	mu struct {
		sync.Mutex
		start   *sink.Start
		shards  []shard
		rng     *rand.Rand      // nil if no call fails at random
		dropped map[string]bool // dropped columns
		failing int             // the shard that does not answer, or -1
	}
}

type shard struct {
	has  bool
	at   sink.Position
	mark sink.Mark
	sums map[uint64]int64
}

// New returns a cluster. Calls fail at random if rng is not nil.
func New(shards int, rng *rand.Rand) *Cluster {
	c := &Cluster{}
	c.mu.rng, c.mu.failing, c.mu.dropped = rng, -1, map[string]bool{}
	c.mu.shards = make([]shard, shards)
	for i := range c.mu.shards {
		c.mu.shards[i].sums = map[uint64]int64{}
	}
	return c
}

// Sums returns the sums of all rows.
func (c *Cluster) Sums() map[uint64]int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := map[uint64]int64{}
	for _, s := range c.mu.shards {
		maps.Copy(all, s.sums)
	}
	return all
}

// At reports whether every shard is at a position.
func (c *Cluster) At(p sink.Position) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !slices.ContainsFunc(c.mu.shards, func(s shard) bool { return s.at != p })
}

// Drop drops a column, or creates it again.
func (c *Cluster) Drop(column string, dropped bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.dropped[column] = dropped
}

// Fail makes a shard stop answering. If shard is -1, all shards answer.
func (c *Cluster) Fail(shard int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.failing = shard
}

// Positions returns the positions of the shards.
func (c *Cluster) Positions() []sink.Position {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []sink.Position
	for _, s := range c.mu.shards {
		all = append(all, s.at)
	}
	return all
}

// Restore sets a shard to a position and clears its counts.
func (c *Cluster) Restore(number int, at sink.Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.shards[number] = shard{has: true, at: at, sums: map[uint64]int64{}}
}

// Seek sets all shards to a position and keeps their counts.
func (c *Cluster) Seek(to sink.Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.start.Position = to
	c.mu.start.Seek++
	for i := range c.mu.shards {
		s := &c.mu.shards[i]
		s.has, s.at, s.mark = true, to, sink.Mark{}
	}
}

// fails returns true for one call in n.
func (c *Cluster) fails(n int) bool { return c.mu.rng != nil && c.mu.rng.IntN(n) == 0 }

// Node returns the sink of a node, which remembers the positions that it saw last.
func (c *Cluster) Node() sink.Sink { return &node{c: c} }

type node struct {
	c    *Cluster
	seen []shard // the shards as this node saw them last; their marks and sums are not used; guarded by the cluster's lock
}

func (n *node) Begin(ctx context.Context, source uint64, starts map[uint32]sink.Position, identity string) error {
	for p, at := range starts {
		if _, err := n.Start(ctx, source, p, sink.Start{Position: at, Identity: identity}); err != nil {
			return err
		}
	}
	return nil
}

func (n *node) Start(_ context.Context, _ uint64, _ uint32, start sink.Start) (sink.Start, error) {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	if n.c.mu.start == nil {
		n.c.mu.start = &start
	}
	return *n.c.mu.start, nil
}

func (n *node) Positions(context.Context, uint64, uint32) ([]sink.ShardPosition, error) {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	n.seen = slices.Clone(n.c.mu.shards)
	var out []sink.ShardPosition
	for i, s := range n.seen {
		out = append(out, sink.ShardPosition{Keyspace: Keyspace, Shard: i, Position: s.at, Mark: s.mark, Known: s.has})
	}
	return out, nil
}

func (n *node) Check(_ context.Context, b *sink.Batch) (bad []sink.Rejection, err error) {
	n.c.mu.Lock()
	defer n.c.mu.Unlock()
	for i := range b.Ops {
		op := &b.Ops[i]
		seen := n.seen[op.ID%uint64(len(n.seen))]
		switch {
		case op.Keyspace != Keyspace:
			bad = append(bad, sink.Rejection{Op: i, Reason: "no such keyspace"})
		case n.c.mu.dropped[op.Cells[0].Column]:
			bad = append(bad, sink.Rejection{Op: i, Reason: "no such column", Passed: seen.has && op.Position.Less(seen.at)})
		}
	}
	return bad, nil
}

func (n *node) Apply(_ context.Context, b *sink.Batch) (sink.Applied, error) {
	c := n.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.mu.shards { // give all shards a position before any of them moves
		if c.fails(40) {
			return sink.Applied{}, ErrBroken
		}
		if s, seen := &c.mu.shards[i], &n.seen[i]; !s.has && !seen.has {
			s.has, s.at = true, b.From
			seen.has, seen.at = true, b.From
		}
	}
	var done sink.Applied
	if slices.ContainsFunc(b.Ops, func(op sink.Op) bool { return c.mu.dropped[op.Cells[0].Column] }) {
		return sink.Applied{}, sink.ErrMoved
	}
	for i := range c.mu.shards {
		if c.fails(40) || i == c.mu.failing {
			return sink.Applied{}, ErrBroken // some shards have applied their part
		}
		s, seen := &c.mu.shards[i], &n.seen[i]
		if len(b.Ops) > 0 && !slices.ContainsFunc(b.Ops, func(op sink.Op) bool { return op.ID%uint64(len(c.mu.shards)) == uint64(i) }) {
			continue // a shard without ops moves only with a batch without ops
		}
		if s.has != seen.has || s.at != seen.at {
			return sink.Applied{}, sink.ErrMoved
		}
		done.Rejected = append(done.Rejected, s.apply(b, uint64(i), uint64(len(c.mu.shards)))...)
		seen.at = s.at
		if c.fails(40) {
			return sink.Applied{}, ErrBroken // the answer was lost
		}
	}
	return done, nil
}

// apply applies those ops of b that belong to this shard. number is the shard's number, and count
// the number of shards.
func (s *shard) apply(b *sink.Batch, number, count uint64) (rejected []sink.Rejection) {
	for n, op := range b.Ops {
		switch {
		case op.ID%count != number || op.Position.Less(s.at):
		case op.ID == FullRow:
			rejected = append(rejected, sink.Rejection{Op: n, Reason: "overflow"})
		default:
			s.sums[op.ID] += op.Cells[0].Value
		}
	}
	if s.at.Less(b.Next) {
		s.at = b.Next
		if b.Mark != nil && b.Mark(b.Next).Exists() {
			s.mark = b.Mark(b.Next)
		}
	}
	return rejected
}

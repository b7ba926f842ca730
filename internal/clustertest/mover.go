package clustertest

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// moverPause is the time between two polls of a group whose replica moves.
const moverPause = 50 * time.Millisecond

// Mover moves replicas of posts back and forth, one of each shard at a time, as
// ordered through any node.
type Mover struct {
	cluster *Cluster
	stop    context.CancelFunc
	movers  sync.WaitGroup
	moved   atomic.Int64
	back    atomic.Int64
	groups  [historyShards]sync.Mutex // by shard, held while one of its replicas moves
}

// StartMoves starts to move replicas, which Stop ends.
func (c *Cluster) StartMoves() *Mover {
	c.t.Helper()
	m := &Mover{cluster: c}
	ctx, cancel := context.WithCancel(c.t.Context())
	m.stop = cancel
	c.t.Cleanup(m.Stop)
	for shard := range historyShards {
		m.movers.Go(func() { m.run(ctx, shard) })
	}
	return m
}

// Stop ends the moves and waits for the last orders. A replica may still move.
func (m *Mover) Stop() {
	m.stop()
	m.movers.Wait()
}

// Moved returns the number of completed moves, and how many of them returned a replica to a
// node that had held the shard before.
func (m *Mover) Moved() (all, back int64) { return m.moved.Load(), m.back.Load() }

// Without runs f while the mover leaves a shard alone.
func (m *Mover) Without(shard int, f func()) {
	m.groups[shard].Lock()
	defer m.groups[shard].Unlock()
	f()
}

// Still runs f while the mover orders nothing. A replica may still move.
func (m *Mover) Still(f func()) {
	for shard := range m.groups {
		m.groups[shard].Lock()
		defer m.groups[shard].Unlock()
	}
	f()
}

func (m *Mover) run(ctx context.Context, shard int) {
	var last []string // the target that was ordered last
	held := map[string]bool{}
	for ctx.Err() == nil {
		m.Without(shard, func() { last = m.step(shard, last, held) })
		select {
		case <-ctx.Done():
		case <-time.After(moverPause):
		}
	}
}

// step orders the next move if the last has ended, and returns the target that
// replicas move to.
func (m *Mover) step(shard int, last []string, held map[string]bool) []string {
	nodes := m.cluster.Nodes()
	at := nodes[rand.IntN(len(nodes))]
	placed := at.Placed()
	i := slices.IndexFunc(placed, func(p Placed) bool { return p.Keyspace == "posts" && p.Shard == shard })
	if i < 0 || !placed[i].Settled() {
		return last
	}
	p := placed[i]
	if last != nil && !slices.Equal(last, p.Target) {
		m.moved.Add(1)
		for _, name := range p.Target {
			if held[name] && !slices.Contains(last, name) {
				m.back.Add(1)
			}
		}
	}
	var to []*Node
	from := p.Target[rand.IntN(len(p.Target))]
	for _, name := range p.Target {
		held[name] = true
	}
	for _, n := range nodes {
		if !slices.Contains(p.Target, n.Name) {
			to = append(to, n)
		}
	}
	if len(to) > 0 {
		leaving := nodes[slices.IndexFunc(nodes, func(n *Node) bool { return n.Name == from })]
		_ = at.OrderMove(p.ID, leaving, to[rand.IntN(len(to))]) // may be refused; the next step checks
	}
	return p.Target
}

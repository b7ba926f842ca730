package proctest

import (
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// moverPause is the time between two polls of a group whose replica moves.
const moverPause = 50 * time.Millisecond

// Mover moves replicas of posts back and forth, at most one of each shard at a time. It sends each
// order through a random node.
type Mover struct {
	*crew
	cluster *Cluster
	moved   atomic.Int64
	back    atomic.Int64
	groups  []sync.Mutex // by shard, held during each step for the shard
}

// StartMoves starts to move replicas. When Stop returns, replicas may still move by the last
// orders.
func (c *Cluster) StartMoves() *Mover {
	c.t.Helper()
	m := &Mover{crew: newCrew(c.t), cluster: c, groups: make([]sync.Mutex, c.Shards("posts"))}
	for shard := range m.groups {
		m.work(func() error { return m.run(shard) })
	}
	return m
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

// Still runs f while the mover sends no orders. A replica may still move by an earlier order.
func (m *Mover) Still(f func()) {
	for shard := range m.groups {
		m.groups[shard].Lock()
		defer m.groups[shard].Unlock()
	}
	f()
}

func (m *Mover) run(shard int) error {
	var last []string // target of the previous step
	held := map[string]bool{}
	for m.calm.Err() == nil {
		m.Without(shard, func() { last = m.step(shard, last, held) })
		select {
		case <-m.calm.Done():
		case <-time.After(moverPause):
		}
	}
	return nil
}

// step orders the next move if the previous one has ended. It returns the group's target before
// this order. held contains the nodes that had a replica so far.
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
	var to []*Member
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
		leaving := nodes[slices.IndexFunc(nodes, func(n *Member) bool { return n.Name == from })]
		_ = at.OrderMove(p.ID, leaving, to[rand.IntN(len(to))]) // ignore a refusal: the next step orders another move
	}
	return p.Target
}

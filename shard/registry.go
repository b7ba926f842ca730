package shard

import (
	"iter"
	"sync"
	"sync/atomic"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/shard/dirs"
	"github.com/countd/countd/shard/keyspace"
	"github.com/countd/countd/shard/prover"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/tiering"
	"github.com/countd/countd/shard/upkeep"
)

const (
	catalogGroup = catalog.Group // the number of the group that holds the catalog
	catalogName  = keyspace.CatalogName
)

// registry holds the shards that this node knows, and this node's replicas, the catalog's included. The
// other parts of Node read it. After Open, only the holder of changing changes it.
type registry struct {
	meta      *replica.Replica // of the catalog's group
	metaFresh prover.Freshness // of meta
	dirs      dirs.Dirs

	// keyspaces and groups are replaced whole, by the holder of changing.
	keyspaces atomic.Pointer[keyspaceTable]
	groups    atomic.Pointer[groupTable]
	changing  sync.Mutex
}

// local yields the replicas of this node, each with its shard; the catalog's is not among them.
func (s *registry) local() iter.Seq2[*shardReplica, *localReplica] {
	return func(yield func(*shardReplica, *localReplica) bool) {
		for _, g := range s.groups.Load().all {
			if r := g.replica.Load(); r != nil && !yield(g, r) {
				return
			}
		}
	}
}

// counters returns this node's replicas of shards of counters for package tiering.
func (s *registry) counters() (all []*tiering.Shard) {
	for _, r := range s.local() {
		if r.tier != nil {
			all = append(all, r.tier)
		}
	}
	return all
}

// withSets returns the groups of local replicas that may have sets of members. It includes groups of
// unknown kind, because the local catalog may be behind.
func (s *registry) withSets() (numbers []uint32) {
	for _, r := range s.dirs.Replicas(func(group uint32) bool {
		g := s.shardOf(group)
		return group != catalogGroup && (g == nil || g.kind == codec.KindCounters)
	}) {
		numbers = append(numbers, r.Group)
	}
	return numbers
}

// bodies returns the feeds and outboxes of this node's replicas.
func (s *registry) bodies() (all []*tiering.Bodies) {
	for _, r := range s.local() {
		if r.spill != nil {
			all = append(all, r.spill)
		}
	}
	return all
}

// keyspaceTable holds the keyspaces as requests see them.
type keyspaceTable struct {
	byName map[string]*Keyspace
	sorted []*Keyspace
}

// groupTable holds the shards of all keyspaces.
type groupTable struct {
	all      []*shardReplica
	byNumber map[uint32]*shardReplica
	byFirst  map[uint32][]*shardReplica // the shards of a keyspace, in order, by its first group
	// dropped holds the shards of dropped keyspaces until removeDropped has removed their replicas.
	dropped []*shardReplica
}

// shardOf returns a shard by its group's number, nil for none.
func (s *registry) shardOf(number uint32) *shardReplica { return s.groups.Load().byNumber[number] }

// localOf returns this node's replica of a shard by its group's number, nil for none.
func (s *registry) localOf(number uint32) *localReplica {
	if g := s.shardOf(number); g != nil {
		return g.replica.Load()
	}
	return nil
}

// Replica returns this node's replica of a group, the catalog's included, or nil.
func (s *registry) Replica(number uint32) *replica.Replica {
	if number == catalogGroup {
		return s.meta
	}
	if r := s.localOf(number); r != nil {
		return r.group
	}
	return nil
}

// provable returns this node's replica of a group for package prover, and false for none.
func (s *registry) provable(number uint32) (prover.Local, bool) {
	if number == catalogGroup {
		return prover.Local{Group: s.meta, Fresh: &s.metaFresh}, true
	}
	if r := s.localOf(number); r != nil {
		return prover.Local{Group: r.group, Applied: r.fsm.Applied, Fresh: &r.fresh}, true
	}
	return prover.Local{}, false
}

// Replicas returns all replicas of this node, the catalog's included.
func (s *registry) Replicas() []*replica.Replica {
	all := []*replica.Replica{s.meta}
	for _, r := range s.local() {
		all = append(all, r.group)
	}
	return all
}

// Damaged reports whether this node has a replica of a group with cold rows that cannot be read.
func (s *registry) Damaged(number uint32) bool {
	r := s.localOf(number)
	return r != nil && r.damage.Found()
}

// kept yields the local replicas for package upkeep.
func (s *registry) kept(yield func(uint32, upkeep.Shard) bool) {
	for g, r := range s.local() {
		if !yield(g.number, upkeep.Shard{Group: r.group, Proposer: r.proposer.Load(), Machine: r.fsm, Counters: r.counters, Unread: r.unread}) {
			return
		}
	}
}

// LedBy counts the groups that a node leads, as far as this node knows.
func (s *registry) LedBy(node string) int {
	led := 0
	for _, g := range s.groups.Load().all {
		if g.leader() == node {
			led++
		}
	}
	return led
}

// tableBytes returns the memory of all tables of this node, including those that are being loaded.
func (s *registry) tableBytes() uint64 {
	total := uint64(0)
	for _, g := range s.groups.Load().all {
		r := g.replica.Load()
		if r == nil {
			r = g.opening.Load()
		}
		if r != nil {
			total += r.fsm.Bytes()
		}
	}
	return total
}

// snapshotBytes returns the summed size of the next snapshots of all groups. The catalog's snapshot is
// too small to count.
func (s *registry) snapshotBytes() uint64 {
	total := uint64(0)
	for _, r := range s.local() {
		total += r.group.SnapshotBytes()
	}
	return total
}

package shard

import (
	"iter"
	"maps"
	"sync"
	"sync/atomic"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/tiering"
)

const (
	catalogGroup = catalog.Group // number of the group with the catalog
	catalogName  = "meta"        // name of that group in a status; other groups have the name of their keyspace
)

// registry holds all shards that this node knows, and this node's replicas, including the
// catalog's. The other parts of Node read it. After Open, only the holder of the mutex changing
// modifies it, except for noteSplit.
type registry struct {
	meta      *replica.Replica     // this node's replica of the catalog
	metaFresh leadership.Freshness // freshness of meta
	dirs      replica.Dirs

	// The holder of the mutex changing replaces the tables keyspaces and groups. noteSplit replaces
	// groups too; each replacement of groups needs the mutex routes. Nobody changes the content of a
	// published table.
	keyspaces atomic.Pointer[keyspaceTable]
	groups    atomic.Pointer[groupTable]
	changing  sync.Mutex
	routes    sync.Mutex // held to replace groups, for which its holder does not wait, unlike that of changing
}

// catalogReplica returns this node's replica of the catalog, nil before start has opened it.
func (s *registry) catalogReplica() *replica.Replica { return s.meta }

// local yields the replicas of this node, except the catalog's, each with its shard.
func (s *registry) local() iter.Seq2[*shardReplica, *localReplica] {
	return func(yield func(*shardReplica, *localReplica) bool) {
		for _, g := range s.groups.Load().all {
			if r := g.replica.Load(); r != nil && !yield(g, r) {
				return
			}
		}
	}
}

// machines yields this node's replicas of shards with their machines.
func (s *registry) machines() iter.Seq2[*replica.Replica, *tiering.Machine] {
	return func(yield func(*replica.Replica, *tiering.Machine) bool) {
		for _, r := range s.local() {
			if !yield(r.group, &r.fsm) {
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
		return group != catalogGroup && (g == nil || kinds.All.Traits(g.kind.String()).ColdRows)
	}) {
		numbers = append(numbers, r.Group)
	}
	return numbers
}

// bodies returns the feeds and outboxes of this node's replicas for package tiering.
func (s *registry) bodies() (all []*tiering.Bodies) {
	for _, r := range s.local() {
		if r.fsm.Spilled != nil {
			all = append(all, r.fsm.Spilled)
		}
	}
	return all
}

// keyspaceTable holds the keyspaces that requests can use.
type keyspaceTable struct {
	byName map[string]*Keyspace
	sorted []*Keyspace
}

type groupTable struct {
	all      []*shardReplica
	byNumber map[uint32]*shardReplica
	byFirst  map[uint32]*keyspaceShards // by the number of the keyspace's first group
	// dropped holds the shards of dropped keyspaces until removeDropped has removed their replicas.
	dropped []*shardReplica
}

// keyspaceShards are the shards of a keyspace, in order, and the route of its ids to them. Both change at once,
// because the whole value is replaced.
type keyspaceShards struct {
	route raftfsm.Route
	all   []*shardReplica // route.Shards of them; nil for a part that this node's catalog does not have yet
}

// hasParts reports whether this node's catalog has all parts of a parent.
func (k *keyspaceShards) hasParts(parent int) bool {
	for shard, g := range k.all {
		if g == nil && k.route.Parent(shard) == parent {
			return false
		}
	}
	return true
}

// split returns the shards after a parent has split.
func (k *keyspaceShards) split(parent int) *keyspaceShards {
	return &keyspaceShards{route: k.route.Split(parent), all: k.all}
}

// publish replaces the shards of all keyspaces. Parents that have split stay split, unless the catalog has abandoned
// the attempt whose parts were taken for those of the split, and does not have these yet.
func (s *registry) publish(groups *groupTable) {
	s.routes.Lock()
	defer s.routes.Unlock()
	for first, was := range s.groups.Load().byFirst {
		if shards := groups.byFirst[first]; shards != nil {
			for shard := range was.all {
				if was.route.Of(shard).Modulus > shards.route.Of(shard).Modulus && shards.hasParts(shard) {
					shards.route = shards.route.Split(shard)
				}
			}
		}
	}
	s.groups.Store(groups)
}

// noteSplit makes the route of a keyspace send the ids of a parent to its parts, because a replica of
// the parent has the modulus. It returns false if this node's catalog does not have the parts yet.
func (s *registry) noteSplit(first uint32, parent int, modulus uint32) bool {
	s.routes.Lock()
	defer s.routes.Unlock()
	table := *s.groups.Load()
	was := table.byFirst[first]
	if was == nil || uint64(modulus) > was.route.Shards {
		return false
	}
	if was.route.Of(parent).Modulus < modulus {
		if !was.hasParts(parent) {
			return false
		}
		table.byFirst = maps.Clone(table.byFirst)
		table.byFirst[first] = was.split(parent)
		s.groups.Store(&table)
	}
	return true
}

// shardOf returns a shard by its group's number; nil if there is none.
func (s *registry) shardOf(number uint32) *shardReplica { return s.groups.Load().byNumber[number] }

// localOf returns this node's replica of a shard by its group's number; nil if there is none.
func (s *registry) localOf(number uint32) *localReplica {
	if g := s.shardOf(number); g != nil {
		return g.replica.Load()
	}
	return nil
}

// Replica returns this node's replica of a group, which may be the catalog's group, or nil.
func (s *registry) Replica(number uint32) *replica.Replica {
	if number == catalogGroup {
		return s.meta
	}
	if r := s.localOf(number); r != nil {
		return r.group
	}
	return nil
}

// provable returns this node's replica of a group for package prover; false if there is none.
func (s *registry) provable(number uint32) (leadership.Local, bool) {
	if number == catalogGroup {
		return leadership.Local{Group: s.meta, Fresh: &s.metaFresh}, true
	}
	if r := s.localOf(number); r != nil {
		return leadership.Local{Group: r.group, Applied: r.fsm.Applied, Fresh: &r.fresh}, true
	}
	return leadership.Local{}, false
}

// Replicas returns all replicas of this node, including the catalog's.
func (s *registry) Replicas() []*replica.Replica {
	all := []*replica.Replica{s.meta}
	for _, r := range s.local() {
		all = append(all, r.group)
	}
	return all
}

// growing returns this node's replica of a group for leadership.Growth.
func (s *registry) growing(number uint32) (l leadership.GrowthShard, open bool) {
	if g, r := s.shardOf(number), s.localOf(number); r != nil {
		return r.growing(g), true
	}
	return l, false
}

// Damaged reports whether this node has a replica of a group with cold rows that cannot be read.
func (s *registry) Damaged(number uint32) bool {
	r := s.localOf(number)
	return r != nil && r.damage.Found()
}

// kept yields the local replicas for leadership.Upkeep.
func (s *registry) kept(yield func(uint32, leadership.UpkeepShard) bool) {
	for g, r := range s.local() {
		if !yield(g.number, leadership.UpkeepShard{Group: r.group, Proposer: r.proposer.Load(), Machine: r.fsm.Machine}) {
			return
		}
	}
}

// LedBy returns the number of groups that a node leads, as far as this node knows.
func (s *registry) LedBy(node string) int {
	led := 0
	for _, g := range s.groups.Load().all {
		if g.leader() == node {
			led++
		}
	}
	return led
}

// tableBytes returns the memory of all tables of this node, including tables that are being
// loaded.
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

// snapshotBytes returns the summed size of the next snapshots of all groups. It omits the
// catalog's snapshot, which is small.
func (s *registry) snapshotBytes() uint64 {
	total := uint64(0)
	for _, r := range s.local() {
		total += r.group.Snapshotter().Bytes()
	}
	return total
}

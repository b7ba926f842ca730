package catalog

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec"
)

// check returns an error for a state that no commands produce. It defines the invariants of a View.
// The checksums and digest of a snapshot cannot replace check, because they prove only that the
// restored state is the written state.
func (v *View) check() error {
	if v.NextGroup <= Group {
		return fmt.Errorf("next group %d", v.NextGroup)
	}
	if v.ClusterVersion < firstClusterVersion || v.ClusterVersion > v.VersionMax() {
		return fmt.Errorf("cluster version %d of nodes that speak %d", v.ClusterVersion, v.VersionMax())
	}
	if err := v.checkNodes(); err != nil {
		return err
	}
	if err := v.checkSources(); err != nil {
		return err
	}
	if err := v.checkUsers(); err != nil {
		return err
	}
	return v.checkGroups()
}

// checkNodes refuses a node under another node's key, and two nodes of one name that are not
// leaving.
func (v *View) checkNodes() error {
	if len(v.Nodes) > NodesMax {
		return fmt.Errorf("%d nodes", len(v.Nodes))
	}
	for key, node := range v.Nodes {
		if node.Key != key {
			return fmt.Errorf("node %q stands under %q", node.Key, key)
		}
		if err := node.check(); err != nil {
			return err
		}
		if other := v.holderOf(&node); other != "" {
			return fmt.Errorf("nodes %q and %q have one name", key, other)
		}
	}
	return nil
}

// checkGroups refuses a keyspace under another name or without shards. It refuses a group that two
// shards share, that NextGroup would reuse, or that has no placement or no keyspace.
func (v *View) checkGroups() error {
	groups := map[uint32]bool{}
	for name, k := range v.Keyspaces {
		if k.Name != name || name == "" || len(k.Columns) > engine.ColumnsMax {
			return fmt.Errorf("keyspace %q: %+v", name, k)
		}
		for _, group := range k.All() {
			if _, placed := v.Groups[group]; !placed || groups[group] || group == Group || group >= v.NextGroup {
				return fmt.Errorf("group %d of keyspace %q has no place, or another shard has it", group, k.Name)
			}
			groups[group] = true
		}
		if err := v.checkGrowth(&k); err != nil {
			return fmt.Errorf("keyspace %q: %w", k.Name, err)
		}
		if k.Everywhere && k.Kind == codec.KindBoard.String() {
			return fmt.Errorf("keyspace %q, of kind %s, is everywhere by itself", k.Name, k.Kind)
		}
		if err := k.Check(k.Columns); err != nil {
			return fmt.Errorf("keyspace %q: %w", k.Name, err)
		}
		if names := v.Keyspaces[k.Names]; k.Names != "" && (names.Kind != codec.KindNames.String() || len(names.Groups) != 1 || k.Kind == names.Kind) {
			return fmt.Errorf("keyspace %q has the names %q: %+v", k.Name, k.Names, names)
		}
		if owner := v.Keyspaces[strings.TrimSuffix(k.Name, NamesOf(""))]; k.Kind == codec.KindNames.String() && owner.Names != k.Name {
			return fmt.Errorf("keyspace %q names the ids of no keyspace", k.Name)
		}
		if len(k.ColumnNames()) == 0 && len(k.Columns) > 0 {
			return fmt.Errorf("keyspace %q has dropped all its columns, %d", k.Name, len(k.Columns))
		}
	}
	for group := range v.Groups {
		if !groups[group] && group != Group {
			return fmt.Errorf("group %d is placed and has no keyspace", group)
		}
	}
	if v.shardsPlaced() > GroupsMax {
		return fmt.Errorf("%d shards, those to come included", v.shardsPlaced())
	}
	return v.checkPlaces()
}

// checkGrowth returns an error for numbers of shards and for a growth that no commands produce.
func (v *View) checkGrowth(k *Keyspace) error {
	shards := k.Divisor
	for _, next := range k.Grown {
		if shards < 1 || next <= shards || next%shards != 0 {
			return fmt.Errorf("began with %d shards and had %v", k.Divisor, k.Grown)
		}
		shards = next
	}
	if shards < 1 || shards != len(k.Groups) {
		return fmt.Errorf("%d groups of %d shards", len(k.Groups), shards)
	}
	if k.Growth == nil {
		return nil
	}
	if k.Growth.Shards <= shards || k.Growth.Shards%shards != 0 || k.undivided() {
		return fmt.Errorf("%d shards of kind %s become %d", shards, k.Kind, k.Growth.Shards)
	}
	pending := len(k.Groups) - len(k.Growth.Attempts)
	for parent, a := range k.Growth.Attempts {
		pending += len(a.Pending)
		_, isGroup := v.Groups[a.Number]
		if !slices.Contains(k.Groups, parent) || isGroup || a.Number == 0 || a.Number >= v.NextGroup || len(a.Children) != k.Growth.Shards/shards-1 {
			return fmt.Errorf("group %d: %+v of %d shards", parent, a, k.Growth.Shards)
		}
		for _, child := range a.Pending {
			if !slices.Contains(a.Children, child) {
				return fmt.Errorf("group %d waits for group %d: %+v", parent, child, a)
			}
		}
		for _, child := range a.Children {
			if len(a.Pending) > 0 && (!slices.Equal(v.Groups[child].Target, v.Groups[parent].Target) || len(v.Groups[child].Replicas) != len(v.Groups[child].Initial)) {
				return fmt.Errorf("group %d is frozen at %+v, its parent at %+v", child, v.Groups[child], v.Groups[parent])
			}
		}
	}
	if pending == 0 {
		return errors.New("all has been split, and the growth has not ended")
	}
	return nil
}

func (v *View) checkPlaces() error {
	for g, p := range v.Groups {
		if len(p.Initial) < 1 || len(p.Initial) > ReplicasMax {
			return fmt.Errorf("group %d began with %d replicas", g, len(p.Initial))
		}
		if err := v.checkReplicas(p.Target); err != nil {
			return fmt.Errorf("group %d: %w", g, err)
		}
		if err := v.checkReplicaNumbers(g); err != nil {
			return err
		}
	}
	return nil
}

// checkReplicaNumbers returns an error for numbers that no commands produce.
func (v *View) checkReplicaNumbers(group uint32) error {
	p := v.Groups[group]
	if group == Group {
		if p.Numbered() || len(p.Replicas) > 0 || p.FirstReplica > 0 {
			return errors.New("the catalog's own group has numbers of replicas")
		}
		return nil
	}
	if p.FirstReplica == 0 || p.FirstReplica+uint64(len(p.Initial)) > p.NextReplica {
		return fmt.Errorf("the first replicas of group %d begin with number %d and the next is %d", group, p.FirstReplica, p.NextReplica)
	}
	given := map[uint64]string{}
	for node, number := range p.Replicas {
		if number >= p.NextReplica {
			return fmt.Errorf("node %q has replica %d of group %d and the next is %d", node, number, group, p.NextReplica)
		}
		if other, twice := given[number]; twice {
			return fmt.Errorf("nodes %q and %q both have replica %d of group %d", node, other, number, group)
		}
		given[number] = node
	}
	for _, node := range p.Target {
		if _, has := p.Replicas[node]; !has {
			return fmt.Errorf("node %q is to have a replica of group %d, which has no number", node, group)
		}
	}
	return nil
}

// checkSources refuses sources that no commands produce.
func (v *View) checkSources() error {
	if len(v.Sources) > SourcesMax || v.partitions() > PartitionsMax {
		return fmt.Errorf("%d sources with %d partitions, over %d or %d", len(v.Sources), v.partitions(), SourcesMax, PartitionsMax)
	}
	numbers, versions := map[uint64]bool{}, map[uint64]bool{}
	for _, name := range slices.Sorted(maps.Keys(v.Sources)) {
		s := v.Sources[name]
		if s.Name != name || !ValidSourceName(name) || numbers[s.Number] || uint32(s.Number) == 0 || uint32(s.Number) > v.LastSource {
			return fmt.Errorf("source %d %q stands under %q, the last number is %d", s.Number, s.Name, name, v.LastSource)
		}
		numbers[s.Number] = true
		if versions[s.Version] || s.Version == 0 || s.Version > v.SourceVersion || s.Changing && !s.Paused {
			return fmt.Errorf("source %s has version %d, the last is %d; paused: %t, changing: %t", name, s.Version, v.SourceVersion, s.Paused, s.Changing)
		}
		versions[s.Version] = true
		if err := checkConfig(s.Config); err != nil {
			return fmt.Errorf("source %s: %w", name, err)
		}
		for partition, p := range s.Partitions {
			if p.Epoch == 0 || p.Sought >= p.Epoch || max(len(p.Identity), len(p.ChangedIn)) > IdentityBytesMax {
				return fmt.Errorf("source %s: partition %d: %+v", name, partition, p)
			}
		}
	}
	return nil
}

// checkUsers refuses users that no commands produce.
func (v *View) checkUsers() error {
	if v.Users == nil {
		return nil
	}
	if len(v.Users.ByName) > UsersMax {
		return fmt.Errorf("%d users, over %d", len(v.Users.ByName), UsersMax)
	}
	numbers := map[uint64]bool{}
	for _, u := range v.UsersByName() {
		if v.Users.ByName[u.Name].Name != u.Name {
			return fmt.Errorf("user %q stands under another name", u.Name)
		}
		if err := u.check(); err != nil {
			return err
		}
		for _, t := range u.Tokens {
			if numbers[t.Number] || t.Number > v.Users.LastToken {
				return fmt.Errorf("user %s has token %d, the last number is %d", u.Name, t.Number, v.Users.LastToken)
			}
			numbers[t.Number] = true
		}
	}
	return nil
}

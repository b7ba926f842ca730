package catalog

import (
	"fmt"
	"maps"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec"
)

const (
	// KeyspacesMax bounds the keyspaces of a cluster: an operator makes one for
	// each kind of thing that is counted.
	KeyspacesMax = 64
	// GroupsMax bounds the groups of a cluster without the catalog's. A node runs 16 to 64
	// replicas well, a group has three, and a cluster has at most NodesMax nodes.
	GroupsMax = 1024
)

// Keyspace is one named table of the cluster.
type Keyspace struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	// Columns has the name of each column at its number, "" for a dropped column.
	Columns []string `json:"columns"`
	Shards  int      `json:"shards"`
	// Sharding is "" for id mod shards and "hash" for a mixed id mod shards.
	Sharding   string `json:"sharding,omitempty"`
	FirstGroup uint32 `json:"first_group"` // its shards are groups FirstGroup … FirstGroup+Shards-1
	// Everywhere makes every node a member of the keyspace's groups: a voter or a nonvoter.
	Everywhere bool `json:"everywhere,omitempty"`
	// Floors has the floors of the columns that have one, by name.
	Floors map[string]int64 `json:"floors,omitempty"`
}

func (k *Keyspace) has(group uint32) bool { return group-k.FirstGroup < uint32(k.Shards) }

// CreateEntry creates a keyspace and places its groups. Apply chooses FirstGroup.
type CreateEntry struct {
	Keyspace
	Replicas [][]string `json:"replicas"` // by shard, the keys of its first voters
}

// SetEverywhereEntry sets Keyspace.Everywhere.
type SetEverywhereEntry struct {
	Keyspace   string `json:"keyspace"`
	Everywhere bool   `json:"everywhere"`
}

// AddColumnsEntry adds the columns that the keyspace lacks, and then sets floors. A
// null removes the floor of a column.
type AddColumnsEntry struct {
	Keyspace string            `json:"keyspace"`
	Columns  []string          `json:"columns"`
	Floors   map[string]*int64 `json:"floors,omitempty"`
}

func (c *CreateEntry) apply(v *View) (Result, bool) {
	if k, exists := v.Keyspaces[c.Name]; exists {
		return Result{Keyspace: k, Exists: true}, false
	}
	if c.Name == "" || c.Shards < 1 || len(c.Columns) > engine.ColumnsMax {
		return refused("a keyspace %q of %d shards and %d columns", c.Name, c.Shards, len(c.Columns))
	}
	if c.Sharding != "" && (c.Sharding != "hash" || c.Kind != codec.KindCounters.String()) {
		return refused("a keyspace of kind %q with sharding %q", c.Kind, c.Sharding)
	}
	if c.Everywhere {
		return refused("keyspace %q everywhere at once: that is said of one that is there", c.Name)
	}
	if _, known := codec.KindOf(c.Kind); !known {
		return refused("a keyspace of kind %q, which is not known", c.Kind)
	}
	if err := c.checkFloors(); err != nil {
		return refused("keyspace %q: %v", c.Name, err)
	}
	if len(v.Keyspaces) >= KeyspacesMax {
		return pastBound(BoundKeyspaces, "there are %d keyspaces, the most that a cluster takes", KeyspacesMax)
	}
	if placed := v.shardsPlaced(); c.Shards > GroupsMax-placed {
		return pastBound(BoundGroups, "there are %d shards, and a cluster takes at most %d", placed, GroupsMax)
	}
	if slices.Contains(c.Columns, "") {
		return refused("keyspace %q has a column without a name", c.Name)
	}
	if len(c.Replicas) != c.Shards {
		return refused("replicas of %d shards, the keyspace has %d", len(c.Replicas), c.Shards)
	}
	for shard, keys := range c.Replicas {
		if err := v.checkReplicas(keys); err != nil {
			return refused("shard %d: %v", shard, err)
		}
	}
	k := c.Keyspace
	k.FirstGroup = v.NextGroup
	v.Keyspaces[k.Name] = k
	for _, keys := range c.Replicas {
		v.Groups[v.NextGroup] = newPlacement(keys)
		v.NextGroup++
	}
	return Result{Keyspace: k}, true
}

func (c *AddColumnsEntry) apply(v *View) (Result, bool) {
	k, exists := v.Keyspaces[c.Keyspace]
	if !exists {
		return Result{Missing: true}, false
	}
	was := k
	k.Columns = slices.Clone(k.Columns)
	for _, column := range c.Columns {
		if !slices.Contains(k.Columns, column) {
			k.Columns = append(k.Columns, column)
		}
	}
	if len(k.Columns) > engine.ColumnsMax {
		return Result{Keyspace: was, Full: true}, false
	}
	k.Floors = floorsAfter(k.Floors, c.Floors)
	if err := k.checkFloors(); err != nil {
		return refused("keyspace %q: %v", k.Name, err)
	}
	v.Keyspaces[k.Name] = k
	return Result{Keyspace: k}, len(k.Columns) > len(was.Columns) || !maps.Equal(k.Floors, was.Floors)
}

// floorsAfter returns floors with changes applied, or nil if none is left.
func floorsAfter(was map[string]int64, changes map[string]*int64) map[string]int64 {
	if len(changes) == 0 {
		return was
	}
	floors := owned(was)
	for column, floor := range changes {
		if delete(floors, column); floor != nil {
			floors[column] = *floor
		}
	}
	if len(floors) == 0 {
		return nil
	}
	return floors
}

// checkFloors refuses floors of unknown columns.
func (k *Keyspace) checkFloors() error {
	for _, column := range slices.Sorted(maps.Keys(k.Floors)) {
		if !slices.Contains(k.Columns, column) {
			return fmt.Errorf("a floor of column %q, which is not there", column)
		}
	}
	return nil
}

func (c *SetEverywhereEntry) apply(v *View) (Result, bool) {
	k, exists := v.Keyspaces[c.Keyspace]
	switch {
	case !exists:
		return Result{Missing: true}, false
	case k.Kind == codec.KindBoard.String():
		return refused("keyspace %s is everywhere, always", c.Keyspace)
	}
	changed := k.Everywhere != c.Everywhere
	k.Everywhere = c.Everywhere
	v.Keyspaces[k.Name] = k
	for group := k.FirstGroup; changed && k.has(group); group++ {
		if p := v.Groups[group]; p.Numbered() {
			p.Revision++
			v.Groups[group] = p
		}
	}
	return Result{Keyspace: k}, changed
}

// EveryNode reports whether all nodes are members of a group, with or without a vote,
// so that each node can read it locally. That holds for Light groups and for keyspaces
// with Everywhere.
func (v *View) EveryNode(group uint32) bool {
	return v.Light(group) || v.keyspaceOf(group).Everywhere
}

// Light reports whether a group is too small to load its nodes: the catalog's own and
// the board's.
func (v *View) Light(group uint32) bool {
	return group == Group || v.keyspaceOf(group).Kind == codec.KindBoard.String()
}

// keyspaceOf returns the keyspace that a group belongs to, or one without a name.
func (v *View) keyspaceOf(group uint32) Keyspace {
	for _, k := range v.Keyspaces {
		if k.has(group) {
			return k
		}
	}
	return Keyspace{}
}

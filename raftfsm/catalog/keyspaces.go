package catalog

import (
	"slices"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm/codec"
)

const (
	// KeyspacesMax bounds the keyspaces of a cluster: an operator makes one for
	// each kind of thing that is counted.
	KeyspacesMax = 64
	// GroupsMax bounds the groups of a cluster, not counting the catalog's own group. Every change
	// of the catalog copies the placements of all groups, and every node stores them.
	GroupsMax = 1024
)

// Keyspace is one named table of the cluster.
type Keyspace struct {
	Name string `json:"name"`
	Kind string `json:"kind"`
	// Columns holds the names of the columns by number, with "" for a dropped column.
	Columns []string `json:"columns"`
	// Divisor is the number of shards that the keyspace was created with. It never changes, because
	// rows are stored under id div Divisor.
	Divisor int `json:"divisor"`
	// Groups holds the number of the group of each shard. It never changes. The numbers need not be
	// consecutive.
	Groups []uint32 `json:"groups,omitempty"`
	// Sharding is "" for id mod shards and "hash" for a mixed id mod shards.
	Sharding string `json:"sharding,omitempty"`
	// Everywhere makes every node a member of the keyspace's groups: a voter or a nonvoter.
	Everywhere bool `json:"everywhere,omitempty"`
	column.Settings[int64]
}

// FirstGroup returns the group of shard 0. Commands identify a keyspace by this group, because a
// later keyspace of the same name has another. It returns 0 before Apply has chosen the groups.
func (k *Keyspace) FirstGroup() uint32 {
	if len(k.Groups) == 0 {
		return 0
	}
	return k.Groups[0]
}

func (k *Keyspace) has(group uint32) bool { return slices.Contains(k.Groups, group) }

// CreateEntry creates a keyspace of Divisor shards and places its groups. Apply chooses Groups.
type CreateEntry struct {
	Keyspace
	Replicas [][]string `json:"replicas"` // the keys of the first voters of each shard
}

// SetEverywhereEntry sets Keyspace.Everywhere.
type SetEverywhereEntry struct {
	Keyspace   string `json:"keyspace"`
	Everywhere bool   `json:"everywhere"`
}

// AddColumnsEntry adds the columns that the keyspace lacks, and then changes settings of columns.
type AddColumnsEntry struct {
	Keyspace string   `json:"keyspace"`
	Columns  []string `json:"columns"`
	column.Settings[*int64]
}

func (c *CreateEntry) apply(v *View) (Result, bool) {
	if k, exists := v.Keyspaces[c.Name]; exists {
		return Result{Keyspace: k, Exists: true}, false
	}
	if c.Name == "" || c.Divisor < 1 || len(c.Columns) > engine.ColumnsMax {
		return refused("a keyspace %q of %d shards and %d columns", c.Name, c.Divisor, len(c.Columns))
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
	if err := c.Check(c.Columns); err != nil {
		return refused("keyspace %q: %v", c.Name, err)
	}
	if len(v.Keyspaces) >= KeyspacesMax {
		return pastBound(BoundKeyspaces, "there are %d keyspaces, the most that a cluster takes", KeyspacesMax)
	}
	if placed := v.shardsPlaced(); c.Divisor > GroupsMax-placed {
		return pastBound(BoundGroups, "there are %d shards, and a cluster takes at most %d", placed, GroupsMax)
	}
	if slices.Contains(c.Columns, "") {
		return refused("keyspace %q has a column without a name", c.Name)
	}
	if len(c.Replicas) != c.Divisor {
		return refused("replicas of %d shards, the keyspace has %d", len(c.Replicas), c.Divisor)
	}
	for shard, keys := range c.Replicas {
		if err := v.checkReplicas(keys); err != nil {
			return refused("shard %d: %v", shard, err)
		}
	}
	k := c.Keyspace
	k.Groups = nil
	for _, keys := range c.Replicas {
		v.Groups[v.NextGroup] = newPlacement(keys)
		k.Groups = append(k.Groups, v.NextGroup)
		v.NextGroup++
	}
	v.Keyspaces[k.Name] = k
	return Result{Keyspace: k}, true
}

func (c *AddColumnsEntry) apply(v *View) (Result, bool) {
	k, exists := v.Keyspaces[c.Keyspace]
	if !exists {
		return Result{Missing: true}, false
	}
	was := k
	k.Columns = slices.Clone(k.Columns)
	for _, name := range c.Columns {
		if !slices.Contains(k.Columns, name) {
			k.Columns = append(k.Columns, name)
		}
	}
	if len(k.Columns) > engine.ColumnsMax {
		return Result{Keyspace: was, Full: true}, false
	}
	k.Settings = column.After(k.Settings, c.Settings)
	if err := k.Check(k.Columns); err != nil {
		return refused("keyspace %q: %v", k.Name, err)
	}
	v.Keyspaces[k.Name] = k
	return Result{Keyspace: k}, len(k.Columns) > len(was.Columns) || !column.Equal(k.Settings, was.Settings)
}

func (c *SetEverywhereEntry) apply(v *View) (Result, bool) {
	k, exists := v.Keyspaces[c.Keyspace]
	switch {
	case !exists:
		return Result{Missing: true}, false
	case k.light():
		return refused("keyspace %s is everywhere, always", c.Keyspace)
	}
	if k.Everywhere == c.Everywhere {
		return Result{Keyspace: k}, false
	}
	k.Everywhere = c.Everywhere
	v.Keyspaces[k.Name] = k
	for _, group := range k.Groups {
		p := v.Groups[group]
		p.Revision++
		v.Groups[group] = p
	}
	return Result{Keyspace: k}, true
}

// EveryNode reports whether all nodes are members of a group, with or without a vote. Each node can
// then read the group locally. EveryNode is true for Light groups and for keyspaces with
// Everywhere.
func (v *View) EveryNode(group uint32) bool {
	k := v.keyspaceOf(group)
	return group == Group || k.everyNode()
}

func (k *Keyspace) everyNode() bool { return k.light() || k.Everywhere }

// Light reports whether a group is so small that it does not load its nodes: the catalog's group
// and the board's.
func (v *View) Light(group uint32) bool {
	k := v.keyspaceOf(group)
	return group == Group || k.light()
}

func (k *Keyspace) light() bool { return k.Kind == codec.KindBoard.String() }

// keyspaceOf returns the keyspace of a group, or a zero Keyspace if the group has none.
func (v *View) keyspaceOf(group uint32) Keyspace {
	for _, k := range v.Keyspaces {
		if k.has(group) {
			return k
		}
	}
	return Keyspace{}
}

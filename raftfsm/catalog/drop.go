package catalog

import (
	"maps"
	"slices"
)

// versionOfDrop is the cluster version from which on keyspaces and columns can be dropped:
// a program before it fails at these commands, and keeps the groups of a keyspace that
// is gone.
const versionOfDrop = 5

// DropEntry drops a keyspace with all its groups. It drops nothing unless the keyspace
// begins with FirstGroup: a keyspace of the same name that was created since does not.
type DropEntry struct {
	Keyspace   string `json:"keyspace"`
	FirstGroup uint32 `json:"first_group"`
}

// DropColumnEntry drops a column. Its number is never given to another column, so that a
// write on its way, which carries the number, counts in no column. It drops nothing
// unless the column of this number has the name: one that was added since has another.
type DropColumnEntry struct {
	Keyspace   string `json:"keyspace"`
	FirstGroup uint32 `json:"first_group"`
	Column     string `json:"column"`
	Number     int    `json:"number"`
}

// TakesDrops reports whether the cluster version allows DropEntry and DropColumnEntry.
func (v *View) TakesDrops() bool { return v.ClusterVersion >= versionOfDrop }

// Dropped reports whether a group was of a keyspace that was dropped. The numbers of groups
// only rise and none is given twice, so that stays true in every later view. A view that is
// too old to know the group reports false.
func (v *View) Dropped(group uint32) bool {
	_, placed := v.Groups[group]
	return group != Group && group < v.NextGroup && !placed
}

// shardsPlaced counts the groups of all keyspaces.
func (v *View) shardsPlaced() int {
	if _, placed := v.Groups[Group]; placed {
		return len(v.Groups) - 1
	}
	return len(v.Groups)
}

// Names returns the columns that were not dropped.
func (k *Keyspace) Names() []string {
	return slices.DeleteFunc(slices.Clone(k.Columns), func(c string) bool { return c == "" })
}

// DroppedColumns returns the columns that were dropped from the keyspace of a name, by
// number, if the group is one of its.
func (v *View) DroppedColumns(keyspace string, group uint32) (dropped uint64) {
	k, exists := v.Keyspaces[keyspace]
	if !exists || !k.has(group) {
		return 0
	}
	for number, name := range k.Columns {
		if name == "" {
			dropped |= 1 << number
		}
	}
	return dropped
}

// hasColumn reports whether the column of a number has a name.
func (k *Keyspace) hasColumn(number int, name string) bool {
	return number >= 0 && number < len(k.Columns) && k.Columns[number] == name
}

func (c *DropEntry) apply(v *View) (Result, bool) {
	k, exists := v.Keyspaces[c.Keyspace]
	switch {
	case !v.TakesDrops():
		return refused("a keyspace to be dropped in a cluster of version %d", v.ClusterVersion)
	case !exists || k.FirstGroup != c.FirstGroup:
		return Result{Missing: true}, false
	}
	delete(v.Keyspaces, k.Name)
	maps.DeleteFunc(v.Groups, func(group uint32, _ Placement) bool { return k.has(group) })
	return Result{Keyspace: k}, true
}

func (c *DropColumnEntry) apply(v *View) (Result, bool) {
	k, exists := v.Keyspaces[c.Keyspace]
	switch {
	case !v.TakesDrops():
		return refused("a column to be dropped in a cluster of version %d", v.ClusterVersion)
	case !exists || k.FirstGroup != c.FirstGroup || c.Column == "" || !k.hasColumn(c.Number, c.Column):
		return Result{Missing: true}, false
	case len(k.Names()) == 1:
		return refused("%s is the last column of keyspace %s", c.Column, k.Name)
	}
	k.Columns = slices.Clone(k.Columns)
	k.Columns[c.Number] = ""
	k.Floors = floorsAfter(k.Floors, map[string]*int64{c.Column: nil})
	v.Keyspaces[k.Name] = k
	return Result{Keyspace: k}, true
}

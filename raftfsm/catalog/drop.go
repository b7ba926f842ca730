package catalog

import (
	"slices"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/raftfsm/codec"
)

// DropEntry drops a keyspace with all its groups, and with its own names keyspace, if the keyspace's first group is FirstGroup.
type DropEntry struct {
	Keyspace   string `json:"keyspace"`
	FirstGroup uint32 `json:"first_group"`
}

// DropColumnEntry drops the column with this Number if its name is Column. No other column ever
// gets the number. A late write carries the number, so it never counts in a later column of the
// same name.
type DropColumnEntry struct {
	Keyspace   string `json:"keyspace"`
	FirstGroup uint32 `json:"first_group"`
	Column     string `json:"column"`
	Number     int    `json:"number"`
}

// Dropped reports whether a group belonged to a dropped keyspace or to an abandoned attempt to split
// a shard. Group numbers only rise and are never reused, so this stays true in every later view. A
// view that is too old to know the group reports false.
func (v *View) Dropped(group uint32) bool {
	_, placed := v.Groups[group]
	return group != Group && group < v.NextGroup && !placed
}

// ColumnNames returns the names of the columns that exist.
func (k *Keyspace) ColumnNames() []string {
	return slices.DeleteFunc(slices.Clone(k.Columns), func(c string) bool { return c == "" })
}

// DroppedColumns returns the dropped columns of a keyspace as a set of bits, bit n for column n. It
// returns 0 if the group does not belong to the keyspace.
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

// hasColumn reports whether the column with this number has this name.
func (k *Keyspace) hasColumn(number int, name string) bool {
	return number >= 0 && number < len(k.Columns) && k.Columns[number] == name
}

func (c *DropEntry) apply(v *View) (Result, bool) {
	k, exists := v.Keyspaces[c.Keyspace]
	if !exists || k.FirstGroup() != c.FirstGroup {
		return Result{Missing: true}, false
	}
	if k.Kind == codec.KindNames.String() {
		return refused("keyspace %s is dropped only with the keyspace whose ids it names", k.Name)
	}
	v.drop(k)
	if k.ownNames() {
		v.drop(v.Keyspaces[k.Names])
	}
	v.takeNamesAlong(k.Names)
	return Result{Keyspace: k}, true
}

func (v *View) drop(k Keyspace) {
	delete(v.Keyspaces, k.Name)
	for _, group := range k.All() {
		delete(v.Groups, group)
	}
}

func (c *DropColumnEntry) apply(v *View) (Result, bool) {
	k, exists := v.Keyspaces[c.Keyspace]
	switch {
	case !exists || k.FirstGroup() != c.FirstGroup || c.Column == "" || !k.hasColumn(c.Number, c.Column):
		return Result{Missing: true}, false
	case len(k.ColumnNames()) == 1:
		return refused("%s is the last column of keyspace %s", c.Column, k.Name)
	}
	k.Columns = slices.Clone(k.Columns)
	k.Columns[c.Number] = ""
	k.Settings = column.After(k.Settings, column.Removed(c.Column))
	v.Keyspaces[k.Name] = k
	return Result{Keyspace: k}, true
}

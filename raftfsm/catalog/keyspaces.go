package catalog

import (
	"fmt"
	"iter"
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
	// Groups holds the number of the group of each shard. The end of a growth appends the new shards.
	// The numbers need not be consecutive.
	Groups []uint32 `json:"groups,omitempty"`
	// Sharding is "" for id mod shards and "hash" for a mixed id mod shards.
	Sharding string `json:"sharding,omitempty"`
	// Everywhere makes every node a member of the keyspace's groups: a voter or a nonvoter.
	Everywhere bool `json:"everywhere,omitempty"`
	// Grown holds the number of shards after each growth that has ended.
	Grown  []int   `json:"grown,omitempty"`
	Growth *Growth `json:"growth,omitempty"` // nil unless the keyspace grows now; nobody changes a Growth
	// Exec means that clients send EXECs of several ids. More shards may make them fail, so no
	// automatic growth of the keyspace begins.
	Exec bool `json:"exec,omitempty"`
	// Names is the keyspace, of kind names, that gives texts the numbers by which this keyspace counts. It
	// is "" if ids are numbers. It never changes.
	Names  string `json:"names,omitempty"`
	Limits Limits `json:"limits,omitzero"`
	column.Settings[int64]
}

// Limits bound a keyspace. Its shards have equal shares of each limit. The leader of a shard accepts no op that
// creates a row once the shard has its share. 0 means no limit.
type Limits struct {
	Rows  uint64 `json:"rows,omitempty"`
	Bytes uint64 `json:"bytes,omitempty"` // memory, as in engine.Stats
}

// FirstGroup returns the group of shard 0. Commands identify a keyspace by this group, because a
// later keyspace of the same name has another. It returns 0 before Apply has chosen the groups.
func (k *Keyspace) FirstGroup() uint32 {
	if len(k.Groups) == 0 {
		return 0
	}
	return k.Groups[0]
}

// Growth is a growth of a keyspace that has not ended. shard/GROWTH.md explains the steps. Each
// command of an attempt names the state that it follows, so a late or repeated one changes nothing.
type Growth struct {
	// Shards is the number of shards after the growth, a multiple of the present number.
	Shards int `json:"shards"`
	// Auto is GrowEntry.Auto.
	Auto  bool  `json:"auto,omitempty"`
	Since int64 `json:"since,omitempty"` // GrowEntry.At
	// Attempts maps the group of a parent to the attempt to split it. An abandoned attempt is
	// removed.
	Attempts map[uint32]Attempt `json:"attempts,omitempty"`
}

// Attempt is one attempt to split a parent.
type Attempt struct {
	// Number identifies the attempt. It comes from the counter of groups, NextGroup, so a later
	// attempt has a higher number. If the attempt succeeds, the parent judges keys under Number, which
	// no group has.
	Number   uint32   `json:"number"`
	Children []uint32 `json:"children"` // groups of the other parts, by residue
	// Pending holds the children that have not begun. Unless it is empty, the parent and all children
	// are frozen: their targets do not change, and they get no new members.
	Pending []uint32 `json:"pending,omitempty"`
	Since   int64    `json:"since,omitempty"` // CommitSplitEntry.At
}

// All returns all shards of the keyspace with their groups. If the keyspace grows, it includes the
// children, each with the number of its future shard.
func (k *Keyspace) All() iter.Seq2[int, uint32] {
	return func(yield func(int, uint32) bool) {
		for shard, group := range k.Groups {
			if !yield(shard, group) {
				return
			}
		}
		for shard, parent := range k.Groups {
			for i, child := range k.attempt(parent).Children {
				if !yield(shard+(i+1)*len(k.Groups), child) {
					return
				}
			}
		}
	}
}

// FirstRoute returns the route that a shard had when its group was created. A replica begins with
// this route, because its log may begin before the shard was split.
func (k *Keyspace) FirstRoute(shard int) codec.Route {
	modulus := k.Divisor
	for _, shards := range append(slices.Clip(k.Grown), k.shardsAfter()) {
		if shard < modulus {
			break
		}
		modulus = shards
	}
	return codec.Route{Modulus: uint32(modulus), Residue: uint32(shard)}
}

// Frozen reports whether the members of a group must not change, because its shard is being split.
func (v *View) Frozen(group uint32) bool {
	k := v.keyspaceOf(group)
	return k.frozen(group)
}

func (k *Keyspace) frozen(group uint32) bool {
	if k.Growth != nil {
		for parent, a := range k.Growth.Attempts {
			if len(a.Pending) > 0 && (parent == group || slices.Contains(a.Children, group)) {
				return true
			}
		}
	}
	return false
}

func (k *Keyspace) has(group uint32) bool {
	return slices.Contains(k.Groups, group) || k.Growth != nil && slices.ContainsFunc(k.Groups, func(parent uint32) bool {
		return slices.Contains(k.Growth.Attempts[parent].Children, group)
	})
}

// attempt returns the attempt to split a parent, or a zero Attempt.
func (k *Keyspace) attempt(parent uint32) Attempt {
	if k.Growth == nil {
		return Attempt{}
	}
	return k.Growth.Attempts[parent]
}

// shardsAfter returns the number of shards at the end of the growth, if the keyspace grows, and
// otherwise the present number.
func (k *Keyspace) shardsAfter() int {
	if k.Growth == nil {
		return len(k.Groups)
	}
	return k.Growth.Shards
}

// CreateEntry creates a keyspace of Divisor shards and places its groups. Apply chooses Groups. If Names
// is NamesOf the keyspace, it also creates the names keyspace. Otherwise that must exist.
type CreateEntry struct {
	Keyspace
	Replicas [][]string `json:"replicas"` // the keys of the first voters of each shard; that of the names last
}

// NamesOf returns the names keyspace that is created and dropped together with a keyspace. No operator can
// create a keyspace of this name.
func NamesOf(keyspace string) string { return keyspace + "@ids" }

// ownNames reports whether the keyspace has a names keyspace that is created and dropped with it.
func (k *Keyspace) ownNames() bool { return k.Names != "" && k.Names == NamesOf(k.Name) }

// Shards returns the number of shards that the entry creates.
func (c *CreateEntry) Shards() int {
	if c.ownNames() {
		return c.Divisor + 1
	}
	return c.Divisor
}

// SetEverywhereEntry sets Keyspace.Everywhere.
type SetEverywhereEntry struct {
	Keyspace   string `json:"keyspace"`
	Everywhere bool   `json:"everywhere"`
}

// SetLimitsEntry sets the limits that are not nil; 0 removes a limit. Rows above a new limit stay.
type SetLimitsEntry struct {
	Keyspace string  `json:"keyspace"`
	Rows     *uint64 `json:"rows,omitempty"`
	Bytes    *uint64 `json:"bytes,omitempty"`
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
	if c.Limits != (Limits{}) && !c.mayBeLimited() {
		return refused("a keyspace of kind %q with limits", c.Kind)
	}
	if why := v.wrongNames(&c.Keyspace); why != "" {
		return refused("%s", why)
	}
	if len(v.Keyspaces)+c.Shards()-c.Divisor >= KeyspacesMax {
		return pastBound(BoundKeyspaces, "there are %d keyspaces, the most that a cluster takes", KeyspacesMax)
	}
	if placed := v.shardsPlaced(); c.Shards() > GroupsMax-placed {
		return tooManyShards(placed)
	}
	if slices.Contains(c.Columns, "") {
		return refused("keyspace %q has a column without a name", c.Name)
	}
	if len(c.Replicas) != c.Shards() {
		return refused("replicas of %d shards, the keyspace has %d", len(c.Replicas), c.Shards())
	}
	for shard, keys := range c.Replicas {
		if err := v.checkReplicas(keys); err != nil {
			return refused("shard %d: %v", shard, err)
		}
	}
	k := c.Keyspace
	k.Groups, k.Grown, k.Growth, k.Exec = nil, nil, nil, false
	for _, keys := range c.Replicas[:c.Divisor] {
		k.Groups = append(k.Groups, v.newGroup(keys))
	}
	v.Keyspaces[k.Name] = k
	if c.ownNames() {
		v.Keyspaces[k.Names] = Keyspace{Name: k.Names, Kind: codec.KindNames.String(), Columns: []string{}, Divisor: 1, Groups: []uint32{v.newGroup(c.Replicas[c.Divisor])}}
	}
	return Result{Keyspace: k}, true
}

func (v *View) newGroup(keys []string) uint32 {
	group := v.NextGroup
	v.Groups[group] = newPlacement(keys)
	v.NextGroup++
	return group
}

// wrongNames returns why a new keyspace cannot have its Names, or "". A keyspace of kind names is created
// only with the keyspace whose ids it names.
func (v *View) wrongNames(k *Keyspace) string {
	names, exists := v.Keyspaces[k.Names]
	switch {
	case k.Kind == codec.KindNames.String():
		return fmt.Sprintf("keyspace %q, of kind %s, without one whose ids are texts", k.Name, k.Kind)
	case k.Names == "":
		return ""
	case k.ownNames() && exists:
		return fmt.Sprintf("keyspace %q exists already", k.Names)
	case !k.ownNames() && (!exists || names.Kind != codec.KindNames.String()):
		return fmt.Sprintf("the ids of keyspace %q are texts of %q, which gives no numbers", k.Name, k.Names)
	}
	return ""
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
	case k.Kind == codec.KindNames.String():
		return refused("keyspace %s is everywhere if one whose ids it names is", c.Keyspace)
	case slices.ContainsFunc(k.Groups, k.frozen): // each parent is in Groups
		return refused("shards of keyspace %s are being split", c.Keyspace)
	}
	if k.Everywhere == c.Everywhere {
		return Result{Keyspace: k}, false
	}
	v.setEverywhere(k, c.Everywhere)
	v.takeNamesAlong(k.Names)
	return Result{Keyspace: v.Keyspaces[k.Name]}, true
}

func (v *View) setEverywhere(k Keyspace, everywhere bool) {
	k.Everywhere = everywhere
	v.Keyspaces[k.Name] = k
	for _, group := range k.All() {
		v.revise(group)
	}
}

// takeNamesAlong makes a names keyspace everywhere if and only if a keyspace whose ids it names is: a local
// read of such a keyspace needs the numbers too.
func (v *View) takeNamesAlong(names string) {
	k, exists := v.Keyspaces[names]
	everywhere := false
	for _, of := range v.Keyspaces {
		everywhere = everywhere || of.Names == names && of.Everywhere
	}
	if exists && k.Everywhere != everywhere {
		v.setEverywhere(k, everywhere)
	}
}

func (c *SetLimitsEntry) apply(v *View) (Result, bool) {
	k, exists := v.Keyspaces[c.Keyspace]
	switch {
	case !exists:
		return Result{Missing: true}, false
	case !k.mayBeLimited():
		return refused("keyspace %s is of kind %s: only keyspaces of counters have limits", c.Keyspace, k.Kind)
	}
	was := k.Limits
	if c.Rows != nil {
		k.Limits.Rows = *c.Rows
	}
	if c.Bytes != nil {
		k.Limits.Bytes = *c.Bytes
	}
	v.Keyspaces[k.Name] = k
	return Result{Keyspace: k}, k.Limits != was
}

// mayBeLimited reports whether the keyspace may have limits. The rows of the other kinds are those of users, whom
// posts and followers make.
func (k *Keyspace) mayBeLimited() bool { return k.Kind == codec.KindCounters.String() }

// LimitsOf returns the name and the limits of the keyspace of a group; "" without limits.
func (v *View) LimitsOf(group uint32) (string, Limits) {
	for _, k := range v.Keyspaces {
		if k.Limits != (Limits{}) && k.has(group) {
			return k.Name, k.Limits
		}
	}
	return "", Limits{}
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

// undivided reports whether the keyspace has one shard, for ever.
func (k *Keyspace) undivided() bool { return k.light() || k.Kind == codec.KindNames.String() }

// keyspaceOf returns the keyspace of a group, or a zero Keyspace if the group has none.
func (v *View) keyspaceOf(group uint32) Keyspace {
	for _, k := range v.Keyspaces {
		if k.has(group) {
			return k
		}
	}
	return Keyspace{}
}

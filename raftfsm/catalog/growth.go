package catalog

import (
	"fmt"
	"maps"
	"slices"
)

// GrowEntry makes a keyspace of From shards grow to To shards. To must be a multiple of From. If To
// equals From, the entry withdraws a growth in which no attempt is under way or has succeeded.
type GrowEntry struct {
	Keyspace   string `json:"keyspace"`
	FirstGroup uint32 `json:"first_group"`
	From       int    `json:"from"`
	To         int    `json:"to"`
	// Auto means that no operator asked for the growth. It is refused if Keyspace.Exec is set.
	Auto bool `json:"auto,omitempty"`
	// At is the Unix time by the clock of the catalog's leader, for operators; 0 if unknown.
	At int64 `json:"at,omitempty"`
}

// CommitSplitEntry begins an attempt to split a parent. It creates the children, whose first voters
// are the parent's target. The parent's leader has read Revision together with that target.
type CommitSplitEntry struct {
	Group    uint32 `json:"group"`
	Revision uint64 `json:"revision"`     // Placement.Revision
	At       int64  `json:"at,omitempty"` // as in GrowEntry
}

// AbandonSplitEntry ends an attempt to split a parent, and drops its children. The log of the parent
// must have abandoned the attempt before, so that no replica splits any more.
type AbandonSplitEntry struct {
	Group   uint32 `json:"group"`
	Attempt uint32 `json:"attempt"` // Attempt.Number
}

// ChildBegunEntry reports that a majority of a child's voters has a snapshot. The last child of a
// parent ends the attempt. The last child of the keyspace ends the growth.
type ChildBegunEntry struct {
	Group uint32 `json:"group"`
}

// MarkExecEntry sets Keyspace.Exec, for ever, and withdraws an automatic growth that has no attempts.
// A node proposes it before the first EXEC of several ids.
type MarkExecEntry struct {
	Keyspace   string `json:"keyspace"`
	FirstGroup uint32 `json:"first_group"`
}

// ofGrowth reports whether a command needs View.TakesGrowth.
func (c *Command) ofGrowth() bool {
	return c.Create != nil && c.Create.Names != "" || c.Grow != nil || c.CommitSplit != nil || c.AbandonSplit != nil || c.ChildBegun != nil || c.MarkExec != nil
}

// putAttempts stores a keyspace with other attempts.
func (v *View) putAttempts(k Keyspace, attempts map[uint32]Attempt) (Result, bool) {
	growth := *k.Growth
	growth.Attempts = attempts
	k.Growth = &growth
	v.Keyspaces[k.Name] = k
	return Result{Keyspace: k}, true
}

// refusedByVersion is the apply of a command that needs View.TakesGrowth.
func (c *Command) refusedByVersion(v *View) (Result, bool) {
	what := "growth needs"
	if c.Create != nil {
		what = "ids that are texts need"
	}
	return refused("the cluster's version is %d; %s %d", v.ClusterVersion, what, versionOfGrowth)
}

// withdraw ends the growth of a keyspace without attempts. It changes the revisions of the parents,
// so that no late commit has an effect in the next growth.
func (v *View) withdraw(k *Keyspace) {
	k.Growth = nil
	for _, group := range k.Groups {
		v.revise(group)
	}
}

func (c *GrowEntry) apply(v *View) (Result, bool) {
	k, exists := v.Keyspaces[c.Keyspace]
	if !exists || k.FirstGroup() != c.FirstGroup {
		return Result{Missing: true}, false
	}
	placed := v.shardsPlaced()
	switch {
	case c.From != len(k.Groups):
		return refused("keyspace %s has %d shards, not %d", k.Name, len(k.Groups), c.From)
	case c.To == k.shardsAfter():
		return Result{Keyspace: k}, false
	case c.To == c.From && len(k.Growth.Attempts) > 0:
		return refused("%d shards of keyspace %s have been split or are being split", len(k.Growth.Attempts), k.Name)
	case c.To == c.From:
		v.withdraw(&k)
		v.Keyspaces[k.Name] = k
		return Result{Keyspace: k}, true
	case k.Growth != nil:
		return refused("keyspace %s is growing to %d shards", k.Name, k.Growth.Shards)
	case k.undivided():
		return refused("keyspace %s, of kind %s, always has one shard", k.Name, k.Kind)
	case c.To < c.From || c.To%c.From != 0:
		return refused("%d shards of keyspace %s cannot become %d: only a multiple is possible", c.From, k.Name, c.To)
	case c.Auto && k.Exec:
		return refused("clients of keyspace %s send EXECs of several ids, which may fail with more shards", k.Name)
	case c.To-c.From > GroupsMax-placed:
		return tooManyShards(placed)
	}
	for _, group := range k.Groups {
		if why := v.unsettled(group); why != "" {
			return refused("%s", why)
		}
	}
	k.Growth = &Growth{Shards: c.To, Auto: c.Auto, Since: c.At}
	v.Keyspaces[k.Name] = k
	return Result{Keyspace: k}, true
}

// unsettled returns why the members of a group will still change, as far as the catalog knows, or "".
func (v *View) unsettled(group uint32) string {
	p := v.Groups[group]
	for _, node := range p.Target {
		if v.Nodes[node].State == NodeLeaving {
			return fmt.Sprintf("node %q is leaving and has a vote in group %d; wait until it has left", node, group)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(p.Replicas)) {
		if !v.MayHold(group, node) {
			return fmt.Sprintf("a replica on node %q has not left group %d yet; wait until it has", node, group)
		}
	}
	return ""
}

func (c *CommitSplitEntry) apply(v *View) (Result, bool) {
	k, p := v.keyspaceOf(c.Group), v.Groups[c.Group]
	switch {
	case k.Growth == nil || !slices.Contains(k.Groups, c.Group):
		return refused("group %d has no shard to split", c.Group)
	case k.attempt(c.Group).Number != 0:
		return refused("attempt %d splits the shard of group %d", k.attempt(c.Group).Number, c.Group)
	case p.Revision != c.Revision:
		return refused("the placement of group %d has changed since", c.Group)
	}
	if why := v.unsettled(c.Group); why != "" {
		return refused("%s", why)
	}
	a := Attempt{Number: v.NextGroup, Since: c.At}
	for range k.Growth.Shards/len(k.Groups) - 1 {
		v.NextGroup++
		v.Groups[v.NextGroup] = newPlacement(p.Target)
		a.Children = append(a.Children, v.NextGroup)
	}
	v.NextGroup++
	a.Pending = a.Children
	attempts := owned(k.Growth.Attempts)
	attempts[c.Group] = a
	return v.putAttempts(k, attempts)
}

func (c *AbandonSplitEntry) apply(v *View) (Result, bool) {
	k := v.keyspaceOf(c.Group)
	a := k.attempt(c.Group)
	switch {
	case a.Number != c.Attempt || a.Number == 0:
		return Result{Keyspace: k}, false // the attempt has ended
	case len(a.Pending) < len(a.Children):
		return refused("attempt %d has split the shard of group %d: a child has begun", a.Number, c.Group)
	}
	for _, child := range a.Children {
		delete(v.Groups, child)
	}
	v.revise(c.Group)
	attempts := maps.Clone(k.Growth.Attempts)
	delete(attempts, c.Group)
	return v.putAttempts(k, attempts)
}

func (c *ChildBegunEntry) apply(v *View) (Result, bool) {
	k := v.keyspaceOf(c.Group)
	for _, parent := range k.Groups {
		a := k.attempt(parent)
		if !slices.Contains(a.Pending, c.Group) {
			continue
		}
		a.Pending = slices.DeleteFunc(slices.Clone(a.Pending), func(g uint32) bool { return g == c.Group })
		if len(a.Pending) == 0 {
			v.revise(parent)
		}
		attempts := maps.Clone(k.Growth.Attempts)
		attempts[parent] = a
		result, _ := v.putAttempts(k, attempts)
		return v.endIfGrown(result.Keyspace), true
	}
	return Result{Keyspace: k}, false
}

// endIfGrown ends the growth of a keyspace if all its parents have been split.
func (v *View) endIfGrown(k Keyspace) Result {
	if len(k.Growth.Attempts) < len(k.Groups) || slices.ContainsFunc(k.Groups, k.frozen) {
		return Result{Keyspace: k}
	}
	groups := make([]uint32, k.Growth.Shards)
	for shard, group := range k.All() {
		groups[shard] = group
	}
	k.Groups, k.Grown, k.Growth = groups, append(slices.Clone(k.Grown), k.Growth.Shards), nil
	v.Keyspaces[k.Name] = k
	return Result{Keyspace: k}
}

func (c *MarkExecEntry) apply(v *View) (Result, bool) {
	k, exists := v.Keyspaces[c.Keyspace]
	if !exists || k.FirstGroup() != c.FirstGroup {
		return Result{Missing: true}, false
	}
	if k.Exec {
		return Result{Keyspace: k}, false
	}
	k.Exec = true
	if k.Growth != nil && k.Growth.Auto && len(k.Growth.Attempts) == 0 {
		v.withdraw(&k)
	}
	v.Keyspaces[k.Name] = k
	return Result{Keyspace: k}, true
}

package catalog

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// growthFault switches off one rule of the catalog.
type growthFault struct {
	// apply applies a command without the rule.
	apply func(v *View, c *Command) (*View, *Result)
	// restore changes a view that was restored from a snapshot.
	restore func(v *View)
	finds   string // part of the failure that the model must find
}

func (f *growthFault) finding(failure string) *growthFault {
	f.finds = failure
	return f
}

// edited returns a copy of a view with a change.
func edited(v *View, change func(v *View)) *View {
	next := *v
	next.ownMaps()
	change(&next)
	return &next
}

// thawed returns a view in which no group is frozen.
func thawed(v *View) *View {
	return edited(v, func(v *View) {
		for name, k := range v.Keyspaces {
			if k.Growth == nil {
				continue
			}
			growth := *k.Growth
			growth.Attempts = maps.Clone(growth.Attempts)
			for parent, a := range growth.Attempts {
				a.Pending = nil
				growth.Attempts[parent] = a
			}
			k.Growth = &growth
			v.Keyspaces[name] = k
		}
	})
}

// withGrowthsOf returns a view with the growths of an earlier view.
func withGrowthsOf(was, v *View) *View {
	return edited(v, func(v *View) {
		for name, k := range v.Keyspaces {
			if old := was.Keyspaces[name]; old.FirstGroup() == k.FirstGroup() {
				k.Growth = old.Growth
				v.Keyspaces[name] = k
			}
		}
	})
}

// setAttempt changes the attempt to split a parent; nil removes it.
func setAttempt(v *View, parent uint32, a *Attempt) {
	k := v.keyspaceOf(parent)
	if k.Growth == nil {
		return
	}
	growth := *k.Growth
	growth.Attempts = owned(growth.Attempts)
	if delete(growth.Attempts, parent); a != nil {
		growth.Attempts[parent] = *a
	}
	k.Growth = &growth
	v.Keyspaces[k.Name] = k
}

// whileThawed applies the commands that match as if no group was frozen.
func whileThawed(matches func(c *Command) bool) *growthFault {
	return &growthFault{apply: func(v *View, c *Command) (*View, *Result) {
		if !matches(c) {
			return v.After(c)
		}
		next, result := thawed(v).After(c)
		return withGrowthsOf(v, next), result
	}}
}

// before changes the view or the command before the command is applied.
func before(change func(v *View, c *Command)) *growthFault {
	return &growthFault{apply: func(v *View, c *Command) (*View, *Result) {
		return edited(v, func(v *View) { change(v, c) }).After(c)
	}}
}

// after changes the view after a command that was applied to was.
func after(change func(was, v *View, c *Command)) *growthFault {
	return &growthFault{apply: func(was *View, c *Command) (*View, *Result) {
		next, result := was.After(c)
		return edited(next, func(v *View) { change(was, v, c) }), result
	}}
}

// attemptOf returns the attempt to split a parent, in a view.
func attemptOf(v *View, parent uint32) Attempt {
	k := v.keyspaceOf(parent)
	return k.attempt(parent)
}

// settled returns a view in which no member of a group will still change.
func settled(v *View) *View {
	return edited(v, func(v *View) {
		for key, node := range v.Nodes {
			node.State = NodeActive
			v.Nodes[key] = node
		}
		for group, p := range v.Groups {
			p.Replicas = maps.Clone(p.Replicas)
			maps.DeleteFunc(p.Replicas, func(node string, _ uint64) bool { return !v.MayHold(group, node) })
			v.Groups[group] = p
		}
	})
}

// whileSettled applies the commands that match as if no member of a group would still change.
func whileSettled(matches func(c *Command) bool) *growthFault {
	return &growthFault{apply: func(v *View, c *Command) (*View, *Result) {
		if !matches(c) {
			return v.After(c)
		}
		next, result := settled(v).After(c)
		return edited(next, func(next *View) {
			next.Nodes = v.Nodes
			maps.Copy(next.Groups, v.Groups)
		}), result
	}}
}

// keepRevisions sets the revisions of all groups as they were.
func keepRevisions(was, v *View) {
	for group, p := range v.Groups {
		if old, there := was.Groups[group]; there {
			p.Revision = old.Revision
			v.Groups[group] = p
		}
	}
}

// keepGroups adds the groups that a command has removed.
func keepGroups(was, v *View) {
	for group, p := range was.Groups {
		if _, there := v.Groups[group]; !there {
			v.Groups[group] = p
		}
	}
}

// reuseNumbers makes the catalog assign the numbers above that of the highest group again.
func reuseNumbers(v *View) {
	v.NextGroup = Group + 1
	for group := range v.Groups {
		v.NextGroup = max(v.NextGroup, group+1)
	}
	for _, k := range v.Keyspaces {
		for _, parent := range k.Groups {
			v.NextGroup = max(v.NextGroup, k.attempt(parent).Number+1)
		}
	}
}

// forgetGrown removes all but the last number of Keyspace.Grown.
func forgetGrown(v *View) {
	for name, k := range v.Keyspaces {
		if n := len(k.Grown); n > 1 {
			k.Grown = k.Grown[n-1:]
			v.Keyspaces[name] = k
		}
	}
}

// growthFaults has a fault for each rule that late, repeated and concurrent commands need.
// TestGrowth and TestGrowthIsRefused test the other rules.
var growthFaults = map[string]*growthFault{
	"a frozen group that moves":            whileThawed(func(c *Command) bool { return c.Place != nil }).finding("is frozen and changed"),
	"a frozen keyspace that is everywhere": whileThawed(func(c *Command) bool { return c.SetEverywhere != nil }).finding("is frozen, and everywhere"),
	"a node that joins a frozen group":     whileThawed(func(c *Command) bool { return c.PutNode != nil }).finding("is frozen and changed"),
	"a growth during a move":               whileSettled(func(c *Command) bool { return c.Grow != nil }).finding("may still have node"),
	"a commit during a move":               whileSettled(func(c *Command) bool { return c.CommitSplit != nil }).finding("may still have node"),
	"a commit after a move": before(func(v *View, c *Command) {
		if e := c.CommitSplit; e != nil {
			e.Revision = v.Groups[e.Group].Revision
		}
	}).finding("a late commit"),
	"a commit of an attempt before": after(func(was, v *View, c *Command) {
		if c.AbandonSplit != nil {
			keepRevisions(was, v)
		}
	}).finding("a late commit"),
	"a commit of a growth before": after(func(was, v *View, c *Command) {
		if c.ChildBegun != nil {
			keepRevisions(was, v)
		}
	}).finding("a late commit"),
	"a commit of a withdrawn growth": after(func(was, v *View, c *Command) {
		if c.Grow != nil || c.MarkExec != nil {
			keepRevisions(was, v)
		}
	}).finding("a late commit"),
	"a second attempt beside the first": before(func(v *View, c *Command) {
		if c.CommitSplit != nil {
			setAttempt(v, c.CommitSplit.Group, nil)
		}
	}).finding("the attempt of group"),
	"an Abandon of an attempt before": before(func(v *View, c *Command) {
		if e := c.AbandonSplit; e != nil {
			e.Attempt = attemptOf(v, e.Group).Number
		}
	}).finding("a late Abandon"),
	"an Abandon after a child has begun": before(func(v *View, c *Command) {
		if e := c.AbandonSplit; e != nil {
			a := attemptOf(v, e.Group)
			if a.Pending = a.Children; a.Number == e.Attempt {
				setAttempt(v, e.Group, &a)
			}
		}
	}).finding("has rows and is dropped"),
	"children that outlive Abandon": after(func(was, v *View, c *Command) {
		if c.AbandonSplit != nil {
			keepGroups(was, v)
		}
	}).finding("is placed and has no keyspace"),
	"children that outlive their keyspace": after(func(was, v *View, c *Command) {
		if c.Drop != nil {
			keepGroups(was, v)
		}
	}).finding("is placed and has no keyspace"),
	"a Begun of an attempt before": before(func(v *View, c *Command) {
		e := c.ChildBegun
		if e == nil || v.keyspaceOf(e.Group).Name != "" {
			return
		}
		for _, k := range v.KeyspacesByName() {
			for _, parent := range k.Groups {
				if pending := k.attempt(parent).Pending; len(pending) > 0 {
					e.Group = pending[0]
				}
			}
		}
	}).finding("waited for"),
	"a Begun that counts for all children": {finds: "waited for", apply: func(v *View, c *Command) (*View, *Result) {
		next, result := v.After(c)
		if e := c.ChildBegun; e != nil {
			k := v.keyspaceOf(e.Group)
			for _, parent := range k.Groups {
				if a := k.attempt(parent); slices.Contains(a.Pending, e.Group) {
					for _, child := range a.Pending {
						next, result = next.After(begun(child))
					}
				}
			}
		}
		return next, result
	}},
	"a Begun repeated": before(func(v *View, c *Command) {
		if e := c.ChildBegun; e != nil {
			k := v.keyspaceOf(e.Group)
			for _, parent := range k.Groups {
				if a := k.attempt(parent); slices.Contains(a.Children, e.Group) && len(a.Pending) > 0 {
					e.Group = a.Pending[0]
				}
			}
		}
	}).finding("waited for"),
	"numbers of an abandoned attempt used again": after(func(_, v *View, c *Command) {
		if c.AbandonSplit != nil {
			reuseNumbers(v)
		}
	}).finding("is used twice"),
	"numbers of a dropped keyspace used again": after(func(_, v *View, c *Command) {
		if c.Drop != nil {
			reuseNumbers(v)
		}
	}).finding("is used twice"),
	"a name of a judge used again": after(func(_, v *View, c *Command) {
		if e := c.CommitSplit; e != nil {
			if a := attemptOf(v, e.Group); a.Number > 0 && len(a.Pending) == len(a.Children) {
				a.Number = 1 // of the first group, which may be dropped by now
				setAttempt(v, e.Group, &a)
			}
		}
	}).finding("is used twice"),
	"a growth that begins twice": before(func(v *View, c *Command) {
		if e := c.Grow; e != nil && e.To > e.From {
			factor := e.To / e.From
			e.From = len(v.Keyspaces[e.Keyspace].Groups)
			e.To = e.From * factor
		}
	}).finding("a late growth"),
	"a withdrawal after a split": before(func(v *View, c *Command) {
		if e := c.Grow; e != nil && e.To == e.From {
			for _, parent := range v.Keyspaces[e.Keyspace].Groups {
				setAttempt(v, parent, nil)
			}
		}
	}).finding("ends without new shards"),
	"a growth of an earlier keyspace": before(func(v *View, c *Command) {
		if e := c.Grow; e != nil {
			k := v.Keyspaces[e.Keyspace]
			e.FirstGroup = k.FirstGroup()
		}
	}).finding("a late growth"),
	"a mark of an earlier keyspace": before(func(v *View, c *Command) {
		if e := c.MarkExec; e != nil {
			k := v.Keyspaces[e.Keyspace]
			e.FirstGroup = k.FirstGroup()
		}
	}).finding("the mark of keyspace"),
	"an automatic growth that outlives a mark": before(func(v *View, c *Command) {
		if e := c.MarkExec; e != nil {
			if k := v.Keyspaces[e.Keyspace]; k.Growth != nil {
				k.Growth = &Growth{Shards: k.Growth.Shards, Attempts: k.Growth.Attempts}
				v.Keyspaces[k.Name] = k
			}
		}
	}).finding("is marked and grows"),
	"an automatic growth of a marked keyspace": before(func(_ *View, c *Command) {
		if c.Grow != nil {
			c.Grow.Auto = false
		}
	}).finding("an automatic growth of keyspace"),
	"growth before the cluster version": {finds: "a command at version", apply: func(v *View, c *Command) (*View, *Result) {
		next, result := edited(v, func(v *View) { v.ClusterVersion = 2 }).After(c)
		return edited(next, func(next *View) {
			if c.SetVersion == nil {
				next.ClusterVersion = v.ClusterVersion
			}
		}), result
	}},
	"first routes by the last growth": after(func(_, v *View, _ *Command) { forgetGrown(v) }).finding("was created as"),
	"new shards in the order of their parents": after(func(was, v *View, _ *Command) {
		for name, k := range v.Keyspaces {
			if old := was.Keyspaces[name]; old.FirstGroup() == k.FirstGroup() && len(k.Groups) > len(old.Groups) {
				k.Groups = slices.Clone(k.Groups)
				slices.Sort(k.Groups[len(old.Groups):])
				slices.Reverse(k.Groups[len(old.Groups):])
				v.Keyspaces[name] = k
			}
		}
	}).finding("was created as"),
	"a growth that ends with its first parent": after(func(_, v *View, c *Command) {
		if c.ChildBegun == nil {
			return
		}
		for name, k := range v.Keyspaces {
			if k.Growth != nil && len(k.Growth.Attempts) > 0 && !slices.ContainsFunc(k.Groups, k.frozen) {
				k.Growth = nil
				v.Keyspaces[name] = k
			}
		}
	}).finding("ends without new shards"),
	"a snapshot without the children that wait": {finds: "two replicas differ", restore: func(v *View) { *v = *thawed(v) }},
	"a snapshot without earlier growths":        {finds: "two replicas differ", restore: forgetGrown},
}

// If a rule is switched off, the model finds the fault that the rule prevents.
func TestGrowthModelWithout(t *testing.T) {
	if testing.Short() {
		t.Skip("takes long: a model for each fault")
	}
	for name, fault := range growthFaults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(2000) {
				w := newGrowthWorld(seed, fault)
				w.run(400)
				if slices.ContainsFunc(w.failures, func(failure string) bool { return strings.Contains(failure, fault.finds) }) {
					t.Logf("seed %d: %s", seed, w.failures[0])
					return
				}
			}
			t.Errorf("found no %q", fault.finds)
		})
	}
}

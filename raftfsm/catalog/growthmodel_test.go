package catalog

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm/codec"
)

// growthWorld is a catalog to which many nodes propose random commands. Each proposer reads some
// view, often an old one. Commands arrive late, in any order, twice, or not at all. A second
// replica of the catalog applies the same commands, and is often restored from a snapshot.
type growthWorld struct {
	rng   *rand.Rand
	fault *growthFault // nil for none

	v, other *View
	encoded  string         // v
	views    []growthMoment // the latest views, the newest last
	moving   []growthMsg    // commands that were proposed and not yet applied

	// What the commands so far have made. The catalog does not know these.
	used     map[uint32]bool        // numbers of groups and attempts
	ended    map[uint32]int         // by group: how many attempts to split its shard, and withdrawn growths, have ended
	growths  map[uint32]int         // by first group: how many growths have ended
	created  map[uint32]codec.Route // by group: its first route
	route    map[uint32]codec.Route // by group: its present route; none for a child that waits
	has      map[uint32]bool        // children that have begun, and shards of created keyspaces
	stats    struct{ Growths, Seconds, Attempts, Abandoned, Begun, Drops int }
	failures []string
}

// growthMoment is a view, with what a proposer may learn with it.
type growthMoment struct {
	v              *View
	ended, growths map[uint32]int
}

type growthMsg struct {
	entry []byte
	from  growthMoment
}

var growthNames = []string{"k", "l", "m"}

func newGrowthWorld(seed uint64, fault *growthFault) *growthWorld {
	w := &growthWorld{
		rng: rand.New(rand.NewPCG(seed, 1)), fault: fault,
		used: map[uint32]bool{}, ended: map[uint32]int{}, growths: map[uint32]int{}, created: map[uint32]codec.Route{}, route: map[uint32]codec.Route{}, has: map[uint32]bool{},
	}
	w.v, w.other = New().View(), New().View()
	for _, key := range []string{"a.1", "b.1", "c.1", "d.1"} {
		w.do(putNode(aNode(key, 2), ""))
	}
	return w
}

func (w *growthWorld) chance(percent int) bool { return w.rng.IntN(100) < percent }

func pick[T any](w *growthWorld, of []T) (one T) {
	if len(of) > 0 {
		one = of[w.rng.IntN(len(of))]
	}
	return one
}

func (w *growthWorld) fail(format string, args ...any) {
	w.failures = append(w.failures, fmt.Sprintf(format, args...))
}

func (w *growthWorld) now() growthMoment { return w.views[len(w.views)-1] }

// do makes a proposer with the newest view propose a command, and applies it.
func (w *growthWorld) do(c *Command) *Result {
	entry, err := AppendEntry(nil, c)
	if err != nil {
		panic(err)
	}
	from := growthMoment{v: w.v}
	if len(w.views) > 0 {
		from = w.now()
	}
	return w.deliver(growthMsg{entry, from})
}

// run takes random steps, and then ends all growths.
func (w *growthWorld) run(steps int) {
	for range steps {
		if w.step(); len(w.failures) > 0 {
			return
		}
	}
	w.finish()
	for _, m := range w.moving { // all are late now
		if c, _ := parseEntry(m.entry); c.Grow == nil {
			w.deliver(m)
		}
	}
	for _, k := range w.v.KeyspacesByName() {
		if k.Growth != nil {
			w.fail("keyspace %s still grows: %+v", k.Name, k.Growth)
		}
	}
}

func (w *growthWorld) step() {
	from := w.now()
	if w.chance(25) {
		from = pick(w, w.views)
	}
	if c := w.command(from.v); c != nil {
		entry, err := AppendEntry(nil, c)
		if err != nil {
			panic(err)
		}
		w.moving = append(w.moving, growthMsg{entry, from})
	}
	for len(w.moving) > 0 && w.chance(60) && len(w.failures) == 0 {
		i := len(w.moving) - 1
		if w.chance(30) {
			i = w.rng.IntN(len(w.moving))
		}
		m := w.moving[i]
		if !w.chance(40) { // otherwise it arrives once more
			w.moving = slices.Delete(w.moving, i, i+1)
		}
		w.deliver(m)
	}
	if len(w.moving) > 30 {
		w.moving = w.moving[10:] // the oldest are lost
	}
}

// command returns a random command of a proposer that has read v, or nil.
func (w *growthWorld) command(v *View) *Command {
	name := pick(w, growthNames)
	k, exists := v.Keyspaces[name]
	first := k.FirstGroup()
	groups := slices.Sorted(maps.Keys(v.Groups))
	group := pick(w, groups)
	node := pick(w, slices.Sorted(maps.Keys(v.Nodes)))
	p := v.Groups[group]
	switch n := w.rng.IntN(100); {
	case n < 4 || !exists:
		replicas := make([][]string, 1+w.rng.IntN(2))
		for i := range replicas {
			replicas[i] = []string{node}
		}
		return createAt(name, replicas, len(replicas), "x")
	case n < 5 && w.chance(30):
		return drop(name, first)
	case n < 15:
		c := grow(name, first, len(k.Groups), len(k.Groups)*(2+w.rng.IntN(2)))
		switch {
		case w.chance(10):
			c.Grow.To = c.Grow.From
		case len(k.Groups) > 12:
			return nil
		}
		c.Grow.Auto = w.chance(30)
		return c
	case n < 30:
		parent := pick(w, k.Groups)
		return commitSplit(parent, v.Groups[parent].Revision)
	case n < 40:
		parent := pick(w, k.Groups)
		if a := k.attempt(parent); a.Number > 0 {
			return abandonSplit(parent, a.Number)
		}
	case n < 60:
		if child := pick(w, k.attempt(pick(w, k.Groups)).Pending); child > 0 {
			return begun(child)
		}
	case n < 70 && group > 0:
		target := slices.Clone(p.Target)
		if i := slices.Index(target, node); i < 0 {
			target = append(target, node)
		} else if len(target) > 1 {
			target = slices.Delete(target, i, i+1)
		}
		return place(group, p.Target, target...)
	case n < 85 && group > 0:
		for _, node := range slices.Sorted(maps.Keys(p.Replicas)) {
			if !v.MayHold(group, node) {
				return retire(group, node, p.Replicas[node], p.Revision)
			}
		}
	case n < 88:
		return setEverywhere(name, !k.Everywhere)
	case n < 91:
		state := NodeLeaving
		if v.Nodes[node].State == NodeLeaving {
			state = NodeActive
		}
		return setState(node, state)
	case n < 93:
		return removeNode(node)
	case n < 96:
		return putNode(aNode(pick(w, []string{"a.1", "b.1", "c.1", "d.1", "e.1"}), 2), "")
	case n < 97:
		return setVersion(2)
	case n < 98:
		return markExec(name, first)
	}
	return nil
}

// deliver applies a command at both replicas of the catalog, and checks what it has changed.
func (w *growthWorld) deliver(m growthMsg) *Result {
	was := w.v
	var result *Result
	for _, replica := range []**View{&w.v, &w.other} {
		c, err := parseEntry(m.entry)
		if err != nil {
			panic(err)
		}
		if w.fault != nil && w.fault.apply != nil {
			*replica, result = w.fault.apply(*replica, c)
		} else {
			*replica, result = (*replica).After(c)
		}
	}
	before := w.encoded
	if w.encoded = string(w.v.encoded()); w.encoded != string(w.other.encoded()) {
		w.fail("two replicas differ")
	}
	if w.encoded == before {
		return result
	}
	c, _ := parseEntry(m.entry)
	w.check(was, c, m.from)
	if err := w.v.check(); err != nil {
		w.fail("%v", err)
	}
	if w.chance(5) {
		w.restore()
	}
	if w.views = append(w.views, growthMoment{w.v, maps.Clone(w.ended), maps.Clone(w.growths)}); len(w.views) > 40 {
		w.views = w.views[1:]
	}
	return result
}

// restore restores the other replica from a snapshot of the first one.
func (w *growthWorld) restore() {
	c, r := New(), New()
	c.view.Store(w.v)
	sink := &rafttest.Sink{}
	snapshot, err := c.Snapshot()
	if err == nil {
		err = snapshot.Persist(sink)
	}
	if err == nil {
		err = rafttest.Restore(r, sink.Bytes())
	}
	if err != nil {
		w.fail("a snapshot: %v", err)
		return
	}
	if w.other = r.View(); w.fault != nil && w.fault.restore != nil {
		w.fault.restore(w.other)
	}
}

// check checks a command that has changed the view. from is the moment at which its proposer read the
// catalog.
func (w *growthWorld) check(was *View, c *Command, from growthMoment) {
	v := w.v
	if (c.Grow != nil || c.CommitSplit != nil || c.AbandonSplit != nil || c.ChildBegun != nil || c.MarkExec != nil) && was.ClusterVersion < 2 {
		w.fail("a command at version %d", was.ClusterVersion)
	}
	for group := range v.Groups {
		if _, there := was.Groups[group]; !there {
			w.use(group)
		}
	}
	for name, old := range was.Keyspaces {
		k, exists := v.Keyspaces[name]
		if !exists || k.FirstGroup() != old.FirstGroup() {
			if w.stats.Drops++; c.Drop == nil {
				w.fail("keyspace %s is gone", name)
			}
			continue
		}
		w.checkGrowth(was, &old, &k, c, from)
		w.checkFrozen(was, &old)
	}
	w.checkRoutes(was, c)
	for group := range w.has {
		if _, placed := v.Groups[group]; !placed && c.Drop == nil {
			w.fail("group %d has rows and is dropped", group)
			return
		}
	}
}

// use notes a number of a new group or attempt.
func (w *growthWorld) use(number uint32) {
	if w.used[number] {
		w.fail("number %d is used twice", number)
	}
	w.used[number] = true
}

// checkGrowth checks how the growth of a keyspace has changed. Only the command for it may change it,
// and only if its proposer knew the present state.
func (w *growthWorld) checkGrowth(was *View, old, k *Keyspace, c *Command, from growthMoment) {
	first, proposed := k.FirstGroup(), from.v.Keyspaces[k.Name]
	known := proposed.FirstGroup() == first // the proposer means no earlier keyspace of this name
	if old.Exec && !k.Exec || !old.Exec && k.Exec && (c.MarkExec == nil || !known) {
		w.fail("the mark of keyspace %s is now %t", k.Name, k.Exec)
	}
	auto := old.Growth != nil && old.Growth.Auto && len(old.Growth.Attempts) == 0
	if auto && c.MarkExec != nil && k.Exec && !old.Exec && k.Growth != nil {
		w.fail("keyspace %s is marked and grows automatically", k.Name)
	}
	switch {
	case old.Growth == nil && k.Growth != nil:
		if c.Grow == nil || !known || from.growths[first] != w.growths[first] {
			w.fail("a late growth of keyspace %s", k.Name)
		} else if c.Grow.Auto && old.Exec {
			w.fail("an automatic growth of keyspace %s, which is marked", k.Name)
		}
		for _, group := range old.Groups {
			w.mustStay(was, group)
		}
	case old.Growth != nil && k.Growth == nil && len(k.Groups) == len(old.Groups):
		if c.Grow == nil && (c.MarkExec == nil || !auto) || !known || len(old.Growth.Attempts) > 0 {
			w.fail("the growth of keyspace %s ends without new shards", k.Name)
		}
		for _, group := range k.Groups {
			w.ended[group]++
		}
	}
	ended := old.Growth != nil && k.Growth == nil && len(k.Groups) > len(old.Groups)
	for shard, parent := range old.Groups {
		before, after := old.attempt(parent), k.attempt(parent)
		if ended {
			after = before
			after.Pending = nil
		}
		switch {
		case before.Number == 0 && after.Number == 0:
		case before.Number == 0:
			w.stats.Attempts++
			w.use(after.Number)
			if c.CommitSplit == nil || c.CommitSplit.Group != parent || from.ended[parent] != w.ended[parent] || !slices.Equal(from.v.Groups[parent].Target, was.Groups[parent].Target) {
				w.fail("a late commit for group %d", parent)
			}
			w.mustStay(was, parent)
			for i, child := range after.Children {
				w.created[child] = codec.Route{Modulus: uint32(k.Growth.Shards), Residue: uint32(shard + (i+1)*len(k.Groups))}
			}
		case after.Number == 0:
			w.stats.Abandoned++
			w.ended[parent]++
			attempt := from.v.keyspaceOf(parent)
			if c.AbandonSplit == nil || attempt.attempt(parent).Number != before.Number {
				w.fail("a late Abandon for group %d", parent)
			}
		case before.Number != after.Number || !slices.Equal(before.Children, after.Children):
			w.fail("the attempt of group %d has changed from %+v to %+v", parent, before, after)
		case len(before.Pending) > len(after.Pending):
			w.stats.Begun++
			if c.ChildBegun == nil || len(before.Pending) != len(after.Pending)+1 || slices.Contains(after.Pending, c.ChildBegun.Group) || !slices.Contains(before.Pending, c.ChildBegun.Group) {
				w.fail("group %d waited for %v, and now for %v", parent, before.Pending, after.Pending)
				return
			}
			w.has[c.ChildBegun.Group] = true
			if len(after.Pending) == 0 {
				w.ended[parent]++
			}
		}
	}
	if ended {
		if w.growths[first]++; w.growths[first] > 1 {
			w.stats.Seconds++
		}
		w.stats.Growths++
		if len(k.Groups) != old.Growth.Shards {
			w.fail("keyspace %s has %d shards, not %d", k.Name, len(k.Groups), old.Growth.Shards)
		}
	}
}

// mustStay checks that nothing but the end of a growth will change the members of a group.
func (w *growthWorld) mustStay(v *View, group uint32) {
	p, k := v.Groups[group], v.keyspaceOf(group)
	for node := range p.Replicas {
		_, known := v.Nodes[node]
		if !slices.Contains(p.Target, node) && (!known || !k.Everywhere) {
			w.fail("group %d may still have node %s", group, node)
		}
	}
	for _, node := range p.Target {
		if v.Nodes[node].State == NodeLeaving {
			w.fail("group %d still has node %s", group, node)
		}
	}
}

// checkFrozen checks that a group that was frozen and is frozen kept its members.
func (w *growthWorld) checkFrozen(was *View, old *Keyspace) {
	k := w.v.Keyspaces[old.Name]
	for _, parent := range old.Groups {
		a := old.attempt(parent)
		if len(a.Pending) == 0 || len(k.attempt(parent).Pending) == 0 {
			continue
		}
		if k.Everywhere != old.Everywhere {
			w.fail("keyspace %s is frozen, and everywhere: %t", k.Name, k.Everywhere)
		}
		for _, group := range append(slices.Clone(a.Children), parent) {
			before, after := was.Groups[group], w.v.Groups[group]
			if !slices.Equal(before.Target, after.Target) || after.NextReplica != before.NextReplica {
				w.fail("group %d is frozen and changed from %+v to %+v", group, before, after)
			}
		}
	}
}

// checkRoutes checks that each residue has one owner, that a group gets another route only when its
// shard has been split, and that its first route never changes.
func (w *growthWorld) checkRoutes(was *View, c *Command) {
	present := map[uint32]codec.Route{}
	for _, k := range w.v.Keyspaces {
		if _, there := was.Keyspaces[k.Name]; !there {
			for shard, group := range k.Groups {
				w.created[group], w.has[group] = codec.Route{Modulus: uint32(k.Divisor), Residue: uint32(shard)}, true
				w.route[group] = w.created[group]
			}
		}
		now, all := uint32(len(k.Groups)), k.shardsAfter()
		owners := make([]int, all)
		for shard, parent := range k.Groups {
			owned := map[uint32]codec.Route{parent: {Modulus: now, Residue: uint32(shard)}}
			if a := k.attempt(parent); a.Number > 0 && len(a.Pending) == 0 {
				owned[parent] = codec.Route{Modulus: uint32(all), Residue: uint32(shard)}
				for i, child := range a.Children {
					owned[child] = codec.Route{Modulus: uint32(all), Residue: uint32(shard) + uint32(i+1)*now}
				}
			}
			for group, route := range owned {
				present[group] = route
				for id := route.Residue; id < uint32(all); id += route.Modulus {
					owners[id]++
				}
			}
		}
		for id, n := range owners {
			if n != 1 {
				w.fail("residue %d of keyspace %s has %d owners", id, k.Name, n)
			}
		}
		for shard, group := range k.All() {
			if got := k.FirstRoute(shard); got != w.created[group] {
				w.fail("group %d was created as %s, not %s", group, w.created[group], got)
			}
		}
	}
	for group, route := range present {
		before, had := w.route[group]
		split := had && route.Residue == before.Residue && route.Modulus%before.Modulus == 0 && c.ChildBegun != nil
		if route != before && !split && (had || route != w.created[group]) {
			w.fail("group %d was %s and is %s", group, before, route)
		}
	}
	w.route = present
	if c.Drop != nil {
		dropped := was.Keyspaces[c.Drop.Keyspace]
		for _, group := range dropped.All() {
			delete(w.has, group)
		}
	}
}

// finish ends all growths: moves end, nodes that leave are replaced, and each parent splits.
func (w *growthWorld) finish() {
	w.do(setVersion(2))
	for _, node := range slices.Sorted(maps.Keys(w.v.Nodes)) {
		if w.v.Nodes[node].State == NodeLeaving {
			w.do(setState(node, NodeActive))
		}
	}
	for _, k := range w.v.KeyspacesByName() {
		for _, group := range k.All() {
			p := w.v.Groups[group]
			for _, node := range slices.Sorted(maps.Keys(p.Replicas)) {
				if !w.v.MayHold(group, node) {
					w.do(retire(group, node, p.Replicas[node], p.Revision))
				}
			}
		}
		if k.Growth == nil {
			continue
		}
		for _, parent := range k.Groups {
			w.do(commitSplit(parent, w.v.Groups[parent].Revision))
			k := w.v.Keyspaces[k.Name]
			for _, child := range k.attempt(parent).Pending {
				w.do(begun(child))
			}
		}
		if now := w.v.Keyspaces[k.Name]; len(now.Groups) != k.Growth.Shards {
			w.fail("keyspace %s has %d shards, not %d: %+v", k.Name, len(now.Groups), k.Growth.Shards, now.Growth)
		}
	}
}

// TestGrowthModel checks, with the commands of growthWorld:
//
//  1. No number of a group or an attempt is ever used twice.
//  2. A late or repeated command of an attempt changes nothing.
//  3. A frozen group keeps its target, and gets no member.
//  4. Each residue has exactly one owner, and the shards of a keyspace are what its groups own.
//  5. The route of a group's creation never changes.
//  6. A group with rows is dropped only with its keyspace.
//  7. Replicas of the catalog are equal, also after a snapshot at any index.
//  8. Each growth can be completed.
func TestGrowthModel(t *testing.T) {
	worlds := 200
	if testing.Short() {
		worlds = 30
	}
	w := &growthWorld{}
	for seed := range uint64(worlds) {
		total := w.stats
		w = newGrowthWorld(seed, nil)
		w.stats = total
		if w.run(400); len(w.failures) > 0 {
			t.Fatalf("seed %d: %v", seed, w.failures)
		}
	}
	t.Logf("%+v", w.stats)
	if s := w.stats; min(s.Growths, s.Seconds, s.Attempts, s.Abandoned, s.Begun, s.Drops) < worlds/10 {
		t.Errorf("too little happened: %+v", s)
	}
}

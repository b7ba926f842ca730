package sources

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/source/sink"
)

// This file makes the keyspaces of a sourceCluster grow: see shard/GROWTH.md, R15.

// growthFault is a rule of R15 that a run of the model breaks.
type growthFault string

const (
	noCopy       growthFault = "a part has no copy of the positions"
	staleRoute   growthFault = "only the number of sections is compared"
	mixedLayouts growthFault = "a section without ops is sent anew by the new route"
)

// routeOf returns the route of a keyspace by the state of its shards, and their groups.
func (c *sourceCluster) routeOf(k catalog.Keyspace) (raftfsm.Route, []uint32) {
	if k.Growth == nil {
		return raftfsm.NewRoute(k.Divisor, len(k.Groups), false), k.Groups
	}
	groups, moduli := make([]uint32, k.Growth.Shards), k.Moduli()
	for s, g := range k.All() {
		if groups[s] = g; s < len(moduli) {
			moduli[s] = c.shards[g].Route().Modulus
		}
	}
	return raftfsm.NewRoute(k.Divisor, k.Growth.Shards, false).Growing(moduli), groups
}

// grows reports whether the keyspace of a group grows.
func (c *sourceCluster) grows(group uint32) bool {
	for _, k := range c.catalog.View().Keyspaces {
		if slices.Contains(k.Groups, group) {
			return k.Growth != nil
		}
	}
	return true // the group of a part
}

// grow takes a step of a growth.
func (c *sourceCluster) grow() {
	t := c.faults
	name := rapid.SampledFrom([]string{"posts", "posts", "posts", kinds.KeyspaceUnread, "extra"}).Draw(t, "keyspace that grows")
	k, there := c.catalog.View().Keyspaces[name]
	if !there {
		return
	}
	if k.Growth == nil {
		if len(k.Groups) > 4 || slices.ContainsFunc(k.Groups, func(g uint32) bool { return c.restores[g] != 0 }) {
			return
		}
		to := rapid.IntRange(2, 3).Draw(t, "by") * len(k.Groups)
		c.command(&catalog.Command{Grow: &catalog.GrowEntry{Keyspace: name, FirstGroup: k.FirstGroup(), From: len(k.Groups), To: to}})
		return
	}
	s := rapid.IntRange(0, len(k.Groups)-1).Draw(t, "parent")
	parent := k.Groups[s]
	a := k.Growth.Attempts[parent]
	switch m := c.shards[parent]; {
	case a.Number == 0:
		revision := c.catalog.View().Groups[parent].Revision
		c.command(&catalog.Command{CommitSplit: &catalog.CommitSplitEntry{Group: parent, Revision: revision}})
	case int(m.Route().Modulus) == k.Growth.Shards:
		c.begin(a)
	case rapid.IntRange(0, 4).Draw(t, "abandon") == 0:
		if err := m.Abandon(m.Route(), uint64(a.Number)); err != nil {
			c.t.Fatal(err)
		}
		c.command(&catalog.Command{AbandonSplit: &catalog.AbandonSplitEntry{Group: parent, Attempt: a.Number}})
	default:
		c.split(&k, s)
	}
}

// begin makes a child adopt its part, or reports that it has begun.
func (c *sourceCluster) begin(a catalog.Attempt) {
	if len(a.Pending) == 0 {
		return
	}
	child := rapid.SampledFrom(a.Pending).Draw(c.faults, "child")
	if c.unborn[child] {
		delete(c.unborn, child)
		return
	}
	c.command(&catalog.Command{ChildBegun: &catalog.ChildBegunEntry{Group: child}})
}

func (c *sourceCluster) split(k *catalog.Keyspace, s int) {
	parent, count := k.Groups[s], k.Growth.Shards/len(k.Groups)
	m, a := c.shards[parent], k.Growth.Attempts[k.Groups[s]]
	kind := codec.KindCounters
	if _, is := m.(*unread.Machine); is {
		kind = codec.KindUnread
	}
	to := raftfsm.NewRoute(k.Divisor, k.Growth.Shards, false)
	split := &raftfsm.Split{
		Index: m.Applied() + 1, Attempt: uint64(a.Number), From: m.Route(), Group: parent,
		Parts: []dedup.Part{{Judge: a.Number, Route: to.Of(s)}},
		PartOf: func(key uint64) int {
			shard, _ := to.KeyOf(to.IDOf(s, key))
			return shard / len(k.Groups)
		},
	}
	var others []raftfsm.Machine
	for i, child := range a.Children {
		part := kinds.All.New(kind, raftfsm.Places{})
		others = append(others, part)
		c.shards[child], c.unborn[child] = part, true
		split.Parts = append(split.Parts, dedup.Part{Judge: child, Route: to.Of(s + (i+1)*len(k.Groups))})
	}
	if err := m.Split(split, others); err != nil || len(others) != count-1 {
		c.t.Fatal(err, len(others))
	}
	for _, child := range a.Children {
		if c.seq++; c.fault == noCopy {
			c.apply(child, dedup.ByRestorePositions(c.seq, dedup.RestoredPositions{}), nil)
		}
	}
	delete(c.backups, parent)
}

// growMeanwhile sometimes lets a growth go on between the choice of a node's sections and its write.
func (c *sourceCluster) growMeanwhile(n *sourceNode) {
	if run := n.before; run != nil {
		n.before = nil
		run()
	}
	if c.faults == nil {
		return
	}
	switch rapid.IntRange(0, 15).Draw(c.faults, "meanwhile") {
	case 0:
		c.grow()
	case 1:
		_ = n.CatchUp(context.Background())
	case 2:
		n.note()
	}
}

// note makes a node learn of all splits, as it does when its replicas apply them.
func (n *sourceNode) note() {
	for _, k := range n.c.catalog.View().Keyspaces {
		for _, g := range k.Groups {
			n.noted[g] = n.c.shards[g].Route().Modulus
		}
	}
}

// Layout is shard.Node.Layout, with the registry of a node.
func (n *sourceNode) Layout(ks *shard.Keyspace) (raftfsm.Route, []uint32) {
	k, there := n.Catalog().Keyspaces[ks.Name]
	if !there || k.FirstGroup() != ks.FirstGroup || k.Growth == nil {
		if there && k.FirstGroup() == ks.FirstGroup {
			return raftfsm.NewRoute(k.Divisor, len(k.Groups), false), k.Groups
		}
		return ks.Route(), ks.Groups
	}
	route, groups := raftfsm.NewRoute(k.Divisor, k.Growth.Shards, false).Growing(k.Moduli()), make([]uint32, k.Growth.Shards)
	for s, g := range k.All() {
		groups[s] = g
	}
	for s, parent := range k.Groups {
		if n.noted[parent] == uint32(k.Growth.Shards) && len(k.Growth.Attempts[parent].Children) > 0 {
			route = route.Split(s)
		}
	}
	return route, groups
}

// fits refuses a write as the writer of a node does.
func (n *sourceNode) fits(w *shard.Write) error {
	slots := 0
	for i, k := range w.Spaces {
		route, groups := n.Layout(k)
		if slots += len(groups); !route.Equal(w.Routes[i]) && n.c.fault != staleRoute {
			return errs.ErrOtherLayout
		}
	}
	if slots != len(w.Sections) {
		return errs.ErrOtherLayout
	}
	return nil
}

// deliver delivers a section of a node to a shard of a keyspace.
func (n *sourceNode) deliver(k *shard.Keyspace, group uint32, of codec.Route, section dedup.SourceSection, ops []engine.Op) shard.Answer {
	m := n.c.shards[group]
	if m == nil { // the attempt that would have made the shard was abandoned
		if _, groups := n.Layout(k); !slices.Contains(groups, group) {
			return shard.Answer{Err: errs.ErrOtherLayout}
		}
		return shard.Answer{Err: errModelLost}
	}
	a := n.c.deliver(group, of, section, ops)
	if a.Err != nil || a.Outcome != dedup.Misrouted {
		return a
	}
	if n.c.fault == mixedLayouts && len(ops) == 0 {
		return n.c.deliver(group, m.Route(), section, nil)
	}
	if m.Route().Modulus <= of.Modulus {
		return shard.Answer{Err: errModelLost}
	}
	n.noted[group] = m.Route().Modulus
	return shard.Answer{Err: errs.ErrOtherLayout}
}

// modelFailure is the panic of a run that finds a fault.
type modelFailure string

// catching is a TB whose failures are panics.
type catching struct{ rapid.TB }

func (catching) Fatalf(format string, args ...any) { panic(modelFailure(fmt.Sprintf(format, args...))) }
func (catching) Fatal(args ...any)                 { panic(modelFailure(fmt.Sprint(args...))) }

// caught returns the failure of a run, or "".
func caught(run func()) (found string) {
	defer func() {
		switch failure := recover().(type) {
		case nil:
		case modelFailure:
			found = string(failure)
		default:
			panic(failure)
		}
	}()
	run()
	return ""
}

// commitSplits begins attempts to split the two shards of posts.
func (c *sourceCluster) commitSplits() {
	k := c.catalog.View().Keyspaces["posts"]
	c.command(&catalog.Command{Grow: &catalog.GrowEntry{Keyspace: "posts", FirstGroup: k.FirstGroup(), From: 2, To: 4}})
	for _, parent := range k.Groups {
		c.command(&catalog.Command{CommitSplit: &catalog.CommitSplitEntry{Group: parent, Revision: c.catalog.View().Groups[parent].Revision}})
	}
}

// splitAll splits the shards of posts, and their children adopt the parts.
func (c *sourceCluster) splitAll() {
	k := c.catalog.View().Keyspaces["posts"]
	for s := range k.Groups {
		c.split(&k, s)
	}
	clear(c.unborn)
}

// Shards are apart, because readers have died. A reader chooses its sections, another one moves a shard on, and the shard
// splits. The first reader's ops reach no part under the section of another shard.
func TestSectionsOfAnotherLayout(t *testing.T) {
	t.Parallel()
	for fault, want := range map[growthFault]int64{"": 1, staleRoute: 2} {
		c := newSourceCluster(t)
		c.fault, c.queue = fault, slices.Repeat([]queued{{keyspace: "posts"}}, 6)
		c.commitSplits()
		first, other := c.node(), c.node()
		for range 3 { // Start, Positions, and a batch that begins all shards
			other.step(2)
		}
		users := c.catalog.View().Keyspaces[kinds.KeyspaceUnread].Groups[0]
		c.apply(users, dedup.BySource(dedup.SourceSection{
			PositionKey: dedup.PositionKey{Source: other.source}, Mode: dedup.SectionAdvance, Epoch: 1, Next: sink.Position{Lo: 4},
		}), nil)
		first.step(0)
		first.step(0)
		c.queue[5].keyspace = kinds.KeyspaceUnread
		first.before = func() {
			other.step(2)
			c.splitAll()
			first.note()
		}
		first.step(6)
		if got := c.count(c.catalog.View().Keyspaces["posts"], messageID+2, 0); got != want {
			t.Errorf("with the fault %q: the message was applied %d times, want %d", fault, got, want)
		}
		c.readAll(c.node())
		if fault == "" {
			c.check(true)
		}
	}
}

// splitAfterMessages returns a cluster whose shards have split once a node had applied all messages. The node has heard
// of no split.
func splitAfterMessages(t *testing.T) (*sourceCluster, *sourceNode) {
	c := newSourceCluster(t)
	c.queue = slices.Repeat([]queued{{keyspace: "posts"}}, 4)
	c.commitSplits()
	n := c.node()
	for range 3 { // Start, Positions, and all messages
		n.step(4)
	}
	c.splitAll()
	return c, n
}

// After a split, a reader reads the positions of the parts before it calls an op rejected. The parts have passed the
// messages that the parent has passed.
func TestCheckAcrossASplit(t *testing.T) {
	t.Parallel()
	_, n := splitAfterMessages(t)
	n.note()
	bad := &sink.Batch{Source: n.source, From: n.from, Next: n.from}
	for id := range uint64(4) {
		bad.Ops = append(bad.Ops, sink.Op{Position: sink.Position{Lo: 3}, Keyspace: "posts", ID: id, Cells: []sink.Cell{{Column: "dropped", Value: 1}}})
	}
	if _, err := n.sink.Apply(t.Context(), &sink.Batch{Source: n.source, From: n.from, Next: n.from}); !errors.Is(err, sink.ErrMoved) {
		t.Errorf("a batch by other positions: %v", err)
	}
	if _, err := n.sink.Check(t.Context(), bad); !errors.Is(err, sink.ErrMoved) {
		t.Errorf("Check by other positions: %v", err)
	}
	_, err := n.sink.Positions(t.Context(), n.source, 0)
	must.Do(t, err)
	rejected, err := n.sink.Check(t.Context(), bad)
	must.Do(t, err)
	for _, r := range rejected {
		if !r.Passed {
			t.Errorf("op %d: its shard has passed the message, and Check says it has not", r.Op)
		}
	}
	if len(rejected) != 4 {
		t.Errorf("%d ops are rejected", len(rejected))
	}
}

// A source that is deleted while its shards split is forgotten by all parts, also if its node has heard of no split.
func TestForgetAcrossASplit(t *testing.T) {
	t.Parallel()
	c, n := splitAfterMessages(t)
	n.sink.Forget(t.Context(), n.source)
	for g, m := range c.shards {
		if len(m.Sources()) > 0 {
			t.Errorf("group %d has positions of sources %v", g, m.Sources())
		}
	}
}

// A node fences a source by a layout that a split changes meanwhile. No reader from before the pause counts a message in
// a part after that.
func TestFenceAcrossASplit(t *testing.T) {
	t.Parallel()
	for fault, want := range map[growthFault]bool{"": false, mixedLayouts: true} {
		found := caught(func() {
			c := newSourceCluster(catching{t})
			c.fault, c.queue = fault, slices.Repeat([]queued{{keyspace: "posts"}}, 8)
			c.commitSplits()
			c.splitAll()
			fencer, reader := c.node(), c.node()
			reader.note()
			for range 4 { // Start, Positions, and two messages for the parents
				reader.step(1)
			}
			c.pause(true)
			c.seek(c.fence(fencer, 5))
			if c.source().Partitions[0].Start.Lo != 5 {
				t.Fatalf("with the fault %q: no seek", fault)
			}
			for range 8 {
				reader.step(1)
			}
		})
		if t.Logf("with the fault %q: %s", fault, found); (found != "") != want {
			t.Errorf("with the fault %q: %q", fault, found)
		}
	}
}

// The model finds that the positions were not copied. TestSectionsOfAnotherLayout and TestFenceAcrossASplit find the
// other faults, which need more steps than a random run has.
func TestSourcesModelFindsFaults(t *testing.T) {
	t.Parallel()
	run := rapid.Custom(func(t *rapid.T) string {
		return caught(func() {
			c := newSourceCluster(catching{t})
			c.fault = noCopy
			runSourcesModel(t, c)
		})
	})
	for seed := range 1000 {
		if found := run.Example(seed); found != "" {
			t.Logf("seed %d: %s", seed, found)
			return
		}
	}
	t.Error("not found")
}

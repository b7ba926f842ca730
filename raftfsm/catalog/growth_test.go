package catalog

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm/codec"
)

func grow(keyspace string, first uint32, from, to int) *Command {
	return &Command{Grow: &GrowEntry{Keyspace: keyspace, FirstGroup: first, From: from, To: to}}
}

func commitSplit(group uint32, revision uint64) *Command {
	return &Command{CommitSplit: &CommitSplitEntry{Group: group, Revision: revision}}
}

func abandonSplit(group, attempt uint32) *Command {
	return &Command{AbandonSplit: &AbandonSplitEntry{Group: group, Attempt: attempt}}
}

func begun(group uint32) *Command {
	return &Command{ChildBegun: &ChildBegunEntry{Group: group}}
}

func markExec(keyspace string, first uint32) *Command {
	return &Command{MarkExec: &MarkExecEntry{Keyspace: keyspace, FirstGroup: first}}
}

func setEverywhere(keyspace string, on bool) *Command {
	return &Command{SetEverywhere: &SetEverywhereEntry{Keyspace: keyspace, Everywhere: on}}
}

// growSteps has commands of a growth, for the catalog that goldenCommands makes.
func growSteps() []struct {
	name    string
	command *Command
} {
	return []struct {
		name    string
		command *Command
	}{
		{"retire", retire(1, "a.1", 1, 2)},
		{"grow", grow("posts", 1, 2, 6)},
		{"commit-split", commitSplit(1, 2)},
		{"abandon-split", abandonSplit(1, 3)},
		{"commit-split-again", commitSplit(1, 3)},
		{"child-begun", begun(7)},
		{"child-begun", begun(8)},
		{"mark-exec", markExec("posts", 1)},
		{"commit-split-other", commitSplit(2, 1)},
		{"child-begun-other", begun(10)},
	}
}

func TestGrowthBytesAreGolden(t *testing.T) {
	c := goldenCatalog(t)
	for _, step := range growSteps() {
		if got := applyCommand(t, c, step.command); said(got) != "" {
			t.Fatalf("%s: %+v", step.name, got)
		}
		entry, err := AppendEntry(nil, step.command)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := parseEntry(entry); err != nil || !reflect.DeepEqual(got, step.command) {
			t.Errorf("%s came back as %+v, %v", step.name, got, err)
		}
		switch step.name {
		case "grow", "commit-split", "abandon-split", "child-begun-other", "mark-exec":
			rafttest.Golden(t, "entry-catalog-"+strings.TrimSuffix(step.name, "-other")+".bin", entry)
		}
	}
	snapshot := rafttest.Persisted(t, c)
	rafttest.Golden(t, "snapshot-catalog-growing.bin", snapshot)
	r := New()
	if err := rafttest.Restore(r, snapshot); err != nil || !sameView(r.View(), c.View()) {
		t.Errorf("restored %+v, want %+v: %v", r.View(), c.View(), err)
	}
}

// growable returns a catalog of three nodes with a keyspace k of two shards, groups 1 and 2.
func growable(t *testing.T) *Catalog {
	t.Helper()
	c := New()
	for _, key := range []string{"a.1", "b.1", "c.1"} {
		applyCommand(t, c, putNode(aNode(key, 2), ""))
	}
	mustTake(t, c, []catalogStep{
		{"version 2", setVersion(2), "", true},
		{"k", createAt("k", [][]string{{"a.1", "b.1"}, {"b.1"}}, 2, "x"), "", true},
	})
	return c
}

func mustHaveShards(t *testing.T, c *Catalog, grown []int, groups ...uint32) {
	t.Helper()
	if k := c.View().Keyspaces["k"]; !slices.Equal(k.Groups, groups) || !slices.Equal(k.Grown, grown) {
		t.Errorf("k has the groups %v after %v", k.Groups, k.Grown)
	}
}

// A keyspace grows from two shards to six, and then to twelve. An attempt is abandoned. No late or
// repeated command changes anything.
func TestGrowth(t *testing.T) {
	c := growable(t)
	mustTake(t, c, []catalogStep{
		{"commit without a growth", commitSplit(1, 0), "has no shard to split", false},
		{"grow", grow("k", 1, 2, 6), "", true},
		{"grow again", grow("k", 1, 2, 6), "", false},
		{"grow otherwise", grow("k", 1, 2, 4), "is growing to 6 shards", false},
		{"withdraw", grow("k", 1, 2, 2), "", true},
		{"withdraw again", grow("k", 1, 2, 2), "", false},
		{"commit after that", commitSplit(1, 0), "has no shard to split", false},
		{"grow", grow("k", 1, 2, 6), "", true},
		{"a commit of the withdrawn growth", commitSplit(1, 0), "has changed since", false},
		{"the first parent may still move", place(1, []string{"a.1", "b.1"}, "b.1", "a.1"), "", true},
		{"commit from before the move", commitSplit(1, 1), "has changed since", false},
		{"commit", commitSplit(1, 2), "", true}, // attempt 3, children 4 and 5
		{"commit again", commitSplit(1, 2), "attempt 3 splits", false},
		{"commit of a child", commitSplit(4, 0), "has no shard to split", false},
		{"withdraw now", grow("k", 1, 2, 2), "1 shards of keyspace k", false},
		{"abandon of another attempt", abandonSplit(1, 2), "", false},
		{"abandon of no attempt", abandonSplit(2, 0), "", false},
		{"abandon", abandonSplit(1, 3), "", true},
		{"abandon again", abandonSplit(1, 3), "", false},
		{"a child of it begins", begun(4), "", false},
		{"a copy of the commit", commitSplit(1, 2), "has changed since", false},
		{"another attempt", commitSplit(1, 3), "", true}, // attempt 6, children 7 and 8
		{"abandon of the first attempt", abandonSplit(1, 3), "", false},
		{"a child of the first attempt begins", begun(5), "", false},
		{"a child begins", begun(8), "", true},
		{"again", begun(8), "", false},
		{"abandon after that", abandonSplit(1, 6), "a child has begun", false},
		{"a parent begins", begun(1), "", false},
	})
	if c.View().Dropped(7) || !c.View().Dropped(4) {
		t.Error("the wrong children are dropped")
	}
	for group, want := range map[uint32]bool{Group: false, 1: true, 2: false, 7: true, 8: true} {
		if c.View().Frozen(group) != want {
			t.Errorf("group %d is frozen: %t", group, !want)
		}
	}
	mustTake(t, c, []catalogStep{
		{"a frozen parent moves", place(1, []string{"b.1", "a.1"}, "c.1"), "is frozen", false},
		{"a frozen child moves", place(8, []string{"b.1", "a.1"}, "c.1"), "is frozen", false},
		{"everywhere", setEverywhere("k", true), "are being split", false},
		{"the last child begins", begun(7), "", true},
		{"abandon after that", abandonSplit(1, 6), "a child has begun", false},
		{"the parent moves", place(1, []string{"b.1", "a.1"}, "c.1"), "", true},
		{"a child moves", place(7, []string{"b.1", "a.1"}, "a.1"), "", true},
		{"everywhere", setEverywhere("k", true), "", true},
		{"the other parent", commitSplit(2, 2), "", true}, // attempt 9, children 10 and 11
		{"a node joins", putNode(aNode("d.1", 2), ""), "", true},
	})
	mustHaveShards(t, c, nil, 1, 2)
	for group, nodes := range map[uint32]int{1: 4, 2: 3, 7: 4, 10: 1} {
		if p := c.View().Groups[group]; len(p.Replicas) != nodes {
			t.Errorf("group %d has the numbers %v", group, p.Replicas)
		}
	}
	mustTake(t, c, []catalogStep{
		{"its children begin", begun(11), "", true},
		{"and the growth ends", begun(10), "", true},
		{"once", begun(10), "", false},
	})
	mustHaveShards(t, c, []int{6}, 1, 2, 7, 10, 8, 11)
	if p := c.View().Groups[10]; len(p.Replicas) != 4 {
		t.Errorf("all nodes should have replicas: %+v", p)
	}
	mustTake(t, c, []catalogStep{
		{"a copy of the intent", grow("k", 1, 2, 6), "has 6 shards, not 2", false},
		{"a second growth", grow("k", 1, 6, 12), "", true},
		{"a copy of the last commit", commitSplit(2, 2), "has changed since", false},
	})
	for _, parent := range []uint32{1, 2, 7, 10, 8, 11} {
		mustTake(t, c, []catalogStep{{"commit", commitSplit(parent, c.View().Groups[parent].Revision), "", true}})
		k := c.View().Keyspaces["k"]
		mustTake(t, c, []catalogStep{{"begun", begun(k.attempt(parent).Children[0]), "", true}})
	}
	mustHaveShards(t, c, []int{6, 12}, 1, 2, 7, 10, 8, 11, 13, 15, 17, 19, 21, 23)
	k := c.View().Keyspaces["k"]
	for shard, modulus := range []uint32{2, 2, 6, 6, 6, 6, 12, 12, 12, 12, 12, 12} {
		if got := k.FirstRoute(shard); got != (codec.Route{Modulus: modulus, Residue: uint32(shard)}) {
			t.Errorf("shard %d began as %s", shard, got)
		}
	}
}

func TestGrowthIsRefused(t *testing.T) {
	c := growable(t)
	board := create("board", 1)
	board.Create.Kind = "board"
	auto := grow("k", 1, 2, 4)
	auto.Grow.Auto = true
	mustTake(t, c, []catalogStep{
		{"the board", board, "", true}, // group 3
		{"of the board", grow("board", 3, 1, 3), "always has one shard", false},
		{"of no keyspace", grow("l", 1, 2, 4), "missing", false},
		{"of an earlier keyspace of the name", grow("k", 7, 2, 4), "missing", false},
		{"from another number", grow("k", 1, 1, 3), "has 2 shards, not 1", false},
		{"to no multiple", grow("k", 1, 2, 5), "only a multiple", false},
		{"to less", grow("k", 1, 2, 1), "only a multiple", false},
		{"to none", grow("k", 1, 2, 0), "only a multiple", false},
		{"to too many", grow("k", 1, 2, GroupsMax), "a cluster takes at most", false},
		{"a mark of no keyspace", markExec("l", 1), "missing", false},
		{"a mark of an earlier keyspace", markExec("k", 7), "missing", false},
		{"a mark", markExec("k", 1), "", true},
		{"a mark again", markExec("k", 1), "", false},
		{"automatic growth", auto, "EXECs of several ids", false},
		{"a node leaves", setState("b.1", NodeLeaving), "", true},
		{"while a voter leaves", grow("k", 1, 2, 4), "is leaving and has a vote in group 1", false},
		{"its replica moves", place(1, []string{"a.1", "b.1"}, "a.1", "c.1"), "", true},
		{"its other replica moves", place(2, []string{"b.1"}, "c.1"), "", true},
		{"while a replica moves", grow("k", 1, 2, 4), "has not left group 1 yet", false},
		{"it has left", retire(1, "b.1", 2, 1), "", true},
		{"while another moves", grow("k", 1, 2, 4), "has not left group 2 yet", false},
		{"it has left too", retire(2, "b.1", 1, 1), "", true},
		{"by an operator", grow("k", 1, 2, 4), "", true},
		{"a move", place(1, []string{"a.1", "c.1"}, "a.1"), "", true},
		{"commit meanwhile", commitSplit(1, 2), "has not left group 1 yet", false},
		{"no other keyspace gets the groups", createAt("l", slices.Repeat([][]string{{"a.1"}}, GroupsMax-4), GroupsMax-4, "x"), "there are 5 shards", false},
	})
	if k := applyCommand(t, c, create("full", GroupsMax-5, "x")).Keyspace; len(k.Groups) != GroupsMax-5 {
		t.Errorf("the rest of the groups: %+v", k)
	}
	mustTake(t, c, []catalogStep{
		{"it has left", retire(1, "c.1", 3, 2), "", true},
		{"commit", commitSplit(1, 2), "", true},
		{"commit of the other", commitSplit(2, 1), "", true},
		{"drop", drop("k", 1), "", true},
		{"a late Abandon", abandonSplit(1, 1023), "", false},
		{"a late Begun", begun(1024), "", false},
		{"a late commit", commitSplit(1, 2), "has no shard to split", false},
	})
	if v := c.View(); !v.Dropped(1) || !v.Dropped(1024) || len(v.Groups) != GroupsMax-4 {
		t.Errorf("%d groups are left", len(v.Groups))
	}
}

// A mark ends an automatic growth, unless a shard is being split.
func TestMarkEndsAnAutomaticGrowth(t *testing.T) {
	auto := grow("k", 1, 2, 4)
	auto.Grow.Auto = true
	c := growable(t)
	mustTake(t, c, []catalogStep{
		{"automatic growth", auto, "", true},
		{"a mark", markExec("k", 1), "", true},
		{"a commit of that growth", commitSplit(1, 0), "has no shard to split", false},
		{"by an operator", grow("k", 1, 2, 4), "", true},
		{"a copy of the commit", commitSplit(1, 0), "has changed since", false},
		{"a mark again", markExec("k", 1), "", false},
	})
	c = growable(t)
	mustTake(t, c, []catalogStep{
		{"automatic growth", auto, "", true},
		{"commit", commitSplit(1, 0), "", true},
		{"a mark", markExec("k", 1), "", true},
		{"commit of the other", commitSplit(2, 0), "", true},
	})
}

// A created keyspace has never grown.
func TestCreateWithAGrowth(t *testing.T) {
	c := growable(t)
	command := create("l", 1, "x")
	command.Create.Grown, command.Create.Growth, command.Create.Exec = []int{3}, &Growth{Shards: 9}, true
	if k := applyCommand(t, c, command).Keyspace; k.Grown != nil || k.Growth != nil || k.Exec || len(k.Groups) != 1 {
		t.Errorf("created %+v", k)
	}
}

// Below cluster version 2, nodes refuse the commands, because older programs cannot read them.
func TestGrowthNeedsAClusterVersion(t *testing.T) {
	c := New()
	applyCommand(t, c, putNode(aNode("a.1", 2), ""))
	applyCommand(t, c, create("k", 1, "x"))
	for name, command := range map[string]*Command{
		"grow": grow("k", 1, 1, 3), "commit": commitSplit(1, 0), "abandon": abandonSplit(1, 2), "begun": begun(1), "mark": markExec("k", 1),
	} {
		mustTake(t, c, []catalogStep{{name, command, "the cluster's version is 1; growth needs 2", false}})
	}
	mustTake(t, c, []catalogStep{
		{"version 2", setVersion(2), "", true},
		{"mark", markExec("k", 1), "", true},
		{"grow", grow("k", 1, 1, 3), "", true},
	})
}

package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/countd/countd/internal/must"
)

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func setState(key string, state NodeState) *Command {
	return &Command{SetNodeState: &SetNodeStateEntry{Key: key, State: state}}
}

func removeNode(key string) *Command {
	return &Command{RemoveNode: &RemoveNodeEntry{Key: key}}
}

func place(group uint32, was []string, target ...string) *Command {
	return &Command{Place: &PlaceEntry{Group: group, Target: target, Was: was}}
}

func setVersion(version int) *Command {
	return &Command{SetVersion: &SetVersionEntry{Version: version}}
}

func holdVersion(held bool) *Command {
	return &Command{HoldVersion: &HoldVersionEntry{Held: held}}
}

// said returns the text of a refusal, or describes the other fields of a result.
func said(r *Result) string {
	switch {
	case r.Refused != "":
		return r.Refused
	case r.Missing:
		return "missing"
	case r.Exists:
		return "exists"
	}
	return ""
}

// catalogStep is a command with its expected answer, and whether it should change anything. The
// answer is "" if the catalog accepts the command.
type catalogStep struct {
	name    string
	command *Command
	says    string
	changes bool
}

// mustTake applies the steps one after the other. A step must change the state and wake the readers
// exactly if it should change something.
func mustTake(t *testing.T, c *Catalog, steps []catalogStep) {
	t.Helper()
	for _, step := range steps {
		was := c.View()
		before := string(was.encoded())
		got := said(applyCommand(t, c, step.command))
		if got != step.says && (step.says == "" || !strings.Contains(got, step.says)) {
			t.Errorf("%s: answered %q, want %q", step.name, got, step.says)
		}
		now := c.View()
		if string(was.encoded()) != before {
			t.Errorf("%s: changed what a reader holds", step.name)
		}
		if changed := string(now.encoded()) != before; changed != step.changes || changed != isClosed(was.Changed()) || changed != (now.Digest() != was.Digest()) {
			t.Errorf("%s: changed %t, told of %t, want %t", step.name, changed, isClosed(was.Changed()), step.changes)
		}
		if now.Applied != was.Applied+1 {
			t.Errorf("%s: applied %d after %d", step.name, now.Applied, was.Applied)
		}
		if err := now.check(); err != nil {
			t.Errorf("%s: made a state that no snapshot may hold: %v", step.name, err)
		}
	}
}

func statesOf(v *View) map[string]NodeState {
	states := map[string]NodeState{}
	for key, node := range v.Nodes {
		states[key] = node.State
	}
	return states
}

func TestCatalogNodes(t *testing.T) {
	moved, claims, old := aNode("a.1", 3), aNode("a.1", 1), aNode("b.1", 3)
	moved.HTTPAddr, moved.Zone, moved.State = "elsewhere:1", "z9", NodeLeaving // a node cannot change its own State
	claims.Name = "z"
	old.VersionMax = 0
	long := aNode("c.1", 1)
	long.Zone = strings.Repeat("z", nodeTextBytesMax+1)
	c := New()
	mustTake(t, c, []catalogStep{
		{"the first", putNode(aNode("a.1", 1), ""), "", true},
		{"again", putNode(aNode("a.1", 1), ""), "", false},
		{"at another address, a newer version", putNode(moved, ""), "", true},
		{"by another name", putNode(claims, ""), `is named "a"`, false},
		{"without a key", putNode(Node{Name: "x", VersionMax: 1}, ""), "key", false},
		{"without a name", putNode(Node{Key: "x", VersionMax: 1}, ""), "name", false},
		{"without a version", putNode(old, ""), "speaks cluster version 0", false},
		{"in a long zone", putNode(long, ""), "bytes", false},
		{"a second", putNode(aNode("b.1", 3), ""), "", true},
		{"drained", setState("a.1", NodeDraining), "", true},
		{"drained again", setState("a.1", NodeDraining), "", false},
		{"it keeps its state", putNode(aNode("a.1", 3), ""), "", true},
		{"to no state", setState("a.1", "gone"), `state "gone"`, false},
		{"nobody to no state", setState("x", "gone"), "missing", false},
		{"a wiped one, unasked", putNode(aNode("b.2", 3), ""), `node "b.1" has the name`, false},
		{"a wiped one for another", putNode(aNode("b.2", 3), "a.1"), `node "b.1" has the name`, false},
		{"a wiped one", putNode(aNode("b.2", 3), "b.1"), "", true},
		{"the same once more", putNode(aNode("b.2", 3), "b.1"), "", false},
		{"the old one is heard of", putNode(aNode("b.1", 2), ""), "", true},
		{"the old one may not stay", setState("b.1", NodeActive), `node "b.2" has the name`, false},
		{"wiped again", putNode(aNode("b.3", 3), "b.2"), "", true},
	})
	want := map[string]NodeState{"a.1": NodeDraining, "b.1": NodeLeaving, "b.2": NodeLeaving, "b.3": NodeActive}
	if got := statesOf(c.View()); !maps.Equal(got, want) {
		t.Errorf("states %v, want %v", got, want)
	}
	mustTake(t, c, []catalogStep{
		{"remove nobody", removeNode("x"), "missing", false},
		{"remove one that stays", removeNode("b.3"), "is active, not leaving", false},
		{"create at a node that leaves", createAt("k", [][]string{{"b.2", "a.1"}}, 1, "x"), "", true},
		{"remove one in use", removeNode("b.2"), `node "b.2" is in the target of group 1`, false},
		{"remove one of no use", removeNode("b.1"), "", true},
		{"move", place(1, []string{"b.2", "a.1"}, "b.3", "a.1"), "", true},
		{"now remove it", removeNode("b.2"), "", true},
		{"and again", removeNode("b.2"), "missing", false},
	})
	if got := c.View().Groups[1]; !slices.Equal(got.Initial, []string{"b.2", "a.1"}) || !slices.Equal(got.Target, []string{"b.3", "a.1"}) {
		t.Errorf("group 1 is at %+v", got)
	}
}

func TestCatalogTakesSoManyNodes(t *testing.T) {
	c := New()
	for i := range NodesMax {
		applyCommand(t, c, putNode(aNode(fmt.Sprintf("n%d.1", i), 1), ""))
	}
	mustTake(t, c, []catalogStep{
		{"too many", putNode(aNode("more.1", 1), ""), "the most", false},
		{"one that is there", putNode(aNode("n3.1", 2), ""), "", true},
		{"it leaves", setState("n5.1", NodeLeaving), "", true},
		{"it is gone", removeNode("n5.1"), "", true},
		{"another", putNode(aNode("more.1", 1), ""), "", true},
	})
}

func TestCatalogPlacements(t *testing.T) {
	c := New()
	var six []string
	for i := range 6 {
		six = append(six, fmt.Sprintf("n%d.1", i))
		applyCommand(t, c, putNode(aNode(six[i], 1), ""))
	}
	two := [][]string{six[:3], six[2:5]}
	mustTake(t, c, []catalogStep{
		{"replicas of too few shards", createAt("k", two[:1], 2, "x"), "replicas of 1 shards", false},
		{"replicas of too many", createAt("k", two, 1, "x"), "replicas of 2 shards", false},
		{"no shards", createAt("k", nil, 0, "x"), "0 shards", false},
		{"no name", createAt("", two, 2, "x"), `""`, false},
		{"too many columns", createAt("k", two, 2, numberedColumns(65)...), "65 columns", false},
		{"at nobody", createAt("k", [][]string{six[:3], {}}, 2, "x"), "shard 1: 0 replicas", false},
		{"at six nodes", createAt("k", [][]string{six, six[:1]}, 2, "x"), "shard 0: 6 replicas", false},
		{"at a stranger", createAt("k", [][]string{{"n1.1", "x"}, six[:1]}, 2, "x"), `shard 0: there is no node "x"`, false},
		{"twice at one", createAt("k", [][]string{{"n1.1", "n1.1"}, six[:1]}, 2, "x"), `node "n1.1" is there twice`, false},
		{"create", createAt("k", two, 2, "x"), "", true},
		{"create again", createAt("k", nil, 0), "exists", false},
		{"at five nodes", createAt("wide", [][]string{six[:5]}, 1, "x"), "", true},

		{"the catalog's own", place(Group, nil, six[:3]...), "", true},
		{"the catalog's own, anew", place(Group, nil, six[3:]...), "the target of group 0 is", false},
		{"the catalog's own, moved", place(Group, six[:3], six[1:4]...), "", true},
		{"a group that is not there", place(4, nil, six[:3]...), "no group 4", false},
		{"of another target", place(1, six[1:4], six[:3]...), "the target of group 1 is", false},
		{"of the target in another order", place(1, []string{"n1.1", "n0.1", "n2.1"}, six[3:]...), "the target of group 1 is", false},
		{"to nobody", place(1, six[:3]), "0 replicas", false},
		{"to a stranger", place(1, six[:3], "x"), `no node "x"`, false},
		{"to where it is", place(1, six[:3], six[:3]...), "", false},
		{"moved", place(1, six[:3], six[3:]...), "", true},
		{"moved by two at once", place(1, six[:3], six[1:4]...), "the target of group 1 is", false},
	})
	v := c.View()
	for group, want := range map[uint32]Placement{
		0: {Initial: six[:3], Target: six[1:4]},
		1: {Initial: six[:3], Target: six[3:]},
		2: {Initial: six[2:5], Target: six[2:5]},
		3: {Initial: six[:5], Target: six[:5]},
	} {
		if got := v.Groups[group]; !slices.Equal(got.Initial, want.Initial) || !slices.Equal(got.Target, want.Target) {
			t.Errorf("group %d is at %+v, want %+v", group, got, want)
		}
	}
	if len(v.Groups) != 4 || v.NextGroup != 4 {
		t.Errorf("%d groups, the next is %d", len(v.Groups), v.NextGroup)
	}
}

func TestCatalogVersion(t *testing.T) {
	c := New()
	mustTake(t, c, []catalogStep{
		{"without a node", setVersion(2), "not all nodes speak", false},
		{"one that speaks 3", putNode(aNode("a.1", 3), ""), "", true},
		{"one that speaks 2", putNode(aNode("b.1", 2), ""), "", true},
		{"the same", setVersion(1), "", false},
		{"down", setVersion(0), "does not go down", false},
		{"beyond one node", setVersion(3), "the highest of all is 2", false},
		{"held", holdVersion(true), "", true},
		{"held again", holdVersion(true), "", false},
		{"up while held", setVersion(2), "is held at 1", false},
		{"let go", holdVersion(false), "", true},
		{"up", setVersion(2), "", true},
		{"down again", setVersion(1), "does not go down", false},
		{"an old program", putNode(aNode("c.1", 1), ""), "the cluster speaks version 2", false},
		{"an old program in a node", putNode(aNode("a.1", 1), ""), "the cluster speaks version 2", false},
		{"the last has been upgraded", putNode(aNode("b.1", 3), ""), "", true},
		{"up again", setVersion(3), "", true},
	})
	if v := c.View(); v.ClusterVersion != 3 || v.VersionHeld || v.VersionMax() != 3 {
		t.Errorf("version %d, held %t, all speak %d", v.ClusterVersion, v.VersionHeld, v.VersionMax())
	}
}

// While commands are applied, readers of the catalog see that
//
//  1. each view is consistent;
//  2. the index never goes back;
//  3. a reader that waits on Changed always sees the last state.
func TestCatalogIsFollowed(t *testing.T) {
	c := New()
	const last = 200
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			deadline := time.After(must.BecomeMax)
			for index := uint64(0); ; {
				v := c.View()
				if v.Applied < index {
					t.Errorf("applied %d after %d", v.Applied, index)
				}
				index = v.Applied
				if err := v.check(); err != nil {
					t.Error(err)
				}
				if v.Nodes["a.1"].VersionMax == last {
					return
				}
				select {
				case <-v.Changed():
				case <-deadline:
					t.Error("the last change was not told of")
					return
				}
			}
		})
	}
	for version := 1; version <= last; version++ {
		applyCommand(t, c, putNode(aNode("a.1", version), ""))
		applyCommand(t, c, setVersion(1)) // which changes nothing
	}
	wg.Wait()
}

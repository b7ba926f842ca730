package catalog

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestReplicaID(t *testing.T) {
	for _, c := range []struct {
		node   string
		number uint64
		id     string
	}{
		{"n1.5f3a9c01", 0, "n1.5f3a9c01"},
		{"n1.5f3a9c01", 7, "n1.5f3a9c01#7"},
		{"a", 1<<64 - 1, "a#18446744073709551615"},
	} {
		if id := ReplicaID(c.node, c.number); id != c.id {
			t.Errorf("%s, %d: %s", c.node, c.number, id)
		}
		if node, number := ParseReplicaID(c.id); node != c.node || number != c.number {
			t.Errorf("%s: %s, %d", c.id, node, number)
		}
	}
}

func retire(group uint32, node string, number, revision uint64) *Command {
	return &Command{Retire: &RetireEntry{Group: group, Node: node, Number: number, Revision: revision}}
}

func mustHaveReplicas(t *testing.T, c *Catalog, group uint32, next uint64, want map[string]uint64) {
	t.Helper()
	p := c.View().Groups[group]
	if !maps.Equal(p.Replicas, want) || p.NextReplica != next {
		t.Errorf("group %d has replicas %v, the next is %d, want %v and %d", group, p.Replicas, p.NextReplica, want, next)
	}
	if err := c.View().check(); err != nil {
		t.Error(err)
	}
}

// The catalog gives each number only once. A node keeps its number until the number is retired.
// Then it gets another number.
func TestReplicaNumbers(t *testing.T) {
	c := New()
	for _, key := range []string{"a.1", "b.1", "c.1", "d.1"} {
		applyCommand(t, c, putNode(aNode(key, 5), ""))
	}
	mustTake(t, c, []catalogStep{
		{"version", setVersion(5), "", true},
		{"create", createAt("k", [][]string{{"a.1", "b.1", "c.1"}}, 1, "x"), "", true},
	})
	mustHaveReplicas(t, c, 1, 4, map[string]uint64{"a.1": 1, "b.1": 2, "c.1": 3})
	p := c.View().Groups[1]
	if ids := []string{p.InitialID(0), p.InitialID(2)}; !slices.Equal(ids, []string{"a.1#1", "c.1#3"}) {
		t.Errorf("it begins with %v", ids)
	}
	mustTake(t, c, []catalogStep{
		{"c goes, d comes", place(1, []string{"a.1", "b.1", "c.1"}, "a.1", "b.1", "d.1"), "", true},
		{"one that is to be there", retire(1, "a.1", 1, 1), "is to have a replica", false},
		{"of an earlier placement", retire(1, "c.1", 3, 0), "has changed since", false},
		{"of another number", retire(1, "c.1", 2, 1), "", false},
		{"of no group", retire(9, "c.1", 3, 1), "", false},
	})
	mustHaveReplicas(t, c, 1, 5, map[string]uint64{"a.1": 1, "b.1": 2, "c.1": 3, "d.1": 4})
	mustTake(t, c, []catalogStep{
		{"c is back before it was retired", place(1, []string{"a.1", "b.1", "d.1"}, "a.1", "c.1", "d.1"), "", true},
		{"a late one", retire(1, "c.1", 3, 1), "has changed since", false},
		{"b", retire(1, "b.1", 2, 2), "", true},
		{"b again", retire(1, "b.1", 2, 2), "", false},
	})
	p = c.View().Groups[1]
	if p.Retired("c.1", 3) || !p.Retired("b.1", 2) || p.Retired("b.1", 5) || !p.Retired("c.1", 0) {
		t.Errorf("retired: %+v", p)
	}
	mustTake(t, c, []catalogStep{{"b is back", place(1, []string{"a.1", "c.1", "d.1"}, "b.1", "c.1", "d.1"), "", true}})
	mustHaveReplicas(t, c, 1, 6, map[string]uint64{"a.1": 1, "b.1": 5, "c.1": 3, "d.1": 4})
}

// The catalog also numbers the replicas of a node that joins, and the replicas that are added when
// Everywhere of a keyspace is set.
func TestReplicaNumbersEverywhere(t *testing.T) {
	c := New()
	applyCommand(t, c, putNode(aNode("a.1", 5), ""))
	applyCommand(t, c, putNode(aNode("b.1", 5), ""))
	everywhere := func(on bool) *Command {
		return &Command{SetEverywhere: &SetEverywhereEntry{Keyspace: "k", Everywhere: on}}
	}
	mustTake(t, c, []catalogStep{
		{"version", setVersion(5), "", true},
		{"create", createAt("k", [][]string{{"a.1"}}, 1, "x"), "", true},
		{"everywhere", everywhere(true), "", true},
	})
	mustHaveReplicas(t, c, 1, 3, map[string]uint64{"a.1": 1, "b.1": 2})
	mustTake(t, c, []catalogStep{
		{"a node joins", putNode(aNode("c.1", 5), ""), "", true},
		{"while it is everywhere", retire(1, "c.1", 3, 1), "is to have a replica", false},
		{"not everywhere", everywhere(false), "", true},
		{"of when it was", retire(1, "c.1", 3, 1), "has changed since", false},
		{"c", retire(1, "c.1", 3, 2), "", true},
	})
	mustHaveReplicas(t, c, 1, 4, map[string]uint64{"a.1": 1, "b.1": 2})
}

// TestReplicaNumbersAreGivenOnce applies random commands and checks:
//
//  1. A node that should have a replica has a number.
//  2. A number that a node has lost stays retired, and no node gets it again.
//  3. The view passes its check.
func TestReplicaNumbersAreGivenOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := New().View()
		do := func(command *Command) { v, _ = v.After(command) }
		nodes := []string{"a.1", "b.1", "c.1", "d.1", "e.1"}
		for _, key := range nodes[:4] {
			do(putNode(aNode(key, 5), ""))
		}
		do(createAt("k", [][]string{nodes[:3]}, 1, "x"))
		given := map[uint64]string{}
		gone := map[string]bool{}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			p := v.Groups[1]
			node := rapid.SampledFrom(nodes).Draw(t, "node")
			before := p.Replicas
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0, 1:
				target := slices.Clone(p.Target)
				if i := slices.Index(target, node); i >= 0 {
					target = slices.Delete(target, i, i+1)
				} else {
					target = append(target, node)
				}
				do(place(1, p.Target, target...))
			case 2, 3:
				revision := p.Revision - uint64(rapid.IntRange(0, 1).Draw(t, "behind"))
				do(retire(1, node, p.Replicas[node], revision))
			case 4:
				do(&Command{SetEverywhere: &SetEverywhereEntry{Keyspace: "k", Everywhere: rapid.Bool().Draw(t, "on")}})
			case 5:
				do(putNode(aNode("e.1", 5), ""))
			}
			if err := v.check(); err != nil {
				t.Fatal(err)
			}
			p = v.Groups[1]
			for node, number := range before {
				if now, has := p.Number(node); !has || now != number {
					gone[ReplicaID(node, number)] = true
				}
			}
			for node, number := range p.Replicas {
				if gone[ReplicaID(node, number)] {
					t.Fatalf("%s is back", ReplicaID(node, number))
				}
				if other := given[number]; other != "" && other != node {
					t.Fatalf("%s and %s were both given %d", node, other, number)
				}
				given[number] = node
			}
			for _, node := range nodes {
				if _, has := p.Number(node); v.MayHold(1, node) && !has {
					t.Fatalf("%s has no number", node)
				}
			}
			for id := range gone {
				if node, number := ParseReplicaID(id); !p.Retired(node, number) {
					t.Fatalf("%s is not retired", id)
				}
			}
		}
	})
}

func TestReplicaNumbersThatNoCommandsGive(t *testing.T) {
	c := New()
	applyCommand(t, c, putNode(aNode("a.1", 5), ""))
	applyCommand(t, c, putNode(aNode("b.1", 5), ""))
	applyCommand(t, c, createAt("k", [][]string{{"a.1", "b.1"}}, 1, "x"))
	for _, test := range []struct {
		name, want string
		spoil      func(*View, *Placement)
	}{
		{"one above the next", "the next is", func(_ *View, p *Placement) { p.Replicas["a.1"] = 9 }},
		{"one twice", "both have replica 2", func(_ *View, p *Placement) { p.Replicas["a.1"] = 2 }},
		{"none", "which has no number", func(_ *View, p *Placement) { delete(p.Replicas, "a.1") }},
		{"none is next", "the next is 0", func(_ *View, p *Placement) { p.NextReplica = 0 }},
		{"first ones that are to come", "begin with number 7", func(_ *View, p *Placement) { p.FirstReplica = 7 }},
	} {
		v := *c.View()
		v.ownMaps()
		p := v.Groups[1]
		p.Replicas = maps.Clone(p.Replicas)
		test.spoil(&v, &p)
		v.Groups[1] = p
		if err := v.check(); err == nil || !strings.Contains(fmt.Sprint(err), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

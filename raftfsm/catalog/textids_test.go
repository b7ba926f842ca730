package catalog

import (
	"maps"
	"slices"
	"testing"

	"github.com/countd/countd/raftfsm/codec"
)

func createTexts(name, names string, replicas [][]string) *Command {
	c := createAt(name, replicas, 1, "x")
	c.Create.Names = names
	return c
}

// One command creates a keyspace whose ids are texts and its names keyspace, and one drops both. Other
// keyspaces may use the names of an existing one. Names never grow, and nothing else creates or drops them.
func TestKeyspacesOfTexts(t *testing.T) {
	c := growable(t)
	names := createAt("own", [][]string{{"a.1"}}, 1)
	names.Create.Kind = codec.KindNames.String()
	mustTake(t, c, []catalogStep{
		{"names alone", names, "without one whose ids are texts", false},
		{"names of nobody", createTexts("posts", "users@ids", [][]string{{"a.1"}}), "which gives no numbers", false},
		{"names of numbers", createTexts("posts", "k", [][]string{{"a.1"}}), "which gives no numbers", false},
		{"too few replicas", createTexts("users", "users@ids", [][]string{{"a.1"}}), "replicas of 1 shards, the keyspace has 2", false},
		{"both", createTexts("users", "users@ids", [][]string{{"a.1"}, {"b.1"}}), "", true},
		{"again", createTexts("users", "users@ids", [][]string{{"a.1"}, {"b.1"}}), "exists", false},
		{"another with the same names", createTexts("feed", "users@ids", [][]string{{"a.1"}}), "", true},
		{"names of names", createTexts("users@ids", "users@ids@ids", [][]string{{"a.1"}, {"a.1"}}), "exists", false},
		{"growth of names", grow("users@ids", 4, 1, 3), "always has one shard", false},
		{"growth of the keyspace", grow("users", 3, 1, 3), "", true},
		{"withdrawn", grow("users", 3, 1, 1), "", true},
		{"names alone", drop("users@ids", 4), "dropped only with", false},
	})
	v := c.View()
	if k := v.Keyspaces["users@ids"]; k.Kind != "names" || k.Divisor != 1 || !slices.Equal(k.Groups, []uint32{4}) || !slices.Equal(v.Groups[4].Target, []string{"b.1"}) {
		t.Errorf("names %+v at %+v", k, v.Groups[4])
	}
	mustTake(t, c, []catalogStep{{"another with the same names", drop("feed", 5), "", true}, {"both", drop("users", 3), "", true}})
	if v := c.View(); !v.Dropped(3) || !v.Dropped(4) || len(v.Keyspaces) != 1 {
		t.Errorf("left %v", slices.Collect(maps.Keys(v.Keyspaces)))
	}
	mustTake(t, c, []catalogStep{{"both again", createTexts("users", "users@ids", [][]string{{"a.1"}, {"b.1"}}), "", true}})
	if k := c.View().Keyspaces["users@ids"]; k.FirstGroup() != 7 {
		t.Errorf("the later names are of group %d", k.FirstGroup())
	}
}

// The names keyspace counts for the bounds of a cluster.
func TestBoundsCountNames(t *testing.T) {
	c := growable(t)
	for i := range KeyspacesMax - 2 {
		applyCommand(t, c, create("other"+string(rune('a'+i%26))+string(rune('a'+i/26)), 1, "x"))
	}
	if got := applyCommand(t, c, createTexts("users", "users@ids", [][]string{{"a.1"}, {"b.1"}})); got.Bound != BoundKeyspaces {
		t.Errorf("with a place for one: %+v", got)
	}
	if got := applyCommand(t, c, create("users", 1, "x")); got.Refused != "" {
		t.Errorf("one: %+v", got)
	}
}

// In cluster version 1, no ids are texts.
func TestTextsNeedAVersion(t *testing.T) {
	c := New()
	applyCommand(t, c, putNode(aNode("a.1", 2), ""))
	mustTake(t, c, []catalogStep{{"texts", createTexts("users", "users@ids", [][]string{{"a.1"}, {"a.1"}}), "texts need 2", false}})
}

// A names keyspace is everywhere as long as a keyspace whose ids it names is, and is never set by itself.
func TestNamesAreEverywhereWithTheirKeyspaces(t *testing.T) {
	c := growable(t)
	everywhere := func(name string, on bool) *Command {
		return &Command{SetEverywhere: &SetEverywhereEntry{Keyspace: name, Everywhere: on}}
	}
	mustTake(t, c, []catalogStep{
		{"both", createTexts("users", "users@ids", [][]string{{"a.1"}, {"b.1"}}), "", true},
		{"another with the same names", createTexts("feed", "users@ids", [][]string{{"a.1"}}), "", true},
	})
	mustBe := func(step string, want bool) {
		t.Helper()
		names := c.View().Keyspaces["users@ids"]
		if at := c.View().Groups[names.FirstGroup()]; names.Everywhere != want || !c.View().EveryNode(names.FirstGroup()) == want || want && len(at.Replicas) != len(c.View().Nodes) {
			t.Errorf("%s: names everywhere: %v, at %+v", step, names.Everywhere, at)
		}
	}
	for _, step := range []struct {
		name     string
		on, want bool
	}{{"k", true, false}, {"users", true, true}, {"feed", true, true}, {"users", false, true}, {"feed", false, false}, {"feed", true, true}} {
		mustTake(t, c, []catalogStep{{step.name, everywhere(step.name, step.on), "", true}})
		mustBe(step.name, step.want)
	}
	mustTake(t, c, []catalogStep{{"names alone", everywhere("users@ids", false), "everywhere if one whose ids it names is", false}})
	mustTake(t, c, []catalogStep{{"drop of the last one everywhere", drop("feed", c.View().Keyspaces["feed"].Groups[0]), "", true}})
	mustBe("after the drop", false)
}

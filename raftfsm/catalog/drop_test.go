package catalog

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm/codec"
)

func drop(keyspace string, first uint32) *Command {
	return &Command{Drop: &DropEntry{Keyspace: keyspace, FirstGroup: first}}
}

func dropColumn(keyspace string, first uint32, column string, number int) *Command {
	return &Command{DropColumn: &DropColumnEntry{Keyspace: keyspace, FirstGroup: first, Column: column, Number: number}}
}

// droppable is a catalog of one node.
func droppable(t *testing.T) *Catalog {
	t.Helper()
	c := New()
	applyCommand(t, c, putNode(aNode("a.1", 5), ""))
	return c
}

// A drop drops only its keyspace. A copy of the drop does not drop a later keyspace of the same
// name.
func TestDropKeyspace(t *testing.T) {
	c := droppable(t)
	first := applyCommand(t, c, create("k", 2, "x")).Keyspace
	other := applyCommand(t, c, create("other", 1, "x")).Keyspace
	was := c.View()
	if got := applyCommand(t, c, drop("k", first.FirstGroup())); !reflect.DeepEqual(got.Keyspace, first) || got.Missing || got.Refused != "" {
		t.Fatalf("dropped: %+v", got)
	}
	if len(was.Groups) != 3 || was.Dropped(1) {
		t.Error("a reader's view has changed")
	}
	if got := applyCommand(t, c, drop("k", first.FirstGroup())); !got.Missing {
		t.Errorf("dropped twice: %+v", got)
	}
	again := applyCommand(t, c, create("k", 2, "y")).Keyspace
	if again.FirstGroup() <= other.FirstGroup() {
		t.Errorf("a new keyspace has groups from %d on", again.FirstGroup())
	}
	if got := applyCommand(t, c, drop("k", first.FirstGroup())); !got.Missing {
		t.Errorf("a copy of the drop dropped the next of the name: %+v", got)
	}
	v := c.View()
	for group, want := range map[uint32]bool{Group: false, 1: true, 2: true, 3: false, 4: false, 5: false, 6: false} {
		if v.Dropped(group) != want {
			t.Errorf("group %d is dropped: %v", group, !want)
		}
	}
	for name, command := range map[string]*Command{
		"retire": retire(1, "a.1", 1, 0), "place": place(1, []string{"a.1"}, "a.1"),
	} {
		if applyCommand(t, c, command); len(c.View().Groups) != 3 {
			t.Errorf("%s brought a group back", name)
		}
	}
}

// No column gets the number of a dropped one. A later column of the same name has another number,
// and a copy of the drop does not drop it.
func TestDropColumn(t *testing.T) {
	c := droppable(t)
	k := create("k", 1, "x", "y", "z")
	k.Create.Floors = map[string]int64{"y": 0, "z": 1}
	applyCommand(t, c, k)
	for _, step := range []struct {
		name             string
		command          *Command
		missing, refused bool
		after            []string
		floors           map[string]int64
	}{
		{"y", dropColumn("k", 1, "y", 1), false, false, []string{"x", "", "z"}, map[string]int64{"z": 1}},
		{"y again", dropColumn("k", 1, "y", 1), true, false, []string{"x", "", "z"}, map[string]int64{"z": 1}},
		{"a new y", addColumns("k", "y"), false, false, []string{"x", "", "z", "y"}, map[string]int64{"z": 1}},
		{"a copy of the drop", dropColumn("k", 1, "y", 1), true, false, []string{"x", "", "z", "y"}, map[string]int64{"z": 1}},
		{"no name", dropColumn("k", 1, "", 1), true, false, []string{"x", "", "z", "y"}, map[string]int64{"z": 1}},
		{"of another keyspace", dropColumn("k", 9, "x", 0), true, false, []string{"x", "", "z", "y"}, map[string]int64{"z": 1}},
		{"past the end", dropColumn("k", 1, "w", -1), true, false, []string{"x", "", "z", "y"}, map[string]int64{"z": 1}},
		{"z", dropColumn("k", 1, "z", 2), false, false, []string{"x", "", "", "y"}, nil},
		{"x", dropColumn("k", 1, "x", 0), false, false, []string{"", "", "", "y"}, nil},
		{"the last", dropColumn("k", 1, "y", 3), false, true, []string{"", "", "", "y"}, nil},
	} {
		got := applyCommand(t, c, step.command)
		now := c.View().Keyspaces["k"]
		if got.Missing != step.missing || (got.Refused != "") != step.refused {
			t.Errorf("%s: %+v", step.name, got)
		}
		if !slices.Equal(now.Columns, step.after) || !maps.Equal(now.Floors, step.floors) {
			t.Errorf("%s: columns %q, floors %v", step.name, now.Columns, now.Floors)
		}
		if err := c.View().check(); err != nil {
			t.Errorf("%s: %v", step.name, err)
		}
	}
	if got := applyCommand(t, c, addColumns("k", numberedColumns(engine.ColumnsMax-4)...)); got.Full {
		t.Errorf("filled up: %+v", got)
	}
	if got := applyCommand(t, c, addColumns("k", "x")); !got.Full {
		t.Errorf("a number was used again: %+v", got)
	}
}

// TestDropsOfAnyOrder applies random commands and checks:
//
//  1. A group whose keyspace was dropped counts as dropped in every later view, and no keyspace
//     gets its number again.
//  2. Bounds count only existing keyspaces and groups.
//  3. A column's number never gets another name, and no name at all after a drop.
//  4. A snapshot restores the same view.
//  5. A change of Everywhere affects only the groups of its keyspace.
//
// All this also holds for groups whose numbers are not consecutive.
func TestDropsOfAnyOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		v := New().View()
		do := func(command *Command) *Result {
			entry, err := AppendEntry(nil, command)
			if err != nil {
				t.Fatal(err)
			}
			if command, err = parseEntry(entry); err != nil {
				t.Fatal(err)
			}
			next, result := v.After(command)
			v = next
			return result
		}
		do(putNode(aNode("a.1", 5), ""))
		do(setVersion(5))
		gone := map[uint32]bool{}
		named := map[string]string{} // first group and number of a column → name of the column
		names, columns := []string{"k", "l"}, []string{"x", "y", "z"}
		for range rapid.IntRange(1, 50).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "keyspace")
			column := rapid.SampledFrom(columns).Draw(t, "column")
			k, there := v.Keyspaces[name]
			late := uint32(rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "late"))
			switch rapid.IntRange(0, 5).Draw(t, "step") {
			case 0:
				shards := rapid.SampledFrom([]int{1, 3, GroupsMax - 2}).Draw(t, "shards")
				placed := v.shardsPlaced()
				got := do(create(name, shards, column))
				if fits := placed+shards <= GroupsMax; !there && (got.Refused == "") != fits {
					t.Fatalf("%d shards beside %d: %+v", shards, placed, got)
				}
			case 1:
				if got := do(drop(name, k.FirstGroup()-late)); got.Missing == (there && late == 0) {
					t.Fatalf("drop of %s, late by %d: %+v", name, late, got)
				} else if !got.Missing {
					for _, group := range k.Groups {
						gone[group] = true
					}
				}
			case 2:
				do(addColumns(name, column))
			case 3:
				do(dropColumn(name, k.FirstGroup()-late, column, slices.Index(k.Columns, column)))
			case 4:
				if placed := v.shardsPlaced(); there && placed+len(k.Groups) <= GroupsMax {
					do(grow(name, k.FirstGroup(), len(k.Groups), 2*len(k.Groups)))
					for _, parent := range k.Groups {
						do(commitSplit(parent, v.Groups[parent].Revision))
						grown := v.Keyspaces[name]
						a := grown.attempt(parent)
						gone[a.Number] = true // the number of an attempt is no group
						do(begun(a.Children[0]))
					}
				}
			case 5:
				before := v.Groups
				do(&Command{SetEverywhere: &SetEverywhereEntry{Keyspace: name, Everywhere: !k.Everywhere}})
				for group, p := range v.Groups {
					if changed := p.Revision != before[group].Revision; changed != slices.Contains(k.Groups, group) {
						t.Fatalf("group %d of %s has another revision: %t", group, v.keyspaceOf(group).Name, changed)
					}
				}
			}
			if err := v.check(); err != nil {
				t.Fatal(err)
			}
			for _, from := range []uint32{0, max(v.NextGroup, 50) - 50} {
				for group := from; group < from+60; group++ {
					if v.Dropped(group) != gone[group] {
						t.Fatalf("group %d is dropped: %v", group, v.Dropped(group))
					}
				}
			}
			for _, k := range v.Keyspaces {
				for _, group := range k.Groups {
					if v.EveryNode(group) != k.Everywhere || v.keyspaceOf(group).Name != k.Name {
						t.Fatalf("group %d of %s is everywhere: %t", group, k.Name, !k.Everywhere)
					}
				}
				for number, column := range k.Columns {
					at := fmt.Sprint(k.FirstGroup(), number)
					if was, seen := named[at]; seen && column != was && column != "" {
						t.Fatalf("column %d of %s was %q and is %q", number, k.Name, was, column)
					}
					named[at] = column
				}
			}
		}
		c := New()
		if err := rafttest.Restore(c, rafttest.StreamOf(codec.KindCatalog, 1, []rafttest.Part{{Kind: codec.StreamCatalog, Payload: v.encoded()}}, uint64(len(v.Keyspaces)), v.Digest())); err != nil {
			t.Fatal(err)
		}
		if string(c.View().encoded()) != string(v.encoded()) {
			t.Fatal("a restored catalog is another")
		}
	})
}

func TestDropEntryBytesAreGolden(t *testing.T) {
	for name, command := range map[string]*Command{
		"drop": drop("songs", 33), "drop-column": dropColumn("songs", 33, "like", 2),
	} {
		entry, err := AppendEntry(nil, command)
		if err != nil {
			t.Fatal(err)
		}
		rafttest.Golden(t, "entry-catalog-"+name+".bin", entry)
	}
}

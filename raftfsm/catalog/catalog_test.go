package catalog

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/engine"
	"pgregory.net/rapid"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm/codec"
)

// aNode is a node of a catalog; its name is its key up to the first dot.
func aNode(key string, versionMax int) Node {
	name, _, _ := strings.Cut(key, ".")
	return Node{
		Key: key, Name: name, Zone: "z-" + name, HTTPAddr: name + ":7400", ClusterAddr: name + ":7401", GossipAddr: name + ":7402",
		Version: "1.0.0", VersionMax: versionMax,
	}
}

func putNode(node Node, replaces string) *Command {
	return &Command{PutNode: &PutNodeEntry{Node: node, Replaces: replaces}}
}

// create returns a command for a keyspace whose shards are all at node a.1.
func create(name string, shards int, columns ...string) *Command {
	return createAt(name, slices.Repeat([][]string{{"a.1"}}, max(shards, 0)), shards, columns...)
}

func createAt(name string, replicas [][]string, shards int, columns ...string) *Command {
	return &Command{Create: &CreateEntry{
		Keyspace: Keyspace{Name: name, Kind: "counters", Columns: columns, Divisor: shards}, Replicas: replicas,
	}}
}

func addColumns(name string, columns ...string) *Command {
	return &Command{AddColumns: &AddColumnsEntry{Keyspace: name, Columns: columns}}
}

func applyCommand(t rapid.TB, c *Catalog, command *Command) *Result {
	t.Helper()
	entry, err := AppendEntry(nil, command)
	if err != nil {
		t.Fatal(err)
	}
	result := c.Apply(rafttest.Next(c, entry)).(*Result)
	if err := c.View().check(); err != nil {
		t.Fatal(err)
	}
	return result
}

func numberedColumns(n int) []string {
	columns := make([]string, n)
	for i := range columns {
		columns[i] = fmt.Sprintf("c%d", i)
	}
	return columns
}

func TestCatalogKeyspaces(t *testing.T) {
	posts := Keyspace{Name: "posts", Kind: "counters", Columns: []string{"like"}, Divisor: 4, Groups: []uint32{1, 2, 3, 4}}
	wider := posts
	wider.Columns = []string{"like", "view", "share"}
	users := Keyspace{Name: "users", Kind: "counters", Columns: []string{"a"}, Divisor: 1, Groups: []uint32{5}}
	full := Keyspace{Name: "full", Kind: "counters", Columns: numberedColumns(engine.ColumnsMax), Divisor: 2, Groups: []uint32{6, 7}}
	c := New()
	applyCommand(t, c, putNode(aNode("a.1", 1), ""))
	for _, step := range []struct {
		name    string
		command *Command
		want    Result
		after   []Keyspace
	}{
		{"columns of nothing", addColumns("posts", "like"), Result{Missing: true}, nil},
		{"create", create("posts", 4, "like"), Result{Keyspace: posts}, []Keyspace{posts}},
		{"create again", create("posts", 4, "like"), Result{Keyspace: posts, Exists: true}, []Keyspace{posts}},
		{"create otherwise", create("posts", 9, "x"), Result{Keyspace: posts, Exists: true}, []Keyspace{posts}},
		{"groups go on", create("users", 1, "a"), Result{Keyspace: users}, []Keyspace{posts, users}},
		{"columns, one there, one double", addColumns("posts", "view", "like", "share", "view"), Result{Keyspace: wider}, []Keyspace{wider, users}},
		{"the same columns", addColumns("posts", "share"), Result{Keyspace: wider}, []Keyspace{wider, users}},
		{"the most columns", create("full", 2, numberedColumns(engine.ColumnsMax)...), Result{Keyspace: full}, []Keyspace{full, wider, users}},
		{"one more", addColumns("full", "c3", "more"), Result{Keyspace: full, Full: true}, []Keyspace{full, wider, users}},
		{"none more", addColumns("full", "c3"), Result{Keyspace: full}, []Keyspace{full, wider, users}},
	} {
		before := c.Keyspaces()
		was := slices.Clone(before)
		got := applyCommand(t, c, step.command)
		if !reflect.DeepEqual(*got, step.want) {
			t.Errorf("%s: %+v, want %+v", step.name, *got, step.want)
		}
		if after := c.Keyspaces(); !reflect.DeepEqual(after, step.after) && len(after)+len(step.after) > 0 {
			t.Errorf("%s: keyspaces %+v, want %+v", step.name, after, step.after)
		}
		if !reflect.DeepEqual(before, was) {
			t.Errorf("%s: changed what a reader holds", step.name)
		}
	}
	if c.Applied() != 11 {
		t.Errorf("applied %d", c.Applied())
	}
}

// The state machine itself checks the bounds. So two concurrent commands cannot exceed a bound
// together.
func TestCatalogBounds(t *testing.T) {
	c := New()
	applyCommand(t, c, putNode(aNode("a.1", 1), ""))
	must := func(want Bound, command *Command) {
		t.Helper()
		got := applyCommand(t, c, command)
		if got.Bound != want || (got.Refused != "") != (want != "") {
			t.Errorf("%s: %+v, want bound %q", command.Create.Name, got, want)
		}
	}
	must("", create("large", GroupsMax-KeyspacesMax, "a"))
	for i := range KeyspacesMax - 2 {
		must("", create(fmt.Sprintf("k%d", i), 1, "a"))
	}
	must(BoundGroups, create("last", 3, "a"))
	must("", create("last", 2, "a"))
	must(BoundKeyspaces, create("more", 1, "a"))
	if got := applyCommand(t, c, create("last", 2, "a")); !got.Exists {
		t.Errorf("one that is there: %+v", got)
	}
	if view := c.View(); len(view.Keyspaces) != KeyspacesMax || len(view.Groups) != GroupsMax {
		t.Errorf("%d keyspaces, %d groups", len(view.Keyspaces), len(view.Groups))
	}
}

func TestCatalogRefusesWhatIsNoCommand(t *testing.T) {
	sealed := func(body string) []byte {
		dst := []byte{1, byte(codec.KindCatalog), 0, codec.SectionCatalog, byte(len(body)), 0, 0, 0}
		return codec.AppendChecksum(append(dst, body...))
	}
	for name, entry := range map[string][]byte{
		"nothing":        sealed(`{}`),
		"two things":     sealed(`{"create":{"name":"a"},"add_columns":{"keyspace":"a"}}`),
		"two of nodes":   sealed(`{"remove_node":{"key":"a"},"set_node_state":{"key":"a","state":"leaving"}}`),
		"unknown member": sealed(`{"rename":"a"}`),
		"no JSON":        sealed(`{`),
		"more behind":    sealed(`{"create":{"name":"a"}}{}`),
		"counter ops": codec.AppendChecksum(append(codec.BeginEntry(nil, codec.KindCounters, 0),
			codec.SectionRequest, 15, 0, 0, 0, 1, 0, 0, 0, byte(engine.OpAdd), 1, 0, 0, 0, 0, 0, 0, 0, 0, 2)),
		"no section": codec.AppendChecksum([]byte{1, byte(codec.KindCatalog), 0}),
		"empty":      nil,
	} {
		t.Run(name, func(t *testing.T) {
			c := New()
			if err := rafttest.ApplyError(c, rafttest.Command(1, entry)); err == nil || !errors.Is(err, codec.ErrEntry) {
				t.Errorf("panicked with %v", err)
			}
			if c.Applied() != 0 || len(c.Keyspaces()) != 0 {
				t.Error("it left a trace")
			}
		})
	}
}

func TestCatalogEverywhere(t *testing.T) {
	c := New()
	applyCommand(t, c, putNode(aNode("a.1", 2), ""))
	applyCommand(t, c, create("users", 2, "posts"))
	everywhere := func(keyspace string, on bool) *Command {
		return &Command{SetEverywhere: &SetEverywhereEntry{Keyspace: keyspace, Everywhere: on}}
	}
	board := create("board", 1)
	board.Create.Kind = "board"
	applyCommand(t, c, board)
	born := create("born", 1, "a")
	born.Create.Everywhere = true
	if r := applyCommand(t, c, born); r.Refused == "" {
		t.Fatalf("created everywhere: %+v", r)
	}
	digest := c.View().Digest()
	for _, step := range []struct {
		name             string
		command          *Command
		missing, refused bool
		users            bool // everywhere after it
	}{
		{"on", everywhere("users", true), false, false, true},
		{"on again", everywhere("users", true), false, false, true},
		{"none", everywhere("nobody", true), true, false, true},
		{"the board", everywhere("board", false), false, true, true},
		{"off", everywhere("users", false), false, false, false},
	} {
		r := applyCommand(t, c, step.command)
		v := c.View()
		if r.Missing != step.missing || (r.Refused != "") != step.refused {
			t.Errorf("%s: %+v", step.name, r)
		}
		if v.EveryNode(1) != step.users || v.EveryNode(2) != step.users || v.Light(1) || v.Light(2) || r.Keyspace.Name == "users" && r.Keyspace.Everywhere != step.users {
			t.Errorf("%s: users are everywhere: %v, %+v", step.name, v.EveryNode(1), r)
		}
		for _, group := range []uint32{Group, 3} {
			if !v.EveryNode(group) || !v.Light(group) {
				t.Errorf("%s: group %d is not everywhere", step.name, group)
			}
		}
		if step.users && v.Digest() == digest {
			t.Errorf("%s: digest %x, as without %x", step.name, v.Digest(), digest)
		}
	}
	if c.View().EveryNode(4) {
		t.Error("a group that there is not is everywhere")
	}
}

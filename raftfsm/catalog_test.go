package raftfsm

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/countd/countd/engine"
)

func create(name string, shards int, columns ...string) *CatalogCommand {
	return &CatalogCommand{Create: &Keyspace{Name: name, Kind: "counters", Columns: columns, Shards: shards}}
}

func addColumns(name string, columns ...string) *CatalogCommand {
	return &CatalogCommand{AddColumns: &AddColumnsEntry{Keyspace: name, Columns: columns}}
}

func applyCommand(t *testing.T, c *Catalog, command *CatalogCommand) *CatalogResult {
	t.Helper()
	entry, err := AppendCatalogEntry(nil, command)
	if err != nil {
		t.Fatal(err)
	}
	return c.Apply(logOf(c, entry)).(*CatalogResult)
}

func numberedColumns(n int) []string {
	columns := make([]string, n)
	for i := range columns {
		columns[i] = fmt.Sprintf("c%d", i)
	}
	return columns
}

func TestCatalogCommands(t *testing.T) {
	posts := Keyspace{Name: "posts", Kind: "counters", Columns: []string{"like"}, Shards: 4, FirstGroup: 1}
	wider := posts
	wider.Columns = []string{"like", "view", "share"}
	users := Keyspace{Name: "users", Kind: "counters", Columns: []string{"a"}, Shards: 1, FirstGroup: 5}
	full := Keyspace{Name: "full", Kind: "counters", Columns: numberedColumns(engine.ColumnsMax), Shards: 2, FirstGroup: 6}
	c := NewCatalog()
	for _, step := range []struct {
		name    string
		command *CatalogCommand
		want    CatalogResult
		after   []Keyspace
	}{
		{"columns of nothing", addColumns("posts", "like"), CatalogResult{Missing: true}, nil},
		{"create", create("posts", 4, "like"), CatalogResult{Keyspace: posts}, []Keyspace{posts}},
		{"create again", create("posts", 4, "like"), CatalogResult{Keyspace: posts, Exists: true}, []Keyspace{posts}},
		{"create otherwise", create("posts", 9, "x"), CatalogResult{Keyspace: posts, Exists: true}, []Keyspace{posts}},
		{"groups go on", create("users", 1, "a"), CatalogResult{Keyspace: users}, []Keyspace{posts, users}},
		{"columns, one there, one double", addColumns("posts", "view", "like", "share", "view"), CatalogResult{Keyspace: wider}, []Keyspace{wider, users}},
		{"the same columns", addColumns("posts", "share"), CatalogResult{Keyspace: wider}, []Keyspace{wider, users}},
		{"the most columns", create("full", 2, numberedColumns(engine.ColumnsMax)...), CatalogResult{Keyspace: full}, []Keyspace{full, wider, users}},
		{"one more", addColumns("full", "c3", "more"), CatalogResult{Keyspace: full, Full: true}, []Keyspace{full, wider, users}},
		{"none more", addColumns("full", "c3"), CatalogResult{Keyspace: full}, []Keyspace{full, wider, users}},
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
	if c.Applied() != 10 {
		t.Errorf("applied %d", c.Applied())
	}
}

func TestCatalogRefusesWhatIsNoCommand(t *testing.T) {
	sealed := func(body string) []byte {
		dst := []byte{entryVersion, entryCatalog, 0, 0, sectionCatalog, byte(len(body)), 0, 0, 0}
		return SealEntry(append(dst, body...))
	}
	for name, entry := range map[string][]byte{
		"nothing":        sealed(`{}`),
		"two things":     sealed(`{"create":{"name":"a"},"add_columns":{"keyspace":"a"}}`),
		"unknown member": sealed(`{"drop":"a"}`),
		"no JSON":        sealed(`{`),
		"more behind":    sealed(`{"create":{"name":"a"}}{}`),
		"counter ops":    entryOf(0, []engine.Op{add(1, 0, 1)}),
		"no section":     SealEntry([]byte{entryVersion, entryCatalog, 0, 0}),
		"empty":          nil,
	} {
		t.Run(name, func(t *testing.T) {
			c := NewCatalog()
			if err := applyError(c, command(1, entry)); err == nil || !errors.Is(err, errEntry) {
				t.Errorf("panicked with %v", err)
			}
			if c.Applied() != 0 || len(c.Keyspaces()) != 0 {
				t.Error("it left a trace")
			}
		})
	}
}

func goldenCatalog(t *testing.T) *Catalog {
	c := NewCatalog()
	applyCommand(t, c, create("posts", 4, "like", "view"))
	applyCommand(t, c, create("users", 1, "posts"))
	return c
}

func TestCatalogSnapshot(t *testing.T) {
	c := goldenCatalog(t)
	snapshot := persisted(t, c)
	mustBeGolden(t, "snapshot-catalog.bin", snapshot)

	r := NewCatalog()
	if err := restore(r, snapshot); err != nil {
		t.Fatal(err)
	}
	if r.Applied() != 2 || !reflect.DeepEqual(r.Keyspaces(), c.Keyspaces()) {
		t.Errorf("restored %d %+v", r.Applied(), r.Keyspaces())
	}
	if got := applyCommand(t, r, create("more", 1, "a")); got.Keyspace.FirstGroup != 6 {
		t.Errorf("the next keyspace begins at group %d", got.Keyspace.FirstGroup)
	}
	mustRefuseDamage(t, c, snapshot, func() any { return []any{c.Applied(), c.Keyspaces()} })
}

func TestCatalogSnapshotThatNoCommandsMake(t *testing.T) {
	for name, body := range map[string]string{
		"null":                      `null`,
		"no next group":             `{"keyspaces":{}}`,
		"group 0":                   `{"next_group":2,"keyspaces":{"a":{"name":"a","columns":["x"],"shards":1,"first_group":0}}}`,
		"groups given away again":   `{"next_group":2,"keyspaces":{"a":{"name":"a","columns":["x"],"shards":2,"first_group":1}}}`,
		"no shards":                 `{"next_group":2,"keyspaces":{"a":{"name":"a","columns":["x"],"shards":0,"first_group":1}}}`,
		"fewer shards than none":    `{"next_group":2,"keyspaces":{"a":{"name":"a","columns":["x"],"shards":-1,"first_group":1}}}`,
		"under the name of another": `{"next_group":2,"keyspaces":{"b":{"name":"a","columns":["x"],"shards":1,"first_group":1}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			stream := streamOf(entryCatalog, 1, []streamPart{{streamCatalog, []byte(body)}}, 1, 0)
			if err := restore(NewCatalog(), stream); !errors.Is(err, errSnapshot) {
				t.Errorf("restored: %v", err)
			}
		})
	}
}

func FuzzCatalogEntry(f *testing.F) {
	f.Add([]byte(`{"create":{"name":"a","kind":"counters","columns":["x"],"shards":1,"first_group":0}}`))
	f.Add([]byte(`{"add_columns":{"keyspace":"a","columns":["x","y"]}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		entry := append([]byte{entryVersion, entryCatalog, 0, 0, sectionCatalog}, byte(len(body)), byte(len(body)>>8), byte(len(body)>>16), 0)
		command, err := parseCatalogEntry(SealEntry(append(entry, body...)))
		if err != nil {
			if !errors.Is(err, errEntry) {
				t.Fatal(err)
			}
			return
		}
		again, err := AppendCatalogEntry(nil, command)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseCatalogEntry(again)
		if err != nil || !reflect.DeepEqual(got, command) {
			t.Fatalf("%+v became %+v, %v", command, got, err)
		}
	})
}

func FuzzReadCatalog(f *testing.F) {
	f.Add(uint64(2), uint64(1), []byte(`{"next_group":2,"keyspaces":{"a":{"name":"a","kind":"","columns":["x"],"shards":1,"first_group":1}}}`))
	f.Fuzz(func(t *testing.T, index, keyspaces uint64, body []byte) {
		c := NewCatalog()
		if err := restore(c, body); err == nil {
			t.Fatal("a stream without a head was taken")
		}
		stream := streamOf(entryCatalog, index, []streamPart{{streamCatalog, body}}, keyspaces, 0)
		if err := restore(c, stream); err != nil {
			if !errors.Is(err, errSnapshot) {
				t.Fatal(err)
			}
			return
		}
		r := NewCatalog()
		if err := restore(r, persisted(t, c)); err != nil || r.Applied() != index || !reflect.DeepEqual(r.Keyspaces(), c.Keyspaces()) {
			t.Fatalf("%+v became %+v, %v", c.Keyspaces(), r.Keyspaces(), err)
		}
	})
}

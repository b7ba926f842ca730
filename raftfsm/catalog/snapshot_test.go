package catalog

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/codec/codectest"
)

// goldenCommands holds one of each kind, in an order that all of them fit.
func goldenCommands() []struct {
	name    string
	command *Command
} {
	return []struct {
		name    string
		command *Command
	}{
		{"put-node", putNode(aNode("a.1", 2), "")},
		{"put-node-replaces", putNode(aNode("a.2", 2), "a.1")},
		{"place", &Command{Place: &PlaceEntry{Target: []string{"a.1"}}}},
		{"create", createAt("posts", [][]string{{"a.1", "a.2"}, {"a.2"}}, 2, "like", "view")},
		{"columns", addColumns("posts", "share")},
		{"place-again", &Command{Place: &PlaceEntry{Target: []string{"a.2"}, Was: []string{"a.1"}}}},
		{"place-shard", &Command{Place: &PlaceEntry{Group: 1, Target: []string{"a.2"}, Was: []string{"a.1", "a.2"}}}},
		{"set-node-state", &Command{SetNodeState: &SetNodeStateEntry{Key: "a.2", State: NodeDraining}}},
		{"remove-node", &Command{RemoveNode: &RemoveNodeEntry{Key: "a.1"}}},
		{"set-version", &Command{SetVersion: &SetVersionEntry{Version: 2}}},
		{"set-everywhere", &Command{SetEverywhere: &SetEverywhereEntry{Keyspace: "posts", Everywhere: true}}},
		{"hold-version", &Command{HoldVersion: &HoldVersionEntry{Held: true}}},
	}
}

func goldenCatalog(t *testing.T) *Catalog {
	t.Helper()
	c := New()
	for _, step := range goldenCommands() {
		if got := applyCommand(t, c, step.command); got.Refused != "" || got.Missing || got.Exists || got.Full {
			t.Fatalf("%s: %+v", step.name, got)
		}
	}
	return c
}

func TestCatalogEntryBytesAreGolden(t *testing.T) {
	for _, step := range goldenCommands() {
		entry, err := AppendEntry(nil, step.command)
		if err != nil {
			t.Fatal(err)
		}
		codectest.Golden(t, "entry-catalog-"+step.name+".bin", entry)
		if got, err := parseEntry(entry); err != nil || !reflect.DeepEqual(got, step.command) {
			t.Errorf("%s came back as %+v, %v", step.name, got, err)
		}
	}
}

// sameView compares all that a snapshot carries.
func sameView(a, b *View) bool {
	return a.Applied == b.Applied && string(a.encoded()) == string(b.encoded()) && a.Digest() == b.Digest()
}

func TestCatalogSnapshot(t *testing.T) {
	c := goldenCatalog(t)
	snapshot := codectest.Persisted(t, c)
	codectest.Golden(t, "snapshot-catalog.bin", snapshot)

	r := New()
	empty := r.View()
	if err := codectest.Restore(r, snapshot); err != nil {
		t.Fatal(err)
	}
	if got, want := r.View(), c.View(); !sameView(got, want) || !reflect.DeepEqual(got.Nodes, want.Nodes) || !reflect.DeepEqual(got.Groups, want.Groups) {
		t.Errorf("restored %+v, want %+v", got, want)
	}
	if !isClosed(empty.Changed()) || isClosed(r.View().Changed()) {
		t.Error("a restore is not told of as a change")
	}
	for _, catalog := range []*Catalog{c, r} {
		got := applyCommand(t, catalog, createAt("more", [][]string{{"a.2"}}, 1, "a"))
		if got.Keyspace.FirstGroup != 3 {
			t.Errorf("the next keyspace begins at group %d", got.Keyspace.FirstGroup)
		}
	}
	if !sameView(c.View(), r.View()) {
		t.Errorf("the same command made %+v and %+v", c.View(), r.View())
	}
	codectest.MustRefuseDamage(t, c, snapshot, func() any { return string(c.View().encoded()) })
}

func TestPersistReportsABrokenSink(t *testing.T) {
	codectest.MustReportABrokenSink(t, goldenCatalog(t))
}

func TestCatalogSnapshotOfAnotherDigest(t *testing.T) {
	view := goldenCatalog(t).View()
	parts := []codectest.Part{{Kind: codec.StreamCatalog, Payload: view.encoded()}}
	if err := codectest.Restore(New(), codectest.StreamOf(codec.KindCatalog, 1, parts, 1, view.Digest()+1)); !errors.Is(err, codec.ErrSnapshot) {
		t.Errorf("restored: %v", err)
	}
}

func TestCatalogSnapshotThatNoCommandsMake(t *testing.T) {
	const (
		nodes = `"cluster_version":1,"version_held":false,"nodes":{"n":{"key":"n","name":"n","version_max":1,"state":"active"}}`
		place = `{"initial":["n"],"target":["n"],"replicas":{"n":1},"next_replica":2,"first_replica":1}`
		meta  = `{"initial":["n"],"target":["n"]}` // of the catalog's own group
	)
	keyspace := func(first, shards string) string {
		return `"keyspaces":{"a":{"name":"a","columns":["x"],"shards":` + shards + `,"first_group":` + first + `}}`
	}
	groups := func(numbers ...string) string {
		for i, number := range numbers {
			numbers[i] = `"` + number + `":` + place
			if number == "0" {
				numbers[i] = `"0":` + meta
			}
		}
		return `"groups":{` + strings.Join(numbers, ",") + `}`
	}
	everywhere := func(kind string) string {
		return `{"next_group":2,` + strings.NewReplacer(`_version":1`, `_version":2`, `version_max":1`, `version_max":2`).Replace(nodes) +
			`,"keyspaces":{"a":{"name":"a","kind":"` + kind + `","columns":[],"shards":1,"first_group":1,"everywhere":true}}`
	}
	node := func(key, state, version string) string {
		return `{"next_group":1,"cluster_version":2,"nodes":{"n":{"key":"` + key + `","name":"n","version_max":` + version + `,"state":"` + state + `"}}}`
	}
	for name, test := range map[string]struct {
		body string
		keys int
		ok   bool
	}{
		"whole":                     {body: `{"next_group":2,` + nodes + `,` + keyspace("1", "1") + `,` + groups("1") + `}`, keys: 1, ok: true},
		"whole, catalog placed":     {body: `{"next_group":2,` + nodes + `,` + keyspace("1", "1") + `,` + groups("0", "1") + `}`, keys: 1, ok: true},
		"null":                      {body: `null`},
		"no next group":             {body: `{"cluster_version":1}`},
		"no cluster version":        {body: `{"next_group":1}`},
		"unknown member":            {body: `{"next_group":1,"cluster_version":1,"more":1}`},
		"group 0":                   {body: `{"next_group":2,` + nodes + `,` + keyspace("0", "1") + `,` + groups("0") + `}`, keys: 1},
		"groups given away again":   {body: `{"next_group":2,` + nodes + `,` + keyspace("1", "2") + `,` + groups("1", "2") + `}`, keys: 1},
		"no shards":                 {body: `{"next_group":2,` + nodes + `,` + keyspace("1", "0") + `}`, keys: 1},
		"fewer shards than none":    {body: `{"next_group":2,` + nodes + `,` + keyspace("1", "-1") + `}`, keys: 1},
		"a group without a place":   {body: `{"next_group":3,` + nodes + `,` + keyspace("1", "2") + `,` + groups("1") + `}`, keys: 1},
		"a place without a group":   {body: `{"next_group":3,` + nodes + `,` + keyspace("1", "1") + `,` + groups("1", "2") + `}`, keys: 1},
		"under the name of another": {body: `{"next_group":2,` + nodes + `,"keyspaces":{"b":{"name":"a","columns":["x"],"shards":1,"first_group":1}},` + groups("1") + `}`, keys: 1},
		"a target of no node": {body: `{"next_group":2,` + nodes + `,` + keyspace("1", "1") +
			`,"groups":{"1":{"initial":["n"],"target":["m"]}}}`, keys: 1},
		"no first voter": {body: `{"next_group":2,` + nodes + `,` + keyspace("1", "1") +
			`,"groups":{"1":{"initial":[],"target":["n"]}}}`, keys: 1},
		"two keyspaces in one group": {body: `{"next_group":3,` + nodes + `,"keyspaces":{` +
			`"a":{"name":"a","shards":1,"first_group":1},"b":{"name":"b","shards":1,"first_group":1}},` + groups("1", "2") + `}`, keys: 2},
		"without numbers of replicas": {body: `{"next_group":2,` + nodes + `,` + keyspace("1", "1") + `,"groups":{"1":` + meta + `}}`, keys: 1},
		"a board everywhere":          {body: everywhere("board") + `,` + groups("1") + `}`, keys: 1},
		"users everywhere":            {body: everywhere("counters") + `,` + groups("1") + `}`, keys: 1, ok: true},
		"a node":                      {body: node("n", "active", "2"), ok: true},
		"a node under another":        {body: node("m", "active", "2")},
		"a node without state":        {body: node("n", "", "2")},
		"a node of old version":       {body: node("n", "active", "1")},
		"two nodes of one name": {body: `{"next_group":1,"cluster_version":1,"nodes":{` +
			`"n":{"key":"n","name":"n","version_max":1,"state":"active"},"m":{"key":"m","name":"n","version_max":1,"state":"draining"}}}`},
	} {
		t.Run(name, func(t *testing.T) {
			view := &View{}
			if err := codec.DecodeJSON([]byte(test.body), view); err != nil && test.ok {
				t.Fatal(err)
			}
			view.ownMaps()
			stream := codectest.StreamOf(codec.KindCatalog, 1, []codectest.Part{{Kind: codec.StreamCatalog, Payload: []byte(test.body)}}, uint64(test.keys), view.Digest())
			err := codectest.Restore(New(), stream)
			if test.ok && err != nil || !test.ok && !errors.Is(err, codec.ErrSnapshot) {
				t.Errorf("restored: %v", err)
			}
		})
	}
}

func FuzzCatalogEntry(f *testing.F) {
	for _, step := range slices.Concat(goldenCommands(), sourceSteps(), userSteps()) {
		entry, err := AppendEntry(nil, step.command)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(entry[9 : len(entry)-codec.ChecksumSize])
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		entry := append([]byte{1, byte(codec.KindCatalog), 0, codec.SectionCatalog}, byte(len(body)), byte(len(body)>>8), byte(len(body)>>16), 0)
		command, err := parseEntry(codec.AppendChecksum(append(entry, body...)))
		if err != nil {
			if !errors.Is(err, codec.ErrEntry) {
				t.Fatal(err)
			}
			return
		}
		again, err := AppendEntry(nil, command)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseEntry(again)
		if err != nil || !reflect.DeepEqual(got, command) {
			t.Fatalf("%+v became %+v, %v", command, got, err)
		}
	})
}

// FuzzCatalogCommands applies a command to a catalog in use: whatever it is, the
// state is one that a snapshot may hold, and its snapshot restores to it.
func FuzzCatalogCommands(f *testing.F) {
	for _, step := range slices.Concat(goldenCommands(), sourceSteps(), userSteps()) {
		entry, err := AppendEntry(nil, step.command)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(3), entry[9:len(entry)-codec.ChecksumSize])
	}
	f.Fuzz(func(t *testing.T, behind uint8, body []byte) {
		entry := append([]byte{1, byte(codec.KindCatalog), 0, codec.SectionCatalog}, byte(len(body)), byte(len(body)>>8), byte(len(body)>>16), 0)
		entry = codec.AppendChecksum(append(entry, body...))
		if _, err := parseEntry(entry); err != nil {
			return
		}
		c := New()
		all := slices.Concat(goldenCommands(), sourceSteps(), userSteps())
		for _, step := range all[:int(behind)%(len(all)+1)] {
			applyCommand(t, c, step.command)
		}
		was := c.View()
		before := string(was.encoded())
		result := c.Apply(codectest.Next(c, entry)).(*Result)
		now := c.View()
		if string(was.encoded()) != before {
			t.Fatal("a view that was handed out has changed")
		}
		changed := string(now.encoded()) != before
		if changed != isClosed(was.Changed()) {
			t.Fatalf("changed %t, told of %t", changed, isClosed(was.Changed()))
		}
		if changed && (result.Refused != "" || result.Exists || result.Missing || result.Full) {
			t.Fatalf("changed by what was answered %+v", result)
		}
		r := New()
		if err := codectest.Restore(r, codectest.Persisted(t, c)); err != nil || !sameView(r.View(), now) {
			t.Fatalf("%s became %s, %v", now.encoded(), r.View().encoded(), err)
		}
	})
}

func FuzzReadCatalog(f *testing.F) {
	f.Add(uint64(2), uint64(0), []byte(`{"next_group":2,"cluster_version":1}`))
	c := New()
	for _, step := range goldenCommands() {
		entry, err := AppendEntry(nil, step.command)
		if err != nil {
			f.Fatal(err)
		}
		c.Apply(codectest.Next(c, entry))
	}
	f.Add(uint64(2), uint64(1), c.View().encoded())
	f.Fuzz(func(t *testing.T, index, keyspaces uint64, body []byte) {
		c := New()
		if err := codectest.Restore(c, body); err == nil {
			t.Fatal("a stream without a head was taken")
		}
		view := &View{}
		_ = codec.DecodeJSON(body, view) // what it cannot read, restore refuses
		view.ownMaps()
		stream := codectest.StreamOf(codec.KindCatalog, index, []codectest.Part{{Kind: codec.StreamCatalog, Payload: body}}, keyspaces, view.Digest())
		if err := codectest.Restore(c, stream); err != nil {
			if !errors.Is(err, codec.ErrSnapshot) {
				t.Fatal(err)
			}
			return
		}
		r := New()
		if err := codectest.Restore(r, codectest.Persisted(t, c)); err != nil || r.Applied() != index || !sameView(r.View(), c.View()) {
			t.Fatalf("%+v became %+v, %v", c.View(), r.View(), err)
		}
	})
}

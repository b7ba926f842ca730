package catalog

import (
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/internal/rafttest"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/source/sink"
)

// goldenCommands has one command of each kind, in an order in which the catalog accepts them all.
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
		{"put-user", &Command{PutUser: &PutUserEntry{
			Name: "app", Grants: []Grant{{Role: "writer", Keyspaces: []string{"posts", AllKeyspaces}}}, Limits: UserLimits{Requests: 5, Ops: 6, Connections: 7},
		}}},
		{"add-token", &Command{AddToken: &AddTokenEntry{User: "app", Token: Token{Number: 1, Hash: strings.Repeat("0f", tokenHashBytes), Created: 3, Expires: 9}}}},
		{"put-source", &Command{PutSource: &PutSourceEntry{Name: "likes", Config: []byte(`{"type":"kafka"}`), Cluster: 7}}},
		{"start-source", &Command{StartSource: &StartSourceEntry{Number: 7<<32 | 1, Starts: map[uint32]sink.Position{2: {Hi: 1, Lo: 5}}, Identity: "queue"}}},
		{"reject-source", &Command{RejectSource: &RejectSourceEntry{
			Number: 7<<32 | 1, To: sink.Position{Lo: 8}, Rejected: 2, Last: Rejection{Partition: 2, Position: sink.Position{Lo: 7}, Reason: "no such column"},
		}}},
		{"pause-source", &Command{PauseSource: &PauseSourceEntry{Name: "likes", Version: 2, Paused: true}}},
		{"seek-source", &Command{SeekSource: &SeekSourceEntry{Name: "likes", Version: 3, Positions: map[uint32]sink.Position{2: {Lo: 4}}}}},
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
		rafttest.Golden(t, "entry-catalog-"+step.name+".bin", entry)
		if got, err := parseEntry(entry); err != nil || !reflect.DeepEqual(got, step.command) {
			t.Errorf("%s came back as %+v, %v", step.name, got, err)
		}
	}
}

// sameView compares everything that a snapshot contains.
func sameView(a, b *View) bool {
	return a.Applied == b.Applied && string(a.encoded()) == string(b.encoded()) && a.Digest() == b.Digest()
}

func TestCatalogSnapshot(t *testing.T) {
	c := goldenCatalog(t)
	snapshot := rafttest.Persisted(t, c)
	rafttest.Golden(t, "snapshot-catalog.bin", snapshot)

	r := New()
	empty := r.View()
	if err := rafttest.Restore(r, snapshot); err != nil {
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
		if got.Keyspace.FirstGroup() != 3 {
			t.Errorf("the next keyspace begins at group %d", got.Keyspace.FirstGroup())
		}
	}
	if !sameView(c.View(), r.View()) {
		t.Errorf("the same command made %+v and %+v", c.View(), r.View())
	}
	rafttest.MustRefuseDamage(t, c, snapshot, func() any { return string(c.View().encoded()) })
}

func TestPersistReportsABrokenSink(t *testing.T) {
	rafttest.MustReportABrokenSink(t, goldenCatalog(t))
}

func TestCatalogSnapshotOfAnotherDigest(t *testing.T) {
	view := goldenCatalog(t).View()
	parts := []rafttest.Part{{Kind: codec.StreamCatalog, Payload: view.encoded()}}
	if err := rafttest.Restore(New(), rafttest.StreamOf(codec.KindCatalog, 1, parts, 1, view.Digest()+1)); !errors.Is(err, codec.ErrSnapshot) {
		t.Errorf("restored: %v", err)
	}
}

func TestCatalogSnapshotWithAnUnknownMember(t *testing.T) {
	body := []byte(`{"next_group":1,"cluster_version":1,"more":1}`)
	stream := rafttest.StreamOf(codec.KindCatalog, 1, []rafttest.Part{{Kind: codec.StreamCatalog, Payload: body}}, 0, New().View().Digest())
	if err := rafttest.Restore(New(), stream); !errors.Is(err, codec.ErrSnapshot) || !strings.Contains(err.Error(), "more") {
		t.Errorf("restored: %v", err)
	}
}

func FuzzCatalogEntry(f *testing.F) {
	for _, step := range slices.Concat(goldenCommands(), growSteps(), sourceSteps(), userSteps()) {
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

// FuzzCatalogCommands applies any command to a catalog in use. A snapshot must then accept the
// state, and restore it.
func FuzzCatalogCommands(f *testing.F) {
	for _, step := range slices.Concat(goldenCommands(), growSteps(), sourceSteps(), userSteps()) {
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
		all := slices.Concat(goldenCommands(), growSteps(), sourceSteps(), userSteps())
		for _, step := range all[:int(behind)%(len(all)+1)] {
			applyCommand(t, c, step.command)
		}
		was := c.View()
		before := string(was.encoded())
		result := c.Apply(rafttest.Next(c, entry)).(*Result)
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
		if err := now.check(); err != nil {
			t.Fatal(err)
		}
		r := New()
		if err := rafttest.Restore(r, rafttest.Persisted(t, c)); err != nil || !sameView(r.View(), now) {
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
		c.Apply(rafttest.Next(c, entry))
	}
	f.Add(uint64(2), uint64(1), c.View().encoded())
	f.Fuzz(func(t *testing.T, index, keyspaces uint64, body []byte) {
		c := New()
		if err := rafttest.Restore(c, body); err == nil {
			t.Fatal("a stream without a head was taken")
		}
		view := &View{}
		_ = codec.DecodeJSON(body, view) // Restore refuses what DecodeJSON cannot decode
		view.ownMaps()
		stream := rafttest.StreamOf(codec.KindCatalog, index, []rafttest.Part{{Kind: codec.StreamCatalog, Payload: body}}, keyspaces, view.Digest())
		if err := rafttest.Restore(c, stream); err != nil {
			if !errors.Is(err, codec.ErrSnapshot) {
				t.Fatal(err)
			}
			return
		}
		r := New()
		if err := rafttest.Restore(r, rafttest.Persisted(t, c)); err != nil || r.Applied() != index || !sameView(r.View(), c.View()) {
			t.Fatalf("%+v became %+v, %v", c.View(), r.View(), err)
		}
	})
}

package catalog

import (
	"reflect"
	"strings"
	"testing"

	"github.com/countd/countd/internal/rafttest"
)

// Limits are set and removed one by one, and only for keyspaces of counters. A snapshot contains them.
func TestSetLimits(t *testing.T) {
	c := goldenCatalog(t)
	set := func(keyspace string, rows, bytes *uint64) *Command {
		return &Command{SetLimits: &SetLimitsEntry{Keyspace: keyspace, Rows: rows, Bytes: bytes}}
	}
	none, seven, nine := new(uint64), new(uint64(7)), new(uint64(9))
	for _, step := range []struct {
		rows, bytes *uint64
		want        Limits
	}{
		{seven, nil, Limits{Rows: 7}},
		{nil, nine, Limits{Rows: 7, Bytes: 9}},
		{none, nil, Limits{Bytes: 9}},
		{seven, nine, Limits{Rows: 7, Bytes: 9}},
	} {
		if got := applyCommand(t, c, set("posts", step.rows, step.bytes)); got.Keyspace.Limits != step.want || got.Refused != "" {
			t.Errorf("got %+v, want %+v", got, step.want)
		}
	}
	for shard, group := range c.View().Keyspaces["posts"].Groups {
		if name, limits := c.View().LimitsOf(group); name != "posts" || limits != (Limits{Rows: 7, Bytes: 9}) {
			t.Errorf("shard %d is of keyspace %q with limits %+v", shard, name, limits)
		}
	}
	if name, limits := c.View().LimitsOf(99); name != "" || limits != (Limits{}) {
		t.Errorf("an unknown group has the limits %+v of %q", limits, name)
	}
	r := New()
	if err := rafttest.Restore(r, rafttest.Persisted(t, c)); err != nil || !sameView(c.View(), r.View()) {
		t.Errorf("restored %+v, %v", r.View(), err)
	}

	if got := applyCommand(t, c, set("nope", seven, nil)); !got.Missing {
		t.Errorf("of an unknown keyspace: %+v", got)
	}
	unread := createAt("unread", [][]string{{"a.2"}}, 1, "at")
	unread.Create.Kind = "unread"
	applyCommand(t, c, unread)
	if got := applyCommand(t, c, set("unread", seven, nil)); !strings.Contains(got.Refused, "only keyspaces of counters have limits") {
		t.Errorf("of unread numbers: %+v", got)
	}
	unread.Create.Name, unread.Create.Limits = "others", Limits{Rows: 1}
	if got := applyCommand(t, c, unread); !strings.Contains(got.Refused, "with limits") {
		t.Errorf("created: %+v", got)
	}

	entry, err := AppendEntry(nil, set("posts", seven, none))
	if err != nil {
		t.Fatal(err)
	}
	rafttest.Golden(t, "entry-catalog-set-limits.bin", entry)
	if got, err := parseEntry(entry); err != nil || !reflect.DeepEqual(got, set("posts", seven, none)) {
		t.Errorf("it came back as %+v, %v", got, err)
	}
}

package catalog

import (
	"testing"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/internal/rafttest"
)

func TestFloorsOfKeyspaces(t *testing.T) {
	zero, five := int64(0), int64(5)
	c := New()
	applyCommand(t, c, putNode(aNode("a.1", ClusterVersionMax), ""))
	create := createAt("posts", [][]string{{"a.1"}}, 1, "like", "view")
	create.Create.Floors = map[string]int64{"like": 0}
	setFloors := func(columns []string, floors map[string]*int64) *Command {
		return &Command{AddColumns: &AddColumnsEntry{Keyspace: "posts", Columns: columns, Settings: column.Settings[*int64]{Floors: floors}}}
	}
	mustHave := func(got *Result, want map[string]int64) {
		t.Helper()
		floors := c.View().Keyspaces["posts"].Floors
		if got.Refused != "" || len(floors) != len(want) {
			t.Fatalf("floors %v, want %v: %+v", floors, want, got)
		}
		for column, floor := range want {
			if had, has := floors[column]; !has || had != floor {
				t.Errorf("floors %v, want %v", floors, want)
			}
		}
	}
	mustHave(applyCommand(t, c, create), map[string]int64{"like": 0})
	entry, err := AppendEntry(nil, setFloors([]string{"share"}, map[string]*int64{"share": &zero, "like": nil, "view": &five}))
	if err != nil {
		t.Fatal(err)
	}
	rafttest.Golden(t, "entry-catalog-floors.bin", entry)
	was := c.View()
	mustHave(c.Apply(rafttest.Command(9, entry)).(*Result), map[string]int64{"share": 0, "view": 5})
	if _, had := was.Keyspaces["posts"].Floors["like"]; !had || len(was.Keyspaces["posts"].Floors) != 1 {
		t.Errorf("the view before has %v now", was.Keyspaces["posts"].Floors)
	}
	if got := applyCommand(t, c, setFloors(nil, map[string]*int64{"none": &zero})); got.Refused == "" {
		t.Errorf("a floor of a column that is not there: %+v", got)
	}
	again := New()
	if err := rafttest.Restore(again, rafttest.Persisted(t, c)); err != nil || !sameView(again.View(), c.View()) {
		t.Errorf("restored %+v: %v", again.View(), err)
	}
	none := setFloors([]string{"like"}, map[string]*int64{"view": nil, "share": nil})
	mustHave(applyCommand(t, c, none), nil)
	view := c.View()
	if applyCommand(t, c, none); c.View().Changed() != view.Changed() {
		t.Error("nothing was changed and those who wait are told")
	}
}

package main

import (
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/nodetest"
	"github.com/countd/countd/internal/proctest"
)

func TestOps(t *testing.T) {
	server := nodetest.New(t)
	var sent string
	server.Fail = func(r *http.Request, body []byte) *nodetest.Fault {
		sent = r.URL.Path + " " + string(body)
		return &nodetest.Fault{Status: 409, Code: "overflow", Message: "as the test says"}
	}
	i := against(t, server)
	i.Stdin = `{"keyspace":"posts","id":1,"add":{"like":1}} {"user":"9","add":{"like":-1},"floor":0}` + "\n"
	got := i.Run("ops")
	if want := `/v1/ops {"ops":[{"keyspace":"posts","id":"1","add":{"like":1}},{"user":"9","add":{"like":-1},"floor":0}]}`; sent != want || got.Code != cli.ExitFail {
		t.Errorf("sent %s, exit %d: %s", sent, got.Code, got.Err)
	}
	for _, bad := range []string{"", "{", `{"id":1,"add":{"like":1}}`, `{"keyspace":"posts","user":1}`, `{"user":1,"id":2}`, `{"keyspace":"posts","id":1,"sub":{}}`} {
		if i.Stdin = bad; i.Run("ops").Code != cli.ExitUsage {
			t.Errorf("%s was taken", bad)
		}
	}
}

func TestFloors(t *testing.T) {
	i := against(t, nodetest.New(t))
	made := proctest.Decode[client.Keyspace](t, i.OK("keyspace", "create", "badges", "--columns", "a,b", "--floor", "b=-2", "-o", "json"))
	if len(made.Floors) != 1 || made.Floors["b"] != -2 {
		t.Fatalf("created %+v", made)
	}
	if table := i.OK("keyspace", "list"); !strings.Contains(table, "a,b>=-2") {
		t.Errorf("the table is\n%s", table)
	}
	i.OK("incr", "7", "a=-1", "b=-5", "--floor", "-1", "--keyspace", "badges")
	if row := proctest.Decode[client.Row](t, i.OK("get", "7", "--keyspace", "badges", "-o", "json")); row.Counts[0].Value != -1 || row.Counts[1].Value != -1 {
		t.Errorf("the row is %+v", row)
	}
	changed := proctest.Decode[client.Keyspace](t, i.OK("keyspace", "add-columns", "badges", "b", "c", "--floor", "c=0", "--no-floor", "b", "-o", "json"))
	if len(changed.Floors) != 1 || changed.Floors["c"] != 0 || len(changed.Columns) != 3 {
		t.Errorf("changed %+v", changed)
	}
	for _, bad := range [][]string{
		{"incr", "7", "a=-1", "--floor", "x"},
		{"keyspace", "create", "more", "--columns", "a", "--floor", "b=0"},
		{"keyspace", "create", "more", "--columns", "a", "--floor", "a=x"},
		{"keyspace", "add-columns", "badges", "b", "--floor", "b=0", "--no-floor", "b"},
	} {
		if got := i.Run(bad...); got.Code != cli.ExitUsage {
			t.Errorf("countctl %v: exit %d, %s", bad, got.Code, got.Err)
		}
	}
}

// Without a terminal, a keyspace or column is dropped only with --yes. Otherwise the error names
// the number of rows.
func TestDrop(t *testing.T) {
	server := nodetest.New(t)
	i := against(t, server)
	i.OK("keyspace", "create", "songs", "--columns", "plays,likes,skips")
	i.OK("incr", "7", "plays=1", "skips=2", "--keyspace", "songs")
	for _, args := range [][]string{{"keyspace", "drop", "songs"}, {"keyspace", "drop-column", "songs", "skips"}} {
		if got := i.Run(args...); got.Code != cli.ExitUsage || !strings.Contains(got.Err, "1 row") || strings.Contains(got.Err, "1 rows") || !strings.Contains(got.Err, "Give --yes") {
			t.Errorf("countctl %v: exit %d, %s", args, got.Code, got.Err)
		}
	}
	changed := proctest.Decode[client.Keyspace](t, i.OK("keyspace", "drop-column", "songs", "skips", "--yes", "-o", "json"))
	if !slices.Equal(changed.Columns, []string{"plays", "likes"}) {
		t.Errorf("columns are %v", changed.Columns)
	}
	if out := i.OK("keyspace", "drop", "songs", "--yes"); !strings.Contains(out, "songs") {
		t.Errorf("it prints %q", out)
	}
	if table := i.OK("keyspace", "list"); strings.Contains(table, "songs") {
		t.Errorf("the table is\n%s", table)
	}
	for what, args := range map[string][]string{
		"no keyspace songs": {"keyspace", "drop", "songs", "--yes"},
		"no column none":    {"keyspace", "drop-column", "posts", "none", "--yes"},
		"built in":          {"keyspace", "drop", "posts", "--yes"},
	} {
		if got := i.Run(args...); got.Code != cli.ExitFail || !strings.Contains(got.Err, what) {
			t.Errorf("countctl %v: exit %d, %s", args, got.Code, got.Err)
		}
	}
}

// If the outcome of a drop is unknown, the request is not repeated, because a repeat could drop a
// new keyspace or column of the same name.
func TestDropIsSentOnce(t *testing.T) {
	server := nodetest.New(t)
	i := against(t, server)
	i.OK("keyspace", "create", "songs", "--columns", "plays")
	sent := 0
	server.Fail = func(r *http.Request, _ []byte) *nodetest.Fault {
		if r.Method != http.MethodDelete {
			return nil
		}
		sent++
		return &nodetest.Fault{Status: 504, Code: "outcome_unknown"}
	}
	if got := i.Run("keyspace", "drop", "songs", "--yes"); got.Code != cli.ExitFail || !strings.Contains(got.Err, "outcome_unknown") || sent != 1 {
		t.Errorf("exit %d after %d calls, %s", got.Code, sent, got.Err)
	}
}

func TestKeyspaces(t *testing.T) {
	i := against(t, nodetest.New(t))
	made := proctest.Decode[client.Keyspace](t, i.OK("keyspace", "create", "songs", "--columns", "plays,likes", "--shards", "8", "-o", "json"))
	if made.Name != "songs" || made.Shards != 8 || !slices.Equal(made.Columns, []string{"plays", "likes"}) {
		t.Fatalf("created %+v", made)
	}
	i.OK("keyspace", "create", "songs", "--columns", "plays,likes", "--shards", "8")
	if got := i.Run("keyspace", "create", "songs", "--columns", "plays", "--shards", "8"); got.Code != cli.ExitFail ||
		!strings.Contains(got.Err, "keyspace_exists") {
		t.Fatalf("exit %d, %q", got.Code, got.Err)
	}
	wider := proctest.Decode[client.Keyspace](t, i.OK("keyspace", "add-columns", "songs", "shares,plays", "skips", "-o", "json"))
	if !slices.Equal(wider.Columns, []string{"plays", "likes", "shares", "skips"}) {
		t.Fatalf("columns are %v", wider.Columns)
	}
	for _, off := range []bool{false, true} {
		args := []string{"keyspace", "everywhere", "songs"}
		if off {
			args = append(args, "--off")
		}
		if table := i.OK(args...); strings.Contains(table, "everywhere") == off {
			t.Errorf("countctl %v prints\n%s", args, table)
		}
		if k := proctest.Decode[client.Keyspace](t, i.OK(append(args, "-o", "json")...)); k.Everywhere == off {
			t.Errorf("countctl %v: %+v", args, k)
		}
	}
	if got := i.Run("keyspace", "everywhere", "nobody"); got.Code != cli.ExitFail || !strings.Contains(got.Err, "unknown_keyspace") {
		t.Errorf("exit %d, %q", got.Code, got.Err)
	}
	list := proctest.Decode[keyspacesOutput](t, i.OK("keyspace", "list", "-o", "json"))
	if len(list.Keyspaces) != 6 {
		t.Fatalf("list is %+v", list)
	}
	if table := i.OK("keyspace", "list"); !strings.Contains(table, "plays,likes,shares,skips") {
		t.Fatalf("the table is\n%s", table)
	}
}

// keyspacesOutput is the JSON output of "keyspace list".
type keyspacesOutput struct {
	Keyspaces []client.Keyspace `json:"keyspaces"`
}

// The dry run counts the rows of each new shard. After the growth, all rows are there, and a backup works.
func TestGrow(t *testing.T) {
	i := against(t, nodetest.New(t))
	i.OK("keyspace", "create", "songs", "--columns", "plays", "--shards", "1")
	for _, id := range []string{"3", "4", "6"} {
		i.OK("incr", id, "plays=1", "--keyspace", "songs")
	}
	got := i.Run("keyspace", "grow", "songs", "--dry-run", "-o", "json")
	g := proctest.Decode[admin.Growth](t, got.Out)
	if got.Code != 0 || !slices.Equal(g.Rows, []uint64{2, 1, 0}) || len(g.Refused) > 0 {
		t.Errorf("exit %d, %+v: %s", got.Code, g, got.Err)
	}
	g = proctest.Decode[admin.Growth](t, i.OK("keyspace", "grow", "songs", "--yes", "-o", "json"))
	if g.Shards != 3 || g.Growing != nil {
		t.Errorf("grown: %+v", g)
	}
	i.OK("backup", filepath.Join(t.TempDir(), "backup"))
	for _, id := range []string{"3", "4", "6"} {
		if got := i.OK("get", id, "--keyspace", "songs", "-o", "json"); !strings.Contains(got, `"plays": 1`) && !strings.Contains(got, `"plays":1`) {
			t.Errorf("id %s: %s", id, got)
		}
	}
}

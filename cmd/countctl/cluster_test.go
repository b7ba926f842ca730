package main

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/countd/countd/client"
	"github.com/countd/countd/internal/countdtest"
)

func TestStatus(t *testing.T) {
	server := countdtest.New(t)
	server.Put(1, 1, 1, 1, 1)
	server.Put(2, 1, 1, 1, 1)
	i := against(t, server)
	s := decode[statusOutput](t, i.ok("status", "-o", "json"))
	if !s.Ready || s.ClusterID != "test" || len(s.Nodes) != 1 || len(s.Groups) != 9 || len(s.Warnings) != 0 {
		t.Fatalf("status is %+v", s)
	}
	if want := (sizeOutput{Rows: 2, Bytes: 40, BytesPerRow: 20, ColdRows: 2, ColdBytes: 10, SealedRows: 2, SealedBytes: 14, Digest: "0000000000000002"}); s.Total != want {
		t.Fatalf("total is %+v, want %+v", s.Total, want)
	}
	if k := slices.IndexFunc(s.Keyspaces, func(k sizeOutput) bool { return k.Keyspace == "posts" }); k < 0 || s.Keyspaces[k].Rows != 2 {
		t.Fatalf("keyspaces are %+v", s.Keyspaces)
	}
	table := i.ok("status", "--groups")
	for _, want := range []string{"n1", "posts/1", "LEADER", "20.0", "COLD", "DISK", "10", "0000000000000002", "total"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
}

func TestStatusOfANodeThatIsNotReady(t *testing.T) {
	server := countdtest.New(t)
	server.SetNotReady("group 3 has no leader")
	got := against(t, server).run("status", "-o", "json")
	if got.code != exitFail || !strings.Contains(got.err, "group 3 has no leader") {
		t.Fatalf("exit %d, %q", got.code, got.err)
	}
	if s := decode[statusOutput](t, got.out); s.Ready || s.Why == "" || len(s.Groups) == 0 {
		t.Fatalf("status is %+v", s)
	}
}

func TestStatusWaitsForReadiness(t *testing.T) {
	server := countdtest.New(t)
	server.SetNotReady("starting")
	var asked atomic.Int32
	server.Fail = func(r *http.Request, _ []byte) *countdtest.Fault {
		if r.URL.Path == "/readyz" && asked.Add(1) == 3 {
			server.SetNotReady("")
		}
		return nil
	}
	against(t, server).ok("status", "--wait", "30s")
	if asked.Load() != 3 {
		t.Fatalf("asked %d times, want 3", asked.Load())
	}
}

func TestDigestsSumModulo64Bits(t *testing.T) {
	sum, err := sumGroups([]groupOutput{{Digest: "ffffffffffffffff"}, {Digest: "0000000000000003"}},
		func(groupOutput) bool { return true })
	if err != nil || sum.Digest != "0000000000000002" {
		t.Fatalf("sum is %+v, %v", sum, err)
	}
	if _, err := sumGroups([]groupOutput{{Digest: "xyz"}}, func(groupOutput) bool { return true }); err == nil {
		t.Fatal("a digest that is not hex passed")
	}
}

func TestOps(t *testing.T) {
	server := countdtest.New(t)
	var sent string
	server.Fail = func(r *http.Request, body []byte) *countdtest.Fault {
		sent = r.URL.Path + " " + string(body)
		return &countdtest.Fault{Status: 409, Code: "overflow", Message: "as the test says"}
	}
	i := against(t, server)
	i.stdin = `{"keyspace":"posts","id":1,"add":{"like":1}} {"user":"9","add":{"like":-1},"floor":0}` + "\n"
	got := i.run("ops")
	if want := `/v1/ops {"ops":[{"keyspace":"posts","id":"1","add":{"like":1}},{"user":"9","add":{"like":-1},"floor":0}]}`; sent != want || got.code != exitFail {
		t.Errorf("sent %s, exit %d: %s", sent, got.code, got.err)
	}
	for _, bad := range []string{"", "{", `{"id":1,"add":{"like":1}}`, `{"keyspace":"posts","user":1}`, `{"user":1,"id":2}`, `{"keyspace":"posts","id":1,"sub":{}}`} {
		if i.stdin = bad; i.run("ops").code != exitUsage {
			t.Errorf("%s was taken", bad)
		}
	}
}

func TestFloors(t *testing.T) {
	i := against(t, countdtest.New(t))
	made := decode[client.Keyspace](t, i.ok("keyspace", "create", "badges", "--columns", "a,b", "--floor", "b=-2", "-o", "json"))
	if len(made.Floors) != 1 || made.Floors["b"] != -2 {
		t.Fatalf("created %+v", made)
	}
	if table := i.ok("keyspace", "list"); !strings.Contains(table, "a,b>=-2") {
		t.Errorf("the table is\n%s", table)
	}
	i.ok("incr", "7", "a=-1", "b=-5", "--floor", "-1", "--keyspace", "badges")
	if row := decode[client.Row](t, i.ok("get", "7", "--keyspace", "badges", "-o", "json")); row.Counts[0].Value != -1 || row.Counts[1].Value != -1 {
		t.Errorf("the row is %+v", row)
	}
	changed := decode[client.Keyspace](t, i.ok("keyspace", "add-columns", "badges", "b", "c", "--floor", "c=0", "--no-floor", "b", "-o", "json"))
	if len(changed.Floors) != 1 || changed.Floors["c"] != 0 || len(changed.Columns) != 3 {
		t.Errorf("changed %+v", changed)
	}
	for _, bad := range [][]string{
		{"incr", "7", "a=-1", "--floor", "x"},
		{"keyspace", "create", "more", "--columns", "a", "--floor", "b=0"},
		{"keyspace", "create", "more", "--columns", "a", "--floor", "a=x"},
		{"keyspace", "add-columns", "badges", "b", "--floor", "b=0", "--no-floor", "b"},
	} {
		if got := i.run(bad...); got.code != exitUsage {
			t.Errorf("countctl %v: exit %d, %s", bad, got.code, got.err)
		}
	}
}

// What is dropped for good is dropped with --yes alone where nobody can be asked, and the
// refusal says how many rows there are.
func TestDrop(t *testing.T) {
	server := countdtest.New(t)
	i := against(t, server)
	i.ok("keyspace", "create", "songs", "--columns", "plays,likes,skips")
	server.SetCluster("n1") // with its groups
	i.ok("incr", "7", "plays=1", "skips=2", "--keyspace", "songs")
	for _, args := range [][]string{{"keyspace", "drop", "songs"}, {"keyspace", "drop-column", "songs", "skips"}} {
		if got := i.run(args...); got.code != exitUsage || !strings.Contains(got.err, "1 rows") || !strings.Contains(got.err, "Give --yes") {
			t.Errorf("countctl %v: exit %d, %s", args, got.code, got.err)
		}
	}
	changed := decode[client.Keyspace](t, i.ok("keyspace", "drop-column", "songs", "skips", "--yes", "-o", "json"))
	if !slices.Equal(changed.Columns, []string{"plays", "likes"}) {
		t.Errorf("columns are %v", changed.Columns)
	}
	if out := i.ok("keyspace", "drop", "songs", "--yes"); !strings.Contains(out, "songs") {
		t.Errorf("it prints %q", out)
	}
	if table := i.ok("keyspace", "list"); strings.Contains(table, "songs") {
		t.Errorf("the table is\n%s", table)
	}
	for what, args := range map[string][]string{
		"no keyspace songs": {"keyspace", "drop", "songs", "--yes"},
		"no column none":    {"keyspace", "drop-column", "posts", "none", "--yes"},
		"built in":          {"keyspace", "drop", "posts", "--yes"},
	} {
		if got := i.run(args...); got.code != exitFail || !strings.Contains(got.err, what) {
			t.Errorf("countctl %v: exit %d, %s", args, got.code, got.err)
		}
	}
}

// A drop whose answer is lost is not sent again: it could drop what was created since.
func TestDropIsSentOnce(t *testing.T) {
	server := countdtest.New(t)
	i := against(t, server)
	i.ok("keyspace", "create", "songs", "--columns", "plays")
	sent := 0
	server.Fail = func(r *http.Request, _ []byte) *countdtest.Fault {
		if r.Method != http.MethodDelete {
			return nil
		}
		sent++
		return &countdtest.Fault{Status: 504, Code: "outcome_unknown"}
	}
	if got := i.run("keyspace", "drop", "songs", "--yes"); got.code != exitFail || !strings.Contains(got.err, "outcome_unknown") || sent != 1 {
		t.Errorf("exit %d after %d calls, %s", got.code, sent, got.err)
	}
}

func TestNumberedColumns(t *testing.T) {
	for _, c := range []struct {
		columns []string
		dropped []int
		want    []string
	}{
		{[]string{"a", "b"}, nil, []string{"a", "b"}},
		{[]string{"b"}, []int{0}, []string{"", "b"}},
		{[]string{"a", "d"}, []int{1, 2}, []string{"a", "", "", "d"}},
		{[]string{"a"}, []int{1}, []string{"a", ""}},
	} {
		if got := numberedColumns(client.Keyspace{Columns: c.columns, DroppedColumns: c.dropped}); !slices.Equal(got, c.want) {
			t.Errorf("%q without %v: %q, want %q", c.columns, c.dropped, got, c.want)
		}
	}
}

func TestKeyspaces(t *testing.T) {
	i := against(t, countdtest.New(t))
	made := decode[client.Keyspace](t, i.ok("keyspace", "create", "songs", "--columns", "plays,likes", "--shards", "8", "-o", "json"))
	if made.Name != "songs" || made.Shards != 8 || !slices.Equal(made.Columns, []string{"plays", "likes"}) {
		t.Fatalf("created %+v", made)
	}
	i.ok("keyspace", "create", "songs", "--columns", "plays,likes", "--shards", "8")
	if got := i.run("keyspace", "create", "songs", "--columns", "plays", "--shards", "8"); got.code != exitFail ||
		!strings.Contains(got.err, "keyspace_exists") {
		t.Fatalf("exit %d, %q", got.code, got.err)
	}
	wider := decode[client.Keyspace](t, i.ok("keyspace", "add-columns", "songs", "shares,plays", "skips", "-o", "json"))
	if !slices.Equal(wider.Columns, []string{"plays", "likes", "shares", "skips"}) {
		t.Fatalf("columns are %v", wider.Columns)
	}
	for _, off := range []bool{false, true} {
		args := []string{"keyspace", "everywhere", "songs"}
		if off {
			args = append(args, "--off")
		}
		if table := i.ok(args...); strings.Contains(table, "everywhere") == off {
			t.Errorf("countctl %v prints\n%s", args, table)
		}
		if k := decode[client.Keyspace](t, i.ok(append(args, "-o", "json")...)); k.Everywhere == off {
			t.Errorf("countctl %v: %+v", args, k)
		}
	}
	if got := i.run("keyspace", "everywhere", "nobody"); got.code != exitFail || !strings.Contains(got.err, "unknown_keyspace") {
		t.Errorf("exit %d, %q", got.code, got.err)
	}
	list := decode[keyspacesOutput](t, i.ok("keyspace", "list", "-o", "json"))
	if len(list.Keyspaces) != 3 {
		t.Fatalf("list is %+v", list)
	}
	if table := i.ok("keyspace", "list"); !strings.Contains(table, "plays,likes,shares,skips") {
		t.Fatalf("the table is\n%s", table)
	}
}

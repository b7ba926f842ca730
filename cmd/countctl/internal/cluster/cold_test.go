package cluster

import (
	"net/http"
	"strings"
	"testing"

	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/proctest"
)

// threeWithRows is a cluster of three nodes with four posts.
func threeWithRows(t *testing.T) (*fakeServer, *proctest.Invocation) {
	t.Helper()
	server, i := three(t)
	server.edit(func(c *fakeCluster) { c.Rows = 4 })
	return server, i
}

func TestColdStatus(t *testing.T) {
	server, i := threeWithRows(t)
	server.edit(func(c *fakeCluster) {
		c.Nodes[2].Answers = false
		c.Cold = map[string]*admin.ColdWork{"n1": {ID: "x", Verb: "migrate", Keyspace: "posts", Failed: "the node is at its memory limit", Rows: 7, Of: 9}}
	})
	s := proctest.Decode[coldStatusOutput](t, i.OK("cold", "status", "-o", "json"))
	if len(s.Nodes) != 3 || s.Nodes[0].Keyspaces[0].ColdRows != 4 || s.Nodes[0].Work.Rows != 7 || s.Nodes[2].Answers {
		t.Errorf("%+v", s)
	}
	table := i.OK("cold", "status")
	for _, want := range []string{"n3    no answer", "1,234", "90.0 %", "280µs", "1.8ms", "50 %", "1h0m0s", "migrate", "the node is at its memory limit"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
	if lines := strings.Count(table, "\n"); lines > 24 {
		t.Errorf("%d lines", lines)
	}
}

func TestColdMigrate(t *testing.T) {
	server, i := threeWithRows(t)
	if out := proctest.Decode[coldOutput](t, i.OK("cold", "migrate", "posts", "--older-than", "1d", "--dry-run", "-o", "json")); out.ID != "" || out.Rows != 12 || out.Done {
		t.Errorf("a dry run: %+v", out)
	}
	got := i.Run("cold", "migrate", "posts", "--before", "3342819171543700", "-o", "json")
	out := proctest.Decode[coldOutput](t, got.Out)
	if got.Code != cli.ExitOK || !out.Done || out.Rows != 12 || len(out.Nodes) != 3 || out.Nodes[1].Moved != 4 || !out.Nodes[1].Ended || !strings.Contains(got.Err, "n2 has moved 50 % of about 4 rows") {
		t.Errorf("exit %d, %+v, %s", got.Code, out, got.Err)
	}
	if out := proctest.Decode[coldOutput](t, i.OK("cold", "migrate", "--no-wait", "-o", "json")); out.Done || out.ID == "" {
		t.Errorf("not waited for: %+v", out)
	}
	server.edit(func(c *fakeCluster) { c.Nodes[2].Answers = false })
	if got := i.Run("cold", "migrate"); got.Code != cli.ExitOK || !strings.Contains(got.Err, "n3 does not answer") || !strings.Contains(got.Out, "no answer") {
		t.Errorf("a silent node: exit %d, %s%s", got.Code, got.Out, got.Err)
	}
}

func TestColdMigrateThatFails(t *testing.T) {
	server, i := threeWithRows(t)
	if table := i.OK("cold", "migrate", "posts", "--dry-run"); !strings.Contains(table, "dry run") {
		t.Errorf("a dry run:\n%s", table)
	}
	i.OK("cold", "stop")
	server.edit(func(c *fakeCluster) { c.Nodes[2].Answers = false })
	if got := i.Run("cold", "stop"); got.Code != cli.ExitOK || !strings.Contains(got.Err, "n3 does not answer: a job that it may be running continues") || !strings.Contains(got.Out, "stopped") {
		t.Errorf("a stop, and a silent node: exit %d, %s%s", got.Code, got.Out, got.Err)
	}
	if got := i.Run("cold", "migrate", "posts", "--dry-run"); !strings.Contains(got.Err, "n3 does not answer: its rows are not among these") {
		t.Errorf("a dry run, and a silent node: %s", got.Err)
	}
	server.edit(func(c *fakeCluster) { c.Nodes[2].Answers = true })
	server.edit(func(c *fakeCluster) { c.ColdRefused = "n2: its disk has no room" })
	if got := i.Run("cold", "migrate", "posts"); got.Code != cli.ExitFail || !strings.Contains(got.Err, "n2: its disk has no room") {
		t.Errorf("no room: exit %d, %s", got.Code, got.Err)
	}
	server.edit(func(c *fakeCluster) { c.ColdRefused = "" })
	for name, test := range map[string]struct {
		change func(c *fakeCluster)
		want   string
	}{
		"a node fails": {func(c *fakeCluster) {
			c.Cold["n2"].Failed, c.Cold["n2"].Running = "cold rows are damaged", false
		}, "n2 did not migrate all rows: cold rows are damaged"},
		"a node is started again": {func(c *fakeCluster) { delete(c.Cold, "n2") }, "n2 did not migrate all rows: it was started again"},
	} {
		t.Run(name, func(t *testing.T) {
			server.edit(func(c *fakeCluster) {
				c.Looked = func(c *fakeCluster, method, path string) {
					if method == http.MethodGet && path == "/v1/admin/cold" && c.Cold["n2"] != nil {
						test.change(c)
					}
				}
			})
			if got := i.Run("cold", "migrate", "posts"); got.Code != cli.ExitFail || !strings.Contains(got.Err, test.want) {
				t.Errorf("exit %d, %s", got.Code, got.Err)
			}
		})
	}
}

func TestColdUsage(t *testing.T) {
	_, i := three(t)
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"cold"}, "cold needs status, migrate or stop"},
		{[]string{"cold", "migrate", "a", "b"}, "takes [KEYSPACE]"},
		{[]string{"cold", "migrate", "--before", "x"}, "--before"},
		{[]string{"cold", "migrate", "--before", "0"}, "--before: no id is below 0"},
		{[]string{"cold", "migrate", "", "--before", "9"}, "KEYSPACE is empty"},
		{[]string{"cold", "migrate", "--older-than", "1500ms"}, "in whole seconds"},
		{[]string{"cold", "migrate", "--older-than", "0s"}, "1s or more"},
		{[]string{"cold", "migrate", "--before", "1", "--older-than", "1h"}, "not both"},
		{[]string{"cold", "migrate", "users", "--older-than", "1h"}, "older_than_seconds"},
		{[]string{"cold", "stop", "now"}, `stop takes no arguments, not "now"`},
	} {
		if got := i.Run(test.args...); got.Code != cli.ExitUsage || !strings.Contains(got.Err, test.want) {
			t.Errorf("%v: exit %d, %s", test.args, got.Code, got.Err)
		}
	}
	if got := i.Run("cold", "migrate", "songs"); got.Code != cli.ExitFail || !strings.Contains(got.Err, "no such keyspace") {
		t.Errorf("exit %d, %s", got.Code, got.Err)
	}
}

// coldStatusOutput is the JSON output of "cold status".
type coldStatusOutput struct {
	Nodes []admin.ColdNode `json:"nodes"`
}

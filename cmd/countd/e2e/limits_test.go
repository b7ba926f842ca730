package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// TestLimitOfAKeyspace makes a keyspace with a limit of rows by countctl, and fills it. Through each node:
//
//  1. A new row is refused, over HTTP and Redis, and the error names the keyspace, the limit and what it holds.
//  2. Existing rows count. The warning and the metric of the limit appear.
//  3. A higher limit takes effect within moments.
func TestLimitOfAKeyspace(t *testing.T) {
	t.Parallel()
	c := newCluster(t, proctest.Options{LogStore: "shared"})
	n := c.Nodes()[0]
	n.MustCtl("keyspace", "create", "songs", "--columns", "plays", "--rows", "3")
	for _, id := range []string{"11", "12", "13"} {
		n.MustCtl("incr", id, "plays=1", "--keyspace", "songs")
	}
	const refusal = "keyspace songs is at its limit of 3 rows, and has 3"
	for _, n := range c.Nodes() {
		add := func(ids ...string) (status int, fault string) {
			var ops []any
			for _, id := range ids {
				ops = append(ops, map[string]any{"id": id, "add": map[string]int64{"plays": 1}})
			}
			var answer struct {
				Error struct{ Code, Message string }
			}
			status, err := n.Call(http.MethodPost, "/v1/counters/songs/incr", map[string]any{"ops": ops}, &answer)
			must.Do(t, err)
			return status, answer.Error.Code + " " + answer.Error.Message
		}
		if status, fault := add("11", "14"); status != http.StatusConflict || !strings.HasPrefix(fault, "refused ") || !strings.HasSuffix(fault, refusal) {
			t.Errorf("%s answers %d %q", n.Name, status, fault)
		}
		if status, fault := add("12"); status != http.StatusOK {
			t.Errorf("an existing row: %d %q", status, fault)
		}
		r := newGoRedis(t, n.Redis, 3)
		if err := r.Incr(t.Context(), "songs:14:plays").Err(); err == nil || !strings.HasPrefix(err.Error(), "OOM ") || !strings.HasSuffix(err.Error(), refusal) {
			t.Errorf("over Redis, %s answers %v", n.Name, err)
		}
		must.Do(t, r.Incr(t.Context(), "songs:13:plays").Err())
		if rows := n.Rows("songs", []string{"14"}); rows[0].Counts["plays"] != 0 {
			t.Errorf("a refused request counted: %+v", rows)
		}
	}
	if out := n.MustCtl("status"); !strings.Contains(out, "keyspace_limit  songs has 3 of at most 3 rows") || !strings.Contains(out, "countctl keyspace limit songs --rows N") {
		t.Errorf("status has no warning:\n%s", out)
	}
	if metrics := n.Text("/metrics"); !strings.Contains(metrics, `countd_keyspace_limit_used_ratio{keyspace="songs",limit="rows"} 1`) {
		t.Error("the metric is not 1")
	}
	n.MustCtl("keyspace", "limit", "songs", "--rows", "4")
	must.Become(t, "a new row is accepted", func() bool { return n.Ctl("incr", "14", "plays=1", "--keyspace", "songs").Code == 0 })
	if out := n.MustCtl("keyspace", "list"); !strings.Contains(out, "4 rows") {
		t.Errorf("the list has no limit:\n%s", out)
	}
}

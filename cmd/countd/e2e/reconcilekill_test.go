package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/proctest"
)

// TestReconcileKilled kills countctl during a reconciliation, and a node during the next one:
//
//  1. together, the runs correct each row once;
//  2. the second run succeeds although a leader dies;
//  3. a third run has nothing to correct.
func TestReconcileKilled(t *testing.T) {
	long(t)
	beside(t)
	stream := redis.NewClient(&redis.Options{Addr: proctest.StartRedis(t)})
	defer stream.Close()
	c := newCluster(t, proctest.Options{})
	nodes, dir := c.Nodes(), t.TempDir()
	const rows = 8000 // corrected in 16 writes
	ids := make([]string, rows)
	truth, ops, drift := "id,like\n", []any{}, int64(0)
	for i := range rows {
		ids[i] = strconv.Itoa(i)
		truth += fmt.Sprintf("%d,%d\n", i, i%5)
		ops = append(ops, map[string]any{"id": ids[i], "add": map[string]int64{"like": int64(i%7) + 10}})
		drift += int64(i%7) + 10 - int64(i%5)
	}
	files := map[string]string{
		"truth.csv":  truth,
		"likes.yaml": fmt.Sprintf("name: likes\ntype: redis-stream\naddr: %s\nkey: likes\n", stream.Options().Addr),
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.XAdd(t.Context(), &redis.XAddArgs{Stream: "likes", ID: "1-1", Values: []string{"value", "[]"}}).Err(); err != nil {
		t.Fatal(err)
	}
	nodes[0].MustCtl("source", "create", filepath.Join(dir, "likes.yaml"))
	nodes[0].MustCtl("source", "show", "likes", "--wait")
	nodes[0].MustCall(http.MethodPost, "/v1/counters/posts/incr", map[string]any{"ops": ops, "want": "none"}, nil)

	command := []string{"reconcile", filepath.Join(dir, "truth.csv"), "--keyspace", "posts", "--source", "likes", "--at", "1-2", "--yes", "-o", "json"}
	corrected := func() int64 { return driftTotal(t, nodes[0]) } // countctl sends all corrections to this node
	began := func(run *proctest.Ctl, beyond int64) {             // waits until run has made some corrections; if the machine stalled, run may have made all
		t.Helper()
		for end := time.Now().Add(must.BecomeMax); corrected() <= min(beyond, drift-1); time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				run.Kill()
				t.Fatalf("no corrections: %s", run.Stderr)
			}
		}
	}
	first := nodes[0].StartCtl(command...)
	began(first, 0)
	first.Kill()

	before := corrected()
	second := nodes[0].StartCtl(command...)
	began(second, before)
	victim, _ := c.LeaderOfMost()
	if victim == nodes[0] {
		victim = nodes[1]
	}
	victim.Kill()
	second.Wait()
	if second.Code != 0 {
		t.Errorf("beside the kill of a node: %d, %s", second.Code, second.Stderr)
	}
	victim.Start()
	c.AwaitReady(victim)
	var found reconciledShown
	if err := json.Unmarshal([]byte(nodes[0].MustCtl(command...)), &found); err != nil || found.Differ != 0 || found.Compared != rows {
		t.Errorf("the last run found %+v, %v", found, err)
	}
	for part := range slices.Chunk(ids, 1000) {
		for _, row := range nodes[0].Rows("posts", part) {
			i, _ := strconv.Atoi(row.ID)
			if got, want := row.Counts["like"], int64(i%5); got != want {
				t.Errorf("row %d is %d, want %d", i, got, want)
			}
		}
	}
	t.Logf("the first run corrected %d of %d before it ended with %d", before, drift, first.Code)
	c.AwaitAgreement(nodes...)
}

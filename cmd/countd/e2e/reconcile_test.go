package e2e

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/countd/countd/internal/proctest"
)

// reconciledShown has the fields of the output of countctl reconcile that tests read.
type reconciledShown struct {
	Compared, Differ, Corrected, Repeated int
	Worst                                 []struct {
		ID    string
		Drift int64
	}
}

// TestReconcile corrects rows on three nodes with the command of docs/SOURCES.md, while the nodes
// count a stream of Redis:
//
//  1. --dry-run finds each drifted row and the amount of its drift, and writes nothing;
//  2. the corrections keep concurrent increments, and a repeated run corrects nothing;
//  3. rows that the truth file lacks become 0;
//  4. --quiesced refuses to correct while rows are written, and corrects after that;
//  5. rows that drift again right after a correction can be corrected again at once, even if they
//     drift by the same amount.
func TestReconcile(t *testing.T) {
	long(t)
	beside(t)
	stream := redis.NewClient(&redis.Options{Addr: proctest.StartRedis(t)})
	defer stream.Close()
	c := newCluster(t, proctest.Options{})
	nodes, dir := c.Nodes(), t.TempDir()
	const rows = 200
	want := [rows]int64{}
	write := func(ctx context.Context, message int) (last string, err error) {
		row, add := message%rows, int64(message%7)-2
		text := fmt.Sprintf(`{"keyspace":"posts","id":%d,"add":{"like":%d}}`, row, add)
		if last, err = stream.XAdd(ctx, &redis.XAddArgs{Stream: "likes", Values: []string{"value", text}}).Result(); err == nil {
			want[row] += add
		}
		return last, err
	}
	config := filepath.Join(dir, "likes.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "name: likes\ntype: redis-stream\naddr: %s\nkey: likes\n", stream.Options().Addr), 0o600); err != nil {
		t.Fatal(err)
	}
	const before = 2000
	last := ""
	for message := range before {
		var err error
		if last, err = write(t.Context(), message); err != nil {
			t.Fatal(err)
		}
	}
	nodes[0].MustCtl("source", "create", config)
	nodes[1].MustCtl("source", "show", "likes", "--wait")

	// The truth file is as of the position after the last message.
	ms, seq, _ := strings.Cut(last, "-")
	number, err := strconv.ParseUint(seq, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	at := fmt.Sprintf("%s-%d", ms, number+1)
	writeTruth := func() string {
		path := filepath.Join(dir, "truth.csv")
		text := "id,like\n"
		for id, n := range want {
			text += fmt.Sprintf("%d,%d\n", id, n)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	truth := writeTruth()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		for message := before; ; message++ {
			if _, err := write(ctx, message); err != nil {
				ended <- ctx.Err()
				return
			}
			select {
			case <-ctx.Done():
				ended <- ctx.Err()
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()

	drift := map[string]int64{"3": 5, "7": -2, "150": 1000, "999": 4}
	add := func(id string, n int64) {
		t.Helper()
		nodes[2].MustCall(http.MethodPost, "/v1/counters/posts/incr", map[string]any{"ops": []any{map[string]any{"id": id, "add": map[string]int64{"like": n}}}}, nil)
	}
	distort := func() {
		t.Helper()
		for id, n := range drift {
			add(id, n)
		}
	}
	distort()
	command := documented(t, "countctl reconcile truth.csv --keyspace posts --source likes --at 0=812", map[string]string{"truth.csv": truth, "0=812": "0=" + at})
	report := filepath.Join(dir, "differences.csv")
	var found reconciledShown
	reconcile := func(more ...string) {
		t.Helper()
		found = reconciledShown{}
		if err := json.Unmarshal([]byte(nodes[0].MustCtl(append(append([]string{}, command...), append(more, "-o", "json")...)...)), &found); err != nil {
			t.Fatal(err)
		}
	}
	reconcile("--dry-run", "--report", report)
	if found.Differ != len(drift) || found.Corrected != 0 || found.Compared != rows+1 {
		t.Errorf("the dry run found %+v", found)
	}
	for _, w := range found.Worst {
		if w.Drift != -drift[w.ID] {
			t.Errorf("row %s is off by %d, want %d", w.ID, w.Drift, -drift[w.ID])
		}
	}
	if text, err := os.ReadFile(report); err != nil || strings.Count(string(text), "\n") != len(drift)+1 {
		t.Errorf("the report: %s, %v", text, err)
	} else if _, err := csv.NewReader(strings.NewReader(string(text))).ReadAll(); err != nil {
		t.Error(err)
	}
	if run := nodes[0].Ctl(command...); run.Code == 0 || !strings.Contains(run.Stderr, "by up to 1000?") {
		t.Errorf("a large correction without a question: %d, %s", run.Code, run.Stderr)
	}
	reconcile("--yes")
	if found.Corrected != len(drift) {
		t.Errorf("it corrected %+v", found)
	}
	reconcile("--yes")
	if found.Differ != 0 {
		t.Errorf("a repeat found %+v", found)
	}
	distort()
	reconcile("--yes")
	if found.Corrected != len(drift) || found.Repeated != 0 {
		t.Errorf("the same drift again: %+v", found)
	}
	add("3", 1)
	reconcile("--yes")
	if found.Corrected != 1 {
		t.Errorf("another drift: %+v", found)
	}

	quiesced := []string{"reconcile", truth, "--keyspace", "posts", "--quiesced", "--yes", "-o", "json"}
	if run := nodes[1].Ctl(quiesced...); run.Code == 0 || !strings.Contains(run.Stderr, "something was written meanwhile") {
		t.Errorf("while rows are written: %d, %s", run.Code, run.Stderr)
	}
	stop()
	<-ended
	nodes[1].MustCtl("source", "show", "likes", "--wait")
	check := func() {
		t.Helper()
		ids := []string{"999"}
		for id := range rows {
			ids = append(ids, strconv.Itoa(id))
		}
		for i, row := range nodes[1].Rows("posts", ids) {
			n := int64(0)
			if i > 0 {
				n = want[i-1]
			}
			if got := row.Counts["like"]; got != n {
				t.Errorf("row %s is %d, want %d", ids[i], got, n)
			}
		}
	}
	check()
	distort()
	quiesced[1] = writeTruth()
	if err := json.Unmarshal([]byte(nodes[1].MustCtl(quiesced...)), &found); err != nil || found.Corrected != len(drift) {
		t.Errorf("quiesced: %+v, %v", found, err)
	}
	check()
	corrected := int64(0)
	for _, n := range nodes {
		corrected += driftTotal(t, n)
	}
	if want := int64(3*(5+2+1000+4) + 1); corrected != want {
		t.Errorf("countd_reconcile_drift_total is %d, want %d", corrected, want)
	}
	c.AwaitAgreement(nodes...)
}

// documented checks that docs/SOURCES.md contains a command line, and returns the command's
// arguments. It replaces each argument that is a key of words by the key's value.
func documented(t *testing.T, is string, words map[string]string) []string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/SOURCES.md")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^    ` + regexp.QuoteMeta(is) + `$`).FindString(string(text))
	if line == "" {
		t.Fatalf("docs/SOURCES.md has no %s", is)
	}
	fields := strings.Fields(line)[1:]
	for i, field := range fields {
		if word, is := words[field]; is {
			fields[i] = word
		}
	}
	return fields
}

// driftTotal returns a node's metric of the sum of its corrections in posts.
func driftTotal(t *testing.T, n *proctest.Member) (total int64) {
	t.Helper()
	for line := range strings.Lines(n.Text("/metrics")) {
		if value, is := strings.CutPrefix(strings.TrimSpace(line), `countd_reconcile_drift_total{keyspace="posts"} `); is {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			total += int64(n)
		}
	}
	return total
}

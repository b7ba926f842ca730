package main

import (
	"math"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/cmd/countctl/internal/load"
	"github.com/countd/countd/internal/nodetest"
	"github.com/countd/countd/internal/proctest"
)

func TestBench(t *testing.T) {
	server := nodetest.New(t)
	i := against(t, server)
	r := proctest.Decode[load.Report](t, i.OK("bench", "--op", "incr", "--requests", "50", "--batch", "4", "--concurrency", "2", "--dist", "hot", "-o", "json"))
	if r.Requests != 50 || r.Ops != 200 || r.LatencyUS.P99 <= 0 || server.Row(1)[2] != 200 {
		t.Fatalf("the report is %+v, the row %v", r, server.Row(1))
	}
	table := i.OK("bench", "--keyspace", "posts", "--op", "mixed", "--requests", "50", "--rate", "5000", "--concurrency", "2")
	for _, want := range []string{"open loop at 5000 requests/s", "P99.9", "pages", "increments", "unsent", "client late"} {
		if !strings.Contains(table, want) {
			t.Errorf("the table lacks %q:\n%s", want, table)
		}
	}
}

func TestBenchTakesIDsFromAFile(t *testing.T) {
	server := nodetest.New(t)
	i := against(t, server)
	path := proctest.WriteTemp(t, "ids.csv.gz", proctest.Gzipped(t, "likes,id\n1,18446744073709551615\n"))
	i.OK("bench", "--requests", "5", "--concurrency", "1", "--ids-from", path)
	if got := server.Row(math.MaxUint64)[2]; got != 5 {
		t.Fatalf("the row has %d likes, want 5", got)
	}
	for name, text := range map[string]string{"no id": "x\n1\n", "bad id": "id\nx\n", "empty": "id\n"} {
		t.Run(name, func(t *testing.T) {
			if got := i.Run("bench", "--yes", "--requests", "5", "--ids-from", proctest.WriteTemp(t, "ids.csv", text)); got.Code != cli.ExitFail {
				t.Fatalf("exit %d", got.Code)
			}
		})
	}
}

// A bench may change existing counts only if the command line names the keyspace or has --yes.
func TestBenchAsksBeforeItChangesCounts(t *testing.T) {
	server := nodetest.New(t)
	server.Put(7, 0, 0, 5, 0)
	i := against(t, server)
	for args, code := range map[string]int{
		"":                 cli.ExitUsage,
		"--op mixed":       cli.ExitUsage,
		"--op read":        cli.ExitOK,
		"--op page":        cli.ExitOK,
		"--keyspace users": cli.ExitUsage, // users has no column "like"
		"--keyspace posts": cli.ExitOK,
		"--yes":            cli.ExitOK,
	} {
		t.Run(args, func(t *testing.T) {
			got := i.Run(append(strings.Fields("bench --requests 1 --concurrency 1 --ids 5"), strings.Fields(args)...)...)
			if got.Code != code {
				t.Fatalf("exit %d, %q", got.Code, got.Err)
			}
		})
	}
	if got := i.Run("bench", "--requests", "1"); !strings.Contains(got.Err, "--keyspace") || !strings.Contains(got.Err, "--yes") {
		t.Errorf("told %q", got.Err)
	}
	if got := server.Row(7)[2]; got != 5 {
		t.Errorf("row 7 has %d likes", got)
	}
}

// A bench counts the rows of all nodes before it writes. So it also needs --yes if only other nodes
// have replicas of the keyspace. It does not begin if it cannot count the rows of a shard.
func TestBenchCountsTheRowsOfAllNodes(t *testing.T) {
	server := nodetest.New(t)
	server.Put(7, 0, 0, 5, 0)
	var leaderless atomic.Bool
	server.Fail = func(r *http.Request, _ []byte) *nodetest.Fault {
		switch {
		case r.URL.Path == "/v1/cluster": // this path reports only the replicas of the node
			return &nodetest.Fault{Status: 500, Code: "internal"}
		case r.URL.Path == "/v1/admin/groups" && leaderless.Load():
			return &nodetest.Fault{Status: 200, Body: `{"groups":[{"id":2,"keyspace":"posts","shard":1,"leader":""}]}`}
		}
		return nil
	}
	i := against(t, server)
	if got := i.Run("bench", "--requests", "1"); got.Code != cli.ExitUsage || !strings.Contains(got.Err, "posts holds 1 row,") {
		t.Errorf("exit %d, %q", got.Code, got.Err)
	}
	leaderless.Store(true)
	if got := i.Run("bench", "--requests", "1"); got.Code != cli.ExitFail || !strings.Contains(got.Err, "no leader of posts/1 answers") {
		t.Errorf("exit %d, %q", got.Code, got.Err)
	}
	if got := server.Row(7)[2]; got != 5 {
		t.Errorf("row 7 has %d likes", got)
	}
	out := i.Run("top", "--column", "like", "-o", "json")
	if !strings.Contains(out.Out, `"id": "7"`) && !strings.Contains(out.Out, `"id":"7"`) {
		t.Errorf("top: %q, %q", out.Err, out.Out)
	}
}

func TestBenchFailsWhenRequestsDo(t *testing.T) {
	server := nodetest.New(t)
	server.Fail = func(r *http.Request, _ []byte) *nodetest.Fault {
		if r.Method == http.MethodPost {
			return &nodetest.Fault{Status: 429, Code: "overloaded"}
		}
		return nil
	}
	got := against(t, server).Run("bench", "--requests", "20", "-o", "json")
	if got.Code != cli.ExitFail || !strings.Contains(got.Err, "20 of 20 requests failed") {
		t.Fatalf("exit %d, %q", got.Code, got.Err)
	}
	if r := proctest.Decode[load.Report](t, got.Out); r.Errors["overloaded"] != 20 {
		t.Fatalf("the report is %+v", r)
	}
}

func TestBenchHoldsTheCountsAgainstTheAnswers(t *testing.T) {
	server := nodetest.New(t)
	i := against(t, server)
	args := []string{"bench", "--keyspace", "posts", "--requests", "30", "--concurrency", "2", "--ids", "1500", "--check", "--once", "-o", "json"}
	i.OK(args...) // earlier counts are not part of the check
	type check struct {
		Counted, Least, Most int64
		Holds                bool
	}
	r := proctest.Decode[struct{ Check check }](t, i.OK(args...))
	if r.Check != (check{Counted: 30, Least: 30, Most: 30, Holds: true}) {
		t.Fatalf("the check is %+v", r.Check)
	}
	if table := i.OK(args[:len(args)-2]...); !strings.Contains(table, "counts grew by") {
		t.Errorf("the table lacks the check:\n%s", table)
	}
	// The server acknowledges increments, but does not count them.
	server.Fail = func(r *http.Request, _ []byte) *nodetest.Fault {
		if strings.HasSuffix(r.URL.Path, "/incr") {
			return &nodetest.Fault{Status: 200}
		}
		return nil
	}
	got := i.Run(args...)
	if got.Code != cli.ExitFail || !strings.Contains(got.Err, "the counts grew by 0") {
		t.Fatalf("exit %d, %q", got.Code, got.Err)
	}
	if got := i.Run("bench", "--requests", "1", "--check", "--ids-from", "x.csv"); got.Code != cli.ExitUsage || !strings.Contains(got.Err, "--ids-from") {
		t.Errorf("ids of a file: exit %d, %q", got.Code, got.Err)
	}
	if got := i.Run("bench", "--requests", "1", "--check", "--ids", "1000001"); got.Code != cli.ExitUsage {
		t.Fatalf("exit %d", got.Code)
	}
}

package main

import (
	"fmt"
	"math"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/nodetest"
	"github.com/countd/countd/internal/proctest"
)

func TestWriteThenRead(t *testing.T) {
	server := nodetest.New(t)
	i := against(t, server)

	set := proctest.Decode[client.WrittenRow](t, i.OK("set", "18446744073709551615", "like=10", "view=-3", "-o", "json"))
	if set.ID != client.Number(math.MaxUint64) || set.Token == "" {
		t.Fatalf("set answered %+v", set)
	}
	incr := proctest.Decode[client.WrittenRow](t, i.OK("incr", "18446744073709551615", "like=+1", "comment=-2", "-o", "json"))
	want := client.Counts{{Column: "repost", Value: 0}, {Column: "comment", Value: -2}, {Column: "like", Value: 11}, {Column: "view", Value: -3}}
	if !slices.Equal(incr.Counts, want) {
		t.Fatalf("incr answered %v, want %v", incr.Counts, want)
	}
	got := proctest.Decode[client.Row](t, i.OK("get", "18446744073709551615", "-o", "json"))
	if !slices.Equal(got.Counts, want) {
		t.Fatalf("get answered %v, want %v", got.Counts, want)
	}
	if out := i.OK("get", "18446744073709551615"); out != "ID                    REPOST  COMMENT  LIKE  VIEW\n18446744073709551615  0       -2       11    -3\n" {
		t.Fatalf("the table is\n%s", out)
	}

	deleted := proctest.Decode[struct{ Results []client.WrittenRow }](t, i.OK("delete", "18446744073709551615", "5", "-o", "json"))
	if len(deleted.Results) != 2 || deleted.Results[0].Token == "" || server.Rows() != 0 {
		t.Fatalf("delete answered %+v and left %d rows", deleted, server.Rows())
	}
}

func TestMgetKeepsOrderAndDoubles(t *testing.T) {
	server := nodetest.New(t)
	server.Put(7, 1, 2, 3, 4)
	i := against(t, server)
	i.Stdin = "9\n7 7\n"
	rows := proctest.Decode[struct{ Results []client.Row }](t, i.OK("mget", "7", "-", "1", "--columns", "like", "-o", "json")).Results
	want := []struct {
		id   client.ID
		like int64
	}{{client.Number(7), 3}, {client.Number(9), 0}, {client.Number(7), 3}, {client.Number(7), 3}, {client.Number(1), 0}}
	if len(rows) != len(want) {
		t.Fatalf("%d rows, want %d", len(rows), len(want))
	}
	for k, w := range want {
		if like, ok := rows[k].Counts.Get("like"); rows[k].ID != w.id || like != w.like || !ok || len(rows[k].Counts) != 1 {
			t.Errorf("row %d is %+v, want %+v", k, rows[k], w)
		}
	}
}

func TestMgetSplitsManyIDs(t *testing.T) {
	i := against(t, nodetest.New(t))
	i.Stdin = strings.Repeat("12345\n", 2*client.GetIDsMax+1)
	if rows := proctest.Decode[struct{ Results []client.Row }](t, i.OK("mget", "-", "-o", "json")).Results; len(rows) != 2*client.GetIDsMax+1 {
		t.Fatalf("%d rows", len(rows))
	}
}

func TestIDsOfStandardInput(t *testing.T) {
	cases := []struct{ name, stdin, err string }{
		{"none", " \n", "holds no ids"},
		{"bad", "1\n2\nx3\n", `the id "x3"`},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			i := against(t, nodetest.New(t))
			i.Stdin = c.stdin
			if got := i.Run("delete", "-"); got.Code == cli.ExitOK || !strings.Contains(got.Err, c.err) {
				t.Fatalf("exit %d, %q", got.Code, got.Err)
			}
		})
	}
}

func TestReadOptionsReachTheServer(t *testing.T) {
	server := nodetest.New(t)
	var seen []string
	server.Fail = func(r *http.Request, _ []byte) *nodetest.Fault {
		seen = append(seen, r.Method+" "+r.URL.RequestURI()+" "+r.Header.Get("Countd-Token")+" "+r.Header.Get("Countd-Timeout"))
		return nil
	}
	i := against(t, server)
	token := proctest.Decode[client.WrittenRow](t, i.OK("incr", "1", "like=1", "-o", "json")).Token
	seen = nil
	i.OK("get", "1", "--consistency", "linearizable", "--token", token, "--timeout", "2s")
	i.OK("mget", "1", "--consistency", "bounded", "--max-staleness", "500ms", "--keyspace", "users")
	want := []string{
		"GET /v1/counters/posts/1?consistency=linearizable " + token + " 2s",
		"POST /v1/counters/users/get?consistency=bounded&max_staleness=500ms  5s",
	}
	if !slices.Equal(seen, want) {
		t.Fatalf("the server saw\n%s\nwant\n%s", strings.Join(seen, "\n"), strings.Join(want, "\n"))
	}
}

func TestRefusedIncrement(t *testing.T) {
	cases := []struct {
		name  string
		fault *nodetest.Fault
		err   string
	}{
		{"overflow", nil, "overflow (409)"},
		{"overloaded", &nodetest.Fault{Status: 429, Code: "overloaded", RetryAfter: "1"}, "overloaded (429): refused by the test; try again"},
		{"unknown", &nodetest.Fault{Status: 504, Code: "outcome_unknown"}, "it is unknown whether row 1 was incremented: outcome_unknown (504)"},
		{"cut", &nodetest.Fault{Hang: true}, "no answer"},
		{"cut with a key", &nodetest.Fault{Hang: true}, "; run it again with --key "},
		{"key of other ops", &nodetest.Fault{Status: 409, Code: "idempotency_conflict"}, "repeat the original write"},
		{"key too old", &nodetest.Fault{Status: 410, Code: "idempotency_expired"}, "leave the key out"},
		{"two lines", &nodetest.Fault{Status: 500, Code: "internal", Message: "a\nb"}, "a b"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server := nodetest.New(t)
			server.Put(1, 0, 0, 1<<63-1, 0)
			var increments atomic.Int32
			server.Fail = func(r *http.Request, _ []byte) *nodetest.Fault {
				increments.Add(1)
				return c.fault
			}
			got := against(t, server).Run("incr", "1", "like=+1")
			if got.Code != cli.ExitFail || !strings.Contains(got.Err, c.err) || strings.Count(got.Err, "\n") != 1 {
				t.Fatalf("exit %d, %q; want %q", got.Code, got.Err, c.err)
			}
			if increments.Load() != 1 {
				t.Fatalf("the increment was sent %d times", increments.Load())
			}
		})
	}
}

// If the outcome of a write is unknown, the error names a key. If the command is repeated with that
// key, the write counts once, whether or not the first try took effect.
func TestUnknownWriteIsRunAgainByItsKey(t *testing.T) {
	named := regexp.MustCompile(`--key ([0-9a-f-]{36}),`)
	for _, happened := range []bool{true, false} {
		for _, args := range []string{"incr 1 like=+2 repost=-1", "set 1 like=2 repost=-1", "delete 2", "delete 2 3 4 --yes"} {
			t.Run(fmt.Sprintf("%s, happened %v", args, happened), func(t *testing.T) {
				server := nodetest.New(t)
				server.Put(2, 9, 0, 9, 0)
				i := against(t, server)
				server.SetFail(func(*http.Request, []byte) *nodetest.Fault {
					return &nodetest.Fault{Status: 504, Code: "outcome_unknown", After: happened}
				})
				got := i.Run(strings.Fields(args)...)
				key := named.FindStringSubmatch(got.Err)
				if got.Code != cli.ExitFail || key == nil || strings.Count(got.Err, "\n") != 1 {
					t.Fatalf("exit %d, %q", got.Code, got.Err)
				}
				server.SetFail(func(*http.Request, []byte) *nodetest.Fault { return nil })
				for n := range 2 {
					out := i.OK(append(strings.Fields(args), "--key", key[1], "-o", "json")...)
					again := happened || n > 0
					rows := []client.WrittenRow{proctest.Decode[client.WrittenRow](t, out)}
					if strings.HasPrefix(args, "delete") {
						rows = proctest.Decode[struct{ Results []client.WrittenRow }](t, out).Results
					}
					// Check only the first row: the failed run stopped after its first delete, so the
					// other rows are deleted only now.
					if rows[0].Duplicate != again {
						t.Errorf("answered %s", out)
					}
				}
				want := []int64{-1, 0, 2, 0}
				if row := server.Row(1); strings.HasPrefix(args, "delete") {
					want = make([]int64, 4)
					row = server.Row(2)
					if !slices.Equal(row, want) {
						t.Errorf("row 2 is %v", row)
					}
				} else if !slices.Equal(row, want) {
					t.Errorf("row 1 is %v, want %v", row, want)
				}
			})
		}
	}
}

func TestTop(t *testing.T) {
	server := nodetest.New(t)
	for id := uint64(1); id <= 25_000; id++ { // rows for three pages of a scan
		server.Put(id, 0, 1, int64(id%1000), 0)
	}
	server.Put(30_000, 5, 0, 0, 0) // has no likes
	server.Put(40_000, 0, 0, -7, 0)
	i := against(t, server)
	rows := proctest.Decode[struct{ Results []client.Row }](t, i.OK("top", "--column", "like", "-n", "3", "-o", "json")).Results
	var ids []client.ID
	for _, row := range rows {
		if like, _ := row.Counts.Get("like"); like != 999 {
			t.Errorf("row %s has %d likes, want 999", row.ID, like)
		}
		ids = append(ids, row.ID)
	}
	if want := []client.ID{client.Number(999), client.Number(1999), client.Number(2999)}; !slices.Equal(ids, want) {
		t.Fatalf("top is %v, want %v: equal counts rank by id", ids, want)
	}
	if rows := proctest.Decode[struct{ Results []client.Row }](t, i.OK("top", "--column", "repost", "-o", "json")).Results; len(rows) != 1 || rows[0].ID != client.Number(30_000) {
		t.Fatalf("top of reposts is %v: rows without one do not rank", rows)
	}
	if rows := proctest.Decode[struct{ Results []client.Row }](t, i.OK("top", "--column", "view", "-o", "json")).Results; rows == nil || len(rows) != 0 {
		t.Fatalf("top of views is %v, want an empty list", rows)
	}
}

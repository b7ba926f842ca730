package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/cmd/countctl/internal/clitest"
	"github.com/countd/countd/cmd/countctl/internal/reconcile"
	"github.com/countd/countd/internal/countdtest"
	"github.com/countd/countd/internal/proctest"
)

var truthKeyspace = client.Keyspace{Name: "posts", Columns: []string{"repost", "comment", "like"}}

func TestReconcileUsage(t *testing.T) {
	i := clitest.New(t, "http://127.0.0.1:1", groups...)
	for args, want := range map[string]string{
		"":                                 "from a file, or from --postgres",
		"a.csv --postgres x --query y":     "from a file, or from --postgres",
		"--postgres x":                     "--postgres and --query belong together",
		"a.csv":                            "needs --source, or --quiesced",
		"a.csv --source s --quiesced":      "needs --source, or --quiesced",
		"a.csv --source s":                 "--source and --at belong together",
		"a.csv --quiesced --at 1":          "--source and --at belong together",
		"a.csv --source s --at x=1":        `"x" is no partition`,
		"a.csv --source s --at 0=1,0=2":    "partition 0 twice",
		"a.csv --source s --at 0=1,1=y":    `"y" is no position`,
		"a.csv --source s --at 0=1-2,1=-3": `"-3" is no position`,
	} {
		if run := i.Run(append([]string{"reconcile"}, strings.Fields(args)...)...); run.Code != cli.ExitUsage || !strings.Contains(run.Err, want) {
			t.Errorf("%s: %d, %s", args, run.Code, run.Err)
		}
	}
}

func TestReadTruth(t *testing.T) {
	read := func(text string) (*truth, error) {
		path := filepath.Join(t.TempDir(), "truth.csv")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return readTruth(t.Context(), []string{path}, reconcileFlags{}, truthKeyspace)
	}
	got, err := read("like,id,repost\n5,1,-2\n9223372036854775807,18446744073709551615,0\n")
	if err != nil || got.rows.Len() != 2 || !slices.Equal(got.columns, []string{"like", "repost"}) || !slices.Equal(got.rows.Row(1), []int64{5, -2}) {
		t.Errorf("%+v, %v", got, err)
	}
	same, err := read("id,repost,like\n1,-2,5\n18446744073709551615,0,9223372036854775807\n")
	if err != nil || slices.Equal(same.sum, got.sum) {
		t.Errorf("columns in another order are another truth: %v", err)
	}
	other, err := read("like,id,repost\n9223372036854775807,18446744073709551615,0\n5,1,-2\n")
	if err != nil || !slices.Equal(other.sum, got.sum) {
		t.Errorf("rows in another order are the same truth: %v", err)
	}
	for text, want := range map[string]string{
		"id\n":                           "a column of the keyspace",
		"like\n":                         "a column id is needed",
		"id,likes\n":                     `has no column "likes"`,
		"id,like,like\n":                 `"like" is there twice`,
		"id,like\n1,1\n1,2\n":            "line 3: id: 1 is there twice",
		"id,like\n-1,1\n":                "line 2: id: \"-1\" is not",
		"id,like\n1,1.5\n":               "line 2: like: \"1.5\" is not",
		"id,like\n1,9223372036854775808": "is not a signed 64-bit integer",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestQueryTruth(t *testing.T) {
	dsn := "postgres://postgres@" + proctest.StartPostgres(t).Addr + "/postgres?sslmode=disable"
	got, err := queryTruth(t.Context(), dsn, `SELECT n % 2 AS id, count(*) AS "like", sum(n) AS repost FROM generate_series(1, 5) n GROUP BY 1`, truthKeyspace)
	if err != nil || got.rows.Len() != 2 || !slices.Equal(got.rows.Row(1), []int64{3, 9}) || !slices.Equal(got.rows.Row(0), []int64{2, 6}) {
		t.Errorf("%+v, %v", got, err)
	}
	for query, want := range map[string]string{
		`SELECT`:                         "a column id is needed",
		`SELEC`:                          "cannot query",
		`SELECT 1 AS id, NULL AS "like"`: "row 1: like is null",
		`SELECT 1 AS id, 1.5 AS "like"`:  "row 1: like",
		`SELECT 1 AS id, 1/(1-n) AS "like" FROM generate_series(0, 1) n`: "division by zero",
	} {
		if _, err := queryTruth(t.Context(), dsn, query, truthKeyspace); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", query, err)
		}
	}
}

// Rows that are compared as they are must still be so once a question is answered.
func TestWrittenWhileAQuestionIsOpen(t *testing.T) {
	server := countdtest.New(t)
	c, err := client.New(client.Config{Addrs: []string{server.URL}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r := &reconciled{server: c, keyspace: "posts", truth: &truth{columns: []string{"like"}, rows: reconcile.NewTruth(1)}}
	r.truth.rows.Row(1)[0] = 5
	digests, err := r.digests(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	found, err := reconcile.Compare(t.Context(), r, r.truth.rows, nil)
	if err != nil {
		t.Fatal(err)
	}
	if drifts, err := r.still(t.Context(), found, digests); err != nil || !slices.Equal(drifts, []reconcile.Drift{{ID: 1, Want: 5, Add: 5}}) {
		t.Errorf("%+v, %v", drifts, err)
	}
	server.Put(1, 0, 0, 5, 0)
	if drifts, err := r.still(t.Context(), found, digests); !errors.Is(err, errNotQuiesced) {
		t.Errorf("%+v, %v", drifts, err)
	}
}

package data

import (
	"bytes"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/bulk"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/nodetest"
	"github.com/countd/countd/internal/proctest"
)

var truthKeyspace = client.Keyspace{Name: "posts", Columns: []string{"repost", "comment", "like"}}

func TestReconcileUsage(t *testing.T) {
	t.Parallel()
	i := invoke(t, "http://127.0.0.1:1", Commands)
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
	t.Parallel()
	read := func(text string) (*truth, error) {
		path := filepath.Join(t.TempDir(), "truth.csv")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return readTruth(t.Context(), []string{path}, reconcileFlags{}, truthKeyspace)
	}
	got, err := read("like,id,repost\n5,1,-2\n9223372036854775807,18446744073709551615,0\n")
	if err != nil || got.rows.Len() != 2 || !slices.Equal(got.columns, []string{"like", "repost"}) || !slices.Equal(got.rows.Row(client.Number(1)), []int64{5, -2}) {
		t.Errorf("%+v, %v", got, err)
	}
	for text, want := range map[string]string{
		"id\n":                           "a column of the keyspace",
		"like\n":                         "a column id is needed",
		"id,likes\n":                     `has no column "likes"`,
		"id,like,like\n":                 `"like" is there twice`,
		"id,like\n1,1\n1,2\n":            ":3: id: 1 is there twice",
		"id,like\n-1,1\n":                ":2: id: \"-1\" is not",
		"id,like\n1,1.5\n":               ":2: like: \"1.5\" is not",
		"id,like\n1,9223372036854775808": "is not a signed 64-bit integer",
	} {
		if _, err := read(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestQueryTruth(t *testing.T) {
	t.Parallel()
	dsn := "postgres://postgres@" + proctest.StartPostgres(t, nil).Addr + "/postgres?sslmode=disable"
	got, err := queryTruth(t.Context(), dsn, `SELECT n % 2 AS id, count(*) AS "like", sum(n) AS repost FROM generate_series(1, 5) n GROUP BY 1`, truthKeyspace)
	if err != nil || got.rows.Len() != 2 || !slices.Equal(got.rows.Row(client.Number(1)), []int64{3, 9}) || !slices.Equal(got.rows.Row(client.Number(0)), []int64{2, 6}) {
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

// quiesced returns a value of type reconciled, without a source, for the rows of a server. Its
// truth is likes.
func quiesced(t *testing.T, server *nodetest.Server, likes map[uint64]int64) *reconciled {
	t.Helper()
	c, err := client.New(client.Config{Addrs: []string{server.URL}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	r := &reconciled{server: c, keyspace: "posts", truth: &truth{columns: []string{"like"}, rows: bulk.NewTruth(1)}}
	for id, n := range likes {
		r.truth.rows.Row(client.Number(id))[0] = n
	}
	return r
}

// compareAndCorrect compares and corrects the rows. In between, it calls meanwhile.
func (r *reconciled) compareAndCorrect(t *testing.T, meanwhile func()) (reconcileOutput, error) {
	t.Helper()
	digests, err := r.digests(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	found, err := bulk.Compare(t.Context(), r, r.truth.rows, nil)
	if err != nil {
		t.Fatal(err)
	}
	meanwhile()
	var out reconcileOutput
	return out, r.correct(t.Context(), found, digests, &out)
}

// With --quiesced, rows are not corrected if any row changed after the comparison, such as during
// the question to the operator.
func TestWrittenWhileAQuestionIsOpen(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	r := quiesced(t, server, map[uint64]int64{1: 5})
	if _, err := r.compareAndCorrect(t, func() { server.Put(1, 0, 0, 5, 0) }); !errors.Is(err, errNotQuiesced) {
		t.Error(err)
	}
}

// A run that fails during its corrections may be repeated at once, even if other rows have drifted
// meanwhile. A late write of the failed run changes nothing.
func TestRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	r := quiesced(t, server, map[uint64]int64{1: 5, 2: 7, 3: 0})
	var late *http.Request
	server.SetFail(func(request *http.Request, body []byte) *nodetest.Fault {
		if !strings.HasSuffix(request.URL.Path, "/correct") || !bytes.Contains(body, []byte(`"like":5`)) {
			return nil
		}
		late, _ = http.NewRequestWithContext(t.Context(), request.Method, server.URL+request.URL.Path, bytes.NewReader(body))
		late.Header = request.Header.Clone()
		return &nodetest.Fault{Status: http.StatusConflict, Code: "refused", After: true, Shards: []int{2}} // only shard 2, which has row 2, applies the write
	})
	if _, err := r.compareAndCorrect(t, func() {}); err == nil || late == nil {
		t.Fatalf("the first run: %v, sent %v", err, late)
	}
	server.SetFail(func(*http.Request, []byte) *nodetest.Fault { return nil })
	server.Put(3, 0, 0, 1, 0) // row 3 drifts after the first comparison
	if out, err := r.compareAndCorrect(t, func() {}); err != nil || out.Corrected != 2 {
		t.Errorf("the second run: %+v, %v", out, err)
	}
	answer, err := http.DefaultClient.Do(late)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if answer.StatusCode != http.StatusGone {
		t.Errorf("a late correction is answered %d", answer.StatusCode)
	}
	rows, err := r.server.GetMany(t.Context(), "posts", []client.ID{client.Number(1), client.Number(2), client.Number(3)}, []string{"like"}, client.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int64{5, 7, 0} {
		if got, _ := rows[i].Counts.Get("like"); got != want {
			t.Errorf("row %d is %d, want %d", i+1, got, want)
		}
	}
}

// Between the fence and the corrections of a run, a second run corrects the rows. Then the
// corrections of the first run fail with ErrOvertaken, and no row is corrected twice.
func TestTwoRuns(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	r := quiesced(t, server, map[uint64]int64{1: 5})
	first := bulk.NewCorrection(r, time.Now())
	drifts := []bulk.Drift{{ID: client.Number(1), Want: 5, Add: 5}}
	if err := first.Fence(t.Context(), drifts); err != nil {
		t.Fatal(err)
	}
	if out, err := r.compareAndCorrect(t, func() {}); err != nil || out.Corrected != 1 {
		t.Errorf("the second run: %+v, %v", out, err)
	}
	if rows, err := first.Correct(t.Context(), drifts); !errors.Is(err, bulk.ErrOvertaken) || rows != 0 {
		t.Errorf("the first run: %d rows, %v", rows, err)
	}
}

// Without --yes and without a terminal, a run corrects drifts up to --max-correction. If any drift
// is larger, it prints the drifts and corrects none.
func TestMaxCorrection(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	i := invoke(t, server.URL, Commands)
	truth := proctest.WriteTemp(t, "truth.csv", "id,like\n1,10\n2,0\n3,7\n")
	run := func(more ...string) proctest.Result {
		return i.Run(append([]string{"reconcile", truth, "--keyspace", "posts", "--quiesced", "-o", "json"}, more...)...)
	}
	rows := func() (likes [3]int64) {
		for i := range likes {
			likes[i] = server.Row(uint64(i + 1))[2]
		}
		return likes
	}
	server.Put(1, 0, 0, 5, 0) // 5 are missing
	server.Put(2, 0, 0, 5, 0) // 5 too many
	server.Put(3, 0, 0, 6, 0) // 1 is missing
	wrong := [3]int64{5, 5, 6}
	for _, most := range [][]string{nil, {"--max-correction", "0"}, {"--max-correction", "4"}} {
		got := run(most...)
		if got.Code != cli.ExitUsage || !strings.Contains(got.Err, "Correct 3 columns of rows, by up to 5? Give --yes") {
			t.Errorf("%s: exit %d, %s", most, got.Code, got.Err)
		}
		if out := proctest.Decode[reconcileOutput](t, got.Out); out.Differ != 3 || out.Corrected != 0 {
			t.Errorf("%s: it shows %+v", most, out)
		}
		if rows() != wrong {
			t.Fatalf("%s: the rows are %v", most, rows())
		}
	}
	if got := run("--max-correction", "5"); got.Code != cli.ExitOK || rows() != [3]int64{10, 0, 7} {
		t.Errorf("at the bound: exit %d, %s; the rows are %v", got.Code, got.Err, rows())
	}
}

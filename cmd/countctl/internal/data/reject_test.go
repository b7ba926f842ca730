package data

import (
	"os"
	"strings"
	"testing"

	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/nodetest"
	"github.com/countd/countd/internal/proctest"
)

var badRows = []struct {
	name, row, reason string
}{
	{"word for id", "x,1,2,3", `id: "x" is not an unsigned`},
	{"negative id", "-1,1,2,3", `id: "-1" is not an unsigned`},
	{"id too large", "18446744073709551616,1,2,3", "is not an unsigned"},
	{"exponent", "1e3,1,2,3", "is not an unsigned"},
	{"empty id", ",1,2,3", "is not an unsigned"},
	{"word for count", "7,1,x,3", `comments: "x" is not a signed`},
	{"empty count", "7,1,2,", `likes: "" is not a signed`},
	{"fraction", "7,1.5,2,3", `reposts: "1.5" is not a signed`},
	{"count too large", "7,1,2,9223372036854775808", "is not a signed"},
	{"field missing", "7,1,2", "has 3 fields, the header has 4"},
	{"field too many", "7,1,2,3,4", "has 5 fields, the header has 4"},
	{"bare quote", `7,1,2,3"`, `bare "`},
	{"broken quote", `7,1,2,"3"x`, `quote`},
}

const rejectHeader = "id,reposts,comments,likes\n"

func TestImportStopsAtABadRow(t *testing.T) {
	t.Parallel()
	for _, c := range badRows {
		t.Run(c.name, func(t *testing.T) {
			server := nodetest.New(t)
			path := proctest.WriteTemp(t, "posts.csv", rejectHeader+"1,1,1,1\n"+c.row+"\n2,2,2,2\n")
			i := against(t, server)
			got := i.Run("import", path, "--map", mapAll)
			if got.Code != cli.ExitFail || !strings.Contains(got.Err, path+":3: ") || !strings.Contains(got.Err, c.reason) {
				t.Fatalf("exit %d, %q", got.Code, got.Err)
			}
			if server.Row(1)[0] != 1 || server.Row(2)[0] != 0 {
				t.Fatalf("rows before the bad one are imported and those after are not: %v, %v", server.Row(1), server.Row(2))
			}
			// The corrected file has another identity, so the import begins at the first row.
			if err := os.WriteFile(path, []byte(rejectHeader+"1,5,5,5\n3,3,3,3\n2,2,2,2\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			i.OK("import", path, "--map", mapAll)
			if server.Row(1)[0] != 5 || server.Row(2)[0] != 2 || server.Row(3)[0] != 3 {
				t.Fatalf("rows are %v, %v, %v", server.Row(1), server.Row(2), server.Row(3))
			}
		})
	}
}

func TestImportSkipsBadRows(t *testing.T) {
	t.Parallel()
	for _, c := range badRows {
		t.Run(c.name, func(t *testing.T) {
			server := nodetest.New(t)
			path := proctest.WriteTemp(t, "posts.csv.gz", proctest.Gzipped(t, rejectHeader+"1,1,1,1\n"+c.row+"\n2,2,2,2\n"))
			got := against(t, server).Run("import", path, "--map", mapAll, "--on-error", "skip", "-o", "json")
			if got.Code != cli.ExitFail || !strings.Contains(got.Err, "1 row was rejected") {
				t.Fatalf("exit %d, %q", got.Code, got.Err)
			}
			out := proctest.Decode[importOutput](t, got.Out)
			want := strings.TrimSuffix(path, ".csv.gz") + ".rejects.csv"
			if out.Rows != 2 || out.Rejected != 1 || out.RejectsFile != want {
				t.Fatalf("import answered %+v", out)
			}
			rejects := proctest.ReadAll(t, want)
			if !strings.HasPrefix(rejects, "line,reason,"+rejectHeader+"3,") || strings.Count(rejects, "\n") != 2 {
				t.Fatalf("rejects are\n%s", rejects)
			}
			if server.Rows() != 2 || server.Row(2)[0] != 2 {
				t.Fatalf("%d rows", server.Rows())
			}
		})
	}
}

func TestMendedRejectsCanBeImported(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	i := against(t, server)
	path := proctest.WriteTemp(t, "posts.csv", rejectHeader+"1,1,1,1\n2,x,2,2\n")
	i.Run("import", path, "--map", mapAll, "--on-error", "skip")
	rejects := strings.TrimSuffix(path, ".csv") + ".rejects.csv"
	mended := strings.Replace(proctest.ReadAll(t, rejects), "2,x,2,2", "2,9,2,2", 1)
	if err := os.WriteFile(rejects, []byte(mended), 0o600); err != nil {
		t.Fatal(err)
	}
	i.OK("import", rejects, "--map", mapAll)
	if server.Row(2)[0] != 9 {
		t.Fatalf("row is %v", server.Row(2))
	}
}

func TestACleanRunRemovesOldRejects(t *testing.T) {
	t.Parallel()
	i := against(t, nodetest.New(t))
	path := proctest.WriteTemp(t, "posts.csv", "id,like\n1,x\n")
	i.Run("import", path, "--on-error", "skip")
	if err := os.WriteFile(path, []byte("id,like\n1,1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	i.OK("import", path, "--on-error", "skip")
	if _, err := os.Stat(strings.TrimSuffix(path, ".csv") + ".rejects.csv"); !os.IsNotExist(err) {
		t.Fatalf("the rejects of the run before are still there: %v", err)
	}
}

// A stopped run and the next run together write each bad row once to the rejects, whether or not
// the stopped run had saved a position after the row.
func TestRejectsSurviveAStop(t *testing.T) {
	t.Parallel()
	const rows, badEvery = 3000, 10
	var text strings.Builder
	text.WriteString("id,like\n")
	for id := range rows {
		value := "1"
		if id%badEvery == 0 {
			value = "bad"
		}
		text.WriteString(strings.Join([]string{itoa(id + 1), value}, ",") + "\n")
	}
	server := nodetest.New(t)
	countSets(server, func(n int64) *nodetest.Fault {
		if n < 12 {
			return nil
		}
		return &nodetest.Fault{Status: 500, Code: "internal"}
	})
	i := against(t, server)
	path := proctest.WriteTemp(t, "posts.csv", text.String())
	args := []string{"import", path, "--on-error", "skip", "--batch", "50", "-o", "json"}
	if got := i.Run(args...); got.Code != cli.ExitFail || got.Out != "" {
		t.Fatalf("exit %d, %q", got.Code, got.Out)
	}
	countSets(server, noFault)
	got := i.Run(args...)
	out := proctest.Decode[importOutput](t, got.Out)
	if got.Code != cli.ExitFail || out.Rejected != rows/badEvery || out.Rows != rows-rows/badEvery || out.ResumedAfter == 0 {
		t.Fatalf("exit %d, %+v", got.Code, out)
	}
	lines := strings.Split(strings.TrimSpace(proctest.ReadAll(t, out.RejectsFile)), "\n")[1:]
	if len(lines) != rows/badEvery {
		t.Fatalf("%d rejects, want %d", len(lines), rows/badEvery)
	}
	for k, line := range lines {
		if want := itoa(k*badEvery+2) + ","; !strings.HasPrefix(line, want) {
			t.Fatalf("reject %d is %q, want line %s", k, line, want)
		}
	}
}

func TestImportRefusesABrokenFile(t *testing.T) {
	t.Parallel()
	zipped := proctest.Gzipped(t, manyRows(1000))
	cases := []struct{ name, file, text, err string }{
		{"empty", "a.csv", "", "a.csv:1: the file is empty"},
		{"no id", "a.csv", "x,likes\n1,2\n", `a.csv:1: the header has no column "id"`},
		{"no column", "a.csv", "id,x\n1,2\n", `a.csv:1: the header has no column "likes"`},
		{"column twice", "a.csv", "id,likes,likes\n1,2,3\n", "twice"},
		{"quote never closed", "a.csv", "id,likes\n1,2\n2,\"3\n3,4\n", "a.csv:3: a quote opened here"},
		{"cut gzip", "a.csv.gz", zipped[:len(zipped)/2], "cannot read"},
		{"gzip with a wrong sum", "a.csv.gz", zipped[:len(zipped)-8] + "12345678", "cannot read"},
		{"endless record", "a.csv", "id,likes\n\"" + strings.Repeat("x", 3<<20), "record longer than"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			path := proctest.WriteTemp(t, c.file, c.text)
			got := against(t, nodetest.New(t)).Run("import", path, "--map", "likes=like", "--on-error", "skip")
			if got.Code != cli.ExitFail || !strings.Contains(got.Err, c.err) {
				t.Fatalf("exit %d, %.300q; want %q", got.Code, got.Err, c.err)
			}
		})
	}
}

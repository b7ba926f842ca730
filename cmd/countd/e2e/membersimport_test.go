package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/countd/countd/internal/proctest"
)

// Kills stop an import of members in the middle: some kill countctl, some the server. After each
// kill, the import is repeated. In the end exactly the pairs of the file are members. Each pair
// counts once or, with --uncounted, not at all.
func TestImportMembersThroughKills(t *testing.T) {
	long(t)
	t.Parallel()
	for _, counted := range []bool{true, false} {
		t.Run(fmt.Sprintf("counted=%v", counted), func(t *testing.T) {
			t.Parallel()
			testImportMembersThroughKills(t, counted)
		})
	}
}

func testImportMembersThroughKills(t *testing.T, counted bool) {
	const rows, requests = 50, 1000
	pairs := 20_000
	if *replayAll {
		pairs = 200_000
	}
	m := newMembersFile(t, rows, pairs)
	counts := map[uint64]rowCounts{}
	for id := range uint64(rows) {
		counts[id+1] = rowCounts{2: int64(pairs / rows)}
	}
	r := &fileRun{node: proctest.NewNode(t, bin, t.TempDir(), "--shards=posts=2")}
	r.node.StartReady()
	r.args = []string{"members", "import", m.file, "--batch", fmt.Sprint(pairs / requests), "--in-flight", "2"}
	if !counted {
		r.args = append(r.args, "--uncounted")
		for id := range counts {
			counts[id] = rowCounts{1, 0, 7, 0}
		}
		file := filepath.Join(t.TempDir(), "counts.csv")
		if err := os.WriteFile(file, exportOf(t, counts), 0o600); err != nil {
			t.Fatal(err)
		}
		r.node.MustCtl("import", file)
	}
	reach := func(part float64) {
		t.Helper()
		there := 0.0
		eventually(t, fmt.Sprintf("%.0f of %d pairs are there", part*float64(pairs), pairs), func() bool {
			there = metricOf(t, r.node.Text("/metrics"), "countd_members_pairs")
			return there >= part*float64(pairs)
		})
		if there >= float64(pairs) {
			t.Fatal("all is added already: there was no middle")
		}
	}
	r.resume()
	reach(0.1)
	r.killClient(t)
	r.resume()
	reach(0.3)
	r.killServer()
	reach(0.5)
	r.node.Kill()
	r.killClient(t)
	r.node.StartReady()
	r.resume()
	r.done(t)
	m.compare(t, r.node)
	compareExport(t, r.node, exportOf(t, counts))
	r.node.MustCtl(r.args...)
	m.compare(t, r.node)
	compareExport(t, r.node, exportOf(t, counts))
}

// membersFile is a CSV file of members.
type membersFile struct {
	file string
	want map[string]bool // lines "id,member"
}

// newMembersFile writes a file with the given number of pairs of a row and a member. The pairs
// belong in turn to the rows 1, 2 and so on, up to the parameter rows. Every twentieth pair occurs
// twice.
func newMembersFile(t *testing.T, rows, pairs int) *membersFile {
	t.Helper()
	m := &membersFile{filepath.Join(t.TempDir(), "likes.csv"), map[string]bool{}}
	var out bytes.Buffer
	fmt.Fprintln(&out, "id,member")
	for n := range pairs {
		line := fmt.Sprintf("%d,%d", n%rows+1, n/rows*7)
		m.want[line] = true
		fmt.Fprintln(&out, line)
		if n%20 == 0 {
			fmt.Fprintln(&out, line)
		}
	}
	if err := os.WriteFile(m.file, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return m
}

// compare checks that an export of members has exactly the pairs of the file.
func (m *membersFile) compare(t *testing.T, n *proctest.Node) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "members.csv")
	n.MustCtl("members", "export", file)
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for i, line := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
		pair := line[:max(strings.LastIndexByte(line, ','), 0)] // without the time
		if i > 0 && (!m.want[pair] || got[pair]) {
			t.Fatalf("line %d of the export, %q, is no member or a second one", i+1, line)
		}
		got[pair] = true
	}
	if len(got)-1 != len(m.want) {
		t.Fatalf("%d members are exported, want %d", len(got)-1, len(m.want))
	}
}

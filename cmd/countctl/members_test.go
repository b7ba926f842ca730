package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/nodetest"
	"github.com/countd/countd/internal/proctest"
)

// members returns the number of members in the likes of posts 0 to 9.
func members(t *testing.T, s *nodetest.Server) (n int) {
	t.Helper()
	c, err := client.New(client.Config{Addrs: []string{s.URL}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for id := range uint64(10) {
		for _, err := range c.Members("posts", "like").All(t.Context(), client.Number(id), client.ReadOptions{}) {
			if err != nil {
				t.Fatal(err)
			}
			n++
		}
	}
	return n
}

// moment matches a time in the output, and cursor matches a cursor.
var (
	moment = regexp.MustCompile(`20\d\d-\d\d-\d\dT[0-9:.]+Z`)
	cursor = regexp.MustCompile(`--cursor (\S+)`)
)

func TestMembersCommands(t *testing.T) {
	i, next := against(t, nodetest.New(t)), ""
	for _, c := range []struct{ line, want string }{
		{"members add 1 7 8 7", "ID  MEMBER  CHANGED  COUNT\n1   7       true     1\n1   8       true     2\n1   7       false    2\n"},
		{"members remove 1 7 9", "ID  MEMBER  CHANGED  COUNT\n1   7       true     1\n1   9       false    1\n"},
		{"members add 2 8", "ID  MEMBER  CHANGED  COUNT\n2   8       true     1\n"},
		{"members check 8 1 3", "ID  MEMBER  IN\n1   8       true\n3   8       false\n"},
		{"members check 8 1 -o json", `{"member":"8","ids":["1"],"results":[true]}` + "\n"},
		{"members list 1", "ID  COUNT\n1   1\n\nMEMBER  AT\n8       AT\n"},
		{"members of 8 --limit 1", "ID  AT\n2   AT\n\nnext page: --cursor CURSOR\n"},
		{"members of 8 --cursor CURSOR", "ID  AT\n1   AT\n"},
		{"members add 1 7 --column view", "ID  MEMBER  CHANGED  COUNT\n1   7       true     1\n"},
	} {
		got := moment.ReplaceAllString(i.OK(strings.Fields(strings.Replace(c.line, "CURSOR", next, 1))...), "AT")
		if m := cursor.FindStringSubmatch(got); m != nil {
			next, got = m[1], strings.Replace(got, m[1], "CURSOR", 1)
		}
		if got != c.want {
			t.Errorf("%s prints\n%swant\n%s", c.line, got, c.want)
		}
	}
	for _, line := range []string{"members", "members add 1", "members add x 7", "members check 7", "members list 1 2", "members add 1 7 --column likes", "members import x.csv --column="} {
		if got := i.Run(strings.Fields(line)...); got.Code != cli.ExitUsage {
			t.Errorf("%s: exit %d, %s", line, got.Code, got.Err)
		}
	}
}

// After a stopped import of members, the next run continues, and each member counts once. The
// output of "members export" can be imported.
func TestMembersImport(t *testing.T) {
	s := nodetest.New(t)
	i := against(t, s)
	const rows = 1000
	text := "id,member,at\n"
	for n := range rows {
		text += fmt.Sprintf("%d,%d,x\n", n%10, n/10)
	}
	path := proctest.WriteTemp(t, "likes.csv", text)
	var writes atomic.Int64
	s.SetFail(func(r *http.Request, _ []byte) *nodetest.Fault {
		if strings.HasPrefix(r.URL.Path, "/v1/members/") && writes.Add(1) > 5 {
			return &nodetest.Fault{Status: 400, Code: "invalid_argument", Message: "stopped by the test", After: true}
		}
		return nil
	})
	line := []string{"members", "import", path, "--batch", "20", "--in-flight", "2"}
	if got := i.Run(line...); got.Code != cli.ExitFail || !strings.Contains(got.Err, "run it again") {
		t.Fatalf("exit %d: %s", got.Code, got.Err)
	}
	if _, err := os.Stat(path + ".members-progress"); err != nil {
		t.Fatal(err)
	}
	s.SetFail(func(*http.Request, []byte) *nodetest.Fault { return nil })
	if got := i.Run(append(line, "--uncounted")...); !strings.Contains(got.Err, "of another import") {
		t.Errorf("an import without counting went on: %s", got.Err)
	}
	i.OK(line...)
	if members(t, s) != rows || s.Row(3)[2] == 0 {
		t.Errorf("%d members, counts %v", members(t, s), s.Row(3))
	}
	out := filepath.Join(t.TempDir(), "out.csv")
	if got := i.OK("members", "export", out, "-o", "json"); !strings.Contains(got, fmt.Sprintf(`"members":%d,`, rows)) {
		t.Errorf("exported %s", got)
	}
	exported := strings.Split(strings.TrimSpace(proctest.ReadAll(t, out)), "\n")
	if len(exported) != rows+1 || exported[0] != "id,member,at" || !strings.HasPrefix(exported[1], "0,0,20") || !strings.HasPrefix(exported[2], "0,1,") {
		t.Errorf("exported %d lines, which begin %.5q", len(exported), exported)
	}

	again := nodetest.New(t)
	again.Put(3, 0, 0, 5000, 0)
	j := against(t, again)
	if got := j.OK("members", "import", out, "--uncounted"); !strings.Contains(got, "1,000") || members(t, again) != rows || again.Row(3)[2] != 5000 {
		t.Errorf("imported %s: %d members, counts %v", got, members(t, again), again.Row(3))
	}
}

func TestMembersImportOfBadRows(t *testing.T) {
	s := nodetest.New(t)
	i := against(t, s)
	path := proctest.WriteTemp(t, "likes.csv", "user,post\n7,1\nx,1\n8,-1\n9,1\n")
	line := []string{"members", "import", path, "--id-column", "post", "--member-column", "user"}
	if got := i.Run(line...); got.Code != cli.ExitFail || !strings.Contains(got.Err, "likes.csv:3: member: ") {
		t.Errorf("exit %d: %s", got.Code, got.Err)
	}
	if got := i.Run(append(line, "--on-error", "skip")...); got.Code != cli.ExitFail || members(t, s) != 2 {
		t.Errorf("exit %d, %d members: %s", got.Code, members(t, s), got.Err)
	}
	if got := i.Run("members", "import", path); got.Code != cli.ExitFail || !strings.Contains(got.Err, `no column "id"`) {
		t.Errorf("exit %d: %s", got.Code, got.Err)
	}
}

func TestOpsWithMembers(t *testing.T) {
	s := nodetest.New(t)
	i, sent := against(t, s), ""
	s.SetFail(func(_ *http.Request, body []byte) *nodetest.Fault {
		sent = string(body)
		return &nodetest.Fault{Status: 400, Code: "invalid_argument", Message: "seen"}
	})
	i.Stdin = `{"keyspace":"posts","column":"like","id":"1","member":"7","set":false} {"keyspace":"posts","id":"1","set":{"like":1}}`
	i.Run("ops")
	if want := `{"ops":[{"keyspace":"posts","column":"like","id":"1","member":"7","set":false},{"keyspace":"posts","id":"1","set":{"like":1}}]}`; sent != want {
		t.Errorf("sent %s, want %s", sent, want)
	}
	for _, text := range []string{`{"keyspace":"posts","id":"1","member":"7","set":true}`, `{"keyspace":"posts","column":"like","id":"1","member":"7"}`,
		`{"keyspace":"posts","column":"like","id":"1","member":"7","set":{"like":1}}`, `{"user":"1","column":"like","member":"7","set":true}`, `{"keyspace":"posts","id":"1","set":true}`} {
		i.Stdin = text
		if got := i.Run("ops"); got.Code != cli.ExitUsage {
			t.Errorf("%s: exit %d %s", text, got.Code, got.Err)
		}
	}
}

package data

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
	"github.com/countd/countd/client/column"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/nodetest"
	"github.com/countd/countd/internal/proctest"
)

// clientOf returns a client of a test server.
func clientOf(t *testing.T, s *nodetest.Server) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{Addrs: []string{s.URL}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// must fails the test if err is not nil.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Columns are added or dropped between a stopped run and the next run. The next run adds no row
// again, and adds the remaining rows to the remaining columns.
func TestAddGoesOnOverOtherColumns(t *testing.T) {
	t.Parallel()
	var events, rows strings.Builder
	events.WriteString("item,t,event\n")
	rows.WriteString("id,a,b,c\n")
	for n := range 30 {
		fmt.Fprintf(&events, "%d,1,a\n%d,2,b\n%d,3,x\n", n%7+1, n%7+1, n%7+1)
		fmt.Fprintf(&rows, "%d,1,1,1\n", n%7+1)
	}
	cases := []struct {
		name, command, text string
		change              func(t *testing.T, c *client.Client)
		says                string
		dropped             string // column that was dropped
	}{
		{"replay, a column more", "replay --on-error skip", events.String(), func(t *testing.T, c *client.Client) {
			_, err := c.ChangeColumns(t.Context(), "tags", []column.Column{{Name: "x"}})
			must(t, err)
		}, "", ""},
		{"replay, a column less", "replay --on-error skip --map b=b", events.String(), func(t *testing.T, c *client.Client) {
			_, err := admin.New(c).DropColumn(t.Context(), "tags", "b")
			must(t, err)
		}, "nothing more is added to them: b", "b"},
		{"add, a column more", "import --add", rows.String(), func(t *testing.T, c *client.Client) {
			_, err := c.ChangeColumns(t.Context(), "tags", []column.Column{{Name: "c"}})
			must(t, err)
		}, "", ""},
		{"add, a column less", "import --add --map a=a,b=b", rows.String(), func(t *testing.T, c *client.Client) {
			_, err := admin.New(c).DropColumn(t.Context(), "tags", "a")
			must(t, err)
		}, "nothing more is added to them: a", "a"},
		{"add, a column made again", "import --add", rows.String(), func(t *testing.T, c *client.Client) {
			_, err := admin.New(c).DropColumn(t.Context(), "tags", "b")
			must(t, err)
			_, err = c.ChangeColumns(t.Context(), "tags", []column.Column{{Name: "b"}})
			must(t, err)
		}, "nothing more is added to them: b", "b"},
	}
	for _, test := range cases {
		t.Run(test.name, func(t *testing.T) {
			server := nodetest.New(t)
			c := clientOf(t, server)
			_, err := c.CreateKeyspace(t.Context(), client.NewKeyspace{Name: "tags", Columns: []column.Column{{Name: "a"}, {Name: "b"}}, Shards: 2})
			must(t, err)
			i := against(t, server)
			path := proctest.WriteTemp(t, "f.csv", test.text)
			args := append(strings.Fields(test.command), path, "--keyspace", "tags", "--batch", "4", "--in-flight", "2", "--retry-for", "0s")
			countIncrs(server, 6, &nodetest.Fault{Hang: true, After: true})
			if got := i.Run(args...); got.Code != cli.ExitFail {
				t.Fatalf("exit %d", got.Code)
			}
			server.SetFail(func(*http.Request, []byte) *nodetest.Fault { return nil })
			test.change(t, c)
			got := i.Run(args...)
			if rejects := strings.Contains(test.command, "skip"); (got.Code == cli.ExitOK) == rejects || !strings.Contains(got.Err, test.says) {
				t.Fatalf("exit %d, %q", got.Code, got.Err)
			}
			keyspaces, err := c.Keyspaces(t.Context())
			must(t, err)
			columns := keyspaces[slices.IndexFunc(keyspaces, func(k client.Keyspace) bool { return k.Name == "tags" })].Columns
			for id := uint64(1); id <= 7; id++ {
				want := int64(30 / 7)
				if id <= 30%7 {
					want++
				}
				for i, column := range columns {
					if got := server.RowOf("tags", id)[i]; column != test.dropped && (column == "a" || column == "b") && got != want || column == test.dropped && got != 0 || column == "x" && got != 0 {
						t.Errorf("row %d has %d of %s, want %d", id, got, column, want)
					}
				}
			}
		})
	}
}

// If a keyspace is dropped and created again, its counts are lost. So a run with the same file
// neither continues in the middle of the file, nor reports that all rows were added before.
func TestAddToAKeyspaceThatWasMadeAgain(t *testing.T) {
	t.Parallel()
	for _, whole := range []bool{false, true} {
		server := nodetest.New(t)
		c := clientOf(t, server)
		create := func() {
			_, err := c.CreateKeyspace(t.Context(), client.NewKeyspace{Name: "tags", Columns: []column.Column{{Name: "like"}}, Shards: 2})
			must(t, err)
		}
		create()
		i := against(t, server)
		path := proctest.WriteTemp(t, "f.csv", "id,like\n1,1\n2,1\n3,1\n4,1\n")
		args := []string{"import", "--add", path, "--keyspace", "tags", "--batch", "1", "--in-flight", "1", "--retry-for", "0s"}
		if !whole {
			countIncrs(server, 3, &nodetest.Fault{Hang: true})
		}
		i.Run(args...)
		server.SetFail(func(*http.Request, []byte) *nodetest.Fault { return nil })
		_, err := admin.New(c).DropKeyspace(t.Context(), "tags")
		must(t, err)
		create()
		if got := i.Run(args...); got.Code != cli.ExitFail || !strings.Contains(got.Err, "was dropped and made again") || !strings.Contains(got.Err, "--restart") {
			t.Fatalf("exit %d, %q", got.Code, got.Err)
		}
		i.OK(append(args, "--restart")...)
		for id := uint64(1); id <= 4; id++ {
			if got := server.RowOf("tags", id)[0]; got != 1 {
				t.Errorf("row %d is %d", id, got)
			}
		}
		// An import of values begins at the first row even without --restart.
		values := []string{"import", path, "--keyspace", "tags", "--batch", "1", "--in-flight", "1", "--retry-for", "0s"}
		countSetsLater(server, 3, &nodetest.Fault{Status: 500, Code: "internal"})
		i.Run(values...)
		server.SetFail(func(*http.Request, []byte) *nodetest.Fault { return nil })
		_, err = admin.New(c).DropKeyspace(t.Context(), "tags")
		must(t, err)
		create()
		i.OK(values...)
		for id := uint64(1); id <= 4; id++ {
			if got := server.RowOf("tags", id)[0]; got != 1 {
				t.Errorf("row %d is set to %d", id, got)
			}
		}
	}
}

// countSetsLater makes the server answer the nth write of values or members, and all later ones,
// with a fault.
func countSetsLater(s *nodetest.Server, nth int, fault *nodetest.Fault) {
	var mu sync.Mutex
	s.SetFail(func(r *http.Request, _ []byte) *nodetest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if r.Method == http.MethodPost && (strings.HasSuffix(r.URL.Path, "/set") || strings.HasPrefix(r.URL.Path, "/v1/members/")) {
			if nth--; nth <= 0 {
				return fault
			}
		}
		return nil
	})
}

// membersCommands returns a command "members" with only the sub-command "import".
func membersCommands(c *cli.CLI) []*cobra.Command {
	return []*cobra.Command{cli.CommandGroup("members", "", membersImportCommand(c))}
}

// copies records requests, to send them again later.
type copies struct {
	mu  sync.Mutex
	all []*http.Request
}

func (c *copies) note(t *testing.T, url string, r *http.Request, body []byte) {
	late, err := http.NewRequest(r.Method, url+r.URL.Path, bytes.NewReader(bytes.Clone(body)))
	must(t, err)
	late.Header = r.Header.Clone()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, late)
}

func (c *copies) send(t *testing.T) {
	t.Helper()
	for _, late := range c.all {
		resp, err := http.DefaultClient.Do(late)
		must(t, err)
		resp.Body.Close()
	}
}

// A request of an earlier run may wait for a leader until a later run has ended. It then changes
// nothing, even if the later run had other flags or another file.
func TestLateRequestOfAnEarlierRunChangesNothing(t *testing.T) {
	t.Parallel()
	const text = "id,like,view\n1,5,1\n2,5,1\n3,5,1\n4,5,1\n5,5,1\n6,5,1\n"
	rewritten := strings.ReplaceAll(text, ",5,", ",7,")
	for name, then := range map[string]string{
		"as before": "", "other flags": "--in-flight 5 --batch 2", "from the start": "--restart", "another file": "*", "another map": "--map like=like", "members": "*members",
	} {
		t.Run(name, func(t *testing.T) {
			server := nodetest.New(t)
			i := invoke(t, server.URL, Commands, membersCommands)
			path := proctest.WriteTemp(t, "f.csv", text)
			args := []string{"import", path, "--batch", "1", "--in-flight", "3", "--retry-for", "0s"}
			if then == "*members" {
				args = append([]string{"members"}, append(args, "--member-column", "like")...)
			}
			var late copies
			var mu sync.Mutex
			writes := 0
			server.SetFail(func(r *http.Request, body []byte) *nodetest.Fault {
				if r.Method != http.MethodPost {
					return nil
				}
				mu.Lock()
				defer mu.Unlock()
				if writes++; writes < 2 {
					return nil
				}
				late.note(t, server.URL, r, body)
				return &nodetest.Fault{Hang: true}
			})
			if got := i.Run(args...); got.Code != cli.ExitFail {
				t.Fatalf("exit %d", got.Code)
			}
			server.SetFail(func(*http.Request, []byte) *nodetest.Fault { return nil })
			want := []int64{0, 0, 5, 1}
			switch then {
			case "*":
				must(t, os.WriteFile(path, []byte(rewritten), 0o600))
				want[2] = 7
			case "*members":
				want = []int64{0, 0, 1, 0}
			case "--map like=like":
				args, want = append(args, strings.Fields(then)...), nil
			default:
				args = append(args, strings.Fields(then)...)
			}
			i.OK(args...)
			c := clientOf(t, server)
			for n := range uint64(6) { // change the rows after the second run
				id := client.Number(1 + n)
				_, err := c.Incr(t.Context(), "posts", id, client.Delta("like", 1))
				must(t, err)
				if then == "*members" {
					_, err := c.Members("posts", "like").Change(t.Context(), []client.MemberOp{{ID: id, Member: client.Number(5), Leave: true}}, client.WriteOptions{})
					must(t, err)
				}
			}
			if len(late.all) == 0 {
				t.Fatal("nothing is late")
			}
			late.send(t)
			for id := uint64(1); id <= 6; id++ {
				got := server.Row(id)
				switch {
				case want == nil && got[2] != 6, want != nil && then != "*members" && (got[2] != want[2]+1 || got[3] != want[3]), then == "*members" && got[2] != 1:
					t.Errorf("row %d is %v", id, got)
				}
			}
		})
	}
}

// Runs of import are killed at random requests. Some answers are lost, and some requests arrive
// only after a later run has begun or ended. The flags differ between runs. These properties hold:
//
//  1. at the end, each row has its last value in the file;
//  2. no late request of any run changes anything after the last run.
func TestImportSurvivesKills(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it kills an import many times")
	}
	const rows, ids, batch, kills = 3000, 150, 10, 8
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 6))
	var text strings.Builder
	text.WriteString("id,like\n")
	want := map[uint64]int64{}
	for n := range int64(rows) {
		id := random.Uint64N(ids) + 1
		want[id] = n + 1
		fmt.Fprintf(&text, "%d,%d\n", id, n+1)
	}
	server := nodetest.New(t)
	path := proctest.WriteTemp(t, "v.csv", text.String())
	var late copies
	self, err := os.Executable()
	must(t, err)
	for run, killed := 0, 0; ; run++ {
		killAt := int64(-1)
		if killed < kills {
			killAt = 1 + random.Int64N(2*rows/batch/kills)
		}
		args := []string{"import", path, "--batch", strconv.Itoa(1 + random.IntN(2*batch)), "--retry-for", "3m", "--addr", server.URL, "--in-flight", strconv.Itoa(1 + random.IntN(32))}
		if random.IntN(4) == 0 {
			args = append(args, "--restart")
		}
		kill := make(chan struct{})
		var mu sync.Mutex
		faults, requests := rand.New(rand.NewPCG(random.Uint64(), 7)), int64(0)
		server.SetFail(func(r *http.Request, body []byte) *nodetest.Fault {
			if !strings.HasSuffix(r.URL.Path, "/set") {
				return nil
			}
			late.note(t, server.URL, r, body)
			mu.Lock()
			defer mu.Unlock()
			if requests++; requests == killAt {
				close(kill)
			}
			switch n := faults.IntN(40); {
			case n == 0:
				return &nodetest.Fault{Hang: true, After: true}
			case n == 1:
				return &nodetest.Fault{Hang: true, After: true, Late: time.Duration(faults.Int64N(int64(50 * time.Millisecond)))}
			case n == 2, killAt > 0 && requests >= killAt:
				return &nodetest.Fault{Hang: true} // the server neither applies the request nor answers
			case n == 3:
				return &nodetest.Fault{Status: 504, Code: "outcome_unknown", After: true, Shards: []int{1, 2}}
			}
			return nil
		})
		cmd := exec.Command(self, args...)
		cmd.Env = append(os.Environ(), asCountctl+"=1")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		err := runUntil(t, cmd, kill)
		if exit := new(exec.ExitError); errors.As(err, &exit) && exit.ExitCode() == -1 {
			killed++
			continue
		}
		if err != nil {
			t.Fatalf("run %d: %v\n%s", run, err, stderr.String())
		}
		if killed == kills {
			break
		}
	}
	check := func(when string) {
		t.Helper()
		for id, value := range want {
			if got := server.Row(id)[2]; got != value {
				t.Errorf("%s, row %d is %d, want %d", when, id, got, value)
			}
		}
	}
	check("at the end")
	server.SetFail(func(*http.Request, []byte) *nodetest.Fault { return nil })
	c := clientOf(t, server)
	for id := range want {
		_, err := c.Incr(t.Context(), "posts", client.Number(id), client.Delta("like", 1))
		must(t, err)
		want[id]++
	}
	late.send(t)
	check("after late requests")
}

// The command sends no row of a truncated or damaged gzip file, so that the correct file can be
// imported later.
func TestACutGzipIsRefusedBeforeAnythingIsSent(t *testing.T) {
	t.Parallel()
	whole := proctest.Gzipped(t, randomEvents(4, 4000, 100).text)
	for _, command := range []string{"replay", "import --add --map t=like --id-column item", "import --map t=like --id-column item"} {
		for name, text := range map[string]string{"cut": whole[:len(whole)*3/4], "a byte": whole[:len(whole)/2] + "x" + whole[len(whole)/2+1:], "the end": whole[:len(whole)-1]} {
			server := nodetest.New(t)
			i := against(t, server)
			path := proctest.WriteTemp(t, "e.csv.gz", text)
			args := append(strings.Fields(command), path, "--batch", "10", "--on-error", "skip")
			if strings.HasPrefix(command, "replay") {
				args = append(args, "--map", eventMap)
			}
			got := i.Run(args...)
			if got.Code != cli.ExitFail || !strings.Contains(got.Err, "cut off or damaged") || server.Rows() != 0 {
				t.Fatalf("%s, %s: exit %d, %q, %d rows", command, name, got.Code, got.Err, server.Rows())
			}
			must(t, os.WriteFile(path, []byte(whole), 0o600))
			i.OK(args...)
		}
	}
}

// No flag makes the command overwrite its input file, even if the flag names a link to it. The
// command also does not overwrite a file that it did not write.
func TestOwnFilesAreNotTheInput(t *testing.T) {
	t.Parallel()
	const text = "id,like\n1,1\nx,1\n"
	dir := t.TempDir()
	path := filepath.Join(dir, "f.csv")
	link, hard, foreign := filepath.Join(dir, "link"), filepath.Join(dir, "hard"), filepath.Join(dir, "notes.txt")
	must(t, os.WriteFile(path, []byte(text), 0o600))
	must(t, os.WriteFile(foreign, []byte("my notes"), 0o600))
	must(t, os.Symlink(path, link))
	must(t, os.Link(path, hard))
	relative, err := filepath.Rel(must1(os.Getwd()), path)
	must(t, err)
	must(t, os.Symlink(path, filepath.Join(dir, "s.lock")))
	for _, command := range []string{"import", "import --add"} {
		for name, flags := range map[string]string{
			"rejects, the name": "--on-error skip --rejects " + path, "rejects, another spelling": "--on-error skip --rejects " + dir + "/./f.csv",
			"rejects, relative": "--on-error skip --rejects " + relative, "rejects, a link": "--on-error skip --rejects " + link, "rejects, a hard link": "--on-error skip --rejects " + hard,
			"state": "--restart --state " + path, "state, relative": "--restart --state " + relative, "state, a link": "--restart --state " + link, "state, a hard link": "--restart --state " + hard,
			"lock": "--state " + dir + "/s", "both": "--on-error skip --rejects " + dir + "/x --state " + dir + "/./x",
			"foreign state": "--restart --state " + foreign, "foreign rejects": "--on-error skip --rejects " + foreign,
		} {
			server := nodetest.New(t)
			got := against(t, server).Run(append(strings.Fields(command+" "+flags), path)...)
			if got.Code == cli.ExitOK || server.Rows() != 0 || proctest.ReadAll(t, path) != text || proctest.ReadAll(t, foreign) != "my notes" {
				t.Errorf("%s, %s: exit %d, %q, %d rows", command, name, got.Code, got.Err, server.Rows())
			}
		}
	}
	// A link to a file has the same progress file as the file.
	server := nodetest.New(t)
	i := against(t, server)
	must(t, os.WriteFile(path, []byte("id,like\n1,1\n"), 0o600))
	i.OK("import", "--add", path)
	i.OK("import", "--add", link)
	if server.Row(1)[2] != 1 {
		t.Errorf("by two names it was added %d times", server.Row(1)[2])
	}
	// An import of values does not overwrite the progress file of increments.
	if got := i.Run("import", path, "--restart", "--state", path+".add-progress"); got.Code != cli.ExitFail || !strings.Contains(got.Err, "increments") {
		t.Errorf("exit %d, %q", got.Code, got.Err)
	}
}

func must1[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// With a floor, the counts are those that result if the rows are added in the order of the file.
func TestAddAtAFloor(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	c := clientOf(t, server)
	_, err := c.ChangeColumns(t.Context(), "posts", []column.Column{{Name: "like", Floor: client.Floor(0)}})
	must(t, err)
	server.SetFail(func(r *http.Request, _ []byte) *nodetest.Fault {
		if strings.HasSuffix(r.URL.Path, "/incr") {
			time.Sleep(time.Duration(rand.Int64N(int64(3 * time.Millisecond))))
		}
		return nil
	})
	random, want := rand.New(rand.NewPCG(3, 29)), map[uint64]int64{99: 3}
	var text strings.Builder
	text.WriteString("id,like\n99,5\n99,-7\n99,3\n")
	for range 1500 {
		id, delta := random.Uint64N(30)+1, random.Int64N(15)-7
		want[id] = max(0, want[id]+delta)
		fmt.Fprintf(&text, "%d,%d\n", id, delta)
	}
	against(t, server).OK("import", "--add", proctest.WriteTemp(t, "f.csv", text.String()), "--batch", "5", "--in-flight", "8")
	for id, count := range want {
		if got := server.Row(id)[2]; got != count {
			t.Errorf("row %d is %d, want %d", id, got, count)
		}
	}
}

// An interrupted run waits for the answers to its requests. So the next run can continue even if
// the server has forgotten the producer meanwhile.
func TestAnInterruptedSessionGoesOnMuchLater(t *testing.T) {
	f := randomEvents(11, 1000, 50)
	server := nodetest.New(t, nodetest.OneProducer)
	i := against(t, server)
	path := proctest.WriteTemp(t, "e.csv", f.text)
	args := []string{"replay", path, "--map", eventMap, "--batch", "10", "--in-flight", "8"}
	cmd := exec.Command(must1(os.Executable()), append(args, "--addr", server.URL)...)
	cmd.Env = append(os.Environ(), asCountctl+"=1")
	due := make(chan struct{}) // closed at the 40th request
	var requests atomic.Int32
	server.SetFail(func(r *http.Request, _ []byte) *nodetest.Fault {
		if strings.HasSuffix(r.URL.Path, "/incr") {
			if requests.Add(1) == 40 {
				close(due)
			}
			time.Sleep(2 * time.Millisecond)
		}
		return nil
	})
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-due
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Fatal("it was not interrupted")
	}
	server.ForgetProducers()
	i.OK(args...)
	f.check(t, server, 1)
}

// The groups of a keyspace that grew do not follow each other.
func TestFirstGroupOfAKeyspaceThatGrew(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	server.SetFail(func(r *http.Request, _ []byte) *nodetest.Fault {
		if r.URL.Path == "/v1/admin/groups" {
			return &nodetest.Fault{Status: 200, Body: `{"groups":[{"id":4,"keyspace":"k","shard":0},{"id":5,"keyspace":"k","shard":1},{"id":9,"keyspace":"k","shard":2}]}`}
		}
		return nil
	})
	child, first := admin.Group{ID: 9, Keyspace: "k", Shard: 2}, admin.Group{ID: 4, Keyspace: "k"}
	for name, here := range map[string][]admin.Group{"with shard 0": {child, first}, "without": {child}} {
		if got, err := firstGroup(t.Context(), clientOf(t, server), admin.Cluster{Groups: here}, "k"); err != nil || got != 4 {
			t.Errorf("%s on the node: group %d, %v", name, got, err)
		}
	}
}

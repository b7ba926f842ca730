package data

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/countd/countd/cmd/countctl/internal/bulk"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/nodetest"
	"github.com/countd/countd/internal/proctest"
)

// manyRows returns a file of n rows, with ids 1 … n and three columns of counts.
func manyRows(n int) string {
	var b strings.Builder
	b.WriteString("id,created_at,reposts,comments,likes\n")
	for id := 1; id <= n; id++ {
		fmt.Fprintf(&b, "%d,2020-01-01,%d,%d,%d\n", id, id, -2*id, 3*id)
	}
	return b.String()
}

const mapAll = "reposts=repost,comments=comment,likes=like"

// wantMany checks that a server has the rows of manyRows.
func wantMany(t *testing.T, s *nodetest.Server, n int) {
	t.Helper()
	if s.Rows() != n {
		t.Errorf("%d rows, want %d", s.Rows(), n)
	}
	for id := int64(1); id <= int64(n); id++ {
		if got, want := s.Row(uint64(id)), []int64{id, -2 * id, 3 * id, 0}; !slices.Equal(got, want) {
			t.Fatalf("row %d is %v, want %v", id, got, want)
		}
	}
}

// countSets counts the rows in requests that set values. For the nth such request it calls fail
// with n. The server answers with the fault that fail returns, if any.
func countSets(s *nodetest.Server, fail func(n int64) *nodetest.Fault) *atomic.Int64 {
	var rows, requests atomic.Int64
	s.Fail = func(r *http.Request, body []byte) *nodetest.Fault {
		if !strings.HasSuffix(r.URL.Path, "/set") {
			return nil
		}
		rows.Add(int64(bytes.Count(body, []byte(`"id"`))))
		return fail(requests.Add(1))
	}
	return &rows
}

func noFault(int64) *nodetest.Fault { return nil }

func TestImport(t *testing.T) {
	t.Parallel()
	const n = 2500
	cases := []struct {
		name  string
		file  string // "" for standard input
		text  string
		flags string
	}{
		{"plain", "posts.csv", manyRows(n), "--map " + mapAll},
		{"gzip", "posts.csv.gz", proctest.Gzipped(t, manyRows(n)), "--map " + mapAll},
		{"small batches", "posts.csv", manyRows(n), "--batch 7 --in-flight 8 --map " + mapAll},
		{"one request at a time", "posts.csv", manyRows(n), "--in-flight 1 --map " + mapAll},
		{"standard input", "", proctest.Gzipped(t, manyRows(n)), "--map " + mapAll},
		{"same names", "posts.csv", strings.Replace(manyRows(n), "reposts,comments,likes", "repost,comment,like", 1), ""},
		{"byte order mark, CRLF", "posts.csv", "\ufeff" + strings.ReplaceAll(manyRows(n), "\n", "\r\n"), "--map " + mapAll},
		{"other id column", "posts.csv", strings.Replace(manyRows(n), "id,", "mid,", 1), "--id-column mid --map " + mapAll},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server := nodetest.New(t)
			i := against(t, server)
			path := cli.StreamName
			if c.file != "" {
				path = proctest.WriteTemp(t, c.file, c.text)
			}
			for range 2 { // a second import changes nothing
				i.Stdin = c.text
				out := proctest.Decode[importOutput](t, i.OK(append([]string{"import", path, "-o", "json"}, strings.Fields(c.flags)...)...))
				if out.Rows != n || out.Rejected != 0 || out.ResumedAfter != 0 {
					t.Fatalf("import answered %+v", out)
				}
				wantMany(t, server, n)
			}
			if _, err := os.Stat(path + ".progress"); !errors.Is(err, os.ErrNotExist) {
				t.Fatalf("the progress file is still there: %v", err)
			}
		})
	}
}

func TestImportSetsZeros(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	server.Put(1, 5, 6, 7, 8)
	against(t, server).OK("import", proctest.WriteTemp(t, "a.csv", "id,like,comment\n1,0,0\n"))
	if got, want := server.Row(1), []int64{5, 0, 0, 8}; !slices.Equal(got, want) {
		t.Fatalf("row is %v, want %v", got, want)
	}
}

// A late copy of an import's request changes nothing, even after later increments, because each
// copy has the number of the first try.
func TestLateCopyOfAnImportChangesNothing(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	var mu sync.Mutex
	var copies []*http.Request
	server.SetFail(func(r *http.Request, body []byte) *nodetest.Fault {
		if !strings.HasSuffix(r.URL.Path, "/set") {
			return nil
		}
		mu.Lock()
		defer mu.Unlock()
		late, err := http.NewRequest(r.Method, server.URL+r.URL.Path, bytes.NewReader(bytes.Clone(body)))
		if err != nil {
			t.Error(err)
		}
		late.Header = r.Header.Clone()
		if copies = append(copies, late); len(copies) == 1 {
			return &nodetest.Fault{Status: 504, Code: "outcome_unknown", After: true}
		}
		return nil
	})
	i := against(t, server)
	i.OK("import", proctest.WriteTemp(t, "a.csv", "id,like\n1,10\n2,20\n3,30\n"), "--batch", "1", "--in-flight", "2")
	server.SetFail(nil)
	i.OK("incr", "1", "like=1")
	i.OK("incr", "2", "like=1")
	if len(copies) != 4 {
		t.Errorf("%d requests, want one for each row and a repeat", len(copies))
	}
	for _, late := range copies {
		resp, err := http.DefaultClient.Do(late)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
	}
	for id, want := range map[uint64]int64{1: 11, 2: 21, 3: 30} {
		if got := server.Row(id)[2]; got != want {
			t.Errorf("row %d is %d, want %d", id, got, want)
		}
	}
}

// Requests are refused, cut off or answered late. Still, among rows with the same id, the last row
// in the file wins. The import reports a row as imported only if it is.
func TestImportKeepsTheOrderOfOneIDUnderFaults(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	random := rand.New(rand.NewPCG(1, 2))
	faults := []*nodetest.Fault{
		{Status: 429, Code: "overloaded"},
		{Status: 503, Code: "no_leader", After: true},
		{Status: 504, Code: "outcome_unknown", After: true},
		{Hang: true}, {Hang: true, After: true},
	}
	var draw = make(chan *nodetest.Fault, 100) // a channel, because the server handles requests in many goroutines
	for range cap(draw) {
		draw <- faults[random.IntN(len(faults))]
	}
	countSets(server, func(n int64) *nodetest.Fault {
		if n%3 != 0 {
			return nil
		}
		select {
		case f := <-draw:
			return f
		default:
			return nil
		}
	})
	var text strings.Builder
	text.WriteString("id,like\n")
	last := map[uint64]int64{}
	for row := range int64(3000) {
		id := random.Uint64N(20) + 1
		last[id] = row + 1
		fmt.Fprintf(&text, "%d,%d\n", id, row+1)
	}
	against(t, server).OK("import", proctest.WriteTemp(t, "a.csv", text.String()), "--batch", "5", "--in-flight", "8")
	for id, want := range last {
		if got := server.Row(id)[2]; got != want {
			t.Errorf("row %d is %d, want its last value %d", id, got, want)
		}
	}
}

func TestImportGoesOnWhereItStopped(t *testing.T) {
	t.Parallel()
	const n, batch, failAt = 5000, 100, 20
	cases := []struct {
		name string
		stop func(cancel context.CancelFunc) *nodetest.Fault
		err  string
	}{
		{"refused", func(context.CancelFunc) *nodetest.Fault { return &nodetest.Fault{Status: 500, Code: "internal"} },
			"run it again to continue after line"},
		{"busy for too long", func(context.CancelFunc) *nodetest.Fault {
			return &nodetest.Fault{Status: 429, Code: "overloaded", RetryAfter: "60"}
		}, "run it again to continue after line"},
		{"interrupted", func(cancel context.CancelFunc) *nodetest.Fault { cancel(); return nil }, "was interrupted; run it again"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server := nodetest.New(t)
			path := proctest.WriteTemp(t, "posts.csv.gz", proctest.Gzipped(t, manyRows(n)))
			args := []string{"import", path, "--map", mapAll, "--batch", strconv.Itoa(batch), "--retry-for", "0s", "-o", "json"}
			i := against(t, server)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			i.Ctx = ctx
			countSets(server, func(n int64) *nodetest.Fault {
				if n < failAt {
					return nil
				}
				return c.stop(cancel)
			})
			got := i.Run(args...)
			if got.Code != cli.ExitFail || !strings.Contains(got.Err, c.err) {
				t.Fatalf("exit %d, %q; want %q", got.Code, got.Err, c.err)
			}
			state, found, err := bulk.ReadFileState(path + ".progress")
			if err != nil || !found || state.Position.Line <= 1 || state.Position.Line > (failAt+importLanesDefault)*batch+1 {
				t.Fatalf("the progress is %+v, %v, %v", state, found, err)
			}
			for id := uint64(1); id < uint64(state.Position.Line); id++ {
				if server.Row(id)[0] == 0 {
					t.Fatalf("row %d is not there, though the progress says line %d", id, state.Position.Line)
				}
			}

			sent := countSets(server, noFault)
			i.Ctx = t.Context()
			out := proctest.Decode[importOutput](t, i.OK(args...))
			if out.Rows != n || out.ResumedAfter != state.Position.Line {
				t.Fatalf("import answered %+v, the progress was %+v", out, state.Position)
			}
			if want := int64(n) - state.Position.Rows; sent.Load() != want {
				t.Fatalf("%d rows sent, want the %d left", sent.Load(), want)
			}
			wantMany(t, server, n)
		})
	}
}

func TestImportBeginsAnew(t *testing.T) {
	t.Parallel()
	const n = 2000
	cases := []struct {
		name   string
		change func(t *testing.T, s *nodetest.Server, path string)
		flags  []string
		says   string
	}{
		{"asked to", func(*testing.T, *nodetest.Server, string) {}, []string{"--restart"}, ""},
		{"file changed", func(t *testing.T, _ *nodetest.Server, path string) {
			if err := os.WriteFile(path, []byte(manyRows(n)+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, nil, "of another import (other: the file's size ("},
		{"another cluster", func(_ *testing.T, s *nodetest.Server, _ string) { s.Renew() }, nil, "of another import (other: the cluster at "},
		{"other columns", func(*testing.T, *nodetest.Server, string) {}, []string{"--map", "reposts=view"}, "of another import (other: --map"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server := nodetest.New(t)
			path := proctest.WriteTemp(t, "posts.csv", manyRows(n))
			args := []string{"import", path, "--map", mapAll, "--batch", "100", "-o", "json"}
			countSets(server, func(n int64) *nodetest.Fault {
				if n < 10 {
					return nil
				}
				return &nodetest.Fault{Status: 500, Code: "internal"}
			})
			i := against(t, server)
			if got := i.Run(args...); got.Code != cli.ExitFail {
				t.Fatalf("exit %d", got.Code)
			}
			c.change(t, server, path)
			sent := countSets(server, noFault)
			got := i.Run(append(args, c.flags...)...)
			if got.Code != cli.ExitOK || sent.Load() != n || !strings.Contains(got.Err, c.says) {
				t.Fatalf("exit %d, %d rows sent of %d, %q", got.Code, sent.Load(), n, got.Err)
			}
		})
	}
}

func TestImportRefusesAForeignProgressFile(t *testing.T) {
	t.Parallel()
	i := against(t, nodetest.New(t))
	path := proctest.WriteTemp(t, "a.csv", "id,like\n1,2\n")
	for name, text := range map[string]string{"no JSON": "hello", "future": `{"version":2}`, "negative": `{"version":1,"position":{"line":-1}}`} {
		t.Run(name, func(t *testing.T) {
			state := proctest.WriteTemp(t, "state", text)
			if got := i.Run("import", path, "--state", state); got.Code != cli.ExitFail || !strings.Contains(got.Err, "not a progress file") {
				t.Fatalf("exit %d, %q", got.Code, got.Err)
			}
			if proctest.ReadAll(t, state) != text {
				t.Fatal("the file was changed")
			}
		})
	}
}

func TestImportWaitsForABusyServer(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	countSets(server, func(n int64) *nodetest.Fault {
		if n == 1 {
			return &nodetest.Fault{Status: 503, Code: "no_leader", RetryAfter: "1"}
		}
		return nil
	})
	began := time.Now()
	got := against(t, server).Run("import", proctest.WriteTemp(t, "a.csv", "id,like\n1,2\n"))
	if got.Code != cli.ExitOK || !strings.Contains(got.Err, "waiting for the server") {
		t.Fatalf("exit %d, %q", got.Code, got.Err)
	}
	if waited := time.Since(began); waited < time.Second {
		t.Fatalf("it waited %v, the server asked for 1 s", waited)
	}
}

func TestImportNamesTheLineThatTheServerRefuses(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	server.Fail = func(r *http.Request, body []byte) *nodetest.Fault {
		if !bytes.Contains(body, []byte(`"id":"2"`)) {
			return nil
		}
		return &nodetest.Fault{Status: 400, Code: "invalid_argument", Field: "ops[1].set.like"}
	}
	got := against(t, server).Run("import", proctest.WriteTemp(t, "a.csv", "id,like\n1,1\n\n2,2\n3,3\n"), "--in-flight", "1")
	if got.Code != cli.ExitFail || !strings.Contains(got.Err, "a.csv:4: ") {
		t.Fatalf("exit %d, %q; want line 4 in it", got.Code, got.Err)
	}
}

func against(t *testing.T, s *nodetest.Server) *proctest.Invocation {
	return invoke(t, s.URL, Commands, Commands)
}

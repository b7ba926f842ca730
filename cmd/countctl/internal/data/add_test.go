package data

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

	"github.com/countd/countd/cmd/countctl/internal/bulk"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/nodetest"
	"github.com/countd/countd/internal/proctest"
)

// asCountctl makes the test binary run as countctl, so that a test can kill countctl.
const asCountctl = "COUNTCTL_TEST_AS_COUNTCTL"

func TestMain(m *testing.M) {
	if os.Getenv(asCountctl) != "" {
		cli.Main(Commands)
	}
	os.Exit(m.Run())
}

// eventFile is a file of random events. want has the counts that the file adds to each row of
// posts.
type eventFile struct {
	text string
	want map[uint64][]int64
}

const eventMap = "retweet=repost,mention=comment,reply=comment,noise="

func randomEvents(seed uint64, events, rows int) eventFile {
	random := rand.New(rand.NewPCG(seed, 5))
	f := eventFile{want: map[uint64][]int64{}}
	var text strings.Builder
	text.WriteString("item,t,event\n")
	for n := range events {
		kinds := []struct {
			event  string
			column int // -1 for an event that changes no column
		}{{"retweet", 0}, {"mention", 1}, {"reply", 1}, {"like", 2}, {"noise", -1}}
		kind, id := kinds[random.IntN(len(kinds))], random.Uint64N(uint64(rows))*random.Uint64N(3)+1
		fmt.Fprintf(&text, "%d,%d,%s\n", id, n/3, kind.event)
		if kind.column >= 0 {
			if f.want[id] == nil {
				f.want[id] = make([]int64, 4)
			}
			f.want[id][kind.column]++
		}
	}
	f.text = text.String()
	return f
}

func (f eventFile) check(t *testing.T, s *nodetest.Server, times int64) {
	t.Helper()
	if s.Rows() != len(f.want) {
		t.Errorf("%d rows, want %d", s.Rows(), len(f.want))
	}
	wrong := 0
	for id, counts := range f.want {
		want := slices.Clone(counts)
		for i := range want {
			want[i] *= times
		}
		if got := s.Row(id); !slices.Equal(got, want) {
			if wrong++; wrong < 5 {
				t.Errorf("row %d is %v, want %v", id, got, want)
			}
		}
	}
	if wrong > 0 {
		t.Fatalf("%d rows are wrong", wrong)
	}
}

func TestReplay(t *testing.T) {
	t.Parallel()
	f := randomEvents(1, 5000, 300)
	cases := []struct{ name, file, text, flags string }{
		{"plain", "e.csv", f.text, ""},
		{"gzip", "e.csv.gz", proctest.Gzipped(t, f.text), ""},
		{"small batches", "e.csv", f.text, "--batch 7 --in-flight 16"},
		{"one request at a time", "e.csv", f.text, "--batch 100 --in-flight 1"},
		{"at a speed", "e.csv", f.text, "--speed 1e5"},
		{"standard input", "", f.text, "--batch 10"},
		{"other columns", "e.csv", strings.Replace(f.text, "item,t,event", "who,when,what", 1), "--id-column who --time-column when --event-column what --speed 1e6"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server := nodetest.New(t)
			i := against(t, server)
			i.Stdin = c.text
			path := cli.StreamName
			if c.file != "" {
				path = proctest.WriteTemp(t, c.file, c.text)
			}
			args := append([]string{"replay", path, "--map", eventMap, "-o", "json"}, strings.Fields(c.flags)...)
			if out := proctest.Decode[importOutput](t, i.OK(args...)); out.Rows != 5000 || out.Rejected != 0 || out.DoneBefore {
				t.Fatalf("replay answered %+v", out)
			}
			f.check(t, server, 1)
			if c.file == "" {
				return
			}
			if out := proctest.Decode[importOutput](t, i.OK(args...)); out.Rows != 5000 || !out.DoneBefore {
				t.Fatalf("the second replay answered %+v", out)
			}
			f.check(t, server, 1)
			i.OK(append(args, "--restart")...)
			f.check(t, server, 2)
		})
	}
}

func TestImportAdd(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	server.Put(2, 0, 0, 10, 0)
	i := against(t, server)
	path := proctest.WriteTemp(t, "a.csv", "id,like,view\n1,5,0\n2,-3,1\n1,1,1\n3,0,0\n")
	out := proctest.Decode[importOutput](t, i.OK("import", path, "--add", "-o", "json"))
	if out.Rows != 4 {
		t.Fatalf("import answered %+v", out)
	}
	for id, want := range map[uint64][]int64{1: {0, 0, 6, 1}, 2: {0, 0, 7, 1}, 3: {0, 0, 0, 0}} {
		if got := server.Row(id); !slices.Equal(got, want) {
			t.Errorf("row %d is %v, want %v", id, got, want)
		}
	}
	i.OK("import", path) // import the values; this uses another progress file than --add
	if got := server.Row(2); !slices.Equal(got, []int64{0, 0, -3, 1}) {
		t.Errorf("row 2 is %v", got)
	}
	if i.OK("import", path, "--add"); server.Row(2)[2] != -3 {
		t.Errorf("row 2 is %v: it was added again", server.Row(2))
	}
}

// If two runs add the same file at once, the second adds nothing and prints the reason, and the
// first adds all rows. On a file system without locks, a run stops once its progress file has
// another session.
func TestTwoRunsAtOnceAddOnce(t *testing.T) {
	t.Parallel()
	for command, args := range map[string][]string{"replay": {"replay"}, "import --add": {"import", "--add"}} {
		t.Run(command, func(t *testing.T) {
			server := nodetest.New(t)
			writing, goOn := make(chan struct{}), make(chan struct{})
			var requests atomic.Int32
			server.SetFail(func(r *http.Request, _ []byte) *nodetest.Fault {
				if strings.HasSuffix(r.URL.Path, "/incr") && requests.Add(1) == 1 {
					close(writing)
					<-goOn
				}
				return nil
			})
			path, suffix := proctest.WriteTemp(t, "e.csv", "item,t,event\n1,1,like\n1,2,like\n"), ".replay-progress"
			if command != "replay" {
				path, suffix = proctest.WriteTemp(t, "e.csv", "id,like\n1,1\n1,1\n"), ".add-progress"
			}
			args := append(args, path, "--batch", "1", "--in-flight", "1")
			first := make(chan proctest.Result, 1)
			go func() { first <- against(t, server).Run(args...) }()
			<-writing
			second := against(t, server).Run(args...)
			if second.Code != cli.ExitFail || !strings.Contains(second.Err, "another run") {
				t.Errorf("the second run: exit %d, %q", second.Code, second.Err)
			}
			close(goOn)
			if got := <-first; got.Code != cli.ExitOK {
				t.Fatalf("the first run: exit %d, %q", got.Code, got.Err)
			}
			if got := server.Row(1)[2]; got != 2 {
				t.Errorf("two rows counted %d times", got)
			}
			// Replace the progress file of a run by the file of another session.
			against(t, server).OK(append(args, "--restart")...)
			other := proctest.ReadAll(t, path+suffix)
			server.SetFail(func(r *http.Request, _ []byte) *nodetest.Fault {
				if strings.HasSuffix(r.URL.Path, "/incr") {
					if err := errors.Join(os.WriteFile(path+".other", []byte(other), 0o600), os.Rename(path+".other", path+suffix)); err != nil {
						t.Error(err)
					}
				}
				return nil
			})
			if got := against(t, server).Run(append(args, "--restart")...); got.Code != cli.ExitFail || !strings.Contains(got.Err, "another session") {
				t.Errorf("over another session's file: exit %d, %q", got.Code, got.Err)
			}
			if proctest.ReadAll(t, path+suffix) != other {
				t.Error("another session's file was replaced")
			}
		})
	}
}

// sessions records the request body for each number of a producer. It fails the test if two
// requests with the same number have different bodies.
type sessions struct {
	t      *testing.T
	mu     sync.Mutex
	bodies map[string][]byte
}

func (s *sessions) note(r *http.Request, body []byte) {
	seq := r.Header.Get("Countd-Producer") + "/" + r.Header.Get("Countd-Seq")
	s.mu.Lock()
	defer s.mu.Unlock()
	if before, again := s.bodies[seq]; again && !bytes.Equal(before, body) {
		s.t.Errorf("number %s carried\n%s\nand then\n%s", seq, before, body)
	}
	s.bodies[seq] = body
}

// Runs of countctl are killed at random requests. Answers are lost, or only some shards apply a
// request. The flags differ between runs. These properties hold:
//
//  1. at the end, each event is counted once;
//  2. a number always has the same batch;
//  3. no number is below the server's window.
func TestReplaySurvivesKills(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it kills a replay many times")
	}
	const events, rows, batch, kills = 6000, 200, 10, 12
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 6))
	f := randomEvents(seed, events, rows)
	server := nodetest.New(t)
	noted := &sessions{t: t, bodies: map[string][]byte{}}
	path := proctest.WriteTemp(t, "e.csv.gz", proctest.Gzipped(t, f.text))
	killed := 0
	for run := 0; ; run++ {
		killAt := int64(-1)
		if killed < kills {
			killAt = 1 + random.Int64N(2*events/batch/kills)
		}
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		args := []string{"replay", path, "--map", eventMap, "--batch", strconv.Itoa(batch), "--retry-for", "3m", "--addr", server.URL,
			"--in-flight", strconv.Itoa(1 + random.IntN(32))}
		if run > 0 && run%2 == 0 {
			args = append(args, "--batch", "77", "--speed", "1e7") // these flags do not change the batches of the session
		}
		cmd := exec.Command(self, args...)
		cmd.Env = append(os.Environ(), asCountctl+"=1")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		kill := disturb(server, noted, random.Uint64(), killAt)
		err = runUntil(t, cmd, kill)
		var exit *exec.ExitError
		switch {
		case err == nil:
			f.check(t, server, 1)
			if killed < kills/2 {
				t.Fatalf("only %d runs were killed", killed)
			}
			return
		case errors.As(err, &exit) && exit.ExitCode() == -1:
			killed++
		default:
			t.Fatalf("run %d: %v\n%s", run, err, stderr.String())
		}
	}
}

// runUntil runs a command to its end, or until kill is closed.
func runUntil(t *testing.T, cmd *exec.Cmd, kill <-chan struct{}) error {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }() // this goroutine ends when the process ends
	select {
	case err := <-ended:
		return err
	case <-kill:
		_ = cmd.Process.Kill() // ignore the error: Kill fails only if the process has ended
		return <-ended
	}
}

// disturb makes the server lose some answers. It returns a channel that is closed when request
// number killAt arrives. The caller then kills countctl.
func disturb(s *nodetest.Server, noted *sessions, seed uint64, killAt int64) <-chan struct{} {
	kill := make(chan struct{})
	var mu sync.Mutex
	random, requests := rand.New(rand.NewPCG(seed, 7)), int64(0)
	s.SetFail(func(r *http.Request, body []byte) *nodetest.Fault {
		if !strings.HasSuffix(r.URL.Path, "/incr") {
			return nil
		}
		noted.note(r, body)
		mu.Lock()
		defer mu.Unlock()
		requests++
		if requests == killAt {
			close(kill)
		}
		switch random.IntN(60) {
		case 0:
			return &nodetest.Fault{Hang: true, After: true}
		case 1:
			return &nodetest.Fault{Hang: true, After: true, Late: 5 * time.Millisecond}
		case 2:
			return &nodetest.Fault{Status: 503, Code: "no_leader", After: true, Shards: []int{random.IntN(4)}}
		case 3:
			return &nodetest.Fault{Status: 504, Code: "outcome_unknown", After: true, Shards: []int{1, 2}}
		}
		return nil
	})
	return kill
}

func TestReplayKeepsToItsSpeed(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	var mu sync.Mutex
	var sizes []int
	server.Fail = func(r *http.Request, body []byte) *nodetest.Fault {
		if strings.HasSuffix(r.URL.Path, "/incr") {
			mu.Lock()
			defer mu.Unlock()
			sizes = append(sizes, bytes.Count(body, []byte(`"id"`)))
		}
		return nil
	}
	// The times in the file span ten seconds, with five events in each. The replay runs at ten
	// times real time.
	var text strings.Builder
	text.WriteString("item,t,event\n")
	for n := range 50 {
		fmt.Fprintf(&text, "%d,%d,like\n", n, 1000+n/5)
	}
	began := time.Now()
	against(t, server).OK("replay", proctest.WriteTemp(t, "e.csv", text.String()), "--speed", "10")
	if took := time.Since(began); took < 900*time.Millisecond {
		t.Errorf("it took %v, want 0.9 s at least", took)
	}
	if !slices.Equal(sizes, []int{5, 5, 5, 5, 5, 5, 5, 5, 5, 5}) {
		t.Errorf("requests had %v rows: a second of the file is a batch of its own", sizes)
	}
}

// A session that began at full speed counts rows without a valid time, even if it is resumed at a
// lower speed. A session that began at a lower speed rejects such rows, even if it is resumed at
// full speed. All runs divide the file into the same batches, so each event counts once.
func TestReplayResumedAtAnotherSpeedCutsAlike(t *testing.T) {
	t.Parallel()
	const text = "item,t,event\n1,1,like\n2,soon,like\n3,1,like\n4,NaN,like\n5,1,like\n6,1,like\n7,,like\n8,1,like\n"
	cases := []struct {
		name, first, then string
		rejected          []uint64
	}{
		{"begun at full speed", "max", "1e9", nil},
		{"begun at a speed", "1e9", "max", []uint64{2, 4, 7}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server := nodetest.New(t)
			server.SetFail(func(r *http.Request, _ []byte) *nodetest.Fault {
				if !strings.HasSuffix(r.URL.Path, "/incr") {
					return nil
				}
				return &nodetest.Fault{Status: 504, Code: "outcome_unknown", After: true}
			})
			i := against(t, server)
			path := proctest.WriteTemp(t, "e.csv", text)
			args := []string{"replay", path, "--batch", "2", "--in-flight", "1", "--on-error", "skip", "-o", "json", "--speed"}
			if got := i.Run(append(args, c.first, "--retry-for", "1ms")...); got.Code != cli.ExitFail || !strings.Contains(got.Err, "run it again") {
				t.Fatalf("the first run: exit %d, %q", got.Code, got.Err)
			}
			server.SetFail(nil)
			out := proctest.Decode[importOutput](t, i.Run(append(args, c.then)...).Out)
			if out.Rows != int64(8-len(c.rejected)) || out.Rejected != int64(len(c.rejected)) {
				t.Errorf("it came to %+v", out)
			}
			for id := range uint64(8) {
				want := int64(1)
				if slices.Contains(c.rejected, id+1) {
					want = 0
				}
				if got := server.Row(id + 1)[2]; got != want {
					t.Errorf("event %d counted %d times, want %d", id+1, got, want)
				}
			}
		})
	}
}

func TestReplayRefusesABadRow(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]string{"event": "1,2,frob", "item": "x,2,like", "leading zeros": "02,2,like", "time": "1,soon,like", "fields": "1,2"} {
		t.Run(name, func(t *testing.T) {
			server := nodetest.New(t)
			i := against(t, server)
			path := proctest.WriteTemp(t, "e.csv", "item,t,event\n1,1,like\n"+row+"\n2,3,like\n")
			got := i.Run("replay", path, "--speed", "1000")
			if got.Code != cli.ExitFail || !strings.Contains(got.Err, "e.csv:3: ") {
				t.Fatalf("exit %d, %q", got.Code, got.Err)
			}
			out := proctest.Decode[importOutput](t, i.Run("replay", path, "--speed", "1000", "--on-error", "skip", "-o", "json").Out)
			if out.Rows != 2 || out.Rejected != 1 || server.Row(1)[2] != 1 || server.Row(2)[2] != 1 {
				t.Fatalf("%+v, rows are %v, %v", out, server.Row(1), server.Row(2))
			}
		})
	}
}

// If a file has bad rows, the command always exits with an error and reports them, even if it is
// repeated with other flags.
func TestAddOfAFinishedFileRemembersItsRejects(t *testing.T) {
	t.Parallel()
	cases := []struct{ name, text, command, add, rejects string }{
		{"import --add", "id,like\nx,1\n1,1\ny,1\n", "import", "--add", ""},
		{"replay", "item,t,event\n1,1,frob\n1,2,like\n1,3,frob\n", "replay", "--speed=max", ""},
		{"rejects elsewhere", "id,like\nx,1\n1,1\ny,1\n", "import", "--add", "bad.csv"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server := nodetest.New(t)
			i := against(t, server)
			path := proctest.WriteTemp(t, "f.csv", c.text)
			args := []string{c.command, path, c.add, "-o", "json"}
			skip := append(slices.Clone(args), "--on-error", "skip")
			elsewhere := skip
			if c.rejects != "" {
				elsewhere = append(slices.Clone(skip), "--rejects", filepath.Join(t.TempDir(), c.rejects))
			}
			first := i.Run(elsewhere...)
			out := proctest.Decode[importOutput](t, first.Out)
			if first.Code != cli.ExitFail || out.Rows != 1 || out.Rejected != 2 || out.RejectsFile == "" {
				t.Fatalf("exit %d, %+v", first.Code, out)
			}
			for name, again := range map[string][]string{"skip": skip, "stop": args} {
				got := i.Run(again...)
				second := proctest.Decode[importOutput](t, got.Out)
				if got.Code != cli.ExitFail || !second.DoneBefore || second.Rejected != 2 || second.RejectsFile != out.RejectsFile ||
					!strings.Contains(got.Err, "2 rows were rejected") {
					t.Errorf("%s: exit %d, %+v, %q", name, got.Code, second, got.Err)
				}
			}
			if server.Row(1)[2] != 1 {
				t.Errorf("row 1 is %v", server.Row(1))
			}
		})
	}
}

// A run that continues without --on-error skip still reports the rows that the previous run
// rejected.
func TestRejectsOfAStoppedRunAreCounted(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"values", "--add"} {
		t.Run(kind, func(t *testing.T) {
			server := nodetest.New(t)
			i := against(t, server)
			path := proctest.WriteTemp(t, "f.csv", "id,like\nx,1\n1,1\n2,1\n3,1\n")
			args := strings.Fields("import " + path + " --batch 1 --in-flight 1 --retry-for 0s -o json " + strings.TrimPrefix(kind, "values"))
			verb := map[string]string{"values": "/set", "--add": "/incr"}[kind]
			var mu sync.Mutex
			writes := 0
			server.SetFail(func(r *http.Request, _ []byte) *nodetest.Fault {
				mu.Lock()
				defer mu.Unlock()
				if strings.HasSuffix(r.URL.Path, verb) {
					if writes++; writes > 1 {
						return &nodetest.Fault{Status: 500, Code: "internal"}
					}
				}
				return nil
			})
			if got := i.Run(append(args, "--on-error", "skip")...); got.Code != cli.ExitFail || got.Out != "" {
				t.Fatalf("exit %d, %q", got.Code, got.Out)
			}
			server.SetFail(func(*http.Request, []byte) *nodetest.Fault { return nil })
			got := i.Run(args...)
			out := proctest.Decode[importOutput](t, got.Out)
			if got.Code != cli.ExitFail || out.Rows != 3 || out.Rejected != 1 || !strings.HasSuffix(out.RejectsFile, "f.rejects.csv") {
				t.Fatalf("exit %d, %+v, %q", got.Code, out, got.Err)
			}
		})
	}
}

func TestAddDoesNotBeginAnewByItself(t *testing.T) {
	t.Parallel()
	nothing := func(*testing.T, *nodetest.Server, string) {}
	rewrite := func(text string) func(*testing.T, *nodetest.Server, string) {
		return func(t *testing.T, _ *nodetest.Server, path string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	cases := []struct {
		name   string
		change func(t *testing.T, s *nodetest.Server, path string)
		flags  string
		says   string
	}{
		{"file longer", rewrite("item,t,event\n1,1,like\n1,1,like\n"), "", "other: the file's size (31 bytes, was 22 bytes))"},
		{"file changed", rewrite("item,t,event\n1,2,like\n"), "", "other: the file's content)"},
		{"another cluster", func(_ *testing.T, s *nodetest.Server, _ string) { s.Renew(); s.Put(1, 0, 0, 1, 0) }, "", "other: the cluster at "},
		{"another map", nothing, "--map like=view", "other: --map or the keyspace's columns (like=view,"},
		{"another time", nothing, "--time-column item", "other: --time-column (item, was t))"},
		{"two things", nothing, "--time-column item --id-column t", "other: --id-column (t, was item); --time-column (item, was t))"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server := nodetest.New(t)
			i := against(t, server)
			path := proctest.WriteTemp(t, "e.csv", "item,t,event\n1,1,like\n")
			i.OK("replay", path)
			before := proctest.ReadAll(t, path+".replay-progress")
			c.change(t, server, path)
			got := i.Run(append([]string{"replay", path}, strings.Fields(c.flags)...)...)
			if got.Code != cli.ExitFail || !strings.Contains(got.Err, c.says) || server.Row(1)[2] != 1 ||
				!strings.Contains(got.Err, "--restart and another --state both begin at the first row and add all rows") {
				t.Fatalf("exit %d, %q, row 1 is %v", got.Code, got.Err, server.Row(1))
			}
			if proctest.ReadAll(t, path+".replay-progress") != before {
				t.Fatal("the progress file was changed")
			}
		})
	}
}

// A run that fails before it sends anything leaves the progress file unchanged, so the next run can
// have other flags.
func TestARunThatSentNothingBlocksNothing(t *testing.T) {
	t.Parallel()
	cases := []struct{ name, text, command, wrong, right string }{
		{"replay", "item,t,event\n1,1,retweet\n1,2,like\n", "replay", "--map retweeet=repost", "--map retweet=repost"},
		{"import --add", "id,n,like\n1,x,5\n", "import --add", "--map n=like", "--map like=like"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server := nodetest.New(t)
			i := against(t, server)
			path := proctest.WriteTemp(t, "f.csv", c.text)
			run := func(flags string) proctest.Result { return i.Run(append(strings.Fields(c.command+" "+flags), path)...) }
			if got := run(c.wrong); got.Code != cli.ExitFail || !strings.Contains(got.Err, "f.csv:2: ") {
				t.Fatalf("exit %d, %q", got.Code, got.Err)
			}
			if got := run(c.right); got.Code != cli.ExitOK || server.Rows() != 1 {
				t.Fatalf("corrected: exit %d, %q, %d rows", got.Code, got.Err, server.Rows())
			}
			was := server.Row(1)
			if err := os.Chtimes(path, time.Time{}, time.Unix(1, 0)); err != nil {
				t.Fatal(err)
			}
			if got := run(c.right); got.Code != cli.ExitOK || !strings.Contains(got.Err, "was added before") || !slices.Equal(server.Row(1), was) {
				t.Fatalf("touched: exit %d, %q, row 1 is %v, was %v", got.Code, got.Err, server.Row(1), was)
			}
			if got := run(c.wrong + " --restart"); got.Code != cli.ExitFail || !slices.Equal(server.Row(1), was) {
				t.Fatalf("exit %d, %q", got.Code, got.Err)
			}
			if got := run(c.right); got.Code != cli.ExitOK || !slices.Equal(server.Row(1), was) {
				t.Fatalf("what was added is forgotten: exit %d, %q, row 1 is %v", got.Code, got.Err, server.Row(1))
			}
		})
	}
}

func TestAddOfAForgottenSessionStops(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t, nodetest.OneProducer)
	i := against(t, server)
	path := proctest.WriteTemp(t, "e.csv", randomEvents(3, 500, 50).text)
	args := []string{"replay", path, "--map", eventMap, "--batch", "10", "--in-flight", "1", "--retry-for", "0s"}
	countIncrs(server, 20, &nodetest.Fault{Hang: true, After: true})
	if got := i.Run(args...); got.Code != cli.ExitFail || !strings.Contains(got.Err, "not known whether") {
		t.Fatalf("exit %d, %q", got.Code, got.Err)
	}
	server.SetFail(func(*http.Request, []byte) *nodetest.Fault { return nil })
	server.ForgetProducers()
	if got := i.Run(args...); got.Code != cli.ExitFail || !strings.Contains(got.Err, "has forgotten this session") {
		t.Fatalf("exit %d, %q", got.Code, got.Err)
	}
}

// countIncrs makes the server answer the nth increment, and all later ones, with a fault.
func countIncrs(s *nodetest.Server, nth int, fault *nodetest.Fault) {
	var mu sync.Mutex
	s.SetFail(func(r *http.Request, _ []byte) *nodetest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if strings.HasSuffix(r.URL.Path, "/incr") {
			if nth--; nth <= 0 {
				return fault
			}
		}
		return nil
	})
}

// An answer that names the row whose sum does not fit is lost, and the answer to the repeated
// request does not name the row. The command then reports every row whose sum may not have fitted.
func TestAddNamesSumsThatPerhapsDoNotFit(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	server.Put(7, 0, 0, 1<<63-1, 0)
	i := against(t, server)
	lost := false
	server.SetFail(func(r *http.Request, _ []byte) *nodetest.Fault {
		if lost || !strings.HasSuffix(r.URL.Path, "/incr") {
			return nil
		}
		lost = true
		return &nodetest.Fault{Hang: true, After: true}
	})
	path := proctest.WriteTemp(t, "a.csv", "id,like\n6,1\n7,1\n11,1\n")
	got := i.Run("import", path, "--add", "--in-flight", "1")
	if got.Code != cli.ExitFail || !strings.Contains(got.Err, "some not added") || !strings.Contains(got.Err, "2 rows of id 7, 11") {
		t.Fatalf("exit %d, %q", got.Code, got.Err)
	}
}

// If sums did not fit, the command always exits with an error and reports their rows, even if it is
// repeated with other flags.
func TestAddOfAFileRemembersItsOverflows(t *testing.T) {
	t.Parallel()
	const full = 1<<63 - 1
	added := "id,like\n40,1\n44,1\n40,2\n48,1\n"
	cases := []struct {
		name, text, command, flags string
		stops                      bool // the first run stops at a sum that does not fit
		full                       []uint64
		rejected                   int64 // rows
		ids                        string
	}{
		{"skip", added, "import --add", "--on-error skip", false, []uint64{40, 48}, 3, "3 rows of id 40, 48"},
		{"stop", added, "import --add", "", true, []uint64{40, 48}, 3, "3 rows of id 40, 48"},
		{"small batches", added, "import --add", "--on-error skip --batch 1", false, []uint64{40, 48}, 3, "3 rows of id 40, 48"},
		{"none fits", added, "import --add", "--on-error skip", false, []uint64{40, 44, 48}, 4, "4 rows of id 40, 44, 48"},
		{"none fits, stop", added, "import --add", "", true, []uint64{40, 44, 48}, 4, "4 rows of id 40, 44, 48"},
		{"bad row too", added + "x,1\n", "import --add", "--on-error skip", false, []uint64{40}, 3, "2 rows of id 40"},
		{"replay", "item,t,event\n40,1,like\n44,1,like\n", "replay", "--on-error skip", false, []uint64{40}, 1, "1 row of id 40"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			server := nodetest.New(t)
			for _, id := range c.full {
				server.Put(id, 0, 0, full, 0)
			}
			i := against(t, server)
			path := proctest.WriteTemp(t, "f.csv", c.text)
			args := append(strings.Fields(c.command), path, "-o", "json", "--in-flight", "1")
			for run := range 4 {
				with := append(slices.Clone(args), strings.Fields(c.flags)...)
				if run == 3 {
					with = args
				}
				got := i.Run(with...)
				if got.Code != cli.ExitFail || !strings.Contains(got.Err, c.ids) {
					t.Fatalf("run %d: exit %d, %q", run, got.Code, got.Err)
				}
				if c.stops && run == 0 {
					continue
				}
				out := proctest.Decode[importOutput](t, got.Out)
				rows := int64(strings.Count(c.text, "\n")) - 1
				if out.Rejected != c.rejected || out.Rows != rows-c.rejected {
					t.Fatalf("run %d: %+v", run, out)
				}
				if bad := strings.Contains(c.text, "x,1"); bad != (out.RejectsFile != "") || bad != strings.Contains(got.Err, "correct the rows") {
					t.Fatalf("run %d: %+v, %q", run, out, got.Err)
				}
			}
			if server.Row(40)[2] != full || !slices.Contains(c.full, 44) && server.Row(44)[2] != 1 {
				t.Fatalf("rows are %v, %v", server.Row(40), server.Row(44))
			}
		})
	}
}

func TestSessionFilesOfOthersAreRefused(t *testing.T) {
	t.Parallel()
	path := proctest.WriteTemp(t, "a.csv", "id,like\n1,1\n")
	session := func(change func(*bulk.FileState)) string {
		s := bulk.FileState{Kind: bulk.KindAdd}.BeginSession(10, 0)
		change(&s)
		text, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for name, text := range map[string]string{
		"no session":  session(func(s *bulk.FileState) { s.Session = nil }),
		"no producer": session(func(s *bulk.FileState) { s.Session.Producer = "" }),
		"number 0":    session(func(s *bulk.FileState) { s.Session.Seq = 0 }),
		"no rows":     session(func(s *bulk.FileState) { s.Session.BatchRows = 0 }),
		"of values":   session(func(s *bulk.FileState) { s.Kind = bulk.KindSet }),
	} {
		t.Run(name, func(t *testing.T) {
			got := against(t, nodetest.New(t)).Run("import", path, "--add", "--state", proctest.WriteTemp(t, "s", text))
			if got.Code != cli.ExitFail || !strings.Contains(got.Err, "not a progress file") {
				t.Fatalf("exit %d, %q", got.Code, got.Err)
			}
		})
	}
}

// invoke returns an invocation of countctl with some commands against the server at addr.
func invoke(t *testing.T, addr string, groups ...cli.Commands) *proctest.Invocation {
	return proctest.NewInvocation(t, addr, func(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer, env func(string) string) int {
		return cli.Run(ctx, args, cli.Terminal{In: in, Out: out, Err: errOut, Env: env}, groups...)
	})
}

package data

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/nodetest"
	"github.com/countd/countd/internal/proctest"
)

// An import of a pipe fails at once, and the error names a remedy. A signal ends an import that
// waits for standard input.
func TestPipes(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	pipe := filepath.Join(t.TempDir(), "pipe")
	must(t, syscall.Mkfifo(pipe, 0o600))
	for _, command := range []string{"import", "import --add", "replay", "members import"} {
		ended := make(chan proctest.Result, 1)
		go func() {
			ended <- invoke(t, server.URL, Commands, membersCommands).Run(append(strings.Fields(command), pipe)...)
		}()
		select {
		case got := <-ended:
			if got.Code != cli.ExitFail || !strings.Contains(got.Err, "is not a regular file but a pipe") || !strings.Contains(got.Err, "- < "+pipe) {
				t.Errorf("%s: exit %d, %q", command, got.Code, got.Err)
			}
		case <-time.After(3 * time.Minute):
			t.Fatalf("%s hangs", command)
		}
	}
	got := against(t, server).Run("import", filepath.Dir(pipe))
	if got.Code != cli.ExitFail || !strings.Contains(got.Err, "a directory") {
		t.Errorf("a directory: exit %d, %q", got.Code, got.Err)
	}
	for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
		for _, text := range []string{"", "id,like\n1,1\n"} {
			cmd := exec.Command(must1(os.Executable()), "import", "-", "--addr", server.URL)
			cmd.Env = append(os.Environ(), asCountctl+"=1")
			in := must1(cmd.StdinPipe())
			var stderr proctest.Buffer
			cmd.Stderr = &stderr
			must(t, cmd.Start())
			must1(fmt.Fprint(in, text))
			time.Sleep(300 * time.Millisecond) // enough time for countctl to read the text, but the test does not depend on it
			must(t, cmd.Process.Signal(signal))
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			select {
			case err := <-ended:
				if err == nil {
					t.Errorf("%v: exit 0, %s", signal, stderr.String())
				}
			case <-time.After(3 * time.Minute):
				_ = cmd.Process.Kill()
				t.Fatalf("%v does not end it", signal)
			}
		}
	}
}

func TestFormats(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, text, flags, says string }{
		{"a mark before a quoted header", "\ufeff\"id\",\"like\"\n1,5\n", "", ""},
		{"a mark before a quoted header, CRLF", "\ufeff\"id\",\"like\"\r\n\"1\",\"5\"\r\n", "", ""},
		{"semicolons", "id;like\n1;5\n", "--delimiter ;", ""},
		{"semicolons, quoted", "\ufeff\"id\";\"like\"\n\"1\";\"5\"\n", "--delimiter ;", ""},
		{"tabs", "id\tlike\n1\t5\n", "--delimiter tab", ""},
		{"tabs, escaped", "id\tlike\n1\t5\n", `--delimiter \t`, ""},
		{"bars", "id|like\n1|5\n", "--delimiter |", ""},
		{"semicolons, not told", "id;like\n1;5\n", "", "--delimiter"},
		{"semicolons, not told, with a map", "id;like\n1;5\n", "--map like=like", "--delimiter"},
		{"a bad delimiter", "id,like\n1,5\n", "--delimiter ,,", "one character"},
		{"a digit", "id,like\n1,5\n", "--delimiter 5", "one character"},
		{"a quote", "id,like\n1,5\n", `--delimiter "`, "one character"},
		{"empty counts", "id,like,view\n1,5,\n", "--empty-as-zero", ""},
		{"empty counts, not told", "id,like,view\n1,5,\n", "", "--empty-as-zero"},
		{"an empty id", "id,like\n,5\n", "--empty-as-zero", `id: ""`},
		{"UTF-16", "\xff\xfei\x00d\x00", "", "UTF-16"},
		{"no id", "key,like\n1,5\n", "", "--id-column"},
	} {
		for _, add := range []string{"", "--add"} {
			t.Run(c.name+add, func(t *testing.T) {
				server := nodetest.New(t)
				i := against(t, server)
				args := append([]string{"import", proctest.WriteTemp(t, "f.csv", c.text)}, strings.Fields(c.flags+" "+add)...)
				got := i.Run(args...)
				if c.says != "" {
					if got.Code == cli.ExitOK || !strings.Contains(got.Err, c.says) || server.Rows() != 0 {
						t.Fatalf("exit %d, %q", got.Code, got.Err)
					}
					return
				}
				if got.Code != cli.ExitOK || server.Row(1)[2] != 5 {
					t.Fatalf("exit %d, %q, row %v", got.Code, got.Err, server.Row(1))
				}
			})
		}
	}
}

// The file of rejects has the delimiter of the source file, so that it can be corrected and
// imported with the same flags. A continued run uses that delimiter too.
func TestRejectsOfAnotherDelimiter(t *testing.T) {
	t.Parallel()
	server := nodetest.New(t)
	i := against(t, server)
	path := proctest.WriteTemp(t, "f.csv", "id;like\nx;1\n1;1\n2;1\ny;\"1;1\"\n3;1\n")
	args := []string{"import", "--add", "--delimiter", ";", "--on-error", "skip", "--batch", "1", "--in-flight", "1", "--retry-for", "0s"}
	countIncrs(server, 2, &nodetest.Fault{Hang: true})
	i.Run(append(args, path)...)
	server.SetFail(func(*http.Request, []byte) *nodetest.Fault { return nil })
	if got := i.Run(append(args[:2:2], "--on-error", "skip", "--map", "like=like", path)...); got.Code == cli.ExitOK || !strings.Contains(got.Err, "--delimiter") {
		t.Fatalf("with another delimiter: exit %d, %q", got.Code, got.Err)
	}
	i.Run(append(args, path)...)
	rejects := strings.TrimSuffix(path, ".csv") + ".rejects.csv"
	text := proctest.ReadAll(t, rejects)
	if !strings.HasPrefix(text, "line;reason;id;like\n2;") || strings.Count(text, "\n") != 3 || !strings.HasSuffix(text, ";y;\"1;1\"\n") {
		t.Fatalf("rejects are\n%s", text)
	}
	must(t, os.WriteFile(rejects, []byte(strings.NewReplacer(";x;1", ";7;1", "y;\"1;1\"", "8;1").Replace(text)), 0o600))
	i.OK(append(args, rejects)...)
	for _, id := range []uint64{1, 2, 3, 7, 8} {
		if server.Row(id)[2] != 1 {
			t.Errorf("row %d is %v", id, server.Row(id))
		}
	}
}

// If a key matches a pattern but its id is not a number, the import rejects it and exits with an
// error. Keys that match no pattern are not rejected. Rejects of earlier runs stay in the file.
func TestImportRedisBadIDs(t *testing.T) {
	t.Parallel()
	addr := proctest.StartRedis(t)
	peer := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { peer.Close() })
	for _, key := range []string{"like:1", "like:abc", "like:550e8400-e29b-41d4-a716-446655440000", "like:-5", "like:", "like:1:by", "post:2:like", "post:x:like", "post:x:author", "like:best:of"} {
		must(t, peer.Set(t.Context(), key, 3, 0).Err())
	}
	must(t, peer.HSet(t.Context(), "h:7", "view", 1).Err())
	must(t, peer.HSet(t.Context(), "h:seven", "view", 1).Err())
	server := nodetest.New(t)
	i := against(t, server)
	dir := t.TempDir()
	rejects := filepath.Join(dir, "r.csv")
	args := []string{"import", "redis://" + addr + "/0", "--pattern", "like:{id}=posts:like", "--pattern", "post:{id}:{column}=posts", "--pattern", "h:{id}=posts", "--map", "author=", "--state", filepath.Join(dir, "p")}
	if got := i.Run(args...); got.Code != cli.ExitFail || !strings.Contains(got.Err, "the id ") || !strings.Contains(got.Err, "--on-error skip") {
		t.Fatalf("exit %d, %s", got.Code, got.Err)
	}
	skip := append(slices.Clone(args), "--on-error", "skip", "--rejects", rejects)
	got := i.Run(skip...)
	if got.Code != cli.ExitFail || !strings.Contains(got.Err, "6 values were rejected; see "+rejects) {
		t.Fatalf("exit %d, %s", got.Code, got.Err)
	}
	text := proctest.ReadAll(t, rejects)
	for _, key := range []string{"like:abc", "like:550e8400-e29b-41d4-a716-446655440000", "like:-5", "like:", "post:x:like", "h:seven"} {
		if !strings.Contains(text, ","+key+",") {
			t.Errorf("%s is not in\n%s", key, text)
		}
	}
	if server.Row(1)[2] != 3 || server.Row(2)[2] != 3 || server.Row(7)[3] != 1 || server.Rows() != 3 {
		t.Errorf("%d rows: %v, %v, %v", server.Rows(), server.Row(1), server.Row(2), server.Row(7))
	}
	// No later command removes the rejects.
	for _, again := range [][]string{append(slices.Clone(skip), "--verify-only"), append(slices.Clone(skip), "--restart"), {"import", "redis://" + addr + "/0", "--pattern", "h:{id}=posts", "--on-error", "skip", "--rejects", rejects, "--state", filepath.Join(dir, "q")}} {
		i.Run(again...)
		if now := proctest.ReadAll(t, rejects); !strings.HasPrefix(now, text) || strings.Count(now, "reason,key") != 1 {
			t.Errorf("after %v, the rejects are\n%s", again, now)
		}
	}
	if got := i.Run(append(slices.Clone(args), "--on-error", "skip", "--rejects", proctest.WriteTemp(t, "notes", "mine"))...); got.Code != cli.ExitFail || !strings.Contains(got.Err, "not a file of rejected rows") {
		t.Errorf("exit %d, %s", got.Code, got.Err)
	}
}

func TestImportRedisNamesKeysThatExpire(t *testing.T) {
	t.Parallel()
	addr := proctest.StartRedis(t)
	peer := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { peer.Close() })
	for n := range 8 {
		must(t, peer.Set(t.Context(), fmt.Sprintf("like:%d", n), 3, time.Duration(n%2)*time.Hour).Err())
	}
	must(t, peer.HSet(t.Context(), "h:20", "view", 1).Err())
	must(t, peer.Expire(t.Context(), "h:20", time.Hour).Err())
	must(t, peer.SAdd(t.Context(), "like:30", "a").Err())
	must(t, peer.Expire(t.Context(), "like:30", time.Hour).Err())
	must(t, peer.Set(t.Context(), "other:1", 3, time.Hour).Err())
	i := against(t, nodetest.New(t))
	got := i.Run("import", "redis://"+addr+"/0", "--pattern", "like:{id}=posts:like", "--pattern", "h:{id}=posts", "--state", filepath.Join(t.TempDir(), "p"), "-o", "json")
	out := proctest.Decode[redisOutput](t, got.Out)
	if got.Code != cli.ExitOK || out.Expiring != 6 || len(out.ExpiringKeys) != 5 || !strings.Contains(got.Err, "6 copied keys had a time to live") ||
		!strings.Contains(got.Err, "and 1 more") || strings.Contains(got.Err, `"like:2"`) {
		t.Errorf("exit %d, %+v, %s", got.Code, out, got.Err)
	}
}

// A run of an import from Redis fails. Its late writes change nothing after a later run.
func TestLateWriteOfAnEarlierCopyChangesNothing(t *testing.T) {
	t.Parallel()
	from := newSource(t, 300)
	server := nodetest.New(t)
	var late copies
	server.SetFail(func(r *http.Request, body []byte) *nodetest.Fault {
		if !strings.HasSuffix(r.URL.Path, "/set") {
			return nil
		}
		late.note(t, server.URL, r, body)
		if len(late.all) > 3 {
			return &nodetest.Fault{Hang: true}
		}
		return nil
	})
	i := against(t, server)
	args := append([]string{"import", from.url, "--state", filepath.Join(t.TempDir(), "p"), "--batch", "20", "--retry-for", "0s"}, sourcePatterns...)
	if got := i.Run(args...); got.Code != cli.ExitFail {
		t.Fatalf("exit %d", got.Code)
	}
	server.SetFail(func(*http.Request, []byte) *nodetest.Fault { return nil })
	for id := 1; id <= 300; id++ {
		must(t, from.client.Set(t.Context(), fmt.Sprintf("post:%d:likes", id), 7, 0).Err())
	}
	i.OK(append(args, "--restart", "--verify=false")...)
	late.send(t)
	for id := uint64(1); id <= 300; id++ {
		if got := server.Row(id)[2]; got != 7 {
			t.Fatalf("row %d is %d", id, got)
		}
	}
}

// The argument of export is the name of a file. export refuses an argument that looks like the name
// of a keyspace.
func TestExportWantsAFile(t *testing.T) {
	t.Chdir(t.TempDir())
	server := nodetest.New(t)
	server.Put(1, 0, 0, 5, 0)
	i := against(t, server)
	for _, name := range []string{"posts", "users", "x"} {
		got := i.Run("export", name)
		if got.Code != cli.ExitUsage || !strings.Contains(got.Err, "--keyspace") || !strings.Contains(got.Err, name+".csv") {
			t.Errorf("exit %d, %q", got.Code, got.Err)
		}
		if _, err := os.Stat(name); !os.IsNotExist(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := i.Run("export", "posts", "x.csv"); got.Code != cli.ExitUsage || !strings.Contains(got.Err, "--keyspace") {
		t.Errorf("exit %d, %q", got.Code, got.Err)
	}
	for _, name := range []string{"posts.csv", "./posts", "posts.csv.gz"} {
		i.OK("export", name)
		if info, err := os.Stat(name); err != nil || info.Mode()&fs.ModeType != 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if out := i.OK("export", "-"); !bytes.Contains([]byte(out), []byte("1,0,0,5,0\n")) {
		t.Errorf("it wrote %q", out)
	}
}

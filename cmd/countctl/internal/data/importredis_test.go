package data

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/countd/countd/client"
	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/nodetest"
	"github.com/countd/countd/internal/proctest"
)

// source is a Redis server with counts in three forms.
type source struct {
	url    string
	client *redis.Client
}

// newSource starts a Redis server with counts of n posts and n users, in three forms: strings whose
// keys have id and column, strings whose keys have only the id, and a hash for each user.
func newSource(t *testing.T, n int) source {
	t.Helper()
	addr := proctest.StartRedis(t)
	s := source{"redis://" + addr + "/0", redis.NewClient(&redis.Options{Addr: addr})}
	t.Cleanup(func() { s.client.Close() })
	_, err := s.client.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for id := 1; id <= n; id++ {
			p.Set(t.Context(), fmt.Sprintf("post:%d:likes", id), 3*id, 0)
			p.Set(t.Context(), fmt.Sprintf("post:%d:comment", id), -id, 0)
			p.Set(t.Context(), fmt.Sprintf("post:%d:author", id), "someone", 0)
			p.Set(t.Context(), fmt.Sprintf("views/%d", id), 10*id, 0)
			p.HSet(t.Context(), fmt.Sprintf("user:%d", id), "posts", id, "followers", 2*id, "name", "someone")
		}
		p.LPush(t.Context(), "post:1:list", "x")
		p.Set(t.Context(), "other", "x", 0)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var sourcePatterns = []string{
	"--pattern", "post:{id}:{column}=posts", "--pattern", "views/{id}=posts:view", "--pattern", "user:{id}=users", "--map", "likes=like,author=",
}

// wantSource checks that a server has the counts of the posts of newSource.
func wantSource(t *testing.T, s *nodetest.Server, n int) {
	t.Helper()
	for id := int64(1); id <= int64(n); id++ {
		if got, want := s.Row(uint64(id)), []int64{0, -id, 3 * id, 10 * id}; !slices.Equal(got, want) {
			t.Fatalf("row %d is %v, want %v", id, got, want)
		}
	}
}

func TestImportRedis(t *testing.T) {
	t.Parallel()
	const n = 1000
	from := newSource(t, n)
	server := nodetest.New(t)
	i := against(t, server)
	state := filepath.Join(t.TempDir(), "p")
	for _, batch := range []string{"1000", "7"} { // a second import changes nothing
		args := append([]string{"import", from.url, "-o", "json", "--state", state, "--batch", batch}, sourcePatterns...)
		out := proctest.Decode[redisOutput](t, i.OK(args...))
		if out.Values != 5*n || out.Keys < 5*n || out.Ignored < n || out.Rejected != 0 || out.Resumed {
			t.Fatalf("import answered %+v", out)
		}
		if out.Verified == nil || out.Verified.Values != 5*n || out.Verified.Differ != 0 {
			t.Fatalf("the comparison answered %+v", out.Verified)
		}
		wantSource(t, server, n)
	}
	got := i.Run(append([]string{"import", from.url, "--state", state}, sourcePatterns...)...)
	if got.Code != cli.ExitOK || !strings.Contains(got.Err, `not copied, of no column: "name" (1,000); `) {
		t.Errorf("exit %d, %q", got.Code, got.Err)
	}
	if _, err := os.Stat(state); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the progress file is still there: %v", err)
	}
}

// The count of a set or sorted set is its number of members. Keys of other types are ignored.
func TestImportRedisCountsMembers(t *testing.T) {
	t.Parallel()
	addr := proctest.StartRedis(t)
	peer := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { peer.Close() })
	_, err := peer.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		ctx := t.Context()
		for id := 1; id <= 300; id++ {
			for member := range id % 5 {
				p.SAdd(ctx, fmt.Sprintf("likers:%d", id), member)
			}
			for member := range id % 3 {
				p.ZAdd(ctx, fmt.Sprintf("post:%d:views", id), redis.Z{Score: float64(member), Member: member})
			}
			p.Set(ctx, fmt.Sprintf("post:%d:comment", id), id, 0)
		}
		p.LPush(ctx, "likers:1000", "a")
		p.HSet(ctx, "likers:1001", "like", 7)
		p.XAdd(ctx, &redis.XAddArgs{Stream: "post:1002:views", Values: []string{"a", "b"}})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	server := nodetest.New(t)
	out := proctest.Decode[redisOutput](t, against(t, server).OK("import", "redis://"+addr+"/0", "-o", "json", "--state", filepath.Join(t.TempDir(), "p"), "--batch", "50",
		"--pattern", "likers:{id}=posts:like", "--pattern", "post:{id}:{column}=posts", "--map", "views=view"))
	if out.Values != 300*4/5+300*2/3+300 || out.Ignored != 0 || out.Rejected != 0 || out.Verified.Values != out.Values || out.Verified.Differ != 0 {
		t.Errorf("import answered %+v, %+v", out, out.Verified)
	}
	for id := range int64(301) {
		if got, want := server.Row(uint64(id)), []int64{0, id, id % 5, id % 3}; id > 0 && !slices.Equal(got, want) {
			t.Fatalf("row %d is %v, want %v", id, got, want)
		}
	}
	for id := uint64(1000); id <= 1002; id++ {
		if got := server.Row(id); slices.Max(got) != 0 {
			t.Errorf("row %d is %v", id, got)
		}
	}
}

// The comparison prints the differences. If there are any, the command exits with an error.
func TestImportRedisTellsDifferences(t *testing.T) {
	t.Parallel()
	from := newSource(t, 100)
	server := nodetest.New(t)
	i := against(t, server)
	args := append([]string{"import", from.url, "-o", "json", "--state", filepath.Join(t.TempDir(), "p")}, sourcePatterns...)
	i.OK(append(args, "--verify=false")...)
	server.Put(7, 0, 1, 2, 3)
	got := i.Run(append(args, "--verify-only")...)
	out := proctest.Decode[redisOutput](t, got.Out)
	if got.Code != cli.ExitFail || out.Verified == nil || out.Verified.Differ != 3 || len(out.Verified.Samples) != 3 {
		t.Fatalf("exit %d, %+v, %s", got.Code, out.Verified, got.Err)
	}
	for _, d := range out.Verified.Samples {
		if d.ID != client.Number(7) || d.Keyspace != "posts" || d.Redis == d.Countd {
			t.Errorf("differs: %+v", d)
		}
	}
	if got := i.Run(append(args[:2:2], append([]string{"--verify-only"}, sourcePatterns...)...)...); !strings.Contains(got.Out, "Redis has") {
		t.Errorf("the table says %s", got.Out)
	}
}

// The next run continues after the last acknowledged keys of a stopped run. A run from another
// Redis server begins at the start.
func TestImportRedisGoesOn(t *testing.T) {
	t.Parallel()
	const n = 1000
	from := newSource(t, n)
	server := nodetest.New(t)
	var sets atomic.Int64
	server.Fail = func(r *http.Request, _ []byte) *nodetest.Fault {
		if strings.HasSuffix(r.URL.Path, "/set") && sets.Add(1) == 20 {
			return &nodetest.Fault{Status: 400, Code: "invalid_argument"}
		}
		return nil
	}
	i := against(t, server)
	state := filepath.Join(t.TempDir(), "p")
	args := append([]string{"import", from.url, "-o", "json", "--state", state, "--batch", "50"}, sourcePatterns...)
	if got := i.Run(args...); got.Code != cli.ExitFail || !strings.Contains(got.Err, "run it again to continue") {
		t.Fatalf("exit %d, %s", got.Code, got.Err)
	}
	before := sets.Load()
	out := proctest.Decode[redisOutput](t, i.OK(args...))
	if !out.Resumed || out.Values != 5*n || out.Verified.Differ != 0 {
		t.Errorf("import answered %+v", out)
	}
	wantSource(t, server, n)
	again := sets.Load() - before
	sets.Store(-1 << 40)
	i.OK(args...)
	if whole := sets.Load() + 1<<40; again+before > whole+1+3 { // 1 failed request, and up to 3 pages that were read ahead
		t.Errorf("%d steps and then %d, where %d are all", before, again, whole)
	}

	sets.Store(0)
	if got := i.Run(args...); got.Code != cli.ExitFail {
		t.Fatalf("exit %d", got.Code)
	}
	other := newSource(t, n)
	args[1] = other.url
	if got := i.Run(args...); got.Code != cli.ExitOK || !strings.Contains(got.Err, "starting from the beginning") {
		t.Errorf("another Redis: exit %d, %s", got.Code, got.Err)
	}
}

func TestImportRedisBadValues(t *testing.T) {
	t.Parallel()
	from := newSource(t, 10)
	for key, value := range map[string]string{"views/3": "many", "views/99999999999999999999": "1", "views/5": "9223372036854775808"} {
		if err := from.client.Set(t.Context(), key, value, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := from.client.HSet(t.Context(), "user:4", "posts", "x").Err(); err != nil {
		t.Fatal(err)
	}
	server := nodetest.New(t)
	i := against(t, server)
	dir := t.TempDir()
	args := append([]string{"import", from.url, "--state", filepath.Join(dir, "p")}, sourcePatterns...)
	if got := i.Run(args...); got.Code != cli.ExitFail || !strings.Contains(got.Err, `key "views/`) || !strings.Contains(got.Err, "--on-error skip") {
		t.Errorf("exit %d, %s", got.Code, got.Err)
	}
	rejects := filepath.Join(dir, "r.csv")
	got := i.Run(append(args, "--restart", "--on-error", "skip", "--rejects", rejects)...)
	if got.Code != cli.ExitFail || !strings.Contains(got.Err, "4 values were rejected") {
		t.Errorf("exit %d, %s", got.Code, got.Err)
	}
	text := proctest.ReadAll(t, rejects)
	for _, line := range []string{"reason,key,field,value", "the value is not a signed 64-bit integer,views/3,,many", "views/5,,9223372036854775808", "user:4,posts,x", `views/99999999999999999999`} {
		if !strings.Contains(text, line) {
			t.Errorf("no %q in\n%s", line, text)
		}
	}
	if row := server.Row(3); row[2] != 9 || row[3] != 0 {
		t.Errorf("row 3 is %v", row)
	}
}

// The import reports the number and names of the keys and fields that it does not copy. If a
// pattern or a name of --map matches no value, it exits with an error.
func TestImportRedisTellsWhatIsLeft(t *testing.T) {
	t.Parallel()
	addr := proctest.StartRedis(t)
	peer := redis.NewClient(&redis.Options{Addr: addr})
	t.Cleanup(func() { peer.Close() })
	large := map[string]any{"repost": 1}
	for field := range 1500 {
		large[fmt.Sprint("f", field)] = 1
	}
	for key, fields := range map[string]map[string]any{
		"post:1": {"likes": 5, "reposts": 3}, "post:2": {"likes": 1}, "big:1": large, "odd:1": {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6, "g": 7},
	} {
		if err := peer.HSet(t.Context(), key, fields).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range []string{"n:1:likes", "n:2:likes", "n:1:like"} {
		if err := peer.Set(t.Context(), key, 4, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, args      string
		code            int
		values, ignored int64
		says, saysNot   string
	}{
		{"a field forgotten", "--pattern post:{id}=posts --map reposts=repost", cli.ExitOK, 1, 2, `of no column: "likes" (2);`, "no value"},
		{"a field left out", "--pattern post:{id}=posts --map reposts=repost,likes=", cli.ExitOK, 1, 2, "", "likes"},
		{"all copied", "--pattern post:{id}=posts --map reposts=repost,likes=like", cli.ExitOK, 3, 0, "", "not copied"},
		{"nothing by the pattern", "--pattern post:{id}=posts", cli.ExitFail, 0, 3, `no value was copied by --pattern "post:{id}=posts"`, "--map repost"},
		{"strings for hashes", "--pattern post:{id}=posts:like", cli.ExitFail, 0, 0, "no string, set or sorted set of that form has a count", ""},
		{"one pattern of two", "--pattern none:{id}=posts --pattern post:{id}=posts --map likes=like", cli.ExitFail, 2, 1, `"none:{id}=posts": no hash`, `"post:{id}=posts"`},
		{"a name never seen", "--pattern post:{id}=posts --map likes=like,repost=repost,rposts=repost", cli.ExitFail, 2, 1, `by --map rposts=repost: no key or field is called "rposts"`, "--pattern"},
		{"many fields", "--pattern big:{id}=posts", cli.ExitOK, 1, 1500, "", "no value"},
		{"more than are named", "--pattern odd:{id}=posts --map a=like", cli.ExitOK, 1, 6, `"f" (1), and 1 more name;`, ""},
		{"strings", "--pattern n:{id}:{column}=posts", cli.ExitOK, 1, 2, `of no column: "likes" (2);`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			i := against(t, nodetest.New(t))
			args := append([]string{"import", "redis://" + addr + "/0", "-o", "json", "--state", filepath.Join(t.TempDir(), "p")}, strings.Fields(c.args)...)
			got := i.Run(args...)
			out := proctest.Decode[redisOutput](t, got.Out)
			if got.Code != c.code || out.Values != c.values || out.Ignored != c.ignored {
				t.Fatalf("exit %d, %+v, %s", got.Code, out, got.Err)
			}
			if !strings.Contains(got.Err, c.says) || c.saysNot != "" && strings.Contains(got.Err, c.saysNot) {
				t.Errorf("it says %q", got.Err)
			}
		})
	}
}

// If Redis does not answer, the command prints the reason, and nothing else.
func TestImportRedisThatIsDown(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	addr := proctest.FreePorts(t, 1)[0]
	cmd := exec.Command(self, "import", "redis://"+addr+"/0", "--pattern", "post:{id}=posts", "--addr", nodetest.New(t).URL)
	cmd.Env = append(os.Environ(), asCountctl+"=1")
	text, err := cmd.CombinedOutput()
	if err == nil || strings.Count(string(text), "\n") != 1 || !strings.Contains(string(text), "connection refused") {
		t.Errorf("%v:\n%s", err, text)
	}
}

func TestImportRedisUsage(t *testing.T) {
	t.Parallel()
	i := against(t, nodetest.New(t))
	for _, test := range []struct {
		name, want string
		args       []string
	}{
		{"no pattern", "needs --pattern", []string{"redis://127.0.0.1:1/0"}},
		{"a bad pattern", "want KEYS=KEYSPACE", []string{"redis://127.0.0.1:1/0", "--pattern", "x=posts"}},
		{"no such column", `no column "x"`, []string{"redis://127.0.0.1:1/0", "--pattern", "{id}=posts:x"}},
		{"no such column of --map", `has column "x"`, []string{"redis://127.0.0.1:1/0", "--pattern", "{id}=posts", "--map", "a=x"}},
		{"a bad --map", "--map takes", []string{"redis://127.0.0.1:1/0", "--pattern", "{id}=posts", "--map", "a"}},
		{"a bad address", "invalid", []string{"redis://127.0.0.1:x:y", "--pattern", "{id}=posts"}},
		{"--add", "--add is for files", []string{"redis://127.0.0.1:1/0", "--add", "--pattern", "{id}=posts"}},
		{"a large step", "--batch is 1 to 10000", []string{"redis://127.0.0.1:1/0", "--batch", "10001", "--pattern", "{id}=posts"}},
		{"a pattern for a file", "--pattern and --verify-only are for redis://", []string{"a.csv", "--pattern", "{id}=posts"}},
	} {
		if got := i.Run(append([]string{"import"}, test.args...)...); got.Code != cli.ExitUsage || !strings.Contains(got.Err, test.want) {
			t.Errorf("%s: exit %d, %s", test.name, got.Code, got.Err)
		}
	}
}

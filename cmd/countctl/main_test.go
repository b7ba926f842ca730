package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/countd/countd/internal/countdtest"
	"github.com/countd/countd/internal/proctest"
)

// ran is what a command line came to.
type ran struct {
	code     int
	out, err string
}

// invocation runs command lines against one server.
type invocation struct {
	t     *testing.T
	addr  string
	stdin string
	ctx   context.Context
}

func against(t *testing.T, s *countdtest.Server) *invocation {
	return &invocation{t: t, addr: s.URL, ctx: t.Context()}
}

func (i *invocation) run(args ...string) ran {
	var out, err proctest.Buffer
	env := func(name string) string {
		if name == addrEnv {
			return i.addr
		}
		return ""
	}
	code := run(i.ctx, args, terminal{strings.NewReader(i.stdin), &out, &err, env})
	return ran{code, out.String(), err.String()}
}

// ok runs a command line that must succeed and returns its output.
func (i *invocation) ok(args ...string) string {
	i.t.Helper()
	got := i.run(args...)
	if got.code != exitOK {
		i.t.Fatalf("countctl %s: exit %d\n%s%s", strings.Join(args, " "), got.code, got.out, got.err)
	}
	return got.out
}

func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("cannot read %q: %v", text, err)
	}
	return v
}

func writeTemp(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func readAll(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestEveryDurationHasDays: all flags that take a duration take days, as countd's do.
func TestEveryDurationHasDays(t *testing.T) {
	c := &cli{terminal: terminal{env: func(string) string { return "" }}}
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() != "duration" {
				return
			}
			if err := f.Value.Set("1d12h"); err != nil || f.Value.String() != "36h0m0s" {
				t.Errorf("%s --%s 1d12h is %s, %v", cmd.CommandPath(), f.Name, f.Value, err)
			}
		})
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(c.rootCommand())
}

func TestUsageErrorsNameTheCommand(t *testing.T) {
	server := countdtest.New(t)
	for args, want := range map[string]string{
		"frobnicate":               "see countctl --help",
		"get":                      "see countctl get --help",
		"get 1 --frob":             "see countctl get --help",
		"get 1 -o yaml":            "see countctl get --help",
		"keyspace":                 "see countctl keyspace --help",
		"keyspace frob":            "see countctl keyspace --help",
		"keyspace create x":        "see countctl keyspace create --help",
		"cold migrate --before 1x": "see countctl cold migrate --help",
		"incr 1 frob=1":            "see countctl incr --help", // only the server knows
		"help nope":                "see countctl help --help",
	} {
		got := against(t, server).run(strings.Fields(args)...)
		if got.code != exitUsage || !strings.HasSuffix(strings.TrimSpace(got.err), want) {
			t.Errorf("%s: exit %d, %q, want %q at its end", args, got.code, got.err, want)
		}
	}
}

func TestExitCodes(t *testing.T) {
	file := writeTemp(t, "a.csv", "id,like\n1,2\n")
	cases := []struct {
		name string
		args string
		code int
		err  string // in what is printed to standard error
	}{
		{"no command", "", exitUsage, "a command is missing"},
		{"unknown command", "frobnicate", exitUsage, "unknown command"},
		{"unknown sub-command", "keyspace rename", exitUsage, "unknown command"},
		{"no sub-command", "keyspace", exitUsage, "keyspace needs"},
		{"unknown flag", "get 1 --frob", exitUsage, "unknown flag"},
		{"no id", "get", exitUsage, "get takes one ID, not 0 arguments"},
		{"two ids", "get 1 2", exitUsage, "get takes one ID, not 2 arguments"},
		{"bad output", "get 1 -o yaml", exitUsage, "--output is table or json"},
		{"bad timeout", "get 1 --timeout 61s", exitUsage, "timeout"},
		{"bad address", "get 1 --addr ftp://x", exitUsage, "http://host:port"},
		{"word for id", "get abc", exitUsage, "not an unsigned 64-bit integer"},
		{"id too large", "get 18446744073709551616", exitUsage, "not an unsigned 64-bit integer"},
		{"negative id", "get -- -1", exitUsage, "not an unsigned 64-bit integer"},
		{"negative id without dashes", "get -17", exitUsage, `the id "-17" is not an unsigned 64-bit integer`},
		{"negative id of a write", "incr -1 like=1", exitUsage, `the id "-1" is not an unsigned 64-bit integer`},
		{"unknown letter", "get 1 -x", exitUsage, "unknown shorthand flag"},
		{"empty key", "incr 1 like=1 --key=", exitUsage, "--key is 1 to 128 bytes"},
		{"long key", "set 1 like=1 --key " + strings.Repeat("k", 129), exitUsage, "--key is 1 to 128 bytes"},
		{"long key of deletes", "delete 1 2 --key " + strings.Repeat("k", 108), exitUsage, "--key is 1 to 107 bytes"},
		{"bad consistency", "get 1 --consistency eventual", exitUsage, "--consistency is"},
		{"incr without column", "incr 1", exitUsage, "incr takes ID and one COLUMN=N or more"},
		{"incr by a word", "incr 1 like=x", exitUsage, "COLUMN=N"},
		{"incr beyond int64", "incr 1 like=9223372036854775808", exitUsage, "COLUMN=N"},
		{"incr a column twice", "incr 1 like=1 like=2", exitUsage, "twice"},
		{"top without column", "top", exitUsage, "needs --column"},
		{"top of unknown column", "top --column frob", exitUsage, "no column"},
		{"create without columns", "keyspace create x", exitUsage, "needs --columns"},
		{"import with bad policy", "import " + file + " --on-error ask", exitUsage, "--on-error is"},
		{"import with bad map", "import " + file + " --map like", exitUsage, "--map takes"},
		{"import to unknown column", "import " + file + " --map like=frob", exitUsage, "no column"},
		{"import twice to one column", "import " + file + " --map like=like,id=like", exitUsage, "twice"},
		{"import with large batch", "import " + file + " --batch 10001", exitUsage, "--batch"},
		{"import skips to nowhere", "import - --on-error skip", exitUsage, "needs --rejects"},
		{"import stops with rejects", "import - --rejects x", exitUsage, "--rejects needs --on-error skip"},
		{"import over its input", "import " + file + " --on-error skip --rejects " + file, exitUsage, "must not be the file"},
		{"replay at no speed", "replay " + file + " --speed 0", exitUsage, "--speed is"},
		{"replay of unmapped events", "replay " + file + " --map like", exitUsage, "--map takes"},
		{"replay to unknown column", "replay " + file + " --map like=frob", exitUsage, "no column"},
		{"replay an event twice", "replay " + file + " --map like=like,like=view", exitUsage, "twice"},
		{"replay without items", "replay " + file, exitFail, `no column "item"`},
		{"export of unknown column", "export - --columns frob", exitUsage, "no column"},
		{"no sub-command of node", "node", exitUsage, "node needs"},
		{"drain of nothing", "node drain", exitUsage, "takes a NODE"},
		{"drain of nobody", "node drain n9", exitFail, "there is no node n9"},
		{"move without a target", "group move 1 n1", exitUsage, "takes a GROUP and two NODEs"},
		{"rebalance by hand", "rebalance", exitUsage, "needs --dry-run"},
		{"restart by nothing", "rolling-restart", exitUsage, "needs --exec"},
		{"restart of nobody", "rolling-restart --exec true --nodes n9", exitUsage, "there is no node n9"},
		{"restore of nothing", "restore /nonexistent", exitFail, "not a whole backup"},
		{"bundle into nowhere", "debug bundle /nonexistent/b", exitFail, "cannot create"},
		{"bench of unknown op", "bench --op frob", exitUsage, "one of read"},
		{"bench far away", "bench --addr http://192.0.2.1:7400", exitUsage, "give --yes"},

		{"no such keyspace", "get 1 --keyspace frob", exitFail, "keyspace list"},
		{"no server", "get 1 --addr http://127.0.0.1:1", exitFail, "is countd running there"},
		{"no such file", "import /nonexistent.csv", exitFail, "no such file"},
		{"import to no keyspace", "import " + file + " --keyspace frob", exitFail, "keyspace create"},
		{"unknown column of incr", "incr 1 frob=1", exitUsage, "no such column"},
		{"unknown column of set", "set 1 frob=1", exitUsage, "no such column"},
		{"leading zeros", "get 007", exitUsage, "leading zeros"},
		{"delete of leading zeros", "delete 007", exitUsage, "leading zeros"},
		{"empty keyspace", "get 1 --keyspace=", exitUsage, "--keyspace is empty"},
		{"empty keyspace of a write", "incr 1 like=1 --keyspace=", exitUsage, "--keyspace is empty"},
		{"no staleness", "get 1 --max-staleness 0", exitUsage, "--max-staleness is above 0 and up to 1h, not 0s"},
		{"staleness below 0", "mget 1 --max-staleness -1s", exitUsage, "not -1s"},
		{"no shards", "keyspace create x --columns a --shards 0", exitUsage, "--shards is 1 to 64, not 0"},
		{"completion of nothing", "completion", exitUsage, "completion needs one of bash, "},
		{"completion of no shell", "completion nope", exitUsage, "completion needs one of bash, "},
		{"help of no command", "help nope", exitUsage, `there is no command "nope"`},
		{"help of no sub-command", "help node nope", exitUsage, `there is no command "node nope"`},

		{"get", "get 1", exitOK, ""},
		{"get without waiting", "get 1 --no-wait", exitOK, ""},
		{"create without waiting", "--no-wait keyspace create songs --columns plays", exitOK, ""},
		{"version by flag", "--version", exitOK, ""},
		{"version", "version", exitOK, ""},
		{"version without server", "version --addr http://127.0.0.1:1", exitOK, "not known"},
		{"completion", "completion bash", exitOK, ""},
		{"help", "--help", exitOK, ""},
		{"help by command", "help", exitOK, ""},
		{"help of a command", "help node drain", exitOK, ""},
		{"help of completion", "completion --help", exitOK, ""},
	}
	server := countdtest.New(t)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := against(t, server).run(strings.Fields(c.args)...)
			if got.code != c.code || !strings.Contains(got.err, c.err) {
				t.Fatalf("exit %d, want %d; stderr %q, want %q in it", got.code, c.code, got.err, c.err)
			}
			if c.code != exitOK && strings.Count(got.err, "\n") != 1 {
				t.Fatalf("the error is not one line: %q", got.err)
			}
			if c.code != exitOK && got.out != "" {
				t.Fatalf("an error printed to standard output: %q", got.out)
			}
		})
	}
}

// What the server alone can see to be wrong in a command line is wrong usage too.
func TestFaultsOfTheCommandLineSeenByTheServer(t *testing.T) {
	for _, c := range []struct {
		args, field string
		code        int
	}{
		{"get 1 --max-staleness 2h", "max_staleness", exitUsage},
		{"mget 1 --token x", "Countd-Token", exitUsage},
		{"mget 1 --columns x", "columns[0]", exitUsage},
		{"keyspace create x --columns a --shards 65", "shards", exitUsage},
		{"keyspace create X --columns a", "name", exitUsage},
		{"keyspace add-columns posts A", "columns[0]", exitUsage},
		{"incr 1 frob=1", "ops[0].add.frob", exitUsage},
	} {
		t.Run(c.args, func(t *testing.T) {
			server := countdtest.New(t)
			server.Fail = func(*http.Request, []byte) *countdtest.Fault {
				return &countdtest.Fault{Status: 400, Code: "invalid_argument", Field: c.field}
			}
			if got := against(t, server).run(strings.Fields(c.args)...); got.code != c.code {
				t.Fatalf("exit %d, %q", got.code, got.err)
			}
		})
	}
}

func TestEveryCommandPrintsHelp(t *testing.T) {
	server := countdtest.New(t)
	for _, name := range []string{"status", "get", "mget", "top", "incr", "set", "delete", "import", "replay", "export",
		"node", "node list", "node drain", "node undrain", "node remove", "group", "group list", "group transfer", "group move",
		"rebalance", "verify", "upgrade", "upgrade status", "upgrade hold", "upgrade finalize", "rolling-restart",
		"backup", "restore", "debug", "debug bundle",
		"source", "source create", "source list", "source show", "source pause", "source resume", "source seek", "source delete",
		"keyspace", "keyspace list", "keyspace create", "keyspace add-columns", "keyspace everywhere", "bench", "version", "completion"} {
		t.Run(name, func(t *testing.T) {
			out := against(t, server).ok(append(strings.Fields(name), "--help")...)
			if !strings.Contains(out, "countctl "+name) {
				t.Fatalf("help of another command: %s", out)
			}
		})
	}
}

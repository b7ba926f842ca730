package main

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/countd/countd/cmd/countctl/internal/cli"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/internal/nodetest"
	"github.com/countd/countd/internal/proctest"
)

// against returns an Invocation that runs command lines of the whole program against s. Tests of
// commands on a node are in this package unless they need internals of another package. One test
// program is faster than several, because each one that links the node takes seconds to build.
func against(t *testing.T, s *nodetest.Server) *proctest.Invocation {
	return invoke(t, s.URL, groups...)
}

// All flags for a duration accept days, like the flags of countd.
func TestEveryDurationHasDays(t *testing.T) {
	c := &cli.CLI{Terminal: cli.Terminal{Env: func(string) string { return "" }}}
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
	walk(c.Root(groups...))
}

func TestUsageErrorsNameTheCommand(t *testing.T) {
	server := nodetest.New(t)
	for args, want := range map[string]string{
		"frobnicate":               "see countctl --help",
		"get":                      "see countctl get --help",
		"get 1 --frob":             "see countctl get --help",
		"get 1 -o yaml":            "see countctl get --help",
		"keyspace":                 "see countctl keyspace --help",
		"keyspace frob":            "see countctl keyspace --help",
		"keyspace create x":        "see countctl keyspace create --help",
		"cold migrate --before 1x": "see countctl cold migrate --help",
		"incr 1 frob=1":            "see countctl incr --help", // only the server knows that there is no column frob
		"help nope":                "see countctl help --help",
	} {
		got := against(t, server).Run(strings.Fields(args)...)
		if got.Code != cli.ExitUsage || !strings.HasSuffix(strings.TrimSpace(got.Err), want) {
			t.Errorf("%s: exit %d, %q, want %q at its end", args, got.Code, got.Err, want)
		}
	}
}

func TestExitCodes(t *testing.T) {
	file := proctest.WriteTemp(t, "a.csv", "id,like\n1,2\n")
	cases := []struct {
		name string
		args string
		code int
		err  string // part of the output on standard error
	}{
		{"no command", "", cli.ExitUsage, "a command is missing"},
		{"unknown command", "frobnicate", cli.ExitUsage, "unknown command"},
		{"unknown sub-command", "keyspace rename", cli.ExitUsage, "unknown command"},
		{"no sub-command", "keyspace", cli.ExitUsage, "keyspace needs"},
		{"unknown flag", "get 1 --frob", cli.ExitUsage, "unknown flag"},
		{"no id", "get", cli.ExitUsage, "get takes ID, not 0 arguments"},
		{"two ids", "get 1 2", cli.ExitUsage, "get takes ID, not 2 arguments"},
		{"bad output", "get 1 -o yaml", cli.ExitUsage, "--output is table or json"},
		{"bad timeout", "get 1 --timeout 61s", cli.ExitUsage, "timeout"},
		{"bad address", "get 1 --addr ftp://x", cli.ExitUsage, "http://host:port"},
		{"word for id", "get abc", cli.ExitUsage, "not an unsigned 64-bit integer"},
		{"id too large", "get 18446744073709551616", cli.ExitUsage, "not an unsigned 64-bit integer"},
		{"negative id", "get -- -1", cli.ExitUsage, "not an unsigned 64-bit integer"},
		{"negative id without dashes", "get -17", cli.ExitUsage, `the id "-17" is not an unsigned 64-bit integer`},
		{"negative id of a write", "incr -1 like=1", cli.ExitUsage, `the id "-1" is not an unsigned 64-bit integer`},
		{"unknown letter", "get 1 -x", cli.ExitUsage, "unknown shorthand flag"},
		{"empty key", "incr 1 like=1 --key=", cli.ExitUsage, "--key is 1 to 128 bytes"},
		{"long key", "set 1 like=1 --key " + strings.Repeat("k", 129), cli.ExitUsage, "--key is 1 to 128 bytes"},
		{"long key of deletes", "delete 1 2 --key " + strings.Repeat("k", 108), cli.ExitUsage, "--key is 1 to 107 bytes"},
		{"bad consistency", "get 1 --consistency eventual", cli.ExitUsage, "--consistency is"},
		{"incr without column", "incr 1", cli.ExitUsage, "incr takes ID COLUMN=+N…, not 1 argument"},
		{"incr by a word", "incr 1 like=x", cli.ExitUsage, "COLUMN=N"},
		{"incr beyond int64", "incr 1 like=9223372036854775808", cli.ExitUsage, "COLUMN=N"},
		{"incr a column twice", "incr 1 like=1 like=2", cli.ExitUsage, "twice"},
		{"top without column", "top", cli.ExitUsage, "needs --column"},
		{"top of unknown column", "top --column frob", cli.ExitUsage, "no such column"},
		{"create without columns", "keyspace create x", cli.ExitUsage, "needs --columns"},
		{"import with bad policy", "import " + file + " --on-error ask", cli.ExitUsage, "--on-error is"},
		{"import with bad map", "import " + file + " --map like", cli.ExitUsage, "--map takes"},
		{"import to unknown column", "import " + file + " --map like=frob", cli.ExitUsage, "no column"},
		{"import twice to one column", "import " + file + " --map like=like,id=like", cli.ExitUsage, "twice"},
		{"import with large batch", "import " + file + " --batch 10001", cli.ExitUsage, "--batch"},
		{"import skips to nowhere", "import - --on-error skip", cli.ExitUsage, "needs --rejects"},
		{"import stops with rejects", "import - --rejects x", cli.ExitUsage, "--rejects needs --on-error skip"},
		{"import over its input", "import " + file + " --on-error skip --rejects " + file, cli.ExitUsage, "must not be the file"},
		{"replay at no speed", "replay " + file + " --speed 0", cli.ExitUsage, "--speed is"},
		{"replay of unmapped events", "replay " + file + " --map like", cli.ExitUsage, "--map takes"},
		{"replay to unknown column", "replay " + file + " --map like=frob", cli.ExitUsage, "no column"},
		{"replay an event twice", "replay " + file + " --map like=like,like=view", cli.ExitUsage, "twice"},
		{"replay without items", "replay " + file, cli.ExitFail, `no column "item"`},
		{"export of unknown column", "export - --columns frob", cli.ExitUsage, "no column"},
		{"no sub-command of node", "node", cli.ExitUsage, "node needs"},
		{"drain of nothing", "node drain", cli.ExitUsage, "takes NODE, not 0 arguments"},
		{"drain of nobody", "node drain n9", cli.ExitFail, "there is no node n9"},
		{"move without a target", "group move 1 n1", cli.ExitUsage, "takes GROUP FROM TO, not 2 arguments"},
		{"rebalance by hand", "rebalance", cli.ExitUsage, "needs --dry-run"},
		{"restart by nothing", "rolling-restart", cli.ExitUsage, "needs --exec"},
		{"restart of nobody", "rolling-restart --exec true --nodes n9", cli.ExitUsage, "there is no node n9"},
		{"restore of nothing", "restore /nonexistent", cli.ExitFail, "not a whole backup"},
		{"bundle into nowhere", "debug bundle /nonexistent/b", cli.ExitFail, "cannot create"},
		{"bench of unknown op", "bench --op frob", cli.ExitUsage, "one of read"},
		{"bench far away", "bench --addr http://192.0.2.1:7400", cli.ExitUsage, "give --yes"},

		{"no such keyspace", "get 1 --keyspace frob", cli.ExitFail, "keyspace list"},
		{"no server", "get 1 --addr http://127.0.0.1:1", cli.ExitFail, "is countd running there"},
		{"no such file", "import /nonexistent.csv", cli.ExitFail, "no such file"},
		{"import to no keyspace", "import " + file + " --keyspace frob", cli.ExitFail, "keyspace create"},
		{"unknown column of incr", "incr 1 frob=1", cli.ExitUsage, "no such column"},
		{"unknown column of set", "set 1 frob=1", cli.ExitUsage, "no such column"},
		{"leading zeros", "get 007", cli.ExitUsage, `the id "007" is not an unsigned 64-bit integer`},
		{"delete of leading zeros", "delete 007", cli.ExitUsage, "not an unsigned 64-bit integer"},
		{"empty keyspace", "get 1 --keyspace=", cli.ExitUsage, "--keyspace is empty"},
		{"empty keyspace of a write", "incr 1 like=1 --keyspace=", cli.ExitUsage, "--keyspace is empty"},
		{"no staleness", "get 1 --max-staleness 0", cli.ExitUsage, "--max-staleness is above 0 and up to 1h, not 0s"},
		{"staleness below 0", "mget 1 --max-staleness -1s", cli.ExitUsage, "not -1s"},
		{"a floor of no column", "keyspace create x --columns a --floor 0", cli.ExitUsage, `--floor is COLUMN=N, such as like=0, not "0"`},
		{"top of an argument", "top like", cli.ExitUsage, `top takes --column COLUMN, not "like"`},
		{"no shards", "keyspace create x --columns a --shards 0", cli.ExitUsage, "--shards is 1 to 64, not 0"},
		{"group of nothing", "group", cli.ExitUsage, "group needs list, transfer or move"},
		{"one command of a group", "debug", cli.ExitUsage, "debug needs bundle"},
		{"completion of nothing", "completion", cli.ExitUsage, "completion needs one of bash, "},
		{"completion of no shell", "completion nope", cli.ExitUsage, "completion needs one of bash, "},
		{"help of no command", "help nope", cli.ExitUsage, `there is no command "nope"`},
		{"help of no sub-command", "help node nope", cli.ExitUsage, `there is no command "node nope"`},

		{"get", "get 1", cli.ExitOK, ""},
		{"get without waiting", "get 1 --no-wait", cli.ExitOK, ""},
		{"create without waiting", "--no-wait keyspace create songs --columns plays", cli.ExitOK, ""},
		{"version by flag", "--version", cli.ExitOK, ""},
		{"version", "version", cli.ExitOK, ""},
		{"version without server", "version --addr http://127.0.0.1:1", cli.ExitOK, "not known"},
		{"completion", "completion bash", cli.ExitOK, ""},
		{"help", "--help", cli.ExitOK, ""},
		{"help by command", "help", cli.ExitOK, ""},
		{"help of a command", "help node drain", cli.ExitOK, ""},
		{"help of completion", "completion --help", cli.ExitOK, ""},
	}
	server := nodetest.New(t)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got := against(t, server).Run(strings.Fields(c.args)...)
			if got.Code != c.code || !strings.Contains(got.Err, c.err) {
				t.Fatalf("exit %d, want %d; stderr %q, want %q in it", got.Code, c.code, got.Err, c.err)
			}
			if c.code != cli.ExitOK && strings.Count(got.Err, "\n") != 1 {
				t.Fatalf("the error is not one line: %q", got.Err)
			}
			if c.code != cli.ExitOK && got.Out != "" {
				t.Fatalf("an error printed to standard output: %q", got.Out)
			}
		})
	}
}

// If the server refuses a value from the command line, that is a usage error.
func TestFaultsOfTheCommandLineSeenByTheServer(t *testing.T) {
	for _, c := range []struct {
		args, field string
		code        int
	}{
		{"get 1 --max-staleness 2h", "max_staleness", cli.ExitUsage},
		{"mget 1 --token x", "Countd-Token", cli.ExitUsage},
		{"mget 1 --columns x", "columns[0]", cli.ExitUsage},
		{"keyspace create x --columns a --shards 65", "shards", cli.ExitUsage},
		{"keyspace create X --columns a", "name", cli.ExitUsage},
		{"keyspace add-columns posts A", "columns[0]", cli.ExitUsage},
		{"incr 1 frob=1", "ops[0].add.frob", cli.ExitUsage},
	} {
		t.Run(c.args, func(t *testing.T) {
			server := nodetest.New(t)
			server.Fail = func(*http.Request, []byte) *nodetest.Fault {
				return &nodetest.Fault{Status: 400, Code: "invalid_argument", Field: c.field}
			}
			if got := against(t, server).Run(strings.Fields(c.args)...); got.Code != c.code {
				t.Fatalf("exit %d, %q", got.Code, got.Err)
			}
		})
	}
}

func TestEveryCommandPrintsHelp(t *testing.T) {
	server := nodetest.New(t)
	for _, name := range []string{"status", "get", "mget", "top", "incr", "set", "delete", "import", "replay", "export",
		"node", "node list", "node drain", "node undrain", "node remove", "group", "group list", "group transfer", "group move",
		"rebalance", "verify", "upgrade", "upgrade status", "upgrade hold", "upgrade finalize", "rolling-restart",
		"backup", "restore", "debug", "debug bundle",
		"source", "source create", "source list", "source show", "source pause", "source resume", "source seek", "source delete",
		"keyspace", "keyspace list", "keyspace create", "keyspace add-columns", "keyspace everywhere", "bench", "version", "completion"} {
		t.Run(name, func(t *testing.T) {
			out := against(t, server).OK(append(strings.Fields(name), "--help")...)
			if !strings.Contains(out, "countctl "+name) {
				t.Fatalf("help of another command: %s", out)
			}
		})
	}
}

// A command overwrites a file only with --yes.
func TestFilesAreNotWrittenOver(t *testing.T) {
	server := nodetest.New(t)
	i := against(t, server)
	for name, args := range map[string][]string{"export": {"export"}, "bundle": {"debug", "bundle"}} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "f.gz")
			if err := os.WriteFile(file, []byte("before"), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := i.Run(append(args, file)...); got.Code != cli.ExitFail || !strings.Contains(got.Err, "exists; give another name, or --yes") {
				t.Errorf("exit %d, %s", got.Code, got.Err)
			}
			if proctest.ReadAll(t, file) != "before" {
				t.Error("the file was written over")
			}
			i.OK(append(args, file, "--yes")...)
			if proctest.ReadAll(t, file) == "before" {
				t.Error("the file was not written over with --yes")
			}
		})
	}
}

// If a TLS flag names a file that cannot be used, the error names the flag, and no request is sent.
func TestTLSFlags(t *testing.T) {
	dir := t.TempDir()
	i := against(t, nodetest.New(t))
	i.OK("cert", "create-ca", "--dir", dir)
	i.OK("cert", "client", "alice", "--dir", dir)
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, tc := range []struct {
		want string
		args []string
	}{
		{"--ca: open", []string{"--ca", file("none")}},
		{"has no certificate", []string{"--ca", file("alice.key")}},
		{"--cert-key needs --cert too", []string{"--cert-key", file("alice.key")}},
		{"--cert:", []string{"--cert", file("alice.crt")}},
		{"--cert:", []string{"--cert", file("alice.crt"), "--cert-key", file("ca.key")}},
	} {
		if got := i.Run(append([]string{"status"}, tc.args...)...); got.Code != cli.ExitUsage || !strings.Contains(got.Err, tc.want) {
			t.Errorf("%v: exit %d: %s", tc.args, got.Code, got.Err)
		}
	}
	// --key is the idempotency key of the write, and --cert-key the key of the certificate. A
	// command can have both.
	i.OK("incr", "7", "like=1", "--key", "again", "--cert", file("alice.crt"), "--cert-key", file("alice.key"))
	both := file("both")
	var content []byte
	for _, name := range []string{"alice.crt", "alice.key"} {
		part, err := os.ReadFile(file(name))
		must.Do(t, err)
		content = append(content, part...)
	}
	must.Do(t, os.WriteFile(both, content, 0o600))
	i.OK("incr", "7", "like=1", "--addr", i.Addr, "--cert", both)
}

// A command also repeats its first requests while the server has no leader.
func TestFirstRequestsAreRepeated(t *testing.T) {
	path := proctest.WriteTemp(t, "a.csv", "id,like\n1,2\n")
	events := proctest.WriteTemp(t, "e.csv", "item,t,event\n1,1,like\n")
	for _, args := range []string{"import " + path, "import " + path + " --add", "replay " + events, "export -"} {
		t.Run(args, func(t *testing.T) {
			server := nodetest.New(t)
			var seen sync.Map
			server.SetFail(func(r *http.Request, _ []byte) *nodetest.Fault {
				if _, again := seen.LoadOrStore(r.URL.Path, true); again {
					return nil
				}
				return &nodetest.Fault{Status: 503, Code: "no_leader"}
			})
			got := against(t, server).Run(strings.Fields(args)...)
			if got.Code != cli.ExitOK || !strings.Contains(got.Err, "waiting for the server: ") {
				t.Fatalf("exit %d, %q", got.Code, got.Err)
			}
			seen.Clear()
			if got := against(t, server).Run(append(strings.Fields(args), "--retry-for", "0s")...); got.Code != cli.ExitFail {
				t.Fatalf("with --retry-for 0s: exit %d, %q", got.Code, got.Err)
			}
		})
	}
}

// The error for a keyspace of another kind names the command to use, instead of reporting the
// keyspace as missing.
func TestKeyspacesOfOtherKinds(t *testing.T) {
	server := nodetest.New(t)
	i := against(t, server)
	file := proctest.WriteTemp(t, "a.csv", "id,like\n1,1\n")
	for _, command := range []string{"get 1", "mget 1", "incr 1 like=1", "set 1 like=1", "delete 1", "export -", "top --column like", "import " + file, "import --add " + file} {
		for keyspace, use := range map[string]string{"unread": "unread", "feed": "feed", "board": "notice and countctl dot"} {
			got := i.Run(append(strings.Fields(command), "--keyspace", keyspace)...)
			want := keyspace + " is not a keyspace of counters; use countctl " + use
			if got.Code != cli.ExitFail || !strings.Contains(got.Err, want) {
				t.Errorf("%s: exit %d, %q, want %q", command, got.Code, got.Err, want)
			}
		}
	}
}

// invoke returns an invocation of countctl with some commands against the server at addr.
func invoke(t *testing.T, addr string, groups ...cli.Commands) *proctest.Invocation {
	return proctest.NewInvocation(t, addr, func(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer, env func(string) string) int {
		return cli.Run(ctx, args, cli.Terminal{In: in, Out: out, Err: errOut, Env: env}, groups...)
	})
}

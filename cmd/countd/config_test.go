package main

import (
	"bytes"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/countd/countd/backup"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/internal/must"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/tiering"
)

// load resolves a configuration from the command line, the environment and a file, as a command
// would.
func load(t *testing.T, args []string, env map[string]string, file string) (*config, error) {
	t.Helper()
	c := newConfig()
	if file != "" {
		c.file = filepath.Join(t.TempDir(), "countd.yaml")
		if err := os.WriteFile(c.file, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.flags.Parse(args); err != nil {
		return nil, err
	}
	err := c.resolve(func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	return c, err
}

func TestPrecedence(t *testing.T) {
	flag := []string{"--log-format=json"}
	env := map[string]string{"COUNTD_LOG_FORMAT": "json"}
	file := "log-format: json\n"
	for _, tc := range []struct {
		name         string
		args         []string
		env          map[string]string
		file         string
		want, source string
	}{
		{"nothing", nil, nil, "", "text", "default"},
		{"file", nil, nil, file, "json", "file "},
		{"env", nil, env, "", "json", "env COUNTD_LOG_FORMAT"},
		{"env over file", nil, map[string]string{"COUNTD_LOG_FORMAT": "text"}, file, "text", "env COUNTD_LOG_FORMAT"},
		{"flag over env", []string{"--log-format=text"}, env, file, "text", "flag --log-format"},
		{"flag", flag, nil, "", "json", "flag --log-format"},
		{"empty env is none", nil, map[string]string{"COUNTD_LOG_FORMAT": ""}, file, "json", "file "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := load(t, tc.args, tc.env, tc.file)
			if err != nil {
				t.Fatal(err)
			}
			if c.LogFormat != tc.want || !strings.HasPrefix(c.sources["log-format"], tc.source) {
				t.Errorf("got %q from %q, want %q from %q", c.LogFormat, c.sources["log-format"], tc.want, tc.source)
			}
		})
	}
}

func TestAutoGrowSetting(t *testing.T) {
	for text, want := range map[string][2]bool{ // whether posts and users are fixed
		"": {}, "on": {}, "off": {true, true}, "posts=off": {true, false}, "off,posts=on": {false, true},
	} {
		file := ""
		if text != "" {
			file = "auto-grow: " + text + "\n"
		}
		c, err := load(t, nil, nil, file)
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]bool{c.AutoGrow.fixed("posts"), c.AutoGrow.fixed("users")}; got != want {
			t.Errorf("%q: fixed %v, want %v", text, got, want)
		}
	}
}

func TestEverySettingFromEverySource(t *testing.T) {
	recipients := filepath.Join(t.TempDir(), "recipients")
	must.Do(t, os.WriteFile(recipients, []byte("age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p\n"), 0o600))
	values := map[string]string{
		"data-dir": "/tmp/x", "http-addr": "127.0.0.1:1", "cluster-addr": "127.0.0.1:2", "gossip-addr": "127.0.0.1:3", "redis-addr": "127.0.0.1:4",
		"node-id": "n1", "shards": "posts=8,users=2", "ids": "posts=text,users=text", "auto-grow": "off,clips=on", "log-level": "debug", "log-format": "json",
		"memory-limit": "70%", "disk-reserve": "2GiB", "key-horizon": "5m0s", "producer-idle": "12h0m0s",
		"join": "127.0.0.1:4,127.0.0.1:5", "bootstrap-expect": "3", "zone": "r1", "cluster-name": "prod", "gossip-key-file": "/tmp/keys", "source-secrets-dir": "/tmp/secrets",
		"replace-after": "5m0s", "log-store": "shared", "auth": "enforce", "root-token-file": "/tmp/root", "audit-log": "/tmp/audit.log", "allowed-hosts": "a.lan,b.lan:7400",
		"tls-cert": "/tmp/a", "tls-key": "/tmp/b", "tls-client-ca": "/tmp/c", "insecure": "true",
		"cluster-tls-cert": "/tmp/d", "cluster-tls-key": "/tmp/e", "cluster-tls-ca": "/tmp/f", "cluster-tls-name": "countd", "cluster-tls-permissive": "true", "gossip-transition": "send",
		"keys-max": "1000", "producers-max": "2000", "cursor-idle": "96h0m0s", "feed-idle": "24h0m0s", "outbox-keep": "240h0m0s", "outbox-max": "500",
		"cold-after": "48h0m0s", "seal-after": "5m0s", "scrub-every": "24h0m0s", "cold-cache": "64MiB", "backup-to": "/backups", "backup-schedule": "30 3 * * 1", "backup-keep": "hours=1,days=0,weeks=52", "backup-recipients": recipients, "shutdown-delay": "15s", "members-memory": "16MiB", "id-layout": "posts=twitter,users=none",
	}
	var names, args []string
	env, file := map[string]string{}, ""
	for name, v := range values {
		names = append(names, name)
		args = append(args, "--"+name+"="+v)
		env[envName(name)] = v
		if name == "shards" {
			v = "{posts: 8, users: 2}"
		}
		file += name + ": " + v + "\n"
	}
	slices.Sort(names)
	var settings []string
	c, err := load(t, args, nil, "")
	if err != nil {
		t.Fatal(err)
	}
	for name := range c.sources {
		settings = append(settings, name)
	}
	slices.Sort(settings)
	if !slices.Equal(names, settings) {
		t.Fatalf("this test knows %v, the program %v", names, settings)
	}
	if got, want := c.outboxes(), (inbox.OutboxKeep{Posts: 500, Layout: tiering.LayoutTwitter, For: 240 * time.Hour}); got != want {
		t.Errorf("outboxes keep %+v, want %+v", got, want)
	}
	fromEnv, err := load(t, nil, env, "")
	if err != nil {
		t.Fatal(err)
	}
	fromFile, err := load(t, nil, nil, file)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range values {
		for source, c := range map[string]*config{"flag": c, "env": fromEnv, "file": fromFile} {
			if got := c.flags.Lookup(name).Value.String(); got != want || !strings.HasPrefix(c.sources[name], source) {
				t.Errorf("%s: %q from %q, want %q from %s", name, got, c.sources[name], want, source)
			}
		}
	}
}

func TestRefusedSettings(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		env  map[string]string
		file string
		want string // part of the message
	}{
		{"unknown flag", []string{"--cold=1h"}, nil, "", "unknown flag"},
		{"another mode of auth", []string{"--auth=on"}, nil, "", "want off, permissive or enforce"},
		{"sealed at once", []string{"--seal-after=1ms"}, nil, "", "seal-after (flag --seal-after): 1ms is neither 0 nor in 1s…"},
		{"a delay of the past", []string{"--shutdown-delay=-1s"}, nil, "", "shutdown-delay (flag --shutdown-delay): -1s is not in 0s…10m0s"},
		{"a delay in the wrong unit", []string{"--shutdown-delay=15m"}, nil, "", "shutdown-delay (flag --shutdown-delay): 15m0s is not in 0s…10m0s"},
		{"scrubbed all the time", []string{"--scrub-every=1ms"}, nil, "", "scrub-every (flag --scrub-every): 1ms is neither 0 nor in 1s…"},
		{"redis without a port", []string{"--redis-addr=a"}, nil, "", "redis-addr (flag --redis-addr): \"a\": want HOST:PORT"},
		{"redis on the port of HTTP", []string{"--redis-addr=127.0.0.1:7400"}, nil, "", "redis-addr (flag --redis-addr): \"127.0.0.1:7400\" is the http-addr too"},
		{"join without a port", []string{"--join=a:1,b"}, nil, "", "join (flag --join): \"b\": want HOST:PORT"},
		{"join from loopback", []string{"--join=10.0.0.2:7402", "--cluster-addr=10.0.0.1:7401"}, nil, "", "gossip-addr (default): \"127.0.0.1:7402\" is of this machine alone"},
		{"join from half a loopback", []string{"--join=10.0.0.2:7402", "--cluster-addr=localhost:7401", "--gossip-addr=10.0.0.1:7402"}, nil, "", "cluster-addr (flag --cluster-addr): \"localhost:7401\" is of this machine alone"},
		{"a long address", []string{"--cluster-addr=" + strings.Repeat("h", 160) + ":1"}, nil, "", "want at most 160 bytes"},
		{"expect too many", []string{"--bootstrap-expect=33"}, nil, "", "bootstrap-expect (flag --bootstrap-expect): 33 is not in 1…32"},
		{"expect none", []string{"--bootstrap-expect=0"}, nil, "", "bootstrap-expect (flag --bootstrap-expect): 0 is not in 1…32"},
		{"expect none in the environment", nil, map[string]string{"COUNTD_BOOTSTRAP_EXPECT": "0"}, "", "bootstrap-expect (env COUNTD_BOOTSTRAP_EXPECT): 0 is not in 1…32"},
		{"expect fewer than none in the file", nil, nil, "bootstrap-expect: -1\n", "countd.yaml:1): -1 is not in 1…32"},
		{"host of other characters", []string{"--allowed-hosts=a.lan,bad_host!"}, nil, "", `--allowed-hosts" flag: "bad_host!" is neither * nor an address nor a host name, 1 to 253 of`},
		{"pattern of hosts", nil, map[string]string{"COUNTD_ALLOWED_HOSTS": "*.lan"}, "", `allowed-hosts (env COUNTD_ALLOWED_HOSTS): "*.lan": "*.lan" is neither`},
		{"long host", []string{"--allowed-hosts=" + strings.Repeat("h", 254)}, nil, "", "1 to 253 of"},
		{"host with a broken port", []string{"--allowed-hosts=a.lan:http"}, nil, "", "is neither * nor"},
		{"only a port", []string{"--allowed-hosts=:7400"}, nil, "", "is neither * nor"},
		{"certificate without a key", []string{"--tls-cert=a"}, nil, "", "tls-cert (flag --tls-cert): needs --tls-key"},
		{"key without a certificate", []string{"--tls-key=a"}, nil, "", "tls-key (flag --tls-key): needs --tls-cert"},
		{"clients' authority without a certificate", []string{"--tls-client-ca=a"}, nil, "", "tls-client-ca (flag --tls-client-ca): needs --tls-cert"},
		{"cluster certificate without a key", nil, nil, "cluster-tls-cert: a\n", "countd.yaml:1): needs --cluster-tls-key"},
		{"cluster certificate without an authority", []string{"--cluster-tls-cert=a", "--cluster-tls-key=b"}, nil, "", "cluster-tls-cert (flag --cluster-tls-cert): needs --cluster-tls-ca"},
		{"another transition", []string{"--gossip-transition=both", "--gossip-key-file=a"}, nil, "", `gossip-transition (flag --gossip-transition): "both" is neither accept nor send`},
		{"a transition without keys", []string{"--gossip-transition=send"}, nil, "", "needs --gossip-key-file"},
		{"a name without a cluster certificate", []string{"--cluster-tls-name=a"}, nil, "", "cluster-tls-name (flag --cluster-tls-name): needs --cluster-tls-cert"},
		{"permissive without a cluster certificate", []string{"--cluster-tls-permissive"}, nil, "", "cluster-tls-permissive (flag --cluster-tls-permissive): needs --cluster-tls-cert"},
		{"cluster name", []string{"--cluster-name=a b"}, nil, "", "cluster-name (flag --cluster-name): \"a b\": want 1 to 32 of"},
		{"zone", []string{"--zone=a b"}, nil, "", "zone (flag --zone): \"a b\": want 1 to 64 of"},
		{"replace at once", []string{"--replace-after=1ms"}, nil, "", "replace-after (flag --replace-after): 1ms is not in 1s…"},
		{"log store", []string{"--log-store=tape"}, nil, "", "tape"},
		{"unknown key", nil, nil, "log-level: info\ncolour: red\n", `countd.yaml:2: unknown key "colour"`},
		{"underscore key", nil, nil, "log_level: info\n", `countd.yaml:1: unknown key "log_level"`},
		{"config in the file", nil, nil, "config: other\n", `:1: unknown key "config"`},
		{"key twice", nil, nil, "node-id: a\nnode-id: b\n", `:2: key "node-id" is in line 1 already`},
		{"not a mapping", nil, nil, "- a\n", ":1: want a mapping"},
		{"two documents", nil, nil, "node-id: a\n---\nnode-id: b\n", "one YAML document"},
		{"broken YAML", nil, nil, "node-id: [\n", "line 1"},
		{"list for one value", nil, nil, "\nnode-id: [a]\n", ":2: node-id: want one plain value"},
		{"list of addresses", nil, nil, "join: [a:1, b:1]\n", `:1: join: want one plain value, several with commas between: join: "a,b"`},
		{"list of layouts", nil, nil, "id-layout: [a]\n", `several with commas between: id-layout: "a,b"`},
		{"null value", nil, nil, "node-id:\n", ":1: node-id: want one plain value"},
		{"shards as text", nil, nil, "shards: posts=4\n", ":1: shards: want a mapping"},
		{"shards key twice", nil, nil, "shards: {posts: 4, posts: 5}\n", ":1: shards: want a mapping"},
		{"shards out of bounds in file", nil, nil, "\n\nshards: {posts: 65}\n", "countd.yaml:3): \"posts=65\": want 1 to 64 shards"},
		{"memory over the machine's", []string{"--memory-limit=101%"}, nil, "", "1% to 100%"},
		{"memory that no machine has", []string{"--memory-limit=1000PiB"}, nil, "", "memory-limit (flag --memory-limit): 1125899906842624000 bytes are more than this machine has, or its control group may use, "},
		{"memory of words", []string{"--memory-limit=abc"}, nil, "", "want 1% to 100%, or a number of bytes such as 4GiB"},
		{"memory for no node", []string{"--memory-limit=1"}, nil, "", "memory-limit (flag --memory-limit): 1B is 1 bytes; at least 67108864 are needed, or 0 for none"},
		{"reserve of words", []string{"--disk-reserve=much"}, nil, "", "number of bytes"},
		{"no horizon", []string{"--key-horizon=0s"}, nil, "", "key-horizon (flag --key-horizon): 0s is not in 5m0s"},
		{"horizon within the tries of a write", []string{"--key-horizon=4m59s"}, nil, "", "key-horizon (flag --key-horizon): 4m59s is not in 5m0s…720h0m0s"},
		{"no idle time", nil, map[string]string{"COUNTD_PRODUCER_IDLE": "800h"}, "", "producer-idle (env COUNTD_PRODUCER_IDLE): 800h0m0s is not in"},
		{"no keys", []string{"--keys-max=0"}, nil, "", "keys-max (flag --keys-max): 0 is not in 1…4000000"},
		{"too many keys", []string{"--keys-max=4000001"}, nil, "", "4000001 is not in"},
		{"no time for cursors", []string{"--cursor-idle=47h"}, nil, "", "cursor-idle (flag --cursor-idle): 47h0m0s is not in 48h0m0s…87600h0m0s"},
		{"no time for feeds", []string{"--feed-idle=500ms"}, nil, "", "feed-idle (flag --feed-idle): 500ms is neither 0 nor in 1s…876000h0m0s"},
		{"no time for posts", []string{"--outbox-keep=1s"}, nil, "", "outbox-keep (flag --outbox-keep): 1s is not in 1m0s…876000h0m0s"},
		{"too many posts", []string{"--outbox-max=20001"}, nil, "", "outbox-max (flag --outbox-max): 20001 is not in 1…20000"},
		{"two boards", []string{"--shards=board=2"}, nil, "", "shards (flag --shards): the board has one shard, always"},
		{"too many producers", []string{"--producers-max=200001"}, nil, "", "producers-max (flag --producers-max): 200001 is not in 1…200000"},
		{"no shards", []string{"--shards=posts=0"}, nil, "", "want 1 to 64 shards"},
		{"shards of nothing", []string{"--shards=4"}, nil, "", "want KEYSPACE=N"},
		{"shards of no keyspace's name", []string{"--shards=Posts=4"}, nil, "", "want KEYSPACE=N"},
		{"ids of unread", []string{"--ids=unread=text"}, nil, "", "go by users"},
		{"ids that are numbers", []string{"--ids=posts=number"}, nil, "", "want posts=text"},
		{"shards said two ways", []string{"--shards=posts=4", "--shards=posts=8"}, nil, "", "has 4 and 8 shards"},
		{"growth of nobody", []string{"--auto-grow=posts"}, nil, "", "want on, off, KEYSPACE=on or KEYSPACE=off"},
		{"growth in another word", nil, nil, "auto-grow: posts=yes\n", "want on, off, KEYSPACE=on or KEYSPACE=off"},
		{"no port", []string{"--http-addr=127.0.0.1"}, nil, "", "http-addr (flag --http-addr): \"127.0.0.1\": want HOST:PORT"},
		{"port zero", []string{"--cluster-addr=127.0.0.1:0"}, nil, "", "port from 1 to 65535"},
		{"port too high", nil, map[string]string{"COUNTD_GOSSIP_ADDR": "127.0.0.1:65536"}, "", "gossip-addr (env COUNTD_GOSSIP_ADDR): "},
		{"undiallable cluster address", []string{"--cluster-addr=0.0.0.0:7401"}, nil, "", "that other nodes can dial"},
		{"one address twice", []string{"--http-addr=127.0.0.1:7401"}, nil, "", "each needs a port of its own"},
		{"no data directory", []string{"--data-dir="}, nil, "", "data-dir (flag --data-dir): must not be empty"},
		{"node id", []string{"--node-id=a b"}, nil, "", "1 to 64 of the characters"},
		{"level", nil, map[string]string{"COUNTD_LOG_LEVEL": "loud"}, "", "log-level (env COUNTD_LOG_LEVEL): \"loud\": want debug, info, warn or error"},
		{"log form", []string{"--log-format=xml"}, nil, "", "neither text nor json"},
		{"a schedule of words", []string{"--backup-to=/b", "--backup-schedule=daily"}, nil, "", "want minute hour day month weekday, @hourly"},
		{"a schedule of seconds", []string{"--backup-to=/b", "--backup-schedule=0 0 3 * * *"}, nil, "", "expected exactly 5 fields"},
		{"a schedule of another zone", []string{"--backup-to=/b", "--backup-schedule=TZ=Asia/Shanghai"}, nil, "", "in UTC"},
		{"a schedule of another zone, too", []string{"--backup-to=/b", "--backup-schedule=CRON_TZ=Asia/Shanghai 0 3 * * *"}, nil, "", "in UTC"},
		{"a schedule of no day", nil, nil, "backup-to: /b\nbackup-schedule: 0 0 30 2 *\n", "countd.yaml:2): \"0 0 30 2 *\": no day of the next five years"},
		{"backups all the time", []string{"--backup-to=/b", "--backup-schedule=@every 999ms"}, nil, "", "\"999ms\" is no duration in 1s…8784h0m0s"},
		{"backups never again", nil, map[string]string{"COUNTD_BACKUP_TO": "/b", "COUNTD_BACKUP_SCHEDULE": "@every 8785h"}, "", "backup-schedule (env COUNTD_BACKUP_SCHEDULE): "},
		{"a schedule without a target", []string{"--backup-schedule=@daily"}, nil, "", "backup-schedule (flag --backup-schedule): needs --backup-to"},
		{"backups to keep without a target", nil, nil, "backup-keep: days=1\n", "countd.yaml:1): needs --backup-to"},
		{"backups to a place that depends on the shell", []string{"--backup-to=backups"}, nil, "", "backup-to (flag --backup-to): \"backups\" is no absolute path"},
		{"backups in the data directory", []string{"--backup-to=/d/backups", "--data-dir=/d"}, nil, "", "backup-to (flag --backup-to): /d/backups is within the data-dir"},
		{"fewer backups than none", []string{"--backup-to=/b", "--backup-keep=hours=-1"}, nil, "", "is not like hours=24,days=7,weeks=4, with numbers from 0 to 10000 that are not all 0, nor 0 to keep all"},
		{"backups of no hours", []string{"--backup-to=/b", "--backup-keep=hours=0"}, nil, "", "that are not all 0, nor 0 to keep all"},
		{"too many backups", []string{"--backup-to=/b", "--backup-keep=days=10001"}, nil, "", "with numbers from 0 to 10000"},
		{"backups of two numbers", []string{"--backup-to=/b", "--backup-keep=days=1,days=2"}, nil, "", "is not like hours=24"},
		{"recipients without a target", []string{"--backup-recipients=/nowhere"}, nil, "", "backup-recipients (flag --backup-recipients): needs --backup-to"},
		{"recipients in no file", []string{"--backup-to=/b", "--backup-recipients=/nowhere"}, nil, "", "backup-recipients (flag --backup-recipients): cannot read the recipients: open /nowhere"},
		{"recipients that are none", []string{"--backup-to=/b", "--backup-recipients=config_test.go"}, nil, "", "config_test.go is no file of age recipients"},
		{"backups in a bucket with a password", []string{"--backup-to=s3://k:s@backups"}, nil, "", "must have no user or password"},
		{"backups in a bucket with an unknown parameter", []string{"--backup-to=s3://backups?host=x"}, nil, "", "is \"host\", want endpoint, insecure and region"},
		{"backups of months", []string{"--backup-to=/b", "--backup-keep=months=1"}, nil, "", "is not like hours=24"},
		{"no such file", nil, map[string]string{"COUNTD_CONFIG": "/nonexistent/countd.yaml"}, "", "cannot read configuration"},
		{"endless file", nil, map[string]string{"COUNTD_CONFIG": "/dev/zero"}, "", "over 65536 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := load(t, tc.args, tc.env, tc.file)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
}

// A schedule is in UTC, and an hour, day or week begins there. --backup-keep names what it keeps; 0 keeps all.
func TestBackupSettings(t *testing.T) {
	from := time.Date(2026, 11, 29, 23, 59, 30, 0, time.UTC) // a Sunday
	for text, want := range map[string]string{
		"": "2026-11-30T00:00:00Z", "@hourly": "2026-11-30T00:00:00Z", "@daily": "2026-11-30T00:00:00Z", "@every 90s": "2026-11-30T00:01:00Z",
		"30 3 * * *": "2026-11-30T03:30:00Z", "0 3 * * 0": "2026-12-06T03:00:00Z", "0": "",
	} {
		args := []string{"--backup-to=/b"}
		if text != "" {
			args = append(args, "--backup-schedule="+text)
		}
		c, err := load(t, args, nil, "")
		must.Do(t, err)
		got := ""
		if s := c.Backup.Schedule.Schedule; s != nil {
			got = s.Next(from).Format(time.RFC3339)
		}
		if got != want {
			t.Errorf("the next backup of %q is at %s, want %s", text, got, want)
		}
	}
	for text, want := range map[string]backup.Keep{
		"0": {}, "days=3": {Days: 3}, "weeks=1,hours=10000": {Hours: 10_000, Weeks: 1}, "hours=24,days=7,weeks=4": backupDefault.Keep,
	} {
		c, err := load(t, []string{"--backup-to=/b", "--backup-keep=" + text}, nil, "")
		if must.Do(t, err); c.Backup.Keep != want {
			t.Errorf("%q keeps %+v, want %+v", text, c.Backup.Keep, want)
		}
	}
}

// The directory for sources' files must contain no file of the node, not even through a symbolic
// link. It must not be inside the data directory.
func TestSourceSecretsApart(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"--data-dir", dir}, {"--data-dir", filepath.Dir(dir)}, {"--data-dir", filepath.Join(link, "not-yet", "data")}, {"--root-token-file", filepath.Join(link, "root")},
		{"--gossip-key-file", filepath.Join(dir, "gossip.key")}, {"--audit-log", filepath.Join(dir, "audit")},
		{"--tls-cert", "a", "--tls-key", filepath.Join(dir, "..", filepath.Base(dir), "key")},
	} {
		if _, err := load(t, append(args, "--source-secrets-dir", dir), nil, ""); err == nil || !strings.HasPrefix(err.Error(), "source-secrets-dir (") {
			t.Errorf("%q is taken: %v", args, err)
		}
	}
	if _, err := load(t, []string{"--data-dir", t.TempDir(), "--source-secrets-dir", dir}, nil, ""); err != nil {
		t.Error(err)
	}
}

func TestHTTPAddrMayBeEveryInterface(t *testing.T) {
	for _, addr := range []string{":7400", "0.0.0.0:7400", "[::]:7400", "localhost:7400"} {
		if _, err := load(t, []string{"--http-addr=" + addr}, nil, ""); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
	}
}

func TestAllowedHosts(t *testing.T) {
	for _, hosts := range []string{"", "*", "a.lan,b.lan:7400", "10.0.0.1,[::1],::1,[::1]:7400", "my_service", strings.Repeat("h", 253)} {
		if _, err := load(t, []string{"--allowed-hosts=" + hosts}, nil, ""); err != nil {
			t.Errorf("%s: %v", hosts, err)
		}
	}
}

func TestJoinIsOfOneMachineOrOfMany(t *testing.T) {
	for _, args := range [][]string{
		{"--join=127.0.0.1:1"},
		{"--join=db2:7402"}, // the check does not resolve names, so any name passes
		{"--join=10.0.0.2:7402,10.0.0.3:7402", "--gossip-addr=10.0.0.1:7402", "--cluster-addr=10.0.0.1:7401"},
	} {
		c, err := load(t, args, nil, "")
		if err != nil || len(c.Join) == 0 {
			t.Errorf("%s: %v", args, err)
		}
	}
}

// TestEffectiveConfigIsAConfig: the printed settings form a configuration file that sets the same
// values. A comment names the source of each value.
func TestEffectiveConfigIsAConfig(t *testing.T) {
	for name, args := range map[string][]string{
		"defaults": nil,
		"odd text": {"--data-dir=a: # b", "--node-id=123", "--shards=users=2", "--shards=posts=8", "--ids=users=text,posts=text", "--log-level=error"},
	} {
		t.Run(name, func(t *testing.T) {
			c, err := load(t, args, map[string]string{"COUNTD_LOG_FORMAT": "json"}, "")
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			if err := c.printEffective(&out); err != nil {
				t.Fatal(err)
			}
			for _, source := range c.sources {
				if !strings.Contains(out.String(), "# "+source+"\n") {
					t.Errorf("no source %q in:\n%s", source, out.String())
				}
			}
			again, err := load(t, nil, nil, out.String())
			if err != nil {
				t.Fatalf("%v in:\n%s", err, out.String())
			}
			if again.DataDir != c.DataDir || again.NodeID != c.NodeID || again.LogLevel != c.LogLevel ||
				again.LogFormat != c.LogFormat || !maps.Equal(again.Shards, c.Shards) || !maps.Equal(again.IDs, c.IDs) {
				t.Errorf("%+v came back as %+v from:\n%s", c, again, out.String())
			}
		})
	}
}

func TestStrayEnvironment(t *testing.T) {
	got := newConfig().strayEnv([]string{"COUNTD_DATADIR=x", "COUNTD_DATA_DIR=x", "COUNTD_CONFIG=x", "PATH=x", "COUNTD_A"})
	if want := []string{"COUNTD_A", "COUNTD_DATADIR"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// The command config also reports a variable that is no setting, because its user may be searching
// for a typing error.
func TestConfigTellsOfStrayEnvironment(t *testing.T) {
	t.Setenv("COUNTD_DATADIR", "x")
	t.Setenv("COUNTD_NODE_ID", "alpha")
	var out, told bytes.Buffer
	root := rootCommand(newConfig())
	root.SetArgs([]string{"config"})
	root.SetOut(&out)
	root.SetErr(&told)
	if err := root.Execute(); err != nil {
		t.Fatal(err)
	}
	if want := "countd: ignored COUNTD_DATADIR: not a setting\n"; told.String() != want {
		t.Errorf("told %q, want %q", told.String(), want)
	}
	if !strings.Contains(out.String(), "node-id: alpha") {
		t.Errorf("printed %s", out.String())
	}
}

// If the disk is too full for a start, the error names --disk-reserve.
func TestOpenFailed(t *testing.T) {
	full := &errs.DiskFullError{FreeBytes: 7, NeededBytes: 9, ReserveBytes: 8}
	for err, want := range map[error]string{full: "7 bytes are free and more than 9 are needed, of which 8 are the reserve: free some of the disk, or give a lower --disk-reserve", errs.ErrNoLeader: errs.ErrNoLeader.Error()} {
		if got := openFailed(err); !errors.Is(got, err) || !strings.HasSuffix(got.Error(), want) {
			t.Errorf("%v, want it to end with %q", got, want)
		}
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add([]byte("node-id: a\nshards: {posts: 4}\n"))
	f.Add([]byte("&a [*a]"))
	f.Add([]byte("? {a: b}\n: c\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) > 1024 {
			return // skip: the YAML reader takes more than linear time, and short texts suffice to find faults
		}
		c := newConfig()
		values, err := c.parseFile(raw)
		if err != nil {
			if bad := new(configError); !errors.As(err, &bad) {
				t.Fatalf("error %T %v, want a configError", err, err)
			}
			return
		}
		for name := range values {
			if c.flags.Lookup(name) == nil {
				t.Fatalf("%q is no setting", name)
			}
		}
	})
}

func TestVersionFlagAndCommandSayTheSame(t *testing.T) {
	var said []string
	for _, args := range [][]string{{"--version"}, {"version"}} {
		root := rootCommand(newConfig())
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetArgs(args)
		if err := root.Execute(); err != nil {
			t.Fatal(err)
		}
		said = append(said, out.String())
	}
	if said[0] != said[1] || !strings.HasPrefix(said[0], "countd ") {
		t.Errorf("they say %q", said)
	}
}

// TestConfigChecksFiles: config exits with 2 for a file that a start would refuse, but still prints
// the settings.
func TestConfigChecksFiles(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad")
	must.Do(t, os.WriteFile(bad, []byte("nonsense"), 0o600))
	missing := filepath.Join(dir, "missing")
	for setting, args := range map[string][]string{
		"tls-cert":         {"--tls-cert", missing, "--tls-key", missing},
		"cluster-tls-cert": {"--cluster-tls-cert", bad, "--cluster-tls-key", bad, "--cluster-tls-ca", bad},
		"gossip-key-file":  {"--gossip-key-file", missing},
		"root-token-file":  {"--auth", "enforce", "--root-token-file", missing},
	} {
		for _, path := range []string{missing, bad} {
			for i, arg := range args {
				if arg == missing || arg == bad {
					args[i] = path
				}
			}
			var out bytes.Buffer
			root := rootCommand(newConfig())
			root.SetArgs(append([]string{"config"}, args...))
			root.SetOut(&out)
			err := root.Execute()
			if of := new(configError); !errors.As(err, &of) || !strings.Contains(err.Error(), setting) || !strings.Contains(out.String(), "data-dir:") {
				t.Errorf("%s: %v, printed %q", args, err, out.String())
			}
		}
	}
}

// TestLogLines: a line of JSON has each member once, and durations have one form.
func TestLogLines(t *testing.T) {
	var out bytes.Buffer
	c := newConfig()
	c.LogFormat = "json"
	c.loggerTo(&out).Info("failed to contact", "time", 950*time.Millisecond, "after", 2*time.Second)
	if line := out.String(); strings.Count(line, `"time":`) != 1 || !strings.Contains(line, `"for":"950ms","after":"2s"`) {
		t.Error(line)
	}
}

// TestWarnOfModes: a file with keys that everybody can read is named.
func TestWarnOfModes(t *testing.T) {
	c, path := newConfig(), filepath.Join(t.TempDir(), "keys")
	c.GossipKeys = path
	for mode, warns := range map[os.FileMode]bool{0o644: true, 0o640: false, 0o600: false} {
		must.Do(t, os.WriteFile(path, nil, mode))
		must.Do(t, os.Chmod(path, mode))
		var out bytes.Buffer
		if c.warnOfModes(c.loggerTo(&out)); strings.Contains(out.String(), "setting=gossip-key-file") != warns {
			t.Errorf("mode %o: %q", mode, out.String())
		}
	}
}

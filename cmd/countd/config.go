package main

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/countd/countd/api/gate"
	"github.com/countd/countd/auth"
	"github.com/countd/countd/cluster"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/inbox"
	"github.com/countd/countd/internal/program"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/storage"
	"github.com/countd/countd/shard/tiering"
)

const (
	// shardsMax bounds the shards of a keyspace. Each is a Raft group, and a node can hold
	// 16 to 64 groups.
	shardsMax = 64
	// coldCacheMin is enough for a few blocks for each reader.
	coldCacheMin = 1 << 20
	// shutdownDelayDefault suits proxies that probe each second, or that retry refused requests.
	shutdownDelayDefault = time.Second
	// shutdownDelayMax exists to refuse a delay in the wrong unit.
	shutdownDelayMax = 10 * time.Minute
)

// config holds the settings. The name of a setting is the name of its flag and its key in the file.
// Its environment variable is COUNTD_ followed by the name in capitals, with underscores.
type config struct {
	DataDir       string
	HTTPAddr      string
	ClusterAddr   string
	GossipAddr    string
	RedisAddr     string
	NodeID        string
	Shards        map[string]int  // number of shards, by keyspace
	IDs           map[string]bool // keyspaces whose ids are texts
	AutoGrow      autoGrow
	MemoryLimit   memoryShare
	DiskReserve   uint64
	Cold          tiering.ColdConfig
	MembersMemory uint64 // bounds the memory for members
	Limits        dedup.Limits
	CursorIdle    time.Duration
	FeedIdle      time.Duration
	OutboxKeep    time.Duration
	OutboxMax     int
	Join          []string
	Expect        int
	ClusterName   string
	Zone          string
	Hosts         []string
	GossipKeys    string
	SourceSecrets string   // directory of the files that sources may name; "" for none
	TLS           tlsFiles // certificate files for clients
	ClusterTLS    tlsFiles // certificate files for connections between nodes
	// PeerName is a common name that the certificates of all nodes must carry. If it is "", each
	// certificate must carry its own node's name.
	PeerName string
	// PermissiveTLS lets the node also accept nodes without TLS, and dial them without it.
	PermissiveTLS bool
	Insecure      bool
	Transition    cluster.GossipTransition
	Placement     cluster.PlanSettings
	LogStore      storage.LogStore
	Auth          authConfig
	Backup        backupConfig
	ShutdownDelay time.Duration
	LogLevel      slog.Level
	LogFormat     string

	// file is the configuration file, or "".
	file string
	// flags holds every setting, bound to the fields above. The environment and the file set
	// the same flags by name.
	flags *pflag.FlagSet
	// sources holds the origin of each setting's value, by setting name.
	sources map[string]string
}

// outboxes returns the bounds of the posts that an author's outbox keeps.
func (c *config) outboxes() inbox.OutboxKeep {
	return inbox.OutboxKeep{Posts: c.OutboxMax, Layout: c.Cold.Layouts[kinds.KeyspacePosts], For: c.OutboxKeep}
}

// newConfig returns a config with the defaults. Its flags are not parsed yet.
func newConfig() *config {
	c := &config{
		Shards: map[string]int{}, IDs: map[string]bool{}, AutoGrow: autoGrow{"": true}, MemoryLimit: memoryShare{percent: 80}, DiskReserve: tiering.DiskReserveDefault,
		Limits: shard.LimitsDefault, CursorIdle: unread.CursorIdleDefault, FeedIdle: tiering.FeedIdleDefault, OutboxKeep: inbox.OutboxKeepDefault, OutboxMax: inbox.OutboxPostsDefault,
		Cold: tiering.ColdConfig{
			After: tiering.ColdAfterDefault, SealAfter: tiering.SealAfterDefault, ScrubEvery: tiering.ScrubEveryDefault, CacheBytes: tiering.ColdCacheBytesDefault,
			Layouts: map[string]tiering.IDLayout{"posts": tiering.LayoutWeibo},
		},
		MembersMemory: members.MemoryBytesDefault,
		Placement:     cluster.PlanSettingsDefault, ShutdownDelay: shutdownDelayDefault, LogLevel: slog.LevelInfo, sources: map[string]string{},
	}
	c.flags = pflag.NewFlagSet("settings", pflag.ContinueOnError)
	c.flags.SortFlags = false
	c.flags.StringVar(&c.DataDir, "data-dir", "./countd-data", "directory of this node's logs, snapshots and identity; one process at a time uses it")
	c.flags.StringVar(&c.HTTPAddr, "http-addr", "127.0.0.1:7400", "address of the HTTP API and of metrics")
	c.flags.StringVar(&c.ClusterAddr, "cluster-addr", "127.0.0.1:7401", "address at which other nodes reach this one")
	c.flags.StringVar(&c.GossipAddr, "gossip-addr", "127.0.0.1:7402", "address, TCP and UDP, at which nodes gossip about which of them are alive")
	c.flags.StringVar(&c.RedisAddr, "redis-addr", "", "address for Redis clients, such as 127.0.0.1:7403 (default: none)")
	c.flags.StringVar(&c.NodeID, "node-id", "", "this node's name, 1 to 64 of A-Z a-z 0-9 . _ -, unique in the cluster (default: generated at the first start and kept in the data directory)")
	c.flags.Var(listFlag{&c.Join, "HOST:PORT,…", nil}, "join", "gossip addresses of other nodes, separated by commas; each search for nodes resolves a host name again, to all its addresses; without --join a new node forms a cluster by itself")
	c.flags.IntVar(&c.Expect, "bootstrap-expect", 0, "with --join: form a new cluster once this many new nodes, each started with the same number, see each other, 1 to 32")
	c.flags.StringVar(&c.ClusterName, "cluster-name", "", "name of the cluster, 1 to 32 of A-Z a-z 0-9 . _ -, the same on all its nodes; nodes with another name are refused (default: none)")
	c.flags.Var(listFlag{&c.Hosts, "HOST,…", checkHost}, "allowed-hosts", "host names allowed in a request's Host header, separated by commas, in addition to IP literals, localhost and this node's own names; * allows any")
	c.Auth.add(c)
	c.flags.StringVar(&c.Zone, "zone", "", "failure domain of this node, such as a rack; 1 to 64 of A-Z a-z 0-9 . _ -; the replicas of a shard are spread over zones; it may change with a restart")
	c.tlsFlags()
	c.flags.StringVar(&c.GossipKeys, "gossip-key-file", "", "file with the keys that encrypt gossip, one per line: 16, 24 or 32 bytes in base64; the first encrypts, all decrypt")
	c.flags.StringVar(&c.SourceSecrets, "source-secrets-dir", "", "directory with the files that sources may name: passwords, certificates and keys for their brokers, and no files of the node (default: sources may name none)")
	c.flags.StringVar((*string)(&c.Transition), "gossip-transition", "", "while a cluster turns on the encryption of gossip: accept receives both kinds and sends plain gossip; send receives both and encrypts")
	c.flags.Var(program.DurationFlag{D: &c.Placement.ReplaceAfter}, "replace-after", "how long a node may be unreachable before other nodes rebuild its replicas and remove it for good, 1s to 720h; choose more than your longest repair")
	c.flags.Var(logStoreFlag{&c.LogStore}, "log-store", "log store, shared or boltdb; it cannot be changed after the first start (default: the node's own, shared for a new node)")
	c.flags.Var(keyspacesFlag[int]{c.Shards, "N", c.parseShards}, "shards", "number of shards of a built-in keyspace except board, used when the keyspace is created, as NAME=N, 1 to 64, preferably odd, default 1; may be repeated")
	c.flags.Var(idsFlag(c.IDs), "ids", "posts=text or users=text: the ids of posts, or of users in all keyspaces, are texts, used when the keyspaces are created; may be repeated")
	c.flags.Var(c.AutoGrow, "auto-grow", "whether the shards of a large keyspace multiply by themselves: on, off, or KEYSPACE=on or KEYSPACE=off for one; the same on all nodes; may be repeated")
	c.flags.Var(&c.MemoryLimit, "memory-limit", "memory limit beyond which writes create no new rows: bytes, or a share of the machine's memory or its control group's lower limit; 64MiB or more, 0 for no limit")
	c.flags.Var(sizeFlag{&c.DiskReserve}, "disk-reserve", "writes are refused when the free disk space is not more than this plus the size of the next snapshots; 0 for no reserve")
	c.flags.Var(program.DurationFlag{D: &c.Cold.After}, "cold-after", "age, by the time in its id or, for a text, since its first write, at which a row moves to disk once nobody has written near it for a minute; 0 for never, 1s or more")
	c.flags.Var(program.DurationFlag{D: &c.Cold.SealAfter}, "seal-after", "age, by the time in its id or, for a text, since its first write, at which a row is packed in memory once nobody has written near it for a minute; 0 for never, 1s or more")
	c.flags.Var(program.DurationFlag{D: &c.Cold.ScrubEvery}, "scrub-every", "interval in which all rows and sets of members on disk are read to detect damage, at 8 MiB/s at most; 0 for never, 1s or more")
	c.flags.Var(sizeFlag{&c.Cold.CacheBytes}, "cold-cache", "memory for caching cold rows, 1MiB or more")
	c.flags.Var(sizeFlag{&c.MembersMemory}, "members-memory", "memory for filters and recent changes of members, 8MiB or more")
	c.flags.Var(program.DurationFlag{D: &c.FeedIdle}, "feed-idle", "how long after its last use a user's feed or outbox moves from memory to disk; 0 for never, 1s or more")
	c.flags.Var(program.DurationFlag{D: &c.OutboxKeep}, "outbox-keep", "how long an author's outbox keeps a post, by the time in its id (--id-layout of posts), counted back from the author's newest post, 1m to 876000h")
	c.flags.IntVar(&c.OutboxMax, "outbox-max", c.OutboxMax, fmt.Sprintf("number of posts that an author's outbox keeps, 1 to %d; the oldest go first", counters.OutboxPostsMax))
	c.flags.Var(keyspacesFlag[tiering.IDLayout]{c.Cold.Layouts, "LAYOUT", parseLayout}, "id-layout", "how the ids of a keyspace encode time: weibo, twitter, none or SHIFT:EPOCH:UNIT, such as 22:515483463:1s with a unit of whole microseconds; may be repeated")
	c.flags.Var(program.DurationFlag{D: &c.Limits.KeyHorizon}, "key-horizon", "how long an Idempotency-Key is remembered at least, 5m to 720h")
	c.flags.IntVar(&c.Limits.KeysMax, "keys-max", c.Limits.KeysMax, fmt.Sprintf("number of keys that a shard remembers, 1 to %d; when it is full, new keys are refused (429 overloaded)", dedup.KeysMaxMax))
	c.flags.Var(program.DurationFlag{D: &c.Limits.ProducerIdle}, "producer-idle", "how long an idle Countd-Producer is remembered")
	c.flags.IntVar(&c.Limits.ProducersMax, "producers-max", c.Limits.ProducersMax, fmt.Sprintf("number of producers that a shard remembers, 1 to %d; when it is full, the one idle for longest is forgotten", dedup.ProducersMaxMax))
	c.flags.Var(program.DurationFlag{D: &c.CursorIdle}, "cursor-idle", "how long the cursors of a user who reads no channel and clears no dot are kept, 48h to 87600h; a user who returns later counts as new")
	c.Backup.add(c)
	c.flags.Var(program.DurationFlag{D: &c.ShutdownDelay}, "shutdown-delay", "how long a stopping node of several, no longer ready and without leaderships, still accepts requests until load balancers turn to other nodes, 0s to 10m")
	c.flags.Var(levelFlag{&c.LogLevel}, "log-level", "lowest level to log: debug, info, warn or error")
	c.flags.StringVar(&c.LogFormat, "log-format", "text", "format of a log line on standard error: text or json")
	return c
}

// validate checks the rules that the parser of a single value cannot check.
func (c *config) validate() error {
	if c.DataDir == "" {
		return c.bad("data-dir", "must not be empty")
	}
	addrs := []struct {
		name, addr string
		dialled    bool // whether other nodes dial the address; such an address must name one host
	}{
		{"http-addr", c.HTTPAddr, false}, {"cluster-addr", c.ClusterAddr, true}, {"gossip-addr", c.GossipAddr, true},
		{"redis-addr", c.RedisAddr, false},
	}
	seen := map[string]string{}
	for _, a := range addrs {
		if a.name == "redis-addr" && a.addr == "" {
			continue
		}
		if problem := addrProblem(a.addr, a.dialled); problem != "" {
			return c.bad(a.name, fmt.Sprintf("%q: %s", a.addr, problem))
		}
		if other := seen[a.addr]; other != "" {
			return c.bad(a.name, fmt.Sprintf("%q is the %s too; each needs a port of its own", a.addr, other))
		}
		seen[a.addr] = a.name
	}
	for name, n := range c.Shards {
		if name == kinds.KeyspaceBoard && n != 1 {
			return c.bad("shards", "the board has one shard, always")
		}
		if !shard.IsBuiltin(name) {
			return c.bad("shards", fmt.Sprintf("no keyspace %q is built in; make others with their shards by countctl keyspace create", name))
		}
	}
	if c.NodeID != "" && !cluster.ValidNodeID(c.NodeID) {
		return c.bad("node-id", fmt.Sprintf("%q: %v", c.NodeID, cluster.ErrBadNodeID))
	}
	if err := c.validateCluster(); err != nil {
		return err
	}
	if err := c.validateTLS(); err != nil {
		return err
	}
	if err := c.validateSecrets(); err != nil {
		return err
	}
	if err := c.Backup.validate(c); err != nil {
		return err
	}
	if err := cmp.Or(
		within(c, "replace-after", c.Placement.ReplaceAfter, time.Second, replaceAfterMax),
		within(c, "shutdown-delay", c.ShutdownDelay, 0, shutdownDelayMax),
		within(c, "cursor-idle", c.CursorIdle, unread.CursorIdleMin, unread.CursorIdleMax),
		within(c, "key-horizon", c.Limits.KeyHorizon, shard.KeyHorizonMin, dedup.HorizonMax),
		within(c, "keys-max", c.Limits.KeysMax, 1, dedup.KeysMaxMax),
		within(c, "producer-idle", c.Limits.ProducerIdle, time.Millisecond, dedup.HorizonMax),
		within(c, "producers-max", c.Limits.ProducersMax, 1, dedup.ProducersMaxMax),
		within(c, "outbox-keep", c.OutboxKeep, inbox.OutboxKeepMin, inbox.OutboxKeepMax),
		within(c, "outbox-max", c.OutboxMax, 1, counters.OutboxPostsMax),
		within(c, "cold-cache", c.Cold.CacheBytes, coldCacheMin, math.MaxInt64),
		within(c, "members-memory", c.MembersMemory, members.MemoryBytesMin, math.MaxInt64),
		c.neverOr1s("cold-after", c.Cold.After), c.neverOr1s("seal-after", c.Cold.SealAfter),
		c.neverOr1s("scrub-every", c.Cold.ScrubEvery), c.neverOr1s("feed-idle", c.FeedIdle),
	); err != nil {
		return err
	}
	if _, err := c.memoryLimit(); err != nil {
		return err
	}
	if c.LogFormat != "text" && c.LogFormat != "json" {
		return c.bad("log-format", fmt.Sprintf("%q is neither text nor json", c.LogFormat))
	}
	return nil
}

// validateSecrets refuses a --source-secrets-dir that contains files of the node or is inside the
// data directory, because an admin of the HTTP API can make the node send files of that directory
// to any address.
func (c *config) validateSecrets() error {
	if c.SourceSecrets == "" {
		return nil
	}
	dir := realPath(c.SourceSecrets)
	for _, f := range []struct{ name, value string }{
		{"data-dir", c.DataDir}, {"root-token-file", c.Auth.RootToken}, {"audit-log", c.Auth.AuditLog}, {"gossip-key-file", c.GossipKeys},
		{"tls-key", c.TLS.Key}, {"cluster-tls-key", c.ClusterTLS.Key}, {"config", c.file},
	} {
		if f.value == "" {
			continue
		}
		if inside, err := filepath.Rel(dir, realPath(f.value)); err == nil && filepath.IsLocal(inside) {
			return c.bad("source-secrets-dir", fmt.Sprintf("%s has the %s of the node: sources may send files of this directory to any address", c.SourceSecrets, f.name))
		}
	}
	if inside, err := filepath.Rel(realPath(c.DataDir), dir); err == nil && filepath.IsLocal(inside) {
		return c.bad("source-secrets-dir", fmt.Sprintf("%s is within the data-dir", c.SourceSecrets))
	}
	return nil
}

// realPath returns the absolute path. It resolves the symbolic links of the part of the path that
// exists.
func realPath(path string) string {
	if absolute, err := filepath.Abs(path); err == nil {
		path = absolute
	}
	resolved, err := filepath.EvalSymlinks(path)
	if parent := filepath.Dir(path); err != nil && parent != path {
		return filepath.Join(realPath(parent), filepath.Base(path))
	}
	return resolved
}

// memoryLimit returns the memory limit in bytes, 0 for none.
func (c *config) memoryLimit() (uint64, error) {
	limit, err := c.MemoryLimit.limit(machineMemory)
	if err != nil {
		return 0, c.bad("memory-limit", err.Error())
	}
	if limit > 0 && limit < tiering.MemoryLimitMin {
		return 0, c.bad("memory-limit", fmt.Sprintf("%s is %d bytes; at least %d are needed, or 0 for none",
			&c.MemoryLimit, limit, uint64(tiering.MemoryLimitMin)))
	}
	return limit, nil
}

// within returns an error for a setting outside its bounds.
func within[T cmp.Ordered](c *config, name string, is, low, high T) error {
	if is < low || is > high {
		return c.bad(name, fmt.Sprintf("%v is not in %v…%v", is, low, high))
	}
	return nil
}

// neverOr1s returns an error for a duration below 1 s or above tiering.FeedIdleMax. It accepts 0,
// which means never.
func (c *config) neverOr1s(name string, is time.Duration) error {
	if is != 0 && (is < time.Second || is > tiering.FeedIdleMax) {
		return c.bad(name, fmt.Sprintf("%v is neither 0 nor in 1s…%v", is, tiering.FeedIdleMax))
	}
	return nil
}

// bad returns the error for an invalid setting, with the source of its value.
func (c *config) bad(name, problem string) error {
	return &configError{fmt.Sprintf("%s (%s): %s", name, c.sources[name], problem)}
}

// configError is a mistake in the settings or arguments; countd exits with exitUsage.
type configError struct{ problem string }

func (e *configError) Error() string { return e.problem }

// keyspacesFlag is a flag that maps keyspaces to values. It accepts a list of NAME=VALUE, separated
// by commas, and adds each to the map.
type keyspacesFlag[V any] struct {
	of    map[string]V
	kind  string // kind of the values, for help
	parse func(keyspace, text string) (V, error)
}

func (f keyspacesFlag[V]) Type() string { return "KEYSPACE=" + f.kind }

func (f keyspacesFlag[V]) String() string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(f.of)) {
		pairs = append(pairs, fmt.Sprintf("%s=%v", name, f.of[name]))
	}
	return strings.Join(pairs, ",")
}

func (f keyspacesFlag[V]) Set(text string) error {
	if text == "" {
		return nil
	}
	for pair := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || !catalog.ValidName(name) {
			return fmt.Errorf("want %s, a keyspace being 1 to 63 of a-z 0-9 _ from a letter on", f.Type())
		}
		v, err := f.parse(name, value)
		if err != nil {
			return err
		}
		f.of[name] = v
	}
	return nil
}

// idsFlag has the built-in keyspaces whose ids are texts.
type idsFlag map[string]bool

func (idsFlag) Type() string { return "KEYSPACE=" + shard.IDsText }

func (f idsFlag) String() string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(f)) {
		pairs = append(pairs, name+"="+shard.IDsText)
	}
	return strings.Join(pairs, ",")
}

func (f idsFlag) Set(text string) error {
	for pair := range strings.SplitSeq(text, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(pair), "=")
		switch {
		case text == "":
			return nil
		case !kinds.TakesTexts(name):
			return fmt.Errorf("want posts=text or users=text, not %q: the other built-in keyspaces go by users, and countctl keyspace create --ids text makes others", pair)
		case value != shard.IDsText:
			return fmt.Errorf("want %s=%s; leave it out for numbers", name, shard.IDsText)
		}
		f[name] = true
	}
	return nil
}

func (c *config) parseShards(keyspace, text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > shardsMax {
		return 0, fmt.Errorf("want 1 to %d shards for %q", shardsMax, keyspace)
	}
	if before, ok := c.Shards[keyspace]; ok && before != n {
		return 0, fmt.Errorf("keyspace %q has %d and %d shards", keyspace, before, n)
	}
	return n, nil
}

func parseLayout(_, text string) (tiering.IDLayout, error) { return tiering.ParseIDLayout(text) }

// levelFlag is a slog level that must be one of the four named ones.
type levelFlag struct{ level *slog.Level }

func (f levelFlag) Type() string   { return "string" }
func (f levelFlag) String() string { return strings.ToLower(f.level.String()) }

func (f levelFlag) Set(text string) error {
	switch text {
	case "debug", "info", "warn", "error":
		return f.level.UnmarshalText([]byte(text))
	}
	return fmt.Errorf("want debug, info, warn or error")
}

// logger returns the configured logger, on standard error.
func (c *config) logger() *slog.Logger { return c.loggerTo(os.Stderr) }

func (c *config) loggerTo(w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: c.LogLevel, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if err, is := a.Value.Any().(error); is {
			a.Value = slog.StringValue(err.Error()) // the text handler prints errors with %+v, which may include a stack trace
		}
		if a.Value.Kind() == slog.KindDuration { // JSON would show nanoseconds
			a.Value = slog.StringValue(a.Value.Duration().String())
		}
		if a.Key == slog.TimeKey && a.Value.Kind() != slog.KindTime { // raft logs a duration under the key time, which is also the key of the line's timestamp
			a.Key = "for"
		}
		if a.Value.Kind() == slog.KindString {
			a.Value = slog.StringValue(auth.MaskTokens(a.Value.String()))
		}
		return a
	}}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// allowedHosts returns the hosts allowed in a request's Host header: this node's addresses, the
// name of its machine, and --allowed-hosts.
func (c *config) allowedHosts() []string {
	hosts := append([]string{c.HTTPAddr, c.ClusterAddr, c.GossipAddr}, c.Hosts...)
	if name, err := os.Hostname(); err == nil {
		hosts = append(hosts, name)
	}
	return hosts
}

// listFlag is a flag that accepts texts separated by commas, and adds to the list.
type listFlag struct {
	list  *[]string
	kind  string             // kind of the texts, for help
	check func(string) error // checks one text; nil for no check
}

func (f listFlag) Type() string   { return f.kind }
func (f listFlag) String() string { return strings.Join(*f.list, ",") }

func (f listFlag) Set(text string) error {
	for one := range strings.SplitSeq(text, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		if f.check != nil {
			if err := f.check(one); err != nil {
				return err
			}
		}
		*f.list = append(*f.list, one)
	}
	return nil
}

// hostBytesMax bounds a host name, as DNS does.
const hostBytesMax = 253

// checkHost refuses a host that can never match a request's Host header. The host may have a port.
func checkHost(host string) error {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	const chars = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"
	named := host == gate.AnyHost || net.ParseIP(name) != nil || name != "" && len(name) <= hostBytesMax && strings.Trim(name, chars) == ""
	if !named || err == nil && addrProblem(host, false) != "" {
		return fmt.Errorf("%q is neither * nor an address nor a host name, 1 to %d of A-Z a-z 0-9 . _ -", host, hostBytesMax)
	}
	return nil
}

// logStoreFlag accepts the name of a log store.
type logStoreFlag struct{ store *storage.LogStore }

func (f logStoreFlag) Type() string   { return "shared|boltdb" }
func (f logStoreFlag) String() string { return string(*f.store) }

func (f logStoreFlag) Set(text string) error {
	store := storage.LogStore(text)
	if text != "" {
		if err := store.Check(); err != nil {
			return err
		}
	}
	*f.store = store
	return nil
}

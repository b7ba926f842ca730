package floors

import (
	"slices"
	"strings"
	"testing"
)

// rule is the policy of the whole tree. Imports go down only; a package that is
// not named here may not exist.
const rule = `
	# Counting, and nothing else: no log, no network, no clock.
	engine: engine/golomb internal/splitmix
	# Numbers in few bits.
	engine/golomb:
	# A hash of numbers.
	internal/splitmix:
	# How often a message that repeats is logged.
	internal/lograte:
	# Certificates of the process, and listeners and connections that use them.
	internal/certs: internal/lograte
	# Authorities and what they sign.
	internal/pki:
	# What both programs have in common.
	internal/program:
	# Errors of a machine that has too little of something for a moment.
	internal/scarce:
	# Files that appear whole or not at all.
	internal/atomicfile:
	# How the databases of rows and of members open, close and log.
	engine/pebbledb: internal/lograte internal/scarce
	# Old rows on disk, which the engine knows by interfaces of its own.
	engine/cold: engine engine/golomb engine/pebbledb internal/scarce
	# Sets of members on disk.
	engine/members: engine/pebbledb internal/scarce
	# Numbers and byte strings of messages, ops and snapshots, read without trust.
	internal/wire:
	# How entries and snapshots are framed, whatever they hold.
	raftfsm/codec: engine
	# The forms of names.
	internal/names:
	# JSON that others wrote.
	internal/strictjson:
	# Parts of ops that requests and messages write alike.
	internal/opjson: internal/strictjson
	# Positions of queues, and what their readers and the shards say to each other.
	source/sink:
	# Queues into a sink: what messages mean, and how a partition is read.
	source: internal/names source/sink internal/strictjson internal/opjson
	# One broker each.
	source/redisstream: source
	source/kafka: source
	source/nats: source
	source/postgres: source
	# Which requests a group has applied.
	raftfsm/dedup: raftfsm/codec source/sink internal/wire
	# What the cluster agrees on.
	raftfsm/catalog: internal/names raftfsm/codec engine source/sink
	# The newest posts of authors, packed; no log, no pages, no counts.
	raftfsm/outbox: internal/splitmix internal/wire
	# Bodies of idle keys on disk.
	raftfsm/spill: internal/splitmix engine engine/cold engine/golomb
	# What a log entry means to a shard of any kind.
	raftfsm: internal/wire raftfsm/spill raftfsm/dedup raftfsm/codec engine engine/cold source/sink engine/members
	# What kinds of shards with rows share.
	raftfsm/rows: raftfsm raftfsm/codec engine engine/cold internal/wire
	# One kind of shard each.
	raftfsm/counters: raftfsm raftfsm/rows raftfsm/outbox raftfsm/spill raftfsm/dedup raftfsm/codec engine engine/cold engine/members internal/wire
	raftfsm/unread: raftfsm raftfsm/rows raftfsm/dedup raftfsm/codec engine internal/wire
	raftfsm/feed: raftfsm engine/cold raftfsm/spill raftfsm/dedup raftfsm/codec engine engine/golomb internal/names internal/splitmix internal/wire
	# The numbers of channels and dots are columns of cursors.
	raftfsm/board: raftfsm raftfsm/unread raftfsm/dedup raftfsm/codec engine internal/splitmix internal/wire
	# The list of all kinds.
	raftfsm/kinds: raftfsm engine raftfsm/codec raftfsm/dedup raftfsm/rows raftfsm/spill source/sink raftfsm/counters raftfsm/unread raftfsm/feed raftfsm/board internal/wire
	# The errors that the packages of shard share, and when to try again.
	shard/errs:
	# The cluster port, calls and their errors; no body, no group.
	shard/rpc: internal/names internal/wire shard/errs internal/lograte internal/scarce
	# What Raft groups must not lose, and nothing of what it means.
	shard/raftstore: internal/wire internal/scarce
	# One replica's log, votes and snapshots on disk, checked.
	shard/storage: shard/raftstore shard/errs internal/atomicfile internal/scarce
	# Appends of all groups, and small calls, between two nodes.
	shard/stream: shard/rpc internal/wire shard/storage shard/errs
	# One replica of a Raft group, and what guards raft in it.
	shard/replica: shard/rpc shard/stream shard/storage shard/raftstore shard/errs raftfsm raftfsm/counters raftfsm/kinds raftfsm/catalog raftfsm/codec engine/cold engine/members internal/atomicfile internal/scarce
	# Requests into log entries, and their answers.
	shard/propose: shard/errs raftfsm raftfsm/counters raftfsm/codec raftfsm/dedup engine
	# Metrics without labels.
	shard/metric:
	# The memory and disk that a node may still take.
	shard/headroom: shard/replica shard/metric shard/errs
	# Which rows and feeds are in memory, and which on disk.
	shard/tiering: raftfsm/spill raftfsm/outbox shard/headroom shard/metric shard/replica shard/rpc shard/errs raftfsm raftfsm/counters raftfsm/catalog raftfsm/codec engine engine/cold engine/members engine/pebbledb
	# Which replicas have files here, and which were deleted.
	shard/dirs: shard/replica shard/storage shard/raftstore raftfsm/catalog engine/cold engine/members internal/atomicfile internal/scarce
	# Who is a member of groups led here, as the catalog wants it.
	shard/membership: shard/replica shard/raftstore shard/rpc internal/wire shard/errs raftfsm/catalog
	# Keyspaces as requests see them, and the shard of an id.
	shard/keyspace: shard/errs raftfsm raftfsm/catalog engine
	# That a group is led here, and how far it is.
	shard/prover: shard/replica shard/rpc internal/wire shard/errs raftfsm/catalog
	# Changes of the catalog, on whichever node leads it.
	shard/catalogclient: shard/prover shard/replica shard/rpc shard/errs raftfsm/catalog raftfsm/codec
	# The rows of a snapshot into a shard, through its log.
	shard/restore: raftfsm/outbox shard/keyspace shard/errs raftfsm raftfsm/board raftfsm/feed raftfsm/kinds raftfsm/rows raftfsm/unread raftfsm/catalog raftfsm/codec raftfsm/dedup engine engine/members source/sink
	# Parts of writes on their way to a leader.
	shard/forward: shard/propose shard/rpc internal/wire raftfsm/codec raftfsm/dedup engine source/sink
	# Steps of leaders that drop what is of no use any more.
	shard/upkeep: shard/propose shard/replica raftfsm raftfsm/counters raftfsm/unread raftfsm/catalog raftfsm/dedup
	# Messages of sources into sections of shards. Its model restores shards too.
	shard/sourcesink: shard/keyspace shard/catalogclient shard/restore shard/errs raftfsm raftfsm/counters raftfsm/kinds raftfsm/rows raftfsm/unread raftfsm/catalog raftfsm/codec raftfsm/dedup engine source/sink
	# Groups, routing, reads. It meets the cluster through interfaces of its own.
	shard: internal/names raftfsm/outbox raftfsm/spill shard/forward shard/upkeep shard/sourcesink shard/restore shard/keyspace shard/catalogclient shard/prover shard/dirs shard/tiering shard/headroom shard/metric shard/membership shard/replica shard/rpc shard/stream internal/wire shard/storage shard/raftstore raftfsm raftfsm/board raftfsm/counters raftfsm/feed raftfsm/kinds raftfsm/rows raftfsm/unread raftfsm/catalog raftfsm/codec raftfsm/dedup engine engine/cold internal/atomicfile internal/lograte shard/errs shard/propose source/sink engine/members internal/scarce engine/pebbledb
	# What users have not seen, joined from what shards hold.
	unread: shard raftfsm/outbox raftfsm raftfsm/board raftfsm/counters raftfsm/feed raftfsm/rows raftfsm/unread raftfsm/catalog engine
	# Pages of posts by followees, joined from what shards hold.
	timeline: shard raftfsm raftfsm/counters raftfsm/feed raftfsm/rows raftfsm/outbox engine
	# Documents that the server hands out.
	docs:
	# The cluster as operators see and change it.
	admin: client client/admin shard shard/tiering raftfsm raftfsm/catalog
	# The sources of a cluster: who reads what, and what operators do about it.
	sources: source source/sink admin shard shard/sourcesink raftfsm/catalog raftfsm/rows
	# Lines about admin actions and refused calls.
	auth/audit: client/admin internal/lograte
	# Who may do what. The catalog stores the users.
	auth: client/admin auth/audit raftfsm/catalog internal/lograte
	# Connections of clients.
	api/listen: internal/lograte internal/scarce
	# Metrics of HTTP.
	api/metric: engine shard
	# Neighbours that do not know each other.
	api: client client/admin api/listen api/metric internal/splitmix raftfsm/outbox timeline auth auth/audit docs admin sources unread shard shard/sourcesink shard/tiering raftfsm raftfsm/board raftfsm/counters raftfsm/feed raftfsm/rows raftfsm/unread raftfsm/catalog engine internal/lograte internal/strictjson engine/members internal/opjson
	# Bytes of the Redis protocol; no command.
	api/redis/resp: internal/strictjson
	api/redis: api/listen api/redis/resp timeline auth unread shard shard/storage raftfsm raftfsm/board raftfsm/counters raftfsm/rows raftfsm/feed raftfsm/unread raftfsm/catalog engine internal/lograte internal/strictjson engine/members
	cluster: client/admin internal/names admin shard raftfsm/catalog engine internal/atomicfile internal/lograte
	# The program joins them.
	cmd/countd: admin api api/redis auth auth/audit cluster sources source source/kafka source/nats source/postgres source/redisstream shard shard/headroom shard/storage shard/tiering shard/rpc raftfsm raftfsm/unread raftfsm/catalog raftfsm/dedup raftfsm/outbox engine engine/members internal/certs internal/program cmd/countd/internal/events internal/scarce
	# Lines of the log about what changed.
	cmd/countd/internal/events:
	# What services import: the public HTTP API and the types of its JSON, and nothing of ours.
	client:
	# What operators' programs import beside it.
	client/admin: client
	# The site of docs/GUIDE.md sees the API alone.
	examples/go: client
	# So does the command line.
	cmd/countctl/...: client client/admin internal/atomicfile internal/pki internal/program
	# How tests run it.
	cmd/countctl/internal/clitest: cmd/countctl/internal/cli internal/proctest

	# What tests use: the built programs; no package beneath them.
	internal/proctest: client/admin internal/must
	# A server of Kafka's protocol that tests kill.
	internal/testbroker/kafka:
	# Clusters of them.
	internal/clustertest: client/admin internal/proctest
	# A whole node in the process of a test.
	internal/nodetest: internal/must admin api engine shard source sources raftfsm/rows
	# Authorities of a test.
	internal/pki/pkitest: internal/pki internal/must
	# What every test demands.
	internal/must:
	# Callers, what they were told, and a cable to cut.
	internal/calltest: internal/must
	shard/shardtest: shard/rpc internal/calltest internal/must
	internal/floors:
	cmd/countd/e2e: internal/program
	raftfsm/codec/codectest: raftfsm/codec engine
	api/apitest: auth raftfsm/catalog engine/members internal/must
	source/sink/sinktest: source/sink
	source/brokertest: source source/sink source/sink/sinktest internal/must internal/pki internal/pki/pkitest
	tests: api/apitest source/sink/sinktest source/brokertest raftfsm/codec/codectest internal/proctest internal/clustertest internal/nodetest client client/admin internal/calltest internal/must internal/pki internal/pki/pkitest shard/shardtest

	# Modules that only their floor may know of. A test of whole nodes forges a log.
	only raftfsm raftfsm/board raftfsm/counters raftfsm/feed raftfsm/kinds raftfsm/catalog raftfsm/codec/codectest shard/... cmd/countd/e2e: github.com/hashicorp/raft github.com/hashicorp/raft-boltdb/...
	only shard/storage cmd/countd/e2e: go.etcd.io/bbolt
	only engine/cold engine/members engine/pebbledb raftfsm/counters raftfsm/feed raftfsm/spill shard/raftstore shard/storage internal/scarce: github.com/cockroachdb/pebble/v2/... github.com/maypok86/otter/v2/...
	only cluster: github.com/hashicorp/memberlist
	only api cmd/countctl/...: github.com/valyala/fasthttp/...
	only api: github.com/valyala/fastjson/...
	only api: github.com/go-json-experiment/json/...
	only source/postgres cmd/countctl/... cmd/countd/e2e: github.com/jackc/...
	only source/kafka internal/testbroker/kafka cmd/countd/e2e: github.com/twmb/...
	only source/nats cmd/countd/e2e: github.com/nats-io/...
	only source/redisstream cmd/countctl/... cmd/countd/e2e: github.com/redis/go-redis/...
	only auth/audit: gopkg.in/natefinch/lumberjack.v2/...
	only cmd/countd cmd/countctl/...: github.com/spf13/cobra/... github.com/spf13/pflag/...
`

func TestFloors(t *testing.T) {
	r, err := ParseRule(rule)
	if err != nil {
		t.Fatal(err)
	}
	edges, err := Read("../..")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(edges, func(e Edge) bool { return e.From == "api" && e.To == "shard" }) {
		t.Error("the tree was not read: api does not import shard")
	}
	for _, breach := range r.Breaches(edges) {
		t.Errorf("%s; the rule is in internal/floors/floors_test.go", breach)
	}
}

// TestMap checks the list of layers in docs/ARCHITECTURE.md: it has a line for each package of
// the programs, apart from the commands of countctl, and packages import only those in lines
// below their own.
func TestMap(t *testing.T) {
	r, err := ParseRule(rule)
	if err != nil {
		t.Fatal(err)
	}
	_, list, _ := strings.Cut(read(t, architecture), "\n## Layers\n")
	list, _, _ = strings.Cut(list, "\n## ")
	rows := map[string]int{}
	for n, line := range strings.Split(list, "\n") {
		if line, ok := strings.CutPrefix(line, "- "); ok {
			name, _, _ := strings.Cut(line, ": ")
			rows[name] = n
		}
	}
	edges, err := Read("../..")
	if err != nil {
		t.Fatal(err)
	}
	missing := map[string]bool{}
	for _, e := range edges {
		ofTests := matchesAny(append(r.tests, "cmd/countd/e2e", "internal/testbroker/..."), e.From)
		if e.Test || ofTests || !e.inside() || matches("cmd/countctl/internal/...", e.From) || matches("cmd/countctl/internal/...", e.To) {
			continue
		}
		from, ok := rows[e.From]
		if !ok && !missing[e.From] {
			missing[e.From] = true
			t.Errorf("docs/ARCHITECTURE.md: %s has no line in the list of layers", e.From)
		}
		if to, named := rows[e.To]; ok && named && to < from {
			t.Errorf("docs/ARCHITECTURE.md: %s is above %s, and %s imports it", e.To, e.From, e.File)
		}
	}
}

func TestBreachesAreFound(t *testing.T) {
	r, err := ParseRule(rule)
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, file, imports, want string
	}{
		{"engine reaches up", "engine/x.go", `"github.com/countd/countd/shard"`, "engine/x.go: engine may not import shard"},
		{"a test reaches up", "engine/x_test.go", `"github.com/countd/countd/shard"`, "engine/x_test.go: engine may not import shard"},
		{"the client looks inside", "cmd/countctl/x.go", `"github.com/countd/countd/api"`, "cmd/countctl/x.go: cmd/countctl may not import api"},
		{"deep in the client too", "cmd/countctl/internal/a/x.go", `"github.com/countd/countd/engine"`, "cmd/countctl/internal/a/x.go: cmd/countctl/internal/a may not import engine"},
		{"the library looks inside", "client/x.go", `"github.com/countd/countd/shard"`, "client/x.go: client may not import shard"},
		{"a shard that knows HTTP", "shard/x.go", `"github.com/countd/countd/client"`, "shard/x.go: shard may not import client"},
		{"neighbours", "api/x.go", `"github.com/countd/countd/cluster"`, "api/x.go: api may not import cluster"},
		{"shard asks upwards", "shard/x.go", `"github.com/countd/countd/cluster"`, "shard/x.go: shard may not import cluster"},
		{"a log under the engine", "engine/x.go", `"github.com/hashicorp/raft"`, "engine/x.go: engine may not import github.com/hashicorp/raft"},
		{"a harness in a product file", "shard/x.go", `"github.com/countd/countd/internal/proctest"`, "shard/x.go: shard may not import internal/proctest"},
		{"a new package", "helpers/x.go", `"strings"`, "helpers/x.go: helpers is not in the rule"},
		{"the root", "engine/x.go", `"github.com/countd/countd"`, "engine/x.go: engine may not import ."},
		{"down", "api/x.go", `"github.com/countd/countd/shard"`, ""},
		{"own parts", "cmd/countctl/x.go", `"github.com/countd/countd/cmd/countctl/internal/a"`, ""},
		{"a harness in a test", "cmd/countd/e2e/x_test.go", `"github.com/countd/countd/internal/proctest"`, ""},
		{"a free module", "engine/x.go", `"golang.org/x/sys/cpu"`, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			edges, err := fileEdges(tc.file, []byte("package x\nimport "+tc.imports+"\n"))
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			if tc.want != "" {
				want = []string{tc.want}
			}
			if got := r.Breaches(edges); !slices.Equal(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}

func TestRuleWithoutColonIsRefused(t *testing.T) {
	if _, err := ParseRule("engine raftfsm"); err == nil {
		t.Error("no error")
	}
}

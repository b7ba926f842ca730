package floors

import (
	"slices"
	"strings"
	"testing"
)

// rule lists all packages and what each may import, in an order in which packages import only
// earlier ones. Every package must be listed. If a package may import several others, each of these
// has its own line, so that changes rarely conflict.
const rule = `
	# Columns and their settings, in the catalog and for clients; why columns refuse ops.
	client/column:
	# Counting, and nothing else: no log, no network, no clock.
	engine:
		client/column
		internal/wire
	# Certificates of the process, and listeners and connections that use them.
	internal/certs: internal/program
	# Authorities and what they sign.
	internal/pki:
	# What processes have in common: the version, flags, messages that repeat, files that appear whole.
	internal/program:
	# A machine that has too little of something for a moment, and databases that wait then.
	internal/scarce: internal/program
	# Old rows on disk, which the engine knows by interfaces of its own.
	engine/cold:
		engine
		internal/scarce
		internal/wire
	# Sets of members on disk.
	engine/members: internal/scarce
	# Numbers and byte strings of messages, ops and snapshots, read without trust.
	internal/wire:
	# How entries and snapshots are framed, whatever they hold.
	raftfsm/codec: engine
	# JSON that others wrote.
	internal/strictjson: internal/wire
	# Positions of queues, and what their readers and the shards say to each other.
	source/sink:
	# Queues into a sink: what messages mean, and how a partition is read.
	source:
		internal/strictjson
		internal/wire
		source/sink
	# One broker each.
	source/redisstream: source
	source/kafka: source
	source/nats: source
	source/postgres: source
	# Which requests a group has applied.
	raftfsm/dedup:
		internal/wire
		raftfsm/codec
		source/sink
	# What the cluster agrees on.
	raftfsm/catalog:
		client/column
		engine
		internal/wire
		raftfsm/codec
		source/sink
	# Bodies of idle keys on disk.
	raftfsm/spill:
		engine
		engine/cold
		internal/wire
	# What a log entry means to a shard of any kind.
	raftfsm:
		client/column
		engine
		engine/cold
		engine/members
		internal/wire
		raftfsm/codec
		raftfsm/dedup
		raftfsm/spill
	# What kinds of shards with rows share.
	raftfsm/rows:
		client/column
		engine
		internal/wire
		raftfsm
		raftfsm/codec
	# What ids gained in windows of time, and the largest counts of a table.
	raftfsm/rankings:
		engine
		internal/wire
		raftfsm
		raftfsm/codec
	# One kind of shard each.
	raftfsm/counters:
		client/column
		engine
		engine/cold
		engine/members
		internal/wire
		raftfsm
		raftfsm/codec
		raftfsm/dedup
		raftfsm/rankings
		raftfsm/rows
		raftfsm/spill
	raftfsm/unread:
		engine
		internal/wire
		raftfsm
		raftfsm/codec
		raftfsm/dedup
		raftfsm/rows
	raftfsm/feed:
		engine
		engine/cold
		internal/wire
		raftfsm
		raftfsm/codec
		raftfsm/dedup
		raftfsm/spill
	raftfsm/names:
		engine
		engine/cold
		internal/wire
		raftfsm
		raftfsm/codec
		raftfsm/dedup
		raftfsm/spill
	# The list of all kinds.
	raftfsm/kinds:
		client/column
		engine
		engine/cold
		engine/members
		internal/wire
		raftfsm
		raftfsm/catalog
		raftfsm/codec
		raftfsm/counters
		raftfsm/dedup
		raftfsm/feed
		raftfsm/names
		raftfsm/rows
		raftfsm/spill
		raftfsm/unread
		source/sink
	# The errors that the packages of shard share, and when to try again.
	shard/errs:
	# The cluster port, calls and their errors; no body, no group.
	shard/rpc:
		internal/program
		internal/scarce
		internal/wire
		shard/errs
	# What Raft groups must not lose, and nothing of what it means.
	shard/raftstore:
		internal/scarce
		internal/wire
	# One replica's log, votes and snapshots on disk, checked.
	shard/storage:
		internal/program
		internal/scarce
		shard/errs
		shard/raftstore
	# Appends of all groups, and small calls, between two nodes.
	shard/stream:
		internal/wire
		shard/errs
		shard/rpc
		shard/storage
	# One replica of a Raft group, and what guards raft in it.
	shard/replica:
		engine/cold
		engine/members
		internal/program
		internal/scarce
		raftfsm
		raftfsm/catalog
		raftfsm/codec
		raftfsm/counters
		raftfsm/kinds
		shard/errs
		shard/raftstore
		shard/rpc
		shard/storage
		shard/stream
	# Requests into log entries, and their answers.
	shard/propose:
		client/column
		engine
		internal/wire
		raftfsm
		raftfsm/codec
		raftfsm/counters
		raftfsm/dedup
		shard/errs
		shard/rpc
		source/sink
	# Which rows and feeds are in memory, and which on disk.
	shard/tiering:
		engine
		engine/cold
		engine/members
		internal/scarce
		internal/wire
		raftfsm
		raftfsm/catalog
		raftfsm/codec
		raftfsm/counters
		raftfsm/kinds
		raftfsm/names
		raftfsm/spill
		shard/errs
		shard/replica
		shard/rpc
	# That a group is led here, and how far it is.
	shard/leadership:
		engine/cold
		internal/wire
		raftfsm
		raftfsm/catalog
		raftfsm/codec
		raftfsm/dedup
		raftfsm/kinds
		shard/errs
		shard/propose
		shard/raftstore
		shard/replica
		shard/rpc
		shard/tiering
	# Groups, routing, reads. It meets the cluster through interfaces of its own.
	shard:
		client/column
		engine
		engine/cold
		engine/members
		internal/program
		internal/scarce
		internal/wire
		raftfsm
		raftfsm/catalog
		raftfsm/codec
		raftfsm/counters
		raftfsm/dedup
		raftfsm/feed
		raftfsm/kinds
		raftfsm/rankings
		raftfsm/rows
		raftfsm/spill
		raftfsm/unread
		shard/errs
		shard/leadership
		shard/propose
		shard/raftstore
		shard/replica
		shard/rpc
		shard/storage
		shard/stream
		shard/tiering
		source/sink
	# What users have not seen, and pages of posts by followees, joined from what shards hold.
	inbox:
		engine
		internal/strictjson
		raftfsm
		raftfsm/catalog
		raftfsm/counters
		raftfsm/dedup
		raftfsm/feed
		raftfsm/kinds
		raftfsm/rows
		raftfsm/unread
		shard
		shard/errs
		shard/tiering
	# Text ids, as numbers.
	names:
		internal/strictjson
		raftfsm
		raftfsm/names
		shard
		shard/errs
		shard/tiering
	# Documents that the server hands out.
	docs:
	# The cluster as operators see and change it, and the rows of a snapshot into a shard, through its log.
	admin:
		backup
		client
		client/admin
		engine
		engine/members
		raftfsm
		raftfsm/catalog
		raftfsm/codec
		raftfsm/counters
		raftfsm/dedup
		raftfsm/feed
		raftfsm/kinds
		raftfsm/names
		raftfsm/rows
		raftfsm/unread
		shard
		shard/errs
		shard/leadership
		shard/replica
		shard/tiering
		source/sink
	# The sources of a cluster: who reads what, and what operators do about it.
	sources:
		admin
		engine
		internal/strictjson
		names
		raftfsm
		raftfsm/catalog
		raftfsm/codec
		raftfsm/counters
		raftfsm/dedup
		raftfsm/kinds
		raftfsm/rows
		raftfsm/unread
		shard
		shard/errs
		source
		source/sink
	# Who may do what. The catalog stores the users.
	auth:
		client/admin
		internal/program
		raftfsm/catalog
	# Connections of clients.
	api/gate:
		internal/program
		internal/scarce
		internal/strictjson
	# Calls of operators, which know no HTTP.
	api/operate:
		admin
		auth
		client
		client/admin
		client/column
		engine
		internal/strictjson
		raftfsm
		raftfsm/catalog
		raftfsm/kinds
		shard
		shard/errs
		shard/replica
		shard/tiering
		sources
	api:
		admin
		api/gate
		api/operate
		auth
		client
		client/admin
		client/column
		docs
		engine
		engine/members
		inbox
		internal/program
		internal/strictjson
		names
		raftfsm
		raftfsm/catalog
		raftfsm/counters
		raftfsm/dedup
		raftfsm/feed
		raftfsm/kinds
		raftfsm/rankings
		raftfsm/rows
		raftfsm/unread
		shard
		shard/errs
		shard/replica
		shard/tiering
		sources
	# Pages that call the API as any client does.
	console: docs
	# Bytes of the Redis protocol; no command.
	api/redis/resp:
		api/gate
		internal/strictjson
	api/redis:
		api/gate
		api/redis/resp
		auth
		client/column
		engine
		engine/members
		inbox
		internal/program
		internal/strictjson
		names
		raftfsm
		raftfsm/catalog
		raftfsm/counters
		raftfsm/dedup
		raftfsm/feed
		raftfsm/kinds
		raftfsm/rankings
		raftfsm/rows
		raftfsm/unread
		shard
		shard/errs
		shard/storage
	cluster:
		client/admin
		internal/program
		internal/wire
		raftfsm/catalog
		raftfsm/names
		shard/errs
		shard/leadership
		shard/replica
		shard/rpc
	# The program joins them.
	cmd/countd:
		admin
		api
		api/gate
		api/redis
		auth
		backup
		client/admin
		client/column
		cluster
		console
		engine/members
		inbox
		internal/certs
		internal/program
		internal/scarce
		raftfsm/catalog
		raftfsm/counters
		raftfsm/dedup
		raftfsm/kinds
		raftfsm/unread
		shard
		shard/errs
		shard/rpc
		shard/storage
		shard/tiering
		source
		source/kafka
		source/nats
		source/postgres
		source/redisstream
		sources
	# What services import: the public HTTP API and the types of its JSON, and nothing of ours.
	client: client/column
	# What operators' programs import beside it.
	client/admin: client
	# Backups of a cluster, which it knows by an interface of its own.
	backup:
		client
		client/admin
		client/column
		internal/program
	# The command line sees the API alone, except for countctl recover, which works on the directories of stopped nodes.
	cmd/countctl/...:
		client
		client/admin
		client/column
		internal/pki
		internal/program
	cmd/countctl/internal/cluster:
		backup
		client
		client/admin
		client/column
		cluster
		cmd/countctl/internal/cli
		docs
		internal/pki
		internal/program

	# The built programs, alone and in clusters; no package beneath them.
	internal/proctest:
		client/admin
		internal/must
	# A whole node in the process of a test.
	internal/nodetest:
		admin
		api
		engine
		internal/must
		raftfsm/counters
		raftfsm/dedup
		raftfsm/kinds
		raftfsm/rows
		shard
		source
		sources
	# What every test demands; calls, cables and authorities of tests.
	internal/must: internal/pki
	internal/floors:
	cmd/countd/e2e:
		backup
		internal/program
	# State machines and replicas of tests.
	internal/rafttest:
		engine
		internal/must
		raftfsm/codec
		shard/rpc
	api/apitest:
		auth
		engine
		engine/members
		internal/must
		raftfsm
		raftfsm/catalog
		raftfsm/counters
		raftfsm/names
		raftfsm/unread
		shard
	source/sink/sinktest: source/sink
	source/brokertest:
		internal/must
		internal/pki
		source
		source/sink
		source/sink/sinktest
	# Tests of shard read sources and restore shards.
	tests of shard:
		admin
		sources
	# Tests of countctl recover forge the logs of stopped nodes.
	tests of cluster:
		engine
		raftfsm
		raftfsm/codec
		raftfsm/counters
		raftfsm/dedup
		raftfsm/spill
		shard/storage
		source/sink
	# A test of names counts by the numbers of texts.
	tests of names:
		engine
		raftfsm/counters
		raftfsm/kinds
		raftfsm/rows
	tests of cmd/countctl/internal/cluster:
		cmd/countctl/internal/clitest
		cmd/countctl/internal/data
	tests:
		api/apitest
		client
		client/admin
		client/column
		internal/must
		internal/nodetest
		internal/pki
		internal/proctest
		internal/rafttest
		source/brokertest
		source/sink/sinktest

	# Modules that only their floor may know of. A test of whole nodes forges a log. A recovery reads configurations.
	only cluster raftfsm raftfsm/unread raftfsm/counters raftfsm/feed raftfsm/names raftfsm/kinds raftfsm/catalog internal/rafttest shard/... cmd/countd/e2e: github.com/hashicorp/raft github.com/hashicorp/raft-boltdb/...
	only shard/storage cmd/countd/e2e: go.etcd.io/bbolt
	only engine/cold engine/members internal/scarce raftfsm/counters raftfsm/feed raftfsm/names raftfsm/kinds raftfsm/spill shard/raftstore shard/storage: github.com/cockroachdb/pebble/v2/... github.com/maypok86/otter/v2/...
	only cluster: github.com/hashicorp/memberlist
	only api api/gate console cmd/countctl/...: github.com/valyala/fasthttp/...
	only api: github.com/valyala/fastjson/...
	only api/operate internal/strictjson: github.com/go-json-experiment/json/...
	only source/postgres cmd/countctl/... cmd/countd/e2e: github.com/jackc/...
	only source/kafka cmd/countd/e2e: github.com/twmb/...
	only source/nats cmd/countd/e2e: github.com/nats-io/...
	only source/redisstream cmd/countctl/... cmd/countd/e2e: github.com/redis/go-redis/...
	only auth: gopkg.in/natefinch/lumberjack.v2/...
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

// TestMap checks the list of layers in docs/ARCHITECTURE.md: it has a line for each package of the
// programs, except the commands of countctl. A package may import only packages in lines below its
// own.
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
		ofTests := matchesAny(append(r.tests, "cmd/countd/e2e"), e.From)
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

func TestBadRulesAreRefused(t *testing.T) {
	for _, text := range []string{"engine raftfsm", "engine:\nraftfsm", "\t\tengine"} {
		if _, err := ParseRule(text); err == nil {
			t.Errorf("%q: no error", text)
		}
	}
}

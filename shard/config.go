package shard

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/storage"
	"github.com/countd/countd/shard/tiering"
)

// Config configures Open. Every field must be set unless its comment says otherwise.
type Config struct {
	Dir         string // directory for the groups of this node, which no other node may use
	NodeKey     string // key of this node, which no other node ever gets; Raft counts votes by it
	NodeName    string // for people
	Zone        string // may be ""
	ClusterID   string // 32 hex digits
	ClusterName string // --cluster-name: nodes with another name are refused; "" for none
	Version     string
	ClusterAddr string // address at which other nodes reach this node
	// Listener listens on ClusterAddr. If Listener is nil, Open listens on ClusterAddr itself.
	// Close closes Listener; if Open fails, the caller must close it.
	Listener   net.Listener
	HTTPAddr   string // stored in the catalog, like GossipAddr, for Status, admin calls and package cluster
	GossipAddr string
	// Report adds to this node's report what other parts of the process know; nil for nothing.
	Report func(*NodeReport)
	// Bootstrap begins a new cluster with this node if Dir is empty. Without Bootstrap, an empty
	// node waits until a cluster adds it.
	Bootstrap bool
	// NodesWanted is the number of nodes that a new cluster waits for before it creates the
	// built-in keyspaces. 0 means 1.
	NodesWanted int
	// VotersWanted is the number of voters of the catalog's group for which a new cluster also
	// waits. 0 means 1. Package cluster adds these voters. With 3, no node is ready before the
	// catalog can survive the loss of a node.
	VotersWanted int
	Shards       map[string]int   // number of shards of built-in keyspaces, by name, used when they are created; may be nil
	Texts        map[string]bool  // built-in keyspaces whose ids are texts, see kinds.Beginning, used when they are created
	LogStore     storage.LogStore // "" for the present log store, or LogStoreDefault for a new node
	Limits       dedup.Limits     // zero for LimitsDefault
	CursorIdle   time.Duration    // idle time after which cursors of unread numbers are removed; 0 for the default
	MemoryLimit  uint64           // bytes of memory beyond which the node refuses new rows; 0 for none
	// CollectorPercent is the GOGC that the process sets when memory becomes short; 0 if it never
	// changes GOGC.
	CollectorPercent uint64
	DiskReserve      uint64             // bytes of disk that writes must leave free; 0 for none
	Cold             tiering.ColdConfig // zero if rows must stay in memory
	FeedIdle         time.Duration      // idle time after which a feed leaves memory; 0 for never
	// MembersDir is the directory of sets of members; "" for Dir with the suffix -members.
	// MembersMemory bounds the memory for the sets in bytes; 0 for members.MemoryBytesDefault.
	MembersDir    string
	MembersMemory uint64
	// Opened records the groups of which this node has a replica, so that Open refuses to start if
	// a replica's files are lost. If Opened is nil, such a replica starts empty.
	Opened replica.Opened
	// Place chooses the nodes of a new keyspace's shards; nil for this node alone.
	Place func(view *catalog.View, shards int) [][]string
	// Handlers answer further calls of other nodes, by method; nil for none.
	Handlers map[string]Handler
	// Streams answer further stream calls of other nodes, by method; nil for none.
	Streams map[string]StreamHandler
	// Alive reports whether a node is alive, according to gossip; nil if all are.
	Alive func(nodeKey string) bool
	// LiveAddr returns the cluster address of a living node, according to gossip, or "". If a node
	// restarts at another address, other nodes can reach it there before the catalog has the new
	// address. LiveAddr must not block. nil for no gossip.
	LiveAddr func(nodeKey string) string
	// DialPeer connects to other nodes; see rpc.MuxConfig; nil for TCP.
	DialPeer rpc.DialPeer
	Logger   *slog.Logger
	Metrics  prometheus.Registerer
	// Fatal is called once, in the failing goroutine, with the reason why the node must stop. It
	// must not call Close, and should end the process.
	Fatal func(error)
}

// With LimitsDefault, a shard remembers a key for ten minutes, and a producer until it has been
// idle for a day. In each shard that got its request, a key takes about 90 B, a producer 160 B,
// and a forgotten producer 50 B.
var LimitsDefault = dedup.Limits{
	KeyHorizon:   10 * time.Minute,
	KeysMax:      dedup.KeysMaxMax,
	ProducerIdle: 24 * time.Hour,
	ProducersMax: 100_000,
}

// KeyHorizonMin is the smallest horizon with which a shard recognises every try of one write. A
// node repeats a write for up to a minute. A forwarded part shares a call with younger parts, so
// the leader may propose that part up to a minute later. In these two minutes the log's time may
// advance by four minutes (see propose.Clock). A new leader's clock may be a minute ahead.
const KeyHorizonMin = 2*2*rpc.CallTimeoutMax + time.Minute

// withDefaults returns the config with defaults for zero values, and the cluster's id. It returns
// an error for a value that is out of bounds.
func (c Config) withDefaults() (_ Config, id [16]byte, _ error) {
	decoded, err := hex.DecodeString(c.ClusterID)
	if err != nil || len(decoded) != len(id) {
		return c, id, fmt.Errorf("cluster id %q is not 32 hex digits", c.ClusterID)
	}
	id = [16]byte(decoded)
	if len(c.ClusterName) > rpc.ClusterNameBytesMax {
		return c, id, fmt.Errorf("cluster name %q has over %d bytes", c.ClusterName, rpc.ClusterNameBytesMax)
	}
	for name, shards := range c.Shards {
		if shards < 1 || shards > ShardsMax {
			return c, id, fmt.Errorf("shards of keyspace %s: %d is not in 1…%d", name, shards, ShardsMax)
		}
	}
	for _, k := range kinds.Builtin {
		if shards, set := c.Shards[k.Name]; set && k.Divisor != 0 && shards != k.Divisor {
			return c, id, fmt.Errorf("shards of keyspace %s: it has %d, always", k.Name, k.Divisor)
		}
	}
	if c.CursorIdle, err = kinds.CheckCursorIdle(c.CursorIdle); err != nil {
		return c, id, err
	}
	if c.Limits == (dedup.Limits{}) {
		c.Limits = LimitsDefault
	}
	if err := c.Limits.Check(); err != nil {
		return c, id, err
	}
	if err := c.Cold.Check(); err != nil {
		return c, id, err
	}
	if err := tiering.CheckFeedIdle(c.FeedIdle); err != nil {
		return c, id, fmt.Errorf("feeds that are idle leave memory after: %w", err)
	}
	if c.MemoryLimit > 0 && c.MemoryLimit < tiering.MemoryLimitMin {
		return c, id, fmt.Errorf("a memory limit of %d bytes: at least %d are needed, or 0 for none", c.MemoryLimit, uint64(tiering.MemoryLimitMin))
	}
	return c, id, nil
}

// Handler answers a method of Config.Handlers; see rpc.Handler.
type Handler = func(ctx context.Context, request []byte) ([]byte, error)

// StreamHandler answers a method of Config.Streams.
type StreamHandler = rpc.StreamHandler

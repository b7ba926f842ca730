package shard

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/internal/names"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard/dirs"
	"github.com/countd/countd/shard/headroom"
	"github.com/countd/countd/shard/keyspace"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/storage"
	"github.com/countd/countd/shard/tiering"
)

// Config configures Open. Every field must be set unless its comment says otherwise.
type Config struct {
	Dir         string // directory for the groups of this node only
	NodeKey     string // belongs to this node for ever; Raft counts votes by it
	NodeName    string // for people
	Zone        string // may be ""
	ClusterID   string // 32 hex digits
	ClusterName string // in Status; nodes of another name are refused; "" for none
	Version     string
	ClusterAddr string // the address at which other nodes reach this one
	// Listener listens on ClusterAddr. If it is nil, Open listens there. Close closes it; if Open fails,
	// the caller must close it.
	Listener   net.Listener
	HTTPAddr   string // this and GossipAddr are stored in the catalog: for Status, admin calls and package cluster
	GossipAddr string
	Insecure   bool // only reported: whether other machines can reach a port that is open to anybody
	// CertProblems returns problems of this node's certificates for operators; nil for a node without
	// certificates.
	CertProblems func() []string
	// Bootstrap begins a new cluster with this node if Dir is empty. Without Bootstrap, an empty
	// node waits until a member of a cluster adds it.
	Bootstrap bool
	// NodesWanted is the number of nodes that a new cluster waits for before it creates the
	// built-in keyspaces. 0 means 1.
	NodesWanted int
	// VotersWanted is the number of voters of the catalog's group that a new cluster also waits
	// for. 0 means 1. Package cluster adds these voters. With three, no node is ready while the
	// loss of one node could stop the catalog.
	VotersWanted int
	Shards       map[string]int   // of built-in keyspaces, by name, used when they are created; may be nil
	LogStore     storage.LogStore // "" for the node's present one, or LogStoreDefault for a new node
	Limits       dedup.Limits     // zero for LimitsDefault
	CursorIdle   time.Duration    // how long cursors of unread numbers stay without a move; 0 for CursorIdleDefault
	MemoryLimit  uint64           // bytes, beyond which the node refuses new rows; 0 for none
	// CollectorPercent is the collector's goal that the process sets before memory is short; 0 if it never
	// changes the goal.
	CollectorPercent uint64
	DiskReserve      uint64             // bytes of disk that writes must leave free; 0 for none
	Cold             tiering.ColdConfig // zero for rows that stay in memory
	FeedIdle         time.Duration      // idle time after which a feed leaves memory; 0 for never
	// OutboxKeep is how long an outbox keeps a post, by the time in the post's id, and OutboxMax how many
	// posts it keeps; 0 for OutboxKeepDefault and OutboxMaxDefault.
	OutboxKeep time.Duration
	OutboxMax  int
	// MembersDir is the directory of sets of members; "" for Dir with the suffix -members. MembersMemory
	// bounds the memory for them in bytes; 0 for members.MemoryBytesDefault.
	MembersDir    string
	MembersMemory uint64
	// Opened records the groups of which this node has a replica, so that Open refuses to begin
	// again if a replica's files are lost. If Opened is nil, such a replica begins again.
	Opened dirs.Opened
	// Place chooses the nodes of a new keyspace's shards; nil for this node alone.
	Place func(view *catalog.View, shards int) [][]string
	// Handlers answer further calls of other nodes, by method; nil for none.
	Handlers map[string]Handler
	// Alive reports whether gossip sees a node, as a hint; nil for all nodes.
	Alive func(nodeKey string) bool
	// LiveAddr returns the cluster address that a living node gossips, or "". A node that restarted at
	// another address is reached there before it can put the address into the catalog. It must not wait.
	// nil for no gossip.
	LiveAddr func(nodeKey string) string
	// DialPeer connects to other nodes; see rpc.MuxConfig; nil for TCP.
	DialPeer rpc.DialPeer
	Logger   *slog.Logger
	Metrics  prometheus.Registerer
	// Fatal is called once, with the reason why the node must stop, by the goroutine that failed. It must
	// not call Close, and should end the process.
	Fatal func(error)
}

// LimitsDefault remembers a key for ten minutes, and a producer until it has been idle for a day. In each
// shard that saw it, a key takes about 90 B, a producer 160 B, and a forgotten producer 50 B.
var LimitsDefault = dedup.Limits{
	KeyHorizon:   10 * time.Minute,
	KeysMax:      dedup.KeysMaxMax,
	ProducerIdle: 24 * time.Hour,
	ProducersMax: 100_000,
}

// KeyHorizonMin is the least horizon with which a shard recognises every try of one write. A node
// tries for up to a minute. A forwarded part shares a call with younger parts, so the leader may
// propose it a minute after that. In these two minutes the log's time may advance by four, and a new
// leader's clock may be another minute ahead.
const KeyHorizonMin = 2*2*rpc.CallTimeoutMax + time.Minute

// CursorIdleDefault is how long the cursors of a user stay without a move. A user who returns later is
// like a new user.
const CursorIdleDefault = 30 * 24 * time.Hour

// withDefaults returns the config with defaults in place of zero values, and the cluster's id. It
// returns an error for a value out of bounds.
func (c Config) withDefaults() (_ Config, id [16]byte, _ error) {
	decoded, err := hex.DecodeString(c.ClusterID)
	if err != nil || len(decoded) != len(id) {
		return c, id, fmt.Errorf("cluster id %q is not 32 hex digits", c.ClusterID)
	}
	id = [16]byte(decoded)
	if len(c.ClusterName) > names.ClusterBytesMax {
		return c, id, fmt.Errorf("cluster name %q has over %d bytes", c.ClusterName, names.ClusterBytesMax)
	}
	for name, shards := range c.Shards {
		if shards < 1 || shards > ShardsMax {
			return c, id, fmt.Errorf("shards of keyspace %s: %d is not in 1…%d", name, shards, ShardsMax)
		}
	}
	if shards, set := c.Shards[KeyspaceBoard]; set && shards != keyspace.BoardShards {
		return c, id, fmt.Errorf("shards of keyspace %s: it has %d, always", KeyspaceBoard, keyspace.BoardShards)
	}
	if c.CursorIdle == 0 {
		c.CursorIdle = CursorIdleDefault
	}
	if c.CursorIdle < unread.CursorIdleMin || c.CursorIdle > unread.CursorIdleMax {
		return c, id, fmt.Errorf("cursors kept for %v: not in %v…%v", c.CursorIdle, unread.CursorIdleMin, unread.CursorIdleMax)
	}
	if c.OutboxKeep == 0 {
		c.OutboxKeep = OutboxKeepDefault
	}
	if c.OutboxMax == 0 {
		c.OutboxMax = OutboxMaxDefault
	}
	if err := checkOutbox(c.OutboxKeep, c.OutboxMax); err != nil {
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
	if c.MemoryLimit > 0 && c.MemoryLimit < headroom.MemoryLimitMin {
		return c, id, fmt.Errorf("a memory limit of %d bytes: at least %d are needed, or 0 for none", c.MemoryLimit, uint64(headroom.MemoryLimitMin))
	}
	return c, id, nil
}

// Handler answers a method of Config.Handlers; see rpc.Handler.
type Handler = func(ctx context.Context, request []byte) ([]byte, error)

// The defaults and bounds of Config.OutboxKeep and Config.OutboxMax.
const (
	OutboxKeepDefault = 30 * 24 * time.Hour
	OutboxKeepMin     = time.Minute
	OutboxKeepMax     = 100 * 365 * 24 * time.Hour
	OutboxMaxDefault  = 10_000
)

// checkOutbox returns an error if a value of Config.OutboxKeep or Config.OutboxMax is out of bounds.
func checkOutbox(keep time.Duration, posts int) error {
	switch {
	case keep < OutboxKeepMin || keep > OutboxKeepMax:
		return fmt.Errorf("posts kept for %v: not in %v…%v", keep, OutboxKeepMin, OutboxKeepMax)
	case posts < 1 || posts > outbox.PostsMax:
		return fmt.Errorf("%d posts kept: not in 1…%d", posts, outbox.PostsMax)
	}
	return nil
}

// outboxLimits returns the limits of a publish.
func (c *Config) outboxLimits() outbox.Limits {
	limits := outbox.Limits{Posts: c.OutboxMax}
	layout := c.Cold.Layouts[KeyspacePosts]
	if layout.Unit <= 0 {
		return limits
	}
	limits.Keep = max(1, uint64(c.OutboxKeep/layout.Unit))
	limits.Shift, limits.UnitMicros = uint8(layout.Shift), uint64(layout.Unit/time.Microsecond)
	limits.Epoch, limits.First = layout.Epoch, layout.First()
	return limits
}

package shard

import (
	"context"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/shard/dirs"
	"github.com/countd/countd/shard/headroom"
	"github.com/countd/countd/shard/keyspace"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/storage"
	"github.com/countd/countd/shard/tiering"
)

// Config configures Open. Every field but those that say otherwise must be set.
type Config struct {
	Dir         string // of this node's groups alone
	NodeKey     string // this node's for ever, never used by another; Raft counts votes by it
	NodeName    string // for people
	Zone        string // may be ""
	ClusterID   string // 32 hex digits
	ClusterName string // told in Status and to other nodes, which refuse another one; "" for none
	Version     string
	ClusterAddr string // where groups listen for each other
	// Listener listens on ClusterAddr; if it is nil, Open listens there. Close closes it. If
	// Open fails, the caller closes it.
	Listener   net.Listener
	HTTPAddr   string // these two are told in Status
	GossipAddr string
	Insecure   bool // told to operators: others than this machine reach a port that is open to anybody
	// CertProblems returns what operators should mend about this node's certificates; nil for
	// a node without any.
	CertProblems func() []string
	// Bootstrap makes a new cluster of this node if Dir holds none. Without it an
	// empty node waits until one that it has asked adds it.
	Bootstrap bool
	// NodesWanted is how many nodes a new cluster waits for until it makes the
	// built-in keyspaces; 0 for 1.
	NodesWanted int
	// VotersWanted is how many voters of the catalog it waits for besides; 0 for 1. They are added
	// by whoever places groups. So no node is ready while the loss of another can stop the catalog.
	VotersWanted int
	Shards       map[string]int   // of built-in keyspaces, read when they are first made; may be nil
	LogStore     storage.LogStore // "" for that which the node was made with, LogStoreDefault for a new one
	Limits       dedup.Limits     // zero for LimitsDefault
	CursorIdle   time.Duration    // how long cursors of unread numbers are kept without a move; 0 for CursorIdleDefault
	MemoryLimit  uint64           // bytes past which no new rows are taken; 0 for none
	// CollectorPercent is what the process brings the collector's goal down to before
	// memory is short, whatever it is now; 0 where it stays as it is set.
	CollectorPercent uint64
	DiskReserve      uint64             // bytes of disk that writes leave free; 0 for none
	Cold             tiering.ColdConfig // zero for rows that stay in memory
	FeedIdle         time.Duration      // for how long nobody asks for a feed until it leaves memory; 0 for never
	// OutboxKeep is for how long an outbox keeps a post, by the time in its id, and OutboxMax
	// how many posts; 0 for OutboxKeepDefault and OutboxMaxDefault.
	OutboxKeep time.Duration
	OutboxMax  int
	// MembersDir is where sets of members are; "" for a place beside Dir. MembersMemory bounds
	// the memory for them; 0 for MembersMemoryDefault.
	MembersDir    string
	MembersMemory uint64
	// Opened records the groups that this node has a replica of, so that one whose
	// files are lost is refused. nil for no record: it begins anew.
	Opened dirs.Opened
	// Place chooses the nodes of a new keyspace's shards. nil for this node alone.
	Place func(view *catalog.View, shards int) [][]string
	// Handlers answer further calls of other nodes, by name. nil for none.
	Handlers map[string]Handler
	// Alive tells whether a node seems to be there, as a hint. nil for all.
	Alive func(nodeKey string) bool
	// LiveAddr tells where a living node of this cluster says, by other ways than
	// the catalog, that it listens for others; "" for one that is not heard of. A
	// node that was started at another address is reached there before it can put
	// that into the catalog. It must not wait. nil for none.
	LiveAddr func(nodeKey string) string
	// DialPeer connects to other nodes; see rpc.MuxConfig. nil for TCP.
	DialPeer rpc.DialPeer
	Logger   *slog.Logger
	Metrics  prometheus.Registerer
	// Fatal receives, once, the reason why the node must stop serving. The goroutine that
	// failed calls it. It must not call Close, and should end the process.
	Fatal func(error)
}

// LimitsDefault remembers a key for ten minutes, and a producer until it has
// been idle for a day. A key takes some 90 B and a producer some 160 B, for each
// shard that saw it, and a producer that went 50 B.
var LimitsDefault = dedup.Limits{
	KeyHorizon:   10 * time.Minute,
	KeysMax:      dedup.KeysMaxMax,
	ProducerIdle: 24 * time.Hour,
	ProducersMax: 100_000,
}

// KeyHorizonMin is the shortest horizon of a key under which the tries of one write count
// once. A node makes tries for up to a minute. The log's time may run at twice the speed
// meanwhile, and continue under a leader whose clock is a minute ahead.
const KeyHorizonMin = 3 * time.Minute

// CursorIdleDefault is how long cursors are kept for a user who moves none: a user
// who returns later reads as new.
const CursorIdleDefault = 30 * 24 * time.Hour

// withDefaults returns the config with its zero values filled in and the cluster's id,
// or what is wrong with it.
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
	if shards, set := c.Shards[KeyspaceBoard]; set && shards != keyspace.BoardShards {
		return c, id, fmt.Errorf("shards of keyspace %s: it has %d, always", KeyspaceBoard, keyspace.BoardShards)
	}
	if c.CursorIdle == 0 {
		c.CursorIdle = CursorIdleDefault
	}
	if c.CursorIdle < raftfsm.CursorIdleMin || c.CursorIdle > raftfsm.CursorIdleMax {
		return c, id, fmt.Errorf("cursors kept for %v: not in %v…%v", c.CursorIdle, raftfsm.CursorIdleMin, raftfsm.CursorIdleMax)
	}
	if c.OutboxKeep == 0 {
		c.OutboxKeep = OutboxKeepDefault
	}
	if c.OutboxMax == 0 {
		c.OutboxMax = OutboxMaxDefault
	}
	if err := CheckOutbox(c.OutboxKeep, c.OutboxMax); err != nil {
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

// Handler answers one kind of call of other nodes; see rpc.Handler.
type Handler = func(ctx context.Context, request []byte) ([]byte, error)

// The defaults and bounds of Config.OutboxKeep and Config.OutboxMax.
const (
	OutboxKeepDefault = 30 * 24 * time.Hour
	OutboxKeepMin     = time.Minute
	OutboxKeepMax     = 100 * 365 * 24 * time.Hour
	OutboxMaxDefault  = 10_000
)

// CheckOutbox returns an error for values of Config.OutboxKeep and Config.OutboxMax out of
// their bounds.
func CheckOutbox(keep time.Duration, posts int) error {
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

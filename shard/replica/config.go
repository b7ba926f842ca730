package replica

import (
	"errors"
	"log/slog"
	"math"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/storage"
	"github.com/countd/countd/shard/stream"
)

// snapshotBytesDefault is the least log since the last snapshot that starts a new
// one: replayed in a second or two.
const snapshotBytesDefault = 64 << 20

// Config configures Open.
type Config struct {
	Dir    string // of this replica alone: its log and snapshots/
	Group  uint32 // its number in the cluster
	NodeID string // the key of this node, never used by another
	// Replica is the number of this replica, which with NodeID makes its Raft id.
	Replica uint64
	FSM     raft.BatchingFSM
	Mux     *rpc.Mux // the caller's; must outlive the group
	// Streams carries appends together with those of other groups. nil for none.
	Streams *stream.Streams // the caller's; must outlive the group
	Beats   *Beats          // of all groups of the node; nil for a group that is alone
	Logger  *slog.Logger
	// Fatal receives, once, the reason why this group has stopped for good. The goroutine
	// that failed calls it. It must not wait for the group. The process should end, because
	// the group serves no more.
	Fatal func(error)

	// Initial are the voters that a new group begins with: an empty replica
	// starts with this configuration, which must be the same at each of them,
	// and the first stands for election at once. Without it an empty replica
	// waits for a leader to add it.
	Initial []Member
	// Begun is called when the replica's log is on disk, before it votes or
	// acknowledges anything. Its error ends the opening. nil for nothing.
	Begun func() error
	// Addrs returns where a node listens now. nil for the address that the
	// configuration has.
	Addrs func(node string) (string, bool)

	// StateBytes is no less than what a snapshot would take now, but for what the
	// last one took besides. nil for next to nothing.
	StateBytes func() uint64
	// Room returns an error if the disk has no room for a snapshot of about so
	// many bytes, or else what to call once it is written. nil for always.
	Room func(bytes uint64) (give func(), err error)

	// Stuck says why the state machine applies nothing more, nil while it does. nil for
	// one that always does.
	Stuck func() error

	// Reopen is called, once, when the replica must be closed and opened again, and must
	// not wait for that: until then it takes no more calls of its peers. nil stops the
	// group for good instead.
	Reopen func()

	// Hangs is called when the log takes entries no more, and when it does again; nil for no
	// call. It must not wait.
	Hangs func(bool)

	// Cold stores this replica's cold rows; nil for none. ColdDamaged receives the error if
	// rows that a snapshot needs cannot be read.
	Cold        *cold.Group
	ColdDamaged func(error)
	// Members is where this replica's sets of members are; nil for nowhere.
	Members *members.Group

	LogStore      storage.LogStore // "" for LogStoreDefault
	NodeLog       *raftstore.Log   // of LogStoreShared, the caller's, must outlive the group; nil for a log of the replica alone
	SnapshotBytes int64            // 0 for snapshotBytesDefault
	DiskStallMax  time.Duration    // 0 for DiskStallMax
	Timing        Timing           // zero for TimingDefault
}

// Timing holds raft's timeouts. They are the same for a group of one
// voter and of three: one voter needs none of them (see Replica.campaign), and
// raft cannot change the lease of a group that gains voters.
type Timing struct {
	Heartbeat time.Duration // without a leader for this to twice this: an election
	Election  time.Duration // an election without result is repeated after this
	Lease     time.Duration // a leader without a majority for this steps down
	Commit    time.Duration // followers of an idle leader learn its commit index within this to twice this
}

// TimingDefault keeps many idle groups cheap: a follower has a heartbeat each
// 0.4–0.6 s (see raftTransport), and a leader that fails is replaced in 1–1.6 s
// (see Replica.DetectFailure). The lease has room for a heartbeat that waits for a beat and 0.35 s
// or, from beat to beat, 0.55 s until its answer.
var TimingDefault = Timing{
	Heartbeat: time.Second,
	Election:  time.Second,
	Lease:     950 * time.Millisecond,
	Commit:    500 * time.Millisecond,
}

const (
	// appendEntriesMax is how many entries raft takes from its queue into one
	// write, and sends to a follower in one call. Each entry is a batch by
	// itself, so more would not save a sync; a follower that catches up is
	// sent this many at once.
	appendEntriesMax = 64

	// A snapshot leaves entries of about dueBytes in front of it in the log, so
	// that a follower that was away for a short time, or that restores the
	// snapshot meanwhile, needs no other. raft wants it as a number of entries:
	// this is the least, and that of a snapshot of nothing new.
	trailingEntriesMin     = 128
	trailingEntriesDefault = 10240
)

func (c Config) withDefaults() (Config, error) {
	if c.Dir == "" || c.NodeID == "" || c.FSM == nil || c.Mux == nil || c.Fatal == nil {
		return c, errors.New("a group needs a directory, a node id, an FSM, a Mux and Fatal")
	}
	if c.SnapshotBytes < 0 || c.DiskStallMax < 0 || c.DiskStallMax > 0 && c.DiskStallMax < storage.StallTicks {
		return c, errors.New("a group's bounds are positive")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.LogStore == "" {
		c.LogStore = storage.LogStoreDefault
	}
	if err := c.LogStore.Check(); err != nil {
		return c, err
	}
	if c.Beats == nil {
		c.Beats = NewBeats()
	}
	if c.SnapshotBytes == 0 {
		c.SnapshotBytes = snapshotBytesDefault
	}
	if c.DiskStallMax == 0 {
		c.DiskStallMax = storage.DiskStallMax
	}
	if c.Timing == (Timing{}) {
		c.Timing = TimingDefault
	}
	return c, nil
}

// LogID names the replica in the node's log.
func (c *Config) LogID() raftstore.ReplicaID {
	return raftstore.ReplicaID{Group: c.Group, Number: c.Replica}
}

// Stores returns how the replica's stores are opened.
func (c *Config) Stores() storage.Config {
	return storage.Config{Dir: c.Dir, LogStore: c.LogStore, NodeLog: c.NodeLog, ID: c.LogID()}
}

// LogPath returns where the replica's log is.
func (c *Config) LogPath() string {
	stores := c.Stores()
	return stores.LogPath()
}

// ID returns the replica's Raft id.
func (c *Config) ID() raft.ServerID { return RaftID(c.NodeID, c.Replica) }

func (c Config) raftLogger() *raftLogger {
	return &raftLogger{slog: c.Mux.LimitedBy(c.Logger).With("group", c.Group), failures: c.Mux.Failures()}
}

// raftConfig returns what raft is started with. leadership is raft's NotifyCh.
func (c Config) raftConfig(leadership chan<- bool, logger *raftLogger) *raft.Config {
	conf := raft.DefaultConfig()
	conf.LocalID = c.ID()
	conf.HeartbeatTimeout = c.Timing.Heartbeat
	conf.ElectionTimeout = c.Timing.Election
	conf.LeaderLeaseTimeout = c.Timing.Lease
	conf.CommitTimeout = c.Timing.Commit
	conf.MaxAppendEntries = appendEntriesMax
	conf.BatchApplyCh = true
	// A replica that is removed stays a follower until its owner closes it:
	// nobody is surprised by a raft that has shut itself down.
	conf.ShutdownOnRemove = false
	// Snapshots are started by bytes, in Replica.runSnapshots, and never by
	// raft's own count of entries.
	conf.SnapshotThreshold = math.MaxUint64
	conf.SnapshotInterval = 365 * 24 * time.Hour
	conf.TrailingLogs = trailingEntriesDefault
	conf.NotifyCh = leadership
	conf.Logger = logger
	conf.NoLegacyTelemetry = true
	return conf
}

package replica

import (
	"errors"
	"log/slog"
	"math"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/storage"
	"github.com/countd/countd/shard/stream"
)

// snapshotBytesDefault is the default of Config.SnapshotBytes. A restart replays that much log in a
// second or two.
const snapshotBytesDefault = 64 << 20

// Config configures Open.
type Config struct {
	Dir    string // directory of this replica alone, with its log and snapshots/
	Group  uint32 // number of the group in the cluster
	NodeID string // key of this node, which no other node ever gets
	// Replica is the number of this replica. Together with NodeID it makes the Raft id.
	Replica uint64
	FSM     raft.BatchingFSM
	Mux     *rpc.Mux // the caller's; must outlive the group
	// Streams carries the appends of several groups together; if Streams is nil, each append uses a
	// connection of the group.
	Streams *stream.Streams // the caller's; must outlive the group
	Beats   *Beats          // shared by all groups of the node; nil for a single group
	Turns   *SnapshotTurns  // shared by all groups of the node; nil for snapshots without pauses
	Logger  *slog.Logger
	// Fatal is called once, in the failing goroutine, with the reason why this group has stopped
	// for good. It must not wait for the group. It should end the process, because the group no
	// longer serves.
	Fatal func(error)

	// Initial lists the first voters of a new group, in the same order on each voter. An empty
	// replica starts with this configuration, and the first voter of the list campaigns at once.
	// Without Initial, an empty replica waits until a leader adds it.
	Initial []Member
	// Begun is called after the replica's log is on disk, and before the replica votes or
	// acknowledges anything. If Begun returns an error, Open fails. nil for no call.
	Begun func() error
	// Addrs returns a node's current address. If Addrs is nil, the addresses of the Raft
	// configuration are used.
	Addrs func(node string) (string, bool)

	// StateBytes estimates the size of a snapshot taken now. It may omit parts that the last
	// snapshot also had, such as the request memory. nil means that snapshots are tiny.
	StateBytes func() uint64
	// Room reserves disk space for a snapshot of about that many bytes, or returns an error if the
	// disk lacks space. release ends the reservation. nil for no check.
	Room func(bytes uint64) (release func(), err error)

	// Machine is the state machine below FSM. If Machine is nil, it never becomes stuck and its shard
	// never grows.
	Machine Machine

	// Reopen is called once, when the replica must be closed and opened again. Reopen must not
	// wait until that is done. Until then the replica accepts no calls of its peers. If Reopen is
	// nil, the group stops for good instead.
	Reopen func()

	// Hangs is called with true when a write to the log hangs, and with false when writes succeed
	// again; nil for no call. It must not wait.
	Hangs func(bool)

	// Cold stores this replica's cold rows; nil for none. ColdDamaged is called with the error if
	// a snapshot cannot read cold rows or sets.
	Cold        *cold.Group
	ColdDamaged func(error)
	// Members stores this replica's sets of members; nil for none.
	Members *members.Group

	LogStore      storage.LogStore // "" for LogStoreDefault
	NodeLog       *raftstore.Log   // the node's shared log for LogStoreShared, which must outlive the group; nil if the replica has a log of its own
	SnapshotBytes int64            // 0 for snapshotBytesDefault
	DiskStallMax  time.Duration    // 0 for storage.DiskStallMax
	Timing        Timing           // zero for TimingDefault
}

// Machine is what a replica asks the state machine of its shard.
type Machine interface {
	// Stuck returns why the state machine cannot apply further entries, or nil if it can.
	Stuck() error
	raftfsm.Growing
}

// Timing has raft's timeouts. A group with a single voter needs no timeouts (see Replica.campaign).
// Its timeouts are set all the same, because raft cannot change the lease when the group gains
// voters.
type Timing struct {
	Heartbeat time.Duration // a follower campaigns after one to two times Heartbeat without a leader
	Election  time.Duration // an election without a result is repeated after Election
	Lease     time.Duration // a leader steps down if it reaches no majority for Lease
	Commit    time.Duration // followers of an idle leader learn its commit index after one to two times Commit
}

// TimingDefault keeps many idle groups cheap: a follower gets a heartbeat every 0.4–0.6 s (see
// raftTransport), and a failed leader is replaced in 1–1.6 s (see Replica.DetectFailure). The
// lease tolerates slow answers: an answer may take 0.35 s after the longest heartbeat interval of
// 0.6 s, and 0.55 s after an interval of heartbeatEvery.
var TimingDefault = Timing{
	Heartbeat: time.Second,
	Election:  time.Second,
	Lease:     950 * time.Millisecond,
	Commit:    500 * time.Millisecond,
}

const (
	// appendEntriesMax is the maximum number of entries that raft writes to its log at once, and
	// sends to a follower in one call. Each entry is already a batch, so a larger maximum would not
	// save a sync.
	appendEntriesMax = 64

	// After a snapshot, about dueBytes of the entries that it covers stay in the log. So a follower
	// that was away briefly, or that is still restoring the snapshot, needs no other snapshot.
	// raft's setting for this is a number of entries, which setTrailing computes. It is at least
	// trailingEntriesMin, and trailingEntriesDefault while the log has no new entries.
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

// stuck returns the result of Machine.Stuck.
func (c *Config) stuck() error {
	if c.Machine == nil {
		return nil
	}
	return c.Machine.Stuck()
}

// LogID identifies the replica in the node's log.
func (c *Config) LogID() raftstore.ReplicaID {
	return raftstore.ReplicaID{Group: c.Group, Number: c.Replica}
}

// Stores returns the configuration of the replica's stores.
func (c *Config) Stores() storage.Config {
	return storage.Config{Dir: c.Dir, LogStore: c.LogStore, NodeLog: c.NodeLog, ID: c.LogID()}
}

// LogPath returns the path of the replica's log.
func (c *Config) LogPath() string {
	stores := c.Stores()
	return stores.LogPath()
}

// ID returns the replica's Raft id.
func (c *Config) ID() raft.ServerID { return RaftID(c.NodeID, c.Replica) }

func (c Config) raftLogger() *raftLogger {
	return &raftLogger{Logger: hclog.NewNullLogger(), slog: c.Mux.LimitedBy(c.Logger).With("group", c.Group), failures: c.Mux.Failures()}
}

// raftConfig returns raft's configuration. leadership becomes raft's NotifyCh.
func (c Config) raftConfig(leadership chan<- bool, logger *raftLogger) *raft.Config {
	conf := raft.DefaultConfig()
	conf.LocalID = c.ID()
	conf.HeartbeatTimeout = c.Timing.Heartbeat
	conf.ElectionTimeout = c.Timing.Election
	conf.LeaderLeaseTimeout = c.Timing.Lease
	conf.CommitTimeout = c.Timing.Commit
	conf.MaxAppendEntries = appendEntriesMax
	conf.BatchApplyCh = true
	// A removed replica stays a follower until its owner closes it. Otherwise raft would shut
	// itself down.
	conf.ShutdownOnRemove = false
	// Snapshotter.run starts snapshots by bytes, so raft must start none by its count of
	// entries.
	conf.SnapshotThreshold = math.MaxUint64
	conf.SnapshotInterval = 365 * 24 * time.Hour
	conf.TrailingLogs = trailingEntriesDefault
	conf.NotifyCh = leadership
	conf.Logger = logger
	conf.NoLegacyTelemetry = true
	return conf
}

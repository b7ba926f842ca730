package shard

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/board"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/headroom"
	"github.com/countd/countd/shard/keyspace"
	"github.com/countd/countd/shard/membership"
	"github.com/countd/countd/shard/sourcesink"
)

// The errors of this package that a caller may distinguish. All but ErrOutcomeUnknown promise that this
// call applied nothing, or inside a PartialError only the ops that it names. An earlier call of the
// same identity may have applied something: ErrMemoryFull and ErrDiskFull, for example, refuse a
// repeat like a first call.
var (
	// ErrUnreadable is returned, as an UnreadableError and together with ErrNoQuorum, for rows that are
	// damaged on the disk of the only node that has them.
	ErrUnreadable = errors.New("the shard has rows on disk that are damaged")
	// ErrKeyAhead is returned, together with ErrExpired, for a key whose time is so far ahead that the
	// shard could not remember the key until then.
	ErrKeyAhead = errors.New("the time in the key (a UUIDv7) is too far ahead of the server's")
	// ErrNotCounters is returned for an op with a member on a keyspace of another kind.
	ErrNotCounters = errors.New("only keyspaces of counters have members")

	// Package errs documents these. ErrMemoryFull is returned as a NewRowError.
	ErrOverloaded      = errs.ErrOverloaded
	ErrTooLate         = errs.ErrTooLate
	ErrNoLeader        = errs.ErrNoLeader
	ErrNoQuorum        = errs.ErrNoQuorum
	ErrDraining        = errs.ErrDraining
	ErrDrained         = errs.ErrDrained
	ErrOutcomeUnknown  = errs.ErrOutcomeUnknown
	ErrMemoryFull      = errs.ErrMemoryFull
	ErrDiskFull        = errs.ErrDiskFull
	ErrConflict        = errs.ErrConflict
	ErrExpired         = errs.ErrExpired
	ErrKeyspaceExists  = errs.ErrKeyspaceExists
	ErrUnknownKeyspace = errs.ErrUnknownKeyspace
	ErrUnknownColumn   = errs.ErrUnknownColumn
	ErrBadToken        = errs.ErrBadToken
)

// LeaderView is the leader's view of a group's members.
type LeaderView = membership.LeaderView

// ArgumentError is returned by CreateKeyspace, AddColumns and SetEverywhere for a bad name or value.
type ArgumentError = errs.ArgumentError

// PartialError is returned by Write if the outcomes of the shards differ. Applied and Unknown hold the
// ids of ops in the order of the request, with duplicates. An op in neither was not applied: its
// shard refused it, or its sum overflowed. For a repeat, Applied includes ops that an earlier call
// applied, and Unknown includes Write.Unknown. The Write holds the answers of the ops for which Of
// returns nil.
type PartialError struct {
	Err     error // the worst of the shards' errors; Unwrap returns it
	Applied []uint64
	Unknown []uint64
	// AppliedOps and UnknownOps are the same ops by number: over several keyspaces, an id may name
	// several ops.
	AppliedOps, UnknownOps []int
	ByShard                []error // nil for shards that answered or had no op

	hash bool // raftfsm.Route.Hash
}

// Of returns the error of an id's shard, or nil if that shard answered. The write must be to one
// keyspace and have an op for the id.
func (e *PartialError) Of(id uint64) error {
	if len(e.ByShard) == 0 {
		return e.Err
	}
	s, _ := raftfsm.Route{Shards: uint64(len(e.ByShard)), Hash: e.hash}.KeyOf(id)
	return e.ByShard[s]
}

func (e *PartialError) Error() string {
	return fmt.Sprintf("%v (%d ops applied, %d unknown)", e.Err, len(e.Applied), len(e.Unknown))
}

func (e *PartialError) Unwrap() error { return e.Err }

// ReadError is returned by Read if some of the shards could not be read. The answers for ids for which
// Of returns nil were read.
type ReadError struct {
	ByShard []error // nil for shards that were read or not needed

	hash bool // raftfsm.Route.Hash
}

func (e *ReadError) Error() string { return errors.Join(e.ByShard...).Error() }

func (e *ReadError) Unwrap() []error {
	return slices.DeleteFunc(slices.Clone(e.ByShard), func(err error) bool { return err == nil })
}

// Of returns the error of the shard of a requested id, or nil if that shard was read.
func (e *ReadError) Of(id uint64) error {
	s, _ := raftfsm.Route{Shards: uint64(len(e.ByShard)), Hash: e.hash}.KeyOf(id)
	return e.ByShard[s]
}

// UnreadableError names the shard of an ErrUnreadable.
type UnreadableError struct {
	Keyspace string
	Shard    int
	Err      error // an ErrNoQuorum with the error of the disk
}

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("%v: shard %d of keyspace %s", ErrUnreadable, e.Shard, e.Keyspace)
}

func (e *UnreadableError) Unwrap() []error { return []error{ErrUnreadable, e.Err} }

// NewRowError is returned for a write that needs a new row, or wider rows, while memory is full. The
// node applies nothing of the write. It wraps ErrMemoryFull.
type NewRowError struct {
	Op    int  // the number of the first such op
	Wider bool // the op makes no row, but widens the rows near its own
}

func (e *NewRowError) Error() string {
	if e.Wider {
		return fmt.Sprintf("%v: op %d widens the rows near its own", ErrMemoryFull, e.Op)
	}
	return fmt.Sprintf("%v: op %d makes a row", ErrMemoryFull, e.Op)
}

func (e *NewRowError) Unwrap() error { return ErrMemoryFull }

// DiskFullError is returned for a write to a node whose disk has too little free space. It wraps
// ErrDiskFull.
type DiskFullError = headroom.DiskFullError

// Keyspace describes a keyspace.
type Keyspace = keyspace.Keyspace

// The kinds of keyspaces, and the names of the built-in ones.
const (
	KindCounters = keyspace.KindCounters
	KindUnread   = keyspace.KindUnread
	KindFeed     = keyspace.KindFeed
	KindBoard    = keyspace.KindBoard

	KeyspacePosts  = keyspace.Posts
	KeyspaceUsers  = keyspace.Users
	KeyspaceUnread = keyspace.Unread
	KeyspaceFeed   = keyspace.Feed
	KeyspaceBoard  = keyspace.Board
)

// The bounds of keyspaces, and the ways in which a keyspace spreads its ids over its shards.
const (
	ShardsDefault  = keyspace.ShardsDefault
	ShardsMax      = keyspace.ShardsMax
	ShardingModulo = keyspace.ShardingModulo
	ShardingHash   = keyspace.ShardingHash
)

// IsBuiltin reports whether the keyspace of a name is built in.
func IsBuiltin(name string) bool { return keyspace.IsBuiltin(name) }

// Consistency is how fresh a read must be.
type Consistency uint8

const (
	// Bounded reads a replica that was proved to be fresh within ReadOptions.MaxStaleness. It is the
	// default.
	Bounded Consistency = iota
	// Stale reads any replica without a check of its age, this node's if there is one.
	Stale
	// Linearizable sees every write that was acknowledged before the read began.
	Linearizable
)

// MaxStalenessDefault is the MaxStaleness of Bounded reads that set none.
const MaxStalenessDefault = time.Second

// ReadOptions are the freshness and the deadline of a read.
type ReadOptions struct {
	Consistency  Consistency
	MaxStaleness time.Duration // Bounded only; 0 means MaxStalenessDefault
	Token        Token         // names writes that the read must see; zero for none
	Deadline     time.Time     // must be set
}

// RequestID identifies a request in its keyspace. It refers to the caller's bytes until Node.Write
// returns.
type RequestID = dedup.RequestID

// ByProducer identifies the request with number seq of a producer, whose name has 1 to
// ProducerBytesMax bytes.
func ByProducer(producer []byte, seq uint64) RequestID { return dedup.ByProducer(producer, seq) }

// ByKey identifies a request by a key of the client, of 1 to KeyBytesMax bytes. meaning has the
// contents of the request: a repeat must have the same.
func ByKey(key []byte, meaning ...[]byte) RequestID { return dedup.ByKey(key, meaning...) }

// The bounds of identities of requests.
const (
	ProducerBytesMax = dedup.ProducerBytesMax
	KeyBytesMax      = dedup.KeyBytesMax
)

// Write is a write request. It is also the answer once Node.Write has returned nil or, for some shards,
// a PartialError. The caller owns it and everything in it again once Node.Write has returned, even
// with ErrOutcomeUnknown: the node keeps no reference to it.
type Write struct {
	Ops   []engine.Op   // ids as the client knows them
	Table raftfsm.Table // for an unread keyspace: the table of all ops
	Feeds []feed.Op     // for a feed keyspace: by op; only the ids of Ops are used
	Board *board.Op     // for the board: its only op; the id of Ops[0] is 0
	// Outbox has ops on outboxes of a counter keyspace, by op. The ids of Ops are the authors, and Rows
	// are their rows. Unless Repeated, an op that changed nothing has a cut of counters.UnchangedColumn.
	// An op that was refused as too old has an overflow of counters.TooOldColumn. Node.Write sets the
	// limits of a publish.
	Outbox []outbox.Op
	ID     RequestID // the request is applied once for each ID; zero promises nothing
	// Spaces are the keyspaces of a write to several keyspaces, of counters and of unread counts. In has
	// the index in Spaces for each op. Spaces[0] is the keyspace of the call of Write, and its shards
	// judge keys, so it must not depend on the ops. Both are empty for a write to one keyspace.
	Spaces   []*Keyspace
	In       []uint8
	Width    int       // columns of each result row; 0 for no results
	Deadline time.Time // must be set
	// Permission is checked right before each proposal, because a write may wait long for reads or for a
	// leader. It is nil for a write of the node itself.
	Permission Permission

	Rows      []int64           // len(Ops)*Width: each row as it was right after its own op
	Overflows []engine.Overflow // refused ops, ascending by index; their rows are unchanged
	Cuts      []engine.Cut      // deltas that floors cut short, ascending by index of the op; none for a repeat
	Changed   []int             // indexes of the member ops that changed their set, ascending; none for a repeat
	Unknown   []int             // for a repeat: indexes of ops that were applied or refused, which is no longer known; ascending
	// Duplicate reports that the request came before. For a key, the shard that judges the key decides:
	// one of several concurrent copies gets false, and a retry that applies missing parts gets true. For a
	// producer, it is true if every shard had applied its part. In both cases it is also true if a
	// shard had applied its part, its answer was lost, and the node proposed the part again. Rows then
	// hold the present counts.
	Duplicate bool
	// Repeated reports that this call applied no op, because each had been applied or refused before. For
	// a write to one row it is more precise than Duplicate.
	Repeated bool
	Token    Token

	// sections has the identity of each part of a write of a source or a restore, by shard over all
	// Spaces; nil for a shard without a part. A part may have no ops. answers has the outcome of each
	// part; the error of the write does not cover them.
	sections []*RequestID
	answers  []sourcesink.Answer

	first []int // by keyspace of Spaces: the index of its first shard among all shards
}

// Permission checks whether the caller of a write may still make it.
type Permission interface {
	// Still returns nil, or the error of the write.
	Still() error
}

// Permitted returns nil if the caller of the write may make it now.
func (w *Write) Permitted() error {
	if w.Permission == nil {
		return nil
	}
	return w.Permission.Still()
}

// Status describes a node, its groups, and the cluster as this node knows it.
type Status struct {
	ClusterID   string        `json:"cluster_id"`
	ClusterName string        `json:"cluster_name,omitempty"` // "" for none
	Node        string        `json:"node"`                   // the name of the node that answers
	Nodes       []NodeStatus  `json:"nodes"`
	Groups      []GroupStatus `json:"groups"`
}

// NodeStatus describes one node of the cluster.
type NodeStatus struct {
	ID          string `json:"id"`  // name of the node
	Key         string `json:"key"` // unique, unlike the name, which another node may have had
	Zone        string `json:"zone"`
	State       string `json:"state"` // alive, stopping, dead, draining or leaving
	Version     string `json:"version"`
	HTTPAddr    string `json:"http_addr"`
	ClusterAddr string `json:"cluster_addr"`
	GossipAddr  string `json:"gossip_addr"`
}

// GroupStatus describes this node's replica of one Raft group. Digest is that of the state at
// AppliedIndex: two replicas of equal AppliedIndex have equal digests.
type GroupStatus struct {
	ID            uint32         `json:"id"`
	Replica       string         `json:"replica"`  // the Raft id of this node's replica
	Keyspace      string         `json:"keyspace"` // "meta" for the group of the catalog
	Shard         int            `json:"shard"`
	Role          string         `json:"role"`   // leader, follower, candidate
	Leader        string         `json:"leader"` // name of the node; "" if unknown
	Term          uint64         `json:"term"`
	AppliedIndex  uint64         `json:"applied_index"`
	CommitIndex   uint64         `json:"commit_index"`
	SnapshotIndex uint64         `json:"snapshot_index"`
	Digest        string         `json:"digest"` // 16 hex digits
	Rows          uint64         `json:"rows"`
	Bytes         uint64         `json:"bytes"` // memory of the tables, including overflow and directory
	ColdRows      uint64         `json:"cold_rows"`
	ColdBytes     uint64         `json:"cold_bytes"`   // on disk
	ColdDamaged   bool           `json:"cold_damaged"` // cold rows here cannot be read
	SealedRows    uint64         `json:"sealed_rows"`
	SealedBytes   uint64         `json:"sealed_bytes"` // of memory, included in Bytes
	Members       []MemberStatus `json:"members"`
}

// MemberStatus describes a member of a group's latest configuration.
type MemberStatus struct {
	Node    string `json:"node"`
	Key     string `json:"key"`
	Replica string `json:"replica"` // the Raft id: the key, and a number that no other replica of the group ever had
	Voter   bool   `json:"voter"`
}

package shard

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/outbox"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/headroom"
	"github.com/countd/countd/shard/keyspace"
	"github.com/countd/countd/shard/membership"
	"github.com/countd/countd/shard/sourcesink"
)

// The errors of this package that a caller may tell apart. All but
// ErrOutcomeUnknown promise that this call applied nothing, or inside a
// PartialError nothing but what it names. An earlier call of the same identity
// may have: a repeat too is refused, as one that comes first would be, with
// ErrMemoryFull or ErrDiskFull for one.
var (
	// ErrUnreadable is returned, as an UnreadableError, for rows that are damaged on the
	// disk of the only node that has them. It is beside ErrNoQuorum.
	ErrUnreadable = errors.New("the shard has rows on disk that are damaged")
	// ErrKeyAhead is returned, beside ErrExpired, when a key's own time lies so
	// far ahead that it could not be remembered until then.
	ErrKeyAhead = errors.New("the time in the key (a UUIDv7) is too far ahead of the server's")
	// ErrNotCounters is returned for an op with a member on a keyspace of another kind.
	ErrNotCounters = errors.New("only keyspaces of counters have members")

	// Package errs says when these are returned. ErrMemoryFull comes as a NewRowError.
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

// LeaderView is what the leader of a group knows of its members.
type LeaderView = membership.LeaderView

// ArgumentError is returned by CreateKeyspace, AddColumns and SetEverywhere for a bad
// name or bound.
type ArgumentError = errs.ArgumentError

// PartialError is returned by Write when a request's shards did not fare alike.
// Applied and Unknown hold the ids of ops in the order of the request, doubles
// kept. What is in neither was not applied: its shard refused it, or its sum
// overflowed. A repeat's Applied are those that an earlier call applied too, and
// its Unknown those of Write.Unknown too. The Write holds the answer of the ops
// for which Of returns nil.
type PartialError struct {
	Err     error // the worst of the shards' errors; Unwrap returns it
	Applied []uint64
	Unknown []uint64
	// AppliedOps and UnknownOps are the same ops by number: over several keyspaces an id
	// does not name one.
	AppliedOps, UnknownOps []int
	ByShard                []error // nil for those that answered or had no op

	hash bool // of the keyspace's route
}

// Of returns the error of the shard of an id that the write, to one keyspace, had an op
// for, or nil where that shard answered.
func (e *PartialError) Of(id uint64) error {
	if len(e.ByShard) == 0 {
		return e.Err
	}
	s, _ := keyspace.Route{Shards: uint64(len(e.ByShard)), Hash: e.hash}.KeyOf(id)
	return e.ByShard[s]
}

func (e *PartialError) Error() string {
	return fmt.Sprintf("%v (%d ops applied, %d unknown)", e.Err, len(e.Applied), len(e.Unknown))
}

func (e *PartialError) Unwrap() error { return e.Err }

// ReadError is returned by Get when some of the shards could not be read. Rows of
// ids for which Of returns nil were.
type ReadError struct {
	ByShard []error // nil for those that were read or not asked

	hash bool // of the keyspace's route
}

func (e *ReadError) Error() string { return errors.Join(e.ByShard...).Error() }

func (e *ReadError) Unwrap() []error {
	return slices.DeleteFunc(slices.Clone(e.ByShard), func(err error) bool { return err == nil })
}

// Of returns the error of the shard of an id that was asked for, or nil where
// that shard was read.
func (e *ReadError) Of(id uint64) error {
	s, _ := keyspace.Route{Shards: uint64(len(e.ByShard)), Hash: e.hash}.KeyOf(id)
	return e.ByShard[s]
}

// UnreadableError names the shard of an ErrUnreadable.
type UnreadableError struct {
	Keyspace string
	Shard    int
	Err      error // the ErrNoQuorum that it is, with what the disk said
}

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("%v: shard %d of keyspace %s", ErrUnreadable, e.Shard, e.Keyspace)
}

func (e *UnreadableError) Unwrap() []error { return []error{ErrUnreadable, e.Err} }

// NewRowError is returned for a write that needs a new row, or wider rows, while there is
// no memory for them. None of the write is applied. It is an ErrMemoryFull.
type NewRowError struct {
	Op    int  // the first op that does, by number
	Wider bool // it makes no row, but counts in a column that no row near its has
}

func (e *NewRowError) Error() string {
	if e.Wider {
		return fmt.Sprintf("%v: op %d widens the rows near its own", ErrMemoryFull, e.Op)
	}
	return fmt.Sprintf("%v: op %d makes a row", ErrMemoryFull, e.Op)
}

func (e *NewRowError) Unwrap() error { return ErrMemoryFull }

// DiskFullError is returned for a write to a node whose disk has too little free. It is
// an ErrDiskFull.
type DiskFullError = headroom.DiskFullError

// Keyspace describes one named table.
type Keyspace = keyspace.Keyspace

// The kinds of keyspaces, and the names of those that every cluster begins with.
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

// The bounds of keyspaces, and the ways in which one spreads its ids over its shards.
const (
	ShardsDefault  = keyspace.ShardsDefault
	ShardsMax      = keyspace.ShardsMax
	ShardingModulo = keyspace.ShardingModulo
	ShardingHash   = keyspace.ShardingHash
)

// IsBuiltin reports whether every cluster begins with a keyspace of this name.
func IsBuiltin(name string) bool { return keyspace.IsBuiltin(name) }

// Consistency is how fresh a read must be.
type Consistency uint8

const (
	// Bounded answers from a replica that has proved itself fresh within
	// ReadOptions.MaxStaleness. The default.
	Bounded Consistency = iota
	// Stale answers from this node's replica as it is.
	Stale
	// Linearizable sees every write acknowledged before the read began.
	Linearizable
)

// MaxStalenessDefault is used for Bounded reads that do not say.
const MaxStalenessDefault = time.Second

// ReadOptions says how fresh a read must be and until when it may wait.
type ReadOptions struct {
	Consistency  Consistency
	MaxStaleness time.Duration // Bounded only; 0 means MaxStalenessDefault
	Token        Token         // writes that the read must see; zero for none
	Deadline     time.Time     // always set
	// SkipUnreadable has a Stale Scan leave out shards of which no living node has a
	// replica, and name them.
	SkipUnreadable bool
}

// RequestID tells a request from all others of its keyspace. It holds the
// caller's bytes until Node.Write has returned.
type RequestID = dedup.RequestID

// ByProducer names the request of number seq, any number, of the stream of a
// producer, 1…ProducerBytesMax bytes.
func ByProducer(producer []byte, seq uint64) RequestID { return dedup.ByProducer(producer, seq) }

// ByKey names a request by a key that the client chose, 1…KeyBytesMax bytes.
// asked is what a repeat must ask for again.
func ByKey(key []byte, asked ...[]byte) RequestID { return dedup.ByKey(key, asked...) }

// The bounds of what tells requests apart.
const (
	ProducerBytesMax = dedup.ProducerBytesMax
	KeyBytesMax      = dedup.KeyBytesMax
)

// Write is one write request and, after Node.Write returned nil or, in parts, a
// PartialError, its answer.
// The caller owns it and everything in it again once Write has returned; with
// ErrOutcomeUnknown too, because the node keeps no reference to it.
type Write struct {
	Ops   []engine.Op      // ids as the client knows them
	Table raftfsm.Table    // of an unread keyspace: which one all ops are for
	Feeds []raftfsm.FeedOp // of a feed keyspace: in place of the ops, of which only the ids are looked at
	Board *raftfsm.BoardOp // of a board keyspace: in place of the one op, likewise; its id is 0
	// Outbox holds ops on outboxes of a counter keyspace, in place of the ops, likewise: the
	// ids of those are the authors. Rows are those of the authors. One that changed nothing
	// has a cut of raftfsm.UnchangedColumn, unless Repeated; one that was refused as too old
	// has an overflow of raftfsm.TooOldColumn. Node.Write sets the limits of a publish.
	Outbox []outbox.Op
	ID     RequestID // applies the request once; zero for no such promise
	// Spaces are the keyspaces of a write over several, of counters and of unread
	// counts, each once, and In the number there of each op's. The first is the one that
	// Write is called with, and judges keys: it must be the same whatever the ops are.
	// Both are empty for a write to one keyspace.
	Spaces   []*Keyspace
	In       []uint8
	Width    int       // columns of each result row; 0 for no results
	Deadline time.Time // always set
	// Permission is asked right before each proposal; nil for a write of the node itself. A
	// write may wait long before that: for reads, or for a leader.
	Permission Permission

	Rows      []int64           // len(Ops)*Width: each row right after its own op
	Overflows []engine.Overflow // ops refused, by index, rising; their rows hold what is unchanged
	Cuts      []engine.Cut      // deltas that floors cut short, by index of the op, rising; a repeat has none
	Changed   []int             // member ops that changed their set, by index, rising; a repeat has none
	Unknown   []int             // of a repeat: ops that were applied or refused before, which of both is no longer known; by index, rising
	// Duplicate reports that the request came before. For a key the shard that judges the
	// key decides: of copies sent at once one gets false, and a retry that completes the
	// rest gets true. For a producer it is true if every shard had applied its part. For
	// both it is also true if a shard had applied its part, its answer was lost, and the
	// node asked it again. Rows then hold the present counts.
	Duplicate bool
	// Repeated reports that this call applied no op, because each op had been applied or
	// refused before. For a write to one row it tells more than Duplicate.
	Repeated bool
	Token    Token

	// sections are the identities of the parts of a write for a source, by shard over all
	// Spaces, or of a restore; nil for a shard without a part. A part needs no ops. answers
	// tells what became of each: the error of the write does not.
	sections []*RequestID
	answers  []sourcesink.Answer

	first []int // by keyspace of Spaces: the place of its first shard among all
}

// Permission tells whether the caller of a write may still make it.
type Permission interface {
	// Still returns nil, or the error that the write ends with.
	Still() error
}

// Permitted returns nil if the caller of the write may make it now.
func (w *Write) Permitted() error {
	if w.Permission == nil {
		return nil
	}
	return w.Permission.Still()
}

// ScanResult is one page of Node.Scan in ascending id order.
type ScanResult struct {
	IDs  []uint64
	Rows []int64 // len(IDs)*width
	More bool    // there may be rows after the last id
	// Unreadable are the shards that were left out, ascending: ReadOptions asked for it.
	Unreadable []int
}

// Status is what a node knows of itself and its groups.
type Status struct {
	ClusterID   string        `json:"cluster_id"`
	ClusterName string        `json:"cluster_name,omitempty"` // "" for none
	Node        string        `json:"node"`                   // which of the nodes answers
	Nodes       []NodeStatus  `json:"nodes"`
	Groups      []GroupStatus `json:"groups"`
}

// NodeStatus describes one node of the cluster.
type NodeStatus struct {
	ID          string `json:"id"`  // its name
	Key         string `json:"key"` // tells it from others that had the name
	Zone        string `json:"zone"`
	State       string `json:"state"` // alive, stopping, dead, draining or leaving
	Version     string `json:"version"`
	HTTPAddr    string `json:"http_addr"`
	ClusterAddr string `json:"cluster_addr"`
	GossipAddr  string `json:"gossip_addr"`
}

// GroupStatus describes this node's replica of one Raft group. Digest is taken
// at AppliedIndex: two replicas of equal AppliedIndex have equal digests.
type GroupStatus struct {
	ID            uint32         `json:"id"`
	Replica       string         `json:"replica"`  // the Raft id of this node's replica
	Keyspace      string         `json:"keyspace"` // "meta" for the group of the catalog
	Shard         int            `json:"shard"`
	Role          string         `json:"role"`   // leader, follower, candidate
	Leader        string         `json:"leader"` // node id, "" when not known
	Term          uint64         `json:"term"`
	AppliedIndex  uint64         `json:"applied_index"`
	CommitIndex   uint64         `json:"commit_index"`
	SnapshotIndex uint64         `json:"snapshot_index"`
	Digest        string         `json:"digest"` // 16 hex digits
	Rows          uint64         `json:"rows"`
	Bytes         uint64         `json:"bytes"` // memory of the tables, overflow and directory included
	ColdRows      uint64         `json:"cold_rows"`
	ColdBytes     uint64         `json:"cold_bytes"`   // of disk
	ColdDamaged   bool           `json:"cold_damaged"` // cold rows here cannot be read
	SealedRows    uint64         `json:"sealed_rows"`
	SealedBytes   uint64         `json:"sealed_bytes"` // of memory, among Bytes
	Members       []MemberStatus `json:"members"`
}

// MemberStatus is one member of a group's latest configuration.
type MemberStatus struct {
	Node    string `json:"node"`
	Key     string `json:"key"`
	Replica string `json:"replica"` // the Raft id: the key, and a number that no other replica of the group had
	Voter   bool   `json:"voter"`
}

package leadership

import (
	"slices"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/tiering"
)

// Status describes a node, its groups, and the cluster as this node knows it.
type Status struct {
	ClusterID   string        `json:"cluster_id"`
	ClusterName string        `json:"cluster_name,omitempty"` // "" for none
	Node        string        `json:"node"`                   // name of the answering node
	Nodes       []NodeStatus  `json:"nodes"`
	Groups      []GroupStatus `json:"groups"`
}

// NodeStatus describes one node of the cluster.
type NodeStatus struct {
	ID          string `json:"id"`  // name of the node
	Key         string `json:"key"` // unique for ever, unlike the name
	Zone        string `json:"zone"`
	State       string `json:"state"` // alive, stopping, dead, draining or leaving
	Version     string `json:"version"`
	HTTPAddr    string `json:"http_addr"`
	ClusterAddr string `json:"cluster_addr"`
	GossipAddr  string `json:"gossip_addr"`
}

// GroupStatus describes this node's replica of one Raft group. Digest is the digest of the state at
// AppliedIndex: two replicas of a group with the same AppliedIndex have the same Digest.
type GroupStatus struct {
	ID            uint32         `json:"id"`
	Replica       string         `json:"replica"`  // Raft id of this node's replica
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
	Bytes         uint64         `json:"bytes"` // memory of the tables, including their overflow and directory
	ColdRows      uint64         `json:"cold_rows"`
	ColdBytes     uint64         `json:"cold_bytes"`   // on disk
	ColdDamaged   bool           `json:"cold_damaged"` // cold rows of this replica cannot be read
	SealedRows    uint64         `json:"sealed_rows"`
	SealedBytes   uint64         `json:"sealed_bytes"` // memory of packed rows, included in Bytes
	Members       []MemberStatus `json:"members"`
}

// MemberStatus describes a member of a group's latest configuration.
type MemberStatus struct {
	Node    string `json:"node"`
	Key     string `json:"key"`
	Replica string `json:"replica"` // Raft id: the node's key, and a number that the node never reuses in this group
	Voter   bool   `json:"voter"`
}

// Votes reports whether the replica is a voter, according to its own configuration.
func (s *GroupStatus) Votes() bool {
	return slices.ContainsFunc(s.Members, func(m MemberStatus) bool { return m.Replica == s.Replica && m.Voter })
}

// NodeReport describes a node and its replicas.
type NodeReport struct {
	Life      string          `json:"life"`      // random id of the process's run
	NotReady  string          `json:"not_ready"` // why the node cannot serve; "" if it can
	DiskHangs bool            `json:"disk_hangs,omitempty"`
	Insecure  bool            `json:"insecure,omitempty"` // a port that needs no credentials is reachable from other machines
	Replicas  []ReplicaReport `json:"replicas"`
	// Memory and Disk are as of the node's last check.
	Memory tiering.Usage `json:"memory"`
	Disk   tiering.Usage `json:"disk"`
	// OpsWritten counts the ops that this node has written since its start, for clients and for
	// the sources that it reads. IDsRead counts the ids of reads; a read without ids counts as
	// one. Repeats and calls of other nodes do not count.
	OpsWritten   uint64   `json:"ops_written"`
	IDsRead      uint64   `json:"ids_read"`
	CertProblems []string `json:"cert_problems,omitempty"` // problems of this node's certificates, for operators
	Restoring    string   `json:"restoring,omitempty"`     // a keyspace that this node restores, or ""
	// Backups is set on a node with --backup-to. BackupProblem is what is wrong with the backups that the catalog's
	// leader makes, or "".
	Backups       bool   `json:"backups,omitempty"`
	BackupProblem string `json:"backup_problem,omitempty"`
}

// ReplicaReport extends GroupStatus.
type ReplicaReport struct {
	GroupStatus
	Marks   []raftfsm.Mark      `json:"marks,omitempty"`   // set by shard.Node.MarkedReports, ascending; empty for the catalog's group
	Entries []replica.EntryMark `json:"entries,omitempty"` // set by shard.Node.MarkedReports, ascending; see replica.EntryMark
	Misfit  *tiering.Misfit     `json:"misfit,omitempty"`  // nil for none
	// Outboxes is the number of authors with an outbox in this replica. Pairs is the number of
	// members of all its rows.
	Outboxes uint64 `json:"outboxes,omitempty"`
	Pairs    uint64 `json:"pairs,omitempty"`
	// ApplySeconds is the time for which the replica's state machine has applied entries since it was opened.
	ApplySeconds float64 `json:"apply_seconds,omitempty"`
	// NoSplit is why the shard cannot split now (raftfsm.CheckSplit). Unsettled is why it cannot grow once
	// more (replica.Growth.Settled). Only shard.Node.GrowthReports sets them; "" for no reason.
	NoSplit   string `json:"no_split,omitempty"`
	Unsettled string `json:"unsettled,omitempty"`
}

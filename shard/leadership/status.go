package leadership

import "slices"

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

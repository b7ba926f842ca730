package admin

import (
	"errors"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/tiering"
)

// The errors of this package. Its functions also return those of package shard.
var (
	// ErrNoSuchNode is returned for a change of a node that the catalog does not have.
	ErrNoSuchNode = errors.New("no such node")
	// ErrNoSuchGroup is returned for a group that the catalog does not have.
	ErrNoSuchGroup = errors.New("no such group")
)

// RefusedError is returned for a change that the cluster cannot make in its present state.
// Nothing was changed.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// ElsewhereError is returned for a request that only another node can answer.
type ElsewhereError struct{ HTTPAddr string } // of that node, HOST:PORT

func (e *ElsewhereError) Error() string { return "the node at " + e.HTTPAddr + " answers this" }

// Change is one of NodeChange, TransferChange, MoveChange, HoldChange and FinalizeChange.
// A change names nodes by name or key.
type Change interface{ change() }

// NodeChange sets the state of a node.
type NodeChange struct {
	Node  string
	State catalog.NodeState
}

// TransferChange transfers the leadership of a group to a voter.
type TransferChange struct {
	Group uint32
	To    string
}

// MoveChange moves a replica of a group.
type MoveChange struct {
	Group    uint32
	From, To string
}

// HoldChange holds the cluster version or releases it.
type HoldChange struct{ Held bool }

// FinalizeChange releases the cluster version and raises it to the highest that all nodes
// support.
type FinalizeChange struct{}

func (NodeChange) change()     {}
func (TransferChange) change() {}
func (MoveChange) change()     {}
func (HoldChange) change()     {}
func (FinalizeChange) change() {}

// Changed is the state after a change: of the node, the group or the cluster version that
// the change named.
type Changed struct {
	Changed bool          `json:"changed"` // false when it was so before
	Node    *ChangedNode  `json:"node,omitempty"`
	Group   *ChangedGroup `json:"group,omitempty"`
	Version *Version      `json:"version,omitempty"`
}

// ChangedNode is the node of a NodeChange.
type ChangedNode struct {
	ID    string `json:"id"`
	Key   string `json:"key"`
	State string `json:"state"`
}

// ChangedGroup is the group of a TransferChange or a MoveChange.
type ChangedGroup struct {
	ID     uint32   `json:"id"`
	Leader string   `json:"leader"`
	Target []string `json:"target"`
}

// Version is the cluster version.
type Version struct {
	Version int  `json:"version"`
	Max     int  `json:"max"` // the highest that all nodes support
	Held    bool `json:"held"`
}

// View is the cluster as its nodes report it. It names nodes as Names does.
type View struct {
	ClusterID   string
	ClusterName string // --cluster-name of the node that answers; "" for none
	Nodes       []Node
	Groups      []Group
	Version     Version
}

// Node is one node of the catalog.
type Node struct {
	ID           string   `json:"id"`
	Key          string   `json:"key"`
	Zone         string   `json:"zone"`
	State        string   `json:"state"`     // active, draining or leaving
	Alive        bool     `json:"alive"`     // according to gossip
	Answers      bool     `json:"answers"`   // it answered the request for its report
	NotReady     string   `json:"not_ready"` // why it cannot serve; "" when it can, or does not answer
	Life         string   `json:"life"`      // changes with each restart; "" when it does not answer
	Version      string   `json:"version"`
	VersionMax   int      `json:"version_max"`
	Leads        int      `json:"leads"`    // groups, the catalog's included
	Replicas     int      `json:"replicas"` // groups that it is a member of, the catalog's included
	MemoryFull   bool     `json:"memory_full"`
	DiskFull     bool     `json:"disk_full"`
	DiskHangs    bool     `json:"disk_hangs,omitempty"`    // a write of its log has not ended for over a second
	Insecure     bool     `json:"insecure,omitempty"`      // listens beyond loopback without what protects it, by --insecure
	CertProblems []string `json:"cert_problems,omitempty"` // what is wrong with its certificates
	JoinIgnored  bool     `json:"join_ignored,omitempty"`  // the only node, although its settings name others to join
	HTTPAddr     string   `json:"http_addr"`
	ClusterAddr  string   `json:"cluster_addr"`
	GossipAddr   string   `json:"gossip_addr"`
}

// Group is one Raft group as its leader reports it. If no leader answers, it holds what the
// catalog says.
type Group struct {
	ID        uint32   `json:"id"`
	Keyspace  string   `json:"keyspace"`
	Shard     int      `json:"shard"`
	Leader    string   `json:"leader"` // "" if none answers
	Term      uint64   `json:"term"`
	Target    []string `json:"target"` // the nodes that are to be voters
	Voters    []string `json:"voters"`
	NonVoters []string `json:"non_voters"`
	Rows      uint64   `json:"rows"`  // at the leader
	Bytes     uint64   `json:"bytes"` // of its memory
	ColdRows  uint64   `json:"cold_rows"`
	ColdBytes uint64   `json:"cold_bytes"` // of its disk

	SealedRows  uint64    `json:"sealed_rows"`
	SealedBytes uint64    `json:"sealed_bytes"` // of its memory, included in Bytes
	Replicas    []Replica `json:"replicas"`
	// Misfit is a row at the leader whose id does not fit the leader's id layout.
	Misfit *tiering.Misfit `json:"id_layout_misfit,omitempty"`
}

// Replica is one replica that was reported.
type Replica struct {
	Node         string `json:"node"`
	Replica      string `json:"replica"` // its Raft id
	Role         string `json:"role"`
	AppliedIndex uint64 `json:"applied_index"`
	Lag          uint64 `json:"lag"` // entries that the leader has applied and this replica has not
	ColdDamaged  bool   `json:"cold_damaged,omitempty"`

	Digest  string            `json:"-"` // at AppliedIndex
	Marks   []raftfsm.Mark    `json:"-"`
	Entries []shard.EntryMark `json:"-"`
}

// Step is one step of a plan. It names nodes as Names does.
type Step struct {
	Step   string   `json:"step"` // place, transfer, set_node_state, remove_node or raise_version
	Group  *uint32  `json:"group,omitempty"`
	Name   string   `json:"name,omitempty"` // of the group, such as posts/3
	Add    []string `json:"add,omitempty"`
	Remove []string `json:"remove,omitempty"`
	From   string   `json:"from,omitempty"`
	To     string   `json:"to,omitempty"`
	Node   string   `json:"node,omitempty"`
	State  string   `json:"state,omitempty"`
	Raise  int      `json:"version,omitempty"`
	Reason string   `json:"reason"`
}

// ColdNode is the report of a node about its rows on disk.
type ColdNode struct {
	Node    string `json:"node"`
	Answers bool   `json:"answers"`
	*tiering.ColdReport
}

// ColdOrdered holds the answers of the nodes to a tiering order.
type ColdOrdered struct {
	ID    string            `json:"id"` // of the order; "" for a dry run
	Nodes []ColdOrderedNode `json:"nodes"`
}

// ColdOrderedNode is the answer of one node to a tiering order.
type ColdOrderedNode struct {
	Node    string `json:"node"`
	Answers bool   `json:"answers"` // without an answer the node begins nothing, unless it answered too late
	tiering.ColdAnswer
}

package api

import (
	"context"
	"errors"
	"io"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard"
)

// Admin is what the api needs to show a cluster to its operators and to change
// it as they ask. Any node answers for all: what only the leader of the catalog
// can say or do is asked of it. Methods may be called at any time from any
// goroutine; what they return is the caller's.
type Admin interface {
	// View gathers what the nodes say that answer in a second.
	View(ctx context.Context) (*AdminView, error)
	// Plan returns what the placement would do next.
	Plan(ctx context.Context) ([]AdminStep, error)
	// Change begins a change, or tells that nothing is left to be done. It does
	// not wait for data to be moved.
	Change(ctx context.Context, change AdminChange) (*Changed, error)
	// Cold gathers what the nodes say of their rows on disk that answer in a second.
	Cold(ctx context.Context) ([]AdminColdNode, error)
	// OrderCold has all nodes move rows to disk or back, if all that answer can. It
	// does not wait for the end.
	OrderCold(ctx context.Context, order shard.ColdOrder) (*ColdOrdered, error)
	// OpenSnapshot takes a snapshot of a shard. It returns an ElsewhereError when
	// another node leads the group. The caller closes the snapshot.
	OpenSnapshot(ctx context.Context, group uint32) (*shard.Snapshot, error)
	// RestoreShard sets the rows of a shard to those of a snapshot.
	RestoreShard(ctx context.Context, group uint32, stream io.Reader, o shard.RestoreOptions) (raftfsm.SnapshotFacts, error)
}

// The errors of an Admin besides those of package shard.
var (
	// ErrNoSuchNode is returned for a change of a node that is in no catalog.
	ErrNoSuchNode = errors.New("no such node")
	// ErrNoSuchGroup is returned for a group that is in no catalog.
	ErrNoSuchGroup = errors.New("no such group")
)

// RefusedError is returned for a change that the cluster cannot make as it is
// now. Nothing was changed.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

// ElsewhereError is returned for what only another node can answer.
type ElsewhereError struct{ HTTPAddr string } // of that node, HOST:PORT

func (e *ElsewhereError) Error() string { return "the node at " + e.HTTPAddr + " answers this" }

// AdminChange is one of NodeChange, TransferChange, MoveChange, HoldChange and
// FinalizeChange. Nodes are named by name or key.
type AdminChange interface{ adminChange() }

// NodeChange gives a node a state.
type NodeChange struct {
	Node  string
	State raftfsm.NodeState
}

// TransferChange hands the leadership of a group to a voter.
type TransferChange struct {
	Group uint32
	To    string
}

// MoveChange moves a replica.
type MoveChange struct {
	Group    uint32
	From, To string
}

// HoldChange holds the cluster version, or lets it go.
type HoldChange struct{ Held bool }

// FinalizeChange lets the cluster version go and raises it to what all nodes
// speak.
type FinalizeChange struct{}

func (NodeChange) adminChange()     {}
func (TransferChange) adminChange() {}
func (MoveChange) adminChange()     {}
func (HoldChange) adminChange()     {}
func (FinalizeChange) adminChange() {}

// Changed tells what a change was about, as it now is.
type Changed struct {
	Changed bool          `json:"changed"` // false when it was so before
	Node    *ChangedNode  `json:"node,omitempty"`
	Group   *ChangedGroup `json:"group,omitempty"`
	Version *AdminVersion `json:"version,omitempty"`
}

// ChangedNode is a node whose state was asked for.
type ChangedNode struct {
	ID    string `json:"id"`
	Key   string `json:"key"`
	State string `json:"state"`
}

// ChangedGroup is a group whose leader or target was asked for.
type ChangedGroup struct {
	ID     uint32   `json:"id"`
	Leader string   `json:"leader"`
	Target []string `json:"target"`
}

// AdminVersion is the cluster version.
type AdminVersion struct {
	Version int  `json:"version"`
	Max     int  `json:"max"` // what all nodes speak
	Held    bool `json:"held"`
}

// AdminView is the cluster as its nodes tell it. Nodes are called by name, those
// that share it with another one by key.
type AdminView struct {
	ClusterID   string
	ClusterName string // as the node that answers was told; "" for none
	Nodes       []AdminNode
	Groups      []AdminGroup
	Version     AdminVersion
}

// AdminNode is one node of the catalog.
type AdminNode struct {
	ID          string `json:"id"`
	Key         string `json:"key"`
	Zone        string `json:"zone"`
	State       string `json:"state"`     // active, draining or leaving
	Alive       bool   `json:"alive"`     // gossip hears of it
	Answers     bool   `json:"answers"`   // and it was asked just now
	NotReady    string `json:"not_ready"` // why it cannot serve; "" when it can, or does not answer
	Life        string `json:"life"`      // another after each restart; "" when it does not answer
	Version     string `json:"version"`
	VersionMax  int    `json:"version_max"`
	Leads       int    `json:"leads"`    // groups, the catalog's included
	Replicas    int    `json:"replicas"` // groups that it is a member of, likewise
	MemoryFull  bool   `json:"memory_full"`
	DiskFull    bool   `json:"disk_full"`
	JoinIgnored bool   `json:"join_ignored,omitempty"` // it is the only node, and was started to be one of several
	HTTPAddr    string `json:"http_addr"`
	ClusterAddr string `json:"cluster_addr"`
	GossipAddr  string `json:"gossip_addr"`
}

// AdminGroup is one Raft group as its leader knows it; without a leader that
// answers, as the catalog has it.
type AdminGroup struct {
	ID        uint32   `json:"id"`
	Keyspace  string   `json:"keyspace"`
	Shard     int      `json:"shard"`
	Leader    string   `json:"leader"` // "" for none that answers
	Term      uint64   `json:"term"`
	Target    []string `json:"target"` // who is to be a voter
	Voters    []string `json:"voters"`
	NonVoters []string `json:"non_voters"`
	Rows      uint64   `json:"rows"`  // at the leader
	Bytes     uint64   `json:"bytes"` // of its memory
	ColdRows  uint64   `json:"cold_rows"`
	ColdBytes uint64   `json:"cold_bytes"` // of its disk

	SealedRows  uint64         `json:"sealed_rows"`
	SealedBytes uint64         `json:"sealed_bytes"` // of its memory, among Bytes
	Replicas    []AdminReplica `json:"replicas"`
	// Misfit is a row at the leader whose id the layout there cannot have given.
	Misfit *shard.Misfit `json:"id_layout_misfit,omitempty"`
}

// AdminReplica is one replica that was heard of.
type AdminReplica struct {
	Node         string `json:"node"`
	Replica      string `json:"replica"` // its Raft id
	Role         string `json:"role"`
	AppliedIndex uint64 `json:"applied_index"`
	Lag          uint64 `json:"lag"` // entries that the leader has applied and it has not
	ColdDamaged  bool   `json:"cold_damaged,omitempty"`

	Digest  string            `json:"-"` // at AppliedIndex
	Marks   []raftfsm.Mark    `json:"-"`
	Entries []shard.EntryMark `json:"-"`
}

// AdminStep is one step of a plan.
type AdminStep struct {
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

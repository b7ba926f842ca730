package admin

import (
	"errors"

	"github.com/countd/countd/client"
	"github.com/countd/countd/raftfsm/catalog"
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

// View is the cluster as its nodes report it. It names nodes as Names does.
type View struct {
	client.ClusterNodes                       // its name is the --cluster-name of the node that answers
	Groups              []client.ClusterGroup // as their leaders report them; without a leader as the catalog has them
	Digests             []client.GroupDigests
	Version             client.ClusterVersion
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

package admin

import (
	"context"
	"errors"

	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/tiering"
)

// The errors of this package. Its functions also return errors of package shard/errs.
var (
	// ErrNoSuchNode is returned for a change of a node that the catalog does not have.
	ErrNoSuchNode = errors.New("no such node")
	// ErrNoSuchGroup is returned for a group that the catalog does not have.
	ErrNoSuchGroup = errors.New("no such group")
)

// ElsewhereError is returned for a request that only another node can answer.
type ElsewhereError struct{ HTTPAddr string } // address of that node, HOST:PORT

func (e *ElsewhereError) Error() string { return "the node at " + e.HTTPAddr + " answers this" }

// Change is a change of the cluster. It names nodes by name or key.
type Change interface {
	make(ctx context.Context, o *operation) (*clientadmin.Changed, error)
}

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

// View is the cluster as its nodes report it. It names nodes as Names does.
type View struct {
	clientadmin.ClusterNodes                            // ClusterNodes.Name is the --cluster-name of the node that answers
	Groups                   []clientadmin.ClusterGroup // joined from the catalog and the replicas' reports
	Version                  clientadmin.ClusterVersion
}

// ColdNode is the report of a node about its rows on disk.
type ColdNode struct {
	Node    string `json:"node"`
	Answers bool   `json:"answers"`
	*tiering.ColdReport
}

package admin

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/countd/countd/shard"
)

// PlanCall is the name of the call by which a node asks the leader of the catalog for the
// next steps of the placement.
const PlanCall = "cluster.plan"

// PlannedStep is a step of the placement as nodes send it to each other. It names nodes by
// key.
type PlannedStep struct {
	Kind   string   `json:"kind"`            // place, transfer, set_node_state, remove_node or raise_version
	Group  uint32   `json:"group,omitempty"` // of place and transfer
	Name   string   `json:"name,omitempty"`  // of that group, such as posts/3
	Add    []string `json:"add,omitempty"`   // of place: node keys
	Remove []string `json:"remove,omitempty"`
	From   string   `json:"from,omitempty"` // of transfer: node keys
	To     string   `json:"to,omitempty"`
	Node   string   `json:"node,omitempty"` // of set_node_state and remove_node
	State  string   `json:"state,omitempty"`
	Raise  int      `json:"version,omitempty"` // of raise_version
	Reason string   `json:"reason"`
}

// askPlan sends PlanCall to the leader of the catalog.
func askPlan(ctx context.Context, n *shard.Node) ([]PlannedStep, error) {
	raw, err := n.AskCatalogLeader(ctx, PlanCall, nil)
	if err != nil {
		return nil, err
	}
	var steps []PlannedStep
	if err := json.Unmarshal(raw, &steps); err != nil {
		return nil, fmt.Errorf("cannot read the plan of the catalog's leader: %w", err)
	}
	return steps, nil
}

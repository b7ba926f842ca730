package cluster

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/countd/countd/shard"
)

// PlanCall is the name of the call by which a node asks the one that leads the
// catalog what the placement does next.
const PlanCall = "cluster.plan"

// PlannedStep is a step as it is told: to other nodes, and to people.
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

// Next returns what this node, leading the catalog, would do next. It changes
// nothing. On another node it returns shard.ErrNoLeader.
func (c *Controller) Next(ctx context.Context) ([]PlannedStep, error) {
	if !c.node.LeadsCatalog() {
		return nil, shard.ErrNoLeader
	}
	steps := []PlannedStep{}
	for _, step := range Plan(c.Look(ctx)) {
		steps = append(steps, planned(step))
	}
	return steps, nil
}

func planned(step Step) PlannedStep {
	p := PlannedStep{Reason: step.Why()}
	switch s := step.(type) {
	case Place:
		p.Kind, p.Group, p.Name = "place", s.Group, s.Name
		p.Add, p.Remove = missing(s.Target, s.Was), missing(s.Was, s.Target)
	case Transfer:
		p.Kind, p.Group, p.Name, p.From, p.To = "transfer", s.Group, s.Name, s.From, s.To
	case SetNodeState:
		p.Kind, p.Node, p.State = "set_node_state", s.Node, string(s.State)
	case RemoveNode:
		p.Kind, p.Node = "remove_node", s.Node
	case RaiseVersion:
		p.Kind, p.Raise = "raise_version", s.Version
	}
	return p
}

// missing returns the keys that are not among others.
func missing(keys, others []string) []string {
	var left []string
	for _, key := range keys {
		if !contains(others, key) {
			left = append(left, key)
		}
	}
	return left
}

// HandlePlan answers PlanCall.
func (c *Controller) HandlePlan(ctx context.Context, _ []byte) ([]byte, error) {
	steps, err := c.Next(ctx)
	if err != nil {
		return nil, err
	}
	return json.Marshal(steps)
}

// AskPlan asks by PlanCall, which ask has the catalog's leader answer.
func AskPlan(ctx context.Context, ask func(ctx context.Context, method string, request []byte) ([]byte, error)) ([]PlannedStep, error) {
	raw, err := ask(ctx, PlanCall, nil)
	if err != nil {
		return nil, err
	}
	var steps []PlannedStep
	if err := json.Unmarshal(raw, &steps); err != nil {
		return nil, fmt.Errorf("cannot read the plan of the catalog's leader: %w", err)
	}
	return steps, nil
}

package cluster

import (
	"context"
	"encoding/json"

	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/shard/errs"
)

// Next returns the steps of the next plan without carrying them out. If this node does not lead the
// catalog, it returns errs.ErrNoLeader.
func (c *Controller) Next(ctx context.Context) ([]clientadmin.PlanStep, error) {
	if !c.node.LeadsCatalog() {
		return nil, errs.ErrNoLeader
	}
	steps := []clientadmin.PlanStep{}
	for _, step := range Plan(c.Look(ctx)) {
		steps = append(steps, planned(step))
	}
	return steps, nil
}

func planned(step Step) clientadmin.PlanStep {
	p := clientadmin.PlanStep{Reason: step.Why()}
	switch s := step.(type) {
	case Place:
		p.Step, p.Group, p.Name = "place", &s.Group, s.Name
		p.Add, p.Remove = missing(s.Target, s.Was), missing(s.Was, s.Target)
	case Transfer:
		p.Step, p.Group, p.Name, p.From, p.To = "transfer", &s.Group, s.Name, s.From, s.To
	case SetNodeState:
		p.Step, p.Node, p.State = "set_node_state", s.Node, string(s.State)
	case RemoveNode:
		p.Step, p.Node = "remove_node", s.Node
	case RaiseVersion:
		p.Step, p.Version = "raise_version", s.Version
	}
	return p
}

// missing returns the keys that are not in others.
func missing(keys, others []string) []string {
	var left []string
	for _, key := range keys {
		if !contains(others, key) {
			left = append(left, key)
		}
	}
	return left
}

// HandlePlan answers admin.PlanCall.
func (c *Controller) HandlePlan(ctx context.Context, _ []byte) ([]byte, error) {
	steps, err := c.Next(ctx)
	if err != nil {
		return nil, err
	}
	return json.Marshal(steps)
}

package admin

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/countd/countd/client"
	"github.com/countd/countd/shard"
)

// PlanCall is the name of the call by which a node asks the leader of the catalog for the
// next steps of the placement.
const PlanCall = "cluster.plan"

// askPlan sends PlanCall to the leader of the catalog. The steps that it returns name nodes by
// key.
func askPlan(ctx context.Context, n *shard.Node) ([]client.PlanStep, error) {
	raw, err := n.AskCatalogLeader(ctx, PlanCall, nil)
	if err != nil {
		return nil, err
	}
	steps := []client.PlanStep{}
	if err := json.Unmarshal(raw, &steps); err != nil {
		return nil, fmt.Errorf("cannot read the plan of the catalog's leader: %w", err)
	}
	return steps, nil
}

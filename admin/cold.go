package admin

import (
	"context"
	"errors"
	"maps"
	"slices"

	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/shard/tiering"
)

// Cold returns the nodes' reports about their rows on disk. A node that does not answer within a
// second has no report.
func (a *Cluster) Cold(ctx context.Context) ([]ColdNode, error) {
	n, err := a.cfg.Node()
	if err != nil {
		return nil, err
	}
	catalog, reports := n.Catalog(), n.ColdReports(ctx)
	name := Names(catalog)
	var nodes []ColdNode
	for _, key := range slices.Sorted(maps.Keys(catalog.Nodes)) {
		node := ColdNode{Node: name[key]}
		if report, answers := reports[key]; answers {
			node.Answers, node.ColdReport = true, &report
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// OrderCold starts a tiering job on all nodes, if every node that answers can run it.
func (a *Cluster) OrderCold(ctx context.Context, order tiering.TieringJob) (*clientadmin.ColdOrdered, error) {
	n, err := a.cfg.Node()
	if err != nil {
		return nil, err
	}
	if err := n.CatchUp(ctx); err != nil { // the job may concern a keyspace that this node's catalog lacks
		return nil, err
	}
	name := Names(n.Catalog())
	id, answers, err := n.OrderCold(ctx, order)
	if refused, ok := errors.AsType[*tiering.ColdRefusedError](err); ok {
		return nil, refusedf("%s: %s", name[refused.Node], refused.Reason)
	}
	if err != nil {
		return nil, err
	}
	ordered := &clientadmin.ColdOrdered{ID: id}
	for _, key := range slices.Sorted(maps.Keys(n.Catalog().Nodes)) {
		answer, answers := answers[key]
		ordered.Nodes = append(ordered.Nodes, clientadmin.ColdOrderedNode{Node: name[key], Answers: answers, Rows: answer.Rows, Refused: answer.Refused, Never: answer.Never})
	}
	return ordered, nil
}

package main

import (
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/countd/countd/api"
	"github.com/countd/countd/shard"
)

func (a admin) Cold(ctx context.Context) ([]api.AdminColdNode, error) {
	n, err := a.node()
	if err != nil {
		return nil, err
	}
	catalog, reports := n.Catalog(), n.ColdReports(ctx)
	name := names(catalog)
	var nodes []api.AdminColdNode
	for _, key := range slices.Sorted(maps.Keys(catalog.Nodes)) {
		node := api.AdminColdNode{Node: name[key]}
		if report, answers := reports[key]; answers {
			node.Answers, node.ColdReport = true, &report
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

func (a admin) OrderCold(ctx context.Context, order shard.ColdOrder) (*api.ColdOrdered, error) {
	n, err := a.node()
	if err != nil {
		return nil, err
	}
	if err := n.CatchUp(ctx); err != nil { // a keyspace may be new here
		return nil, err
	}
	name := names(n.Catalog())
	id, answers, err := n.OrderCold(ctx, order)
	if refused, ok := errors.AsType[*shard.ColdRefusedError](err); ok {
		return nil, refusedf("%s: %s", name[refused.Node], refused.Reason)
	}
	if err != nil {
		return nil, err
	}
	ordered := &api.ColdOrdered{ID: id}
	for _, key := range slices.Sorted(maps.Keys(n.Catalog().Nodes)) {
		answer, answers := answers[key]
		ordered.Nodes = append(ordered.Nodes, api.ColdOrderedNode{Node: name[key], Answers: answers, ColdAnswer: answer})
	}
	return ordered, nil
}

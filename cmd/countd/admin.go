package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/countd/countd/api"
	"github.com/countd/countd/cluster"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard"
)

// admin is the cluster as its operators see it over HTTP.
type admin struct {
	backend *backend
	alive   func(key string) bool
	several bool // the settings would make the node one of several
}

var _ api.Admin = admin{}

// node returns the node once it has a cluster.
func (a admin) node() (*shard.Node, error) {
	if n := a.backend.node.Load(); n != nil {
		return n, nil
	}
	return nil, a.backend.notYet()
}

func (a admin) View(ctx context.Context) (*api.AdminView, error) {
	n, err := a.node()
	if err != nil {
		return nil, err
	}
	status := n.Status()
	view := gather(n.Catalog(), n.Reports(ctx), status.ClusterID, a.alive)
	view.ClusterName = status.ClusterName
	if len(view.Nodes) == 1 { // this one
		view.Nodes[0].JoinIgnored = a.several
	}
	return view, nil
}

func (a admin) Plan(ctx context.Context) ([]api.AdminStep, error) {
	n, err := a.node()
	if err != nil {
		return nil, err
	}
	planned, err := cluster.AskPlan(ctx, n.AskCatalogLeader)
	if err != nil {
		return nil, err
	}
	name := names(n.Catalog())
	var steps []api.AdminStep
	for _, p := range planned {
		s := api.AdminStep{
			Step: p.Kind, Name: p.Name, Add: name.all(p.Add), Remove: name.all(p.Remove),
			From: name[p.From], To: name[p.To], Node: name[p.Node], State: p.State, Raise: p.Raise, Reason: name.in(p.Reason),
		}
		if p.Name != "" {
			s.Group = &p.Group
		}
		steps = append(steps, s)
	}
	return steps, nil
}

func (a admin) OpenSnapshot(ctx context.Context, group uint32) (*shard.Snapshot, error) {
	n, err := a.node()
	if err != nil {
		return nil, err
	}
	s, err := n.OpenSnapshot(ctx, group)
	if errors.Is(err, shard.ErrNoLeader) {
		leader, known := n.Catalog().Nodes[n.LeaderOf(group)]
		if self := n.Status().Node; known && leader.Name != self {
			return nil, &api.ElsewhereError{HTTPAddr: dialledHTTP(leader)}
		}
	}
	return s, err
}

// dialledHTTP is where others reach a node's HTTP API: a node that listens on
// every interface is reached at the host of its cluster address.
func dialledHTTP(n raftfsm.Node) string {
	host, port, err := net.SplitHostPort(n.HTTPAddr)
	if ip := net.ParseIP(host); err == nil && (host == "" || ip != nil && ip.IsUnspecified()) {
		if cluster, _, err := net.SplitHostPort(n.ClusterAddr); err == nil {
			return net.JoinHostPort(cluster, port)
		}
	}
	return n.HTTPAddr
}

func (a admin) RestoreShard(ctx context.Context, group uint32, stream io.Reader, o shard.RestoreOptions) (raftfsm.SnapshotFacts, error) {
	n, err := a.node()
	if err != nil {
		return raftfsm.SnapshotFacts{}, err
	}
	return n.RestoreShard(ctx, group, stream, o)
}

func (a admin) Change(ctx context.Context, change api.AdminChange) (*api.Changed, error) {
	n, err := a.node()
	if err != nil {
		return nil, err
	}
	o := operation{node: n, alive: a.alive}
	if err := o.look(ctx); err != nil {
		return nil, err
	}
	switch c := change.(type) {
	case api.NodeChange:
		return o.setState(ctx, c)
	case api.TransferChange:
		return o.transfer(ctx, c)
	case api.MoveChange:
		return o.move(ctx, c)
	case api.HoldChange:
		return o.hold(ctx, c.Held)
	case api.FinalizeChange:
		return o.finalize(ctx)
	}
	return nil, fmt.Errorf("no such change: %T", change)
}

// nodeNames says what nodes are called, by key.
type nodeNames map[string]string

// names calls nodes by name, those that share it with another by key: of them,
// all but one are leaving.
func names(catalog *raftfsm.CatalogView) nodeNames {
	of := map[string][]string{}
	for key, node := range catalog.Nodes {
		of[node.Name] = append(of[node.Name], key)
	}
	called := nodeNames{}
	for name, keys := range of {
		for _, key := range keys {
			called[key] = key
			if len(keys) == 1 || catalog.Nodes[key].State != raftfsm.NodeLeaving {
				called[key] = name
			}
		}
	}
	return called
}

// in puts names in the place of keys in a text for people.
func (n nodeNames) in(text string) string {
	for key, name := range n {
		text = strings.ReplaceAll(text, key, name)
	}
	return text
}

// all calls nodes that are gone by key.
func (n nodeNames) all(keys []string) []string {
	called := make([]string, len(keys))
	for i, key := range keys {
		if called[i] = n[key]; called[i] == "" {
			called[i] = key
		}
	}
	slices.Sort(called)
	return called
}

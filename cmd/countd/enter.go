package main

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/countd/countd/cluster"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard"
)

// enter starts gossip and, if the node has no cluster, waits until it has one:
// it makes one alone or with others, or is admitted to one.
func (p *process) enter(c *config) error {
	var keys [][]byte
	if c.GossipKeys != "" {
		var err error
		if keys, err = cluster.ReadGossipKeys(c.GossipKeys); err != nil {
			return c.bad("gossip-key-file", err.Error())
		}
	}
	id := &p.dir.Identity
	var err error
	p.gossip, err = cluster.StartGossip(cluster.GossipConfig{
		Self: cluster.Member{
			Key: id.Key(), Name: id.NodeID, ClusterID: id.ClusterID, Zone: c.Zone,
			HTTPAddr: c.HTTPAddr, ClusterAddr: c.ClusterAddr,
			Version: buildVersion(), VersionMax: raftfsm.ClusterVersionMax, Expect: uint8(c.Expect),
		},
		Addr: c.GossipAddr, Join: c.Join, Keys: keys, Logger: p.logger,
	})
	if err != nil {
		return err
	}
	if id.ClusterID != "" {
		return nil
	}
	if err := p.findCluster(c); err != nil {
		return err
	}
	return p.gossip.Announce(func(m *cluster.Member) { m.ClusterID, m.Expect = id.ClusterID, 0 })
}

// findCluster gives the node a cluster.
func (p *process) findCluster(c *config) error {
	var lobby *shard.Lobby
	id := p.dir.Identity
	former, err := cluster.NewFormer(cluster.FormConfig{
		Identity: id,
		Node: raftfsm.Node{
			Key: id.Key(), Name: id.NodeID, Zone: c.Zone, State: raftfsm.NodeActive,
			HTTPAddr: c.HTTPAddr, ClusterAddr: c.ClusterAddr, GossipAddr: c.GossipAddr,
			Version: buildVersion(), VersionMax: raftfsm.ClusterVersionMax,
		},
		Expect: c.Expect, Join: len(c.Join) > 0,
		View: p.gossip, Store: p.dir, Logger: p.logger,
		Asker: cluster.CallAsker{Call: func(ctx context.Context, clusterID, addr, name string, request []byte) ([]byte, error) {
			return lobby.Call(ctx, clusterID, addr, name, request)
		}},
	})
	if err != nil {
		return err
	}
	p.backend.waitForWhat(former.Waiting)
	lobby, err = shard.OpenLobby(c.ClusterAddr, map[string]shard.Handler{
		cluster.FormCall: cluster.CallHandler(former.HandleForm),
	}, p.logger)
	if err != nil {
		return err
	}
	_, err = former.Run(context.Background()) // a signal meanwhile ends the process
	return errors.Join(err, lobby.Close())
}

// take lets the node serve: it answers requests, admits others, and speaks for
// the cluster when it leads its catalog.
func (p *process) take(c *config) error {
	p.admission.Store(cluster.NewAdmission(p.dir.Identity.ClusterID, nodeCatalog{p.node}, p.gossip))
	p.backend.node.Store(p.node)
	p.say(cluster.MemberServing)
	var err error
	p.controller, err = cluster.StartController(p.node, p.gossip, c.Placement, p.logger)
	return err
}

// say tells the other nodes what this one is about. It is a hint.
func (p *process) say(state cluster.MemberState) {
	if err := p.gossip.Announce(func(m *cluster.Member) { m.State = state }); err != nil {
		p.logger.Debug("cannot tell the other nodes", "state", state.String(), "err", err)
	}
}

// admit answers a node that asks to join.
func (p *process) admit(ctx context.Context, request []byte) ([]byte, error) {
	admission := p.admission.Load()
	if admission == nil {
		return nil, fmt.Errorf("%w: this node is starting", shard.ErrNoLeader)
	}
	return cluster.CallHandler(admission.HandleJoin)(ctx, request)
}

// alive tells whether gossip hears of a node, or has not said yet that it does
// not.
func (p *process) alive(key string) bool {
	for _, m := range p.gossip.Members() {
		if m.Key == key {
			return m.Alive
		}
	}
	return false
}

// place chooses the nodes of a new keyspace's shards.
func (p *process) place(settings cluster.PlanSettings) func(*raftfsm.CatalogView, int) [][]string {
	return func(catalog *raftfsm.CatalogView, shards int) [][]string {
		replicas, err := cluster.Initial(cluster.View{Catalog: catalog, Settings: settings}, shards)
		if err != nil {
			p.logger.Warn("cannot place a keyspace, this node takes it", "err", err)
			return slices.Repeat([][]string{{p.dir.Identity.Key()}}, shards)
		}
		return replicas
	}
}

// nodeCatalog is the catalog as admissions see it.
type nodeCatalog struct{ node *shard.Node }

func (c nodeCatalog) Nodes() map[string]raftfsm.Node { return c.node.Catalog().Nodes }

func (c nodeCatalog) PutNode(ctx context.Context, entry raftfsm.PutNodeEntry) (refused string, err error) {
	result, err := c.node.Change(ctx, &raftfsm.CatalogCommand{PutNode: &entry})
	if err != nil {
		return "", err
	}
	return result.Refused, nil
}

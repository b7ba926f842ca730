package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/cluster"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard"
)

// startGossip listens for other nodes and looks for them.
func (p *process) startGossip(c *config) error {
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
			Key: id.Key(), Name: id.NodeID, ClusterID: id.ClusterID, ClusterName: c.ClusterName, Zone: c.Zone,
			HTTPAddr: c.HTTPAddr, ClusterAddr: c.ClusterAddr,
			Version: buildVersion(), VersionMax: raftfsm.ClusterVersionMax, Expect: uint8(c.Expect),
		},
		Addr: c.GossipAddr, Join: c.Join, Joining: id.Joining, Promised: id.Promised, Keys: keys, Logger: p.logger,
	})
	return err
}

// enter returns when the node has a cluster: it makes one alone or with others,
// or is admitted to one. The cluster port is used up if it had to ask others; nil
// is returned then.
func (p *process) enter(c *config, port net.Listener) (net.Listener, error) {
	id := &p.dir.Identity
	if id.ClusterID != "" {
		return port, nil
	}
	former, asked, err := p.former(c, port)
	if err != nil {
		return port, err
	}
	_, err = former.Run(context.Background()) // a signal meanwhile ends the process
	if asked != nil {
		port = nil
		err = errors.Join(err, asked.Close())
	}
	if err != nil {
		return port, err
	}
	return port, p.gossip.Announce(func(m *cluster.Member) { m.ClusterID, m.Expect = id.ClusterID, 0 })
}

// former makes what finds the node a cluster and, unless it will be alone, the
// lobby that it asks others from.
func (p *process) former(c *config, port net.Listener) (*cluster.Former, *shard.Lobby, error) {
	var lobby *shard.Lobby
	id := p.dir.Identity
	cfg := cluster.FormConfig{
		Identity: id,
		Node: raftfsm.Node{
			Key: id.Key(), Name: id.NodeID, Zone: c.Zone, State: raftfsm.NodeActive,
			HTTPAddr: c.HTTPAddr, ClusterAddr: c.ClusterAddr, GossipAddr: c.GossipAddr,
			Version: buildVersion(), VersionMax: raftfsm.ClusterVersionMax,
		},
		Expect: c.Expect, Join: len(c.Join) > 0, ClusterName: c.ClusterName,
		View: p.gossip, Store: promises{p.dir, p.gossip}, Logger: p.logger,
		Asker: cluster.CallAsker{Call: func(ctx context.Context, clusterID, addr, name string, request []byte) ([]byte, error) {
			return lobby.Call(ctx, clusterID, addr, name, request)
		}},
	}
	former, err := cluster.NewFormer(cfg)
	if err != nil || cfg.Alone() {
		return former, nil, err
	}
	p.backend.waitForWhat(former.Waiting)
	lobby, err = shard.OpenLobby(port, c.ClusterName, map[string]shard.Handler{
		cluster.FormCall: cluster.CallHandler(former.HandleForm),
	}, p.logger)
	return former, lobby, err
}

// promises keeps in the data directory what a node without a cluster must not forget, and
// lets it join the cluster of the nodes that it has promised to form one with.
type promises struct {
	*cluster.DataDir
	gossip *cluster.Gossip
}

func (p promises) SetPromised(set string) error {
	if err := p.DataDir.SetPromised(set); err != nil {
		return err
	}
	p.gossip.Trust(set)
	return nil
}

// take lets the node serve: it answers requests, admits others, and speaks for
// the cluster when it leads its catalog.
func (p *process) take(c *config) error {
	p.admission.Store(cluster.NewAdmission(p.dir.Identity.ClusterID, c.ClusterName, nodeCatalog{p.node}, p.gossip))
	p.backend.node.Store(p.node)
	p.say(cluster.MemberServing)
	controller, err := cluster.StartController(p.node, p.gossip, c.Placement, p.logger)
	if err != nil {
		return err
	}
	p.controller.Store(controller)
	p.watcher = watch(p.node, p.gossip, p.dir.Identity.Key(), c.Placement, p.logger)
	lost := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "countd_nodes_lost_total",
		Help: "Nodes that this one, as leader of the catalog, has had removed because they were gone for longer than --replace-after.",
	}, func() float64 { return float64(controller.Lost()) })
	if err := p.registry.Register(lost); err != nil {
		return fmt.Errorf("cannot register a metric: %w", err)
	}
	return nil
}

// plan answers a node that asks what the placement does next.
func (p *process) plan(ctx context.Context, request []byte) ([]byte, error) {
	controller := p.controller.Load()
	if controller == nil {
		return nil, fmt.Errorf("%w: this node is starting", shard.ErrNoLeader)
	}
	return controller.HandlePlan(ctx, request)
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
	m, _ := p.gossip.Member(key)
	return m.Alive
}

// liveAddr returns where a living node of this cluster says that it listens for
// others, "" for one that gossip does not hear of.
func (p *process) liveAddr(key string) string {
	if m, _ := p.gossip.Member(key); m.Alive && m.ClusterID == p.dir.Identity.ClusterID {
		return m.ClusterAddr
	}
	return ""
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

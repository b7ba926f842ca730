package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/countd/countd/cluster"
	"github.com/countd/countd/internal/program"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/rpc"
)

// startGossip starts gossip and the search for other nodes.
func (p *process) startGossip(c *config) error {
	var err error
	if c.GossipKeys != "" {
		if p.keys, err = cluster.OpenGossipKeys(c.GossipKeys); err != nil {
			return c.bad("gossip-key-file", err.Error())
		}
	}
	id := &p.dir.Identity
	p.gossip, err = cluster.StartGossip(cluster.GossipConfig{
		Self: cluster.Member{
			Key: id.Key(), Name: id.NodeID, ClusterID: id.ClusterID, ClusterName: c.ClusterName, Zone: c.Zone,
			HTTPAddr: c.HTTPAddr, ClusterAddr: c.ClusterAddr,
			Version: program.VersionText(), VersionMax: catalog.ClusterVersionMax, Expect: uint8(c.Expect),
		},
		Addr: c.GossipAddr, Join: c.Join, Joining: id.Joining, Promised: id.Promised, Keys: p.keys, Transition: c.Transition, Logger: p.logger,
	})
	if err != nil && taken(c.GossipAddr) {
		err = inUse(err, "gossip-addr")
	}
	return err
}

// join forms a cluster, alone or with other nodes, or joins one. It returns the port, or nil if a
// bootstrap server used the port for calls between nodes and has closed it.
func (p *process) join(c *config, port net.Listener) (net.Listener, error) {
	id := &p.dir.Identity
	if id.ClusterID != "" {
		return port, nil
	}
	former, asked, err := p.former(c, port)
	if err != nil {
		return port, err
	}
	_, err = former.Run(context.Background()) // the context never ends: a signal during the wait ends the process
	if asked != nil {
		port = nil
		err = errors.Join(err, asked.Close())
	}
	p.starting.waitFor(theStart) // former no longer waits
	return port, err
}

// former returns the Former of the node. Unless the node will be alone, it also returns the
// bootstrap server through which the Former calls other nodes.
func (p *process) former(c *config, port net.Listener) (*cluster.Former, *rpc.BootstrapServer, error) {
	var bootstrap *rpc.BootstrapServer
	id := p.dir.Identity
	cfg := cluster.FormConfig{
		Identity: id,
		Node: catalog.Node{
			Key: id.Key(), Name: id.NodeID, Zone: c.Zone, State: catalog.NodeActive,
			HTTPAddr: c.HTTPAddr, ClusterAddr: c.ClusterAddr, GossipAddr: c.GossipAddr,
			Version: program.VersionText(), VersionMax: catalog.ClusterVersionMax,
		},
		Expect: c.Expect, Join: len(c.Join) > 0, ClusterName: c.ClusterName,
		View: p.gossip, Store: promises{p.dir, p.gossip}, Logger: p.logger,
		Asker: cluster.CallAsker{Call: func(ctx context.Context, clusterID, addr, name string, request []byte) ([]byte, error) {
			return bootstrap.Call(ctx, clusterID, addr, name, request)
		}},
	}
	former, err := cluster.NewFormer(cfg)
	if err != nil || cfg.Alone() {
		return former, nil, err
	}
	p.starting.waitFor(former.Waiting)
	bootstrap, err = rpc.OpenBootstrapServer(port, p.dialPeer(), c.ClusterName, map[string]shard.Handler{
		cluster.FormCall: cluster.CallHandler(former.HandleForm),
	}, p.logger)
	return former, bootstrap, err
}

// promises stores the promises of a node without a cluster in the data directory. Gossip then
// trusts the nodes with which this node has promised to form a cluster.
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

// beginServing makes the node admit other nodes, and run the placement while it leads the catalog.
// It announces the node's cluster after admission is ready, because a node that sees the
// announcement sends this node a JoinRequest.
func (p *process) beginServing(c *config) error {
	p.admission.Store(cluster.NewAdmission(p.dir.Identity.ClusterID, c.ClusterName, nodeCatalog{p.node}, p.gossip))
	p.starting.node.Store(p.node)
	p.followUsers()
	p.growth.Start()
	p.backups.Start()
	if err := p.gossip.Announce(0, func(m *cluster.Member) {
		m.ClusterID, m.Expect, m.State = p.dir.Identity.ClusterID, 0, cluster.MemberServing
	}); err != nil {
		return err
	}
	placement := c.Placement
	placement.NodesWanted = c.Expect
	controller, err := cluster.StartController(p.node, p.gossip, placement, p.logger)
	if err != nil {
		return err
	}
	p.controller.Store(controller)
	p.watcher = watch(p.node, p.gossip, p.dir.Identity.Key(), c.Placement, p.logger)
	lost := prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "countd_nodes_lost_total",
		Help: "Nodes that this node, as leader of the catalog, removed because they were unreachable for longer than --replace-after.",
	}, func() float64 { return float64(controller.Lost()) })
	for _, c := range []prometheus.Collector{lost, p.sources} {
		if err := p.registry.Register(c); err != nil {
			return fmt.Errorf("cannot register a metric: %w", err)
		}
	}
	p.sources.Start()
	return nil
}

// accept gives the node to the servers, which from then on serve clients' requests.
func (p *process) accept() {
	p.server.Attach(p.node)
	if p.redis != nil {
		p.redis.Attach(p.node)
	}
}

// plan answers admin.PlanCall.
func (p *process) plan(ctx context.Context, request []byte) ([]byte, error) {
	controller := p.controller.Load()
	if controller == nil {
		return nil, fmt.Errorf("%w: this node is starting", errs.ErrNoLeader)
	}
	return controller.HandlePlan(ctx, request)
}

// admit answers a node that asks to join.
func (p *process) admit(ctx context.Context, request []byte) ([]byte, error) {
	admission := p.admission.Load()
	if admission == nil {
		return nil, fmt.Errorf("%w: this node is starting", errs.ErrNoLeader)
	}
	return cluster.CallHandler(admission.HandleJoin)(ctx, request)
}

func (p *process) alive(key string) bool {
	m, _ := p.gossip.Member(key)
	return m.Alive
}

// liveAddr returns the cluster address of a living node of this cluster, or "" if gossip knows no
// such node.
func (p *process) liveAddr(key string) string {
	if m, _ := p.gossip.Member(key); m.Alive && m.ClusterID == p.dir.Identity.ClusterID {
		return m.ClusterAddr
	}
	return ""
}

// place returns a function that chooses the nodes of a new keyspace's shards. If no placement is
// possible, the function chooses only this node.
func (p *process) place(settings cluster.PlanSettings) func(*catalog.View, int) [][]string {
	return func(view *catalog.View, shards int) [][]string {
		dead := map[string]time.Duration{}
		for key := range view.Nodes {
			if m, heard := p.gossip.Member(key); heard && !m.Alive {
				dead[key] = 0
			}
		}
		replicas, err := cluster.Initial(cluster.View{Catalog: view, Settings: settings, Dead: dead}, shards)
		if err != nil {
			p.logger.Warn("cannot place a keyspace: this node holds all its shards", "err", err)
			return slices.Repeat([][]string{{p.dir.Identity.Key()}}, shards)
		}
		return replicas
	}
}

// nodeCatalog reads and changes the catalog for admissions.
type nodeCatalog struct{ node *shard.Node }

func (c nodeCatalog) Nodes() map[string]catalog.Node { return c.node.Catalog().Nodes }

func (c nodeCatalog) PutNode(ctx context.Context, entry catalog.PutNodeEntry) (refused string, err error) {
	result, err := c.node.Change(ctx, &catalog.Command{PutNode: &entry})
	if err != nil {
		return "", err
	}
	return result.Refused, nil
}

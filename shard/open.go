package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/internal/program"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/storage"
	"github.com/countd/countd/shard/stream"
	"github.com/countd/countd/shard/tiering"
)

// Open opens the node's groups. When Open returns, the groups may not be ready yet: see WaitReady.
// By then the only node of a cluster knows the newest catalog. A node of a larger cluster may still
// have to find the other nodes.
func Open(cfg Config) (*Node, error) {
	cfg, id, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	n := &Node{life: newLife()}
	n.cfg, n.catalog, n.rounds, n.beats = cfg, catalog.New(), propose.NewRounds(nil), replica.NewBeats()
	n.reconcileNow, n.stopping = make(chan struct{}, 1), make(chan struct{})
	n.registry.dirs.Path, n.registry.dirs.Opened = cfg.Dir, cfg.Opened
	n.registry.dirs.OnlyNode = n.isOnlyNode
	n.tiering = tiering.New(tiering.Config{
		Key: cfg.NodeKey, Cold: cfg.Cold, Catalog: n.catalog, Headroom: &n.headroom, Shards: n.registry.counters, Read: n.reader.readAny,
		Draining: &n.draining, Stopping: n.stopping, Logger: cfg.Logger,
	})
	n.spill = &tiering.Spill{Tiering: n.tiering, Idle: cfg.FeedIdle, Bodies: n.registry.bodies, Began: time.Now()}
	n.space.Free = func() (uint64, error) { return tiering.FreeBytes(cfg.Dir) }
	n.space.Needs = func() uint64 { return cfg.DiskReserve + n.registry.snapshotBytes() }
	n.registry.keyspaces.Store(&keyspaceTable{})
	n.registry.groups.Store(&groupTable{byFirst: map[uint32]*keyspaceShards{}, byNumber: map[uint32]*shardReplica{}})
	if n.metrics, err = propose.NewMetrics(cfg.Metrics); err != nil {
		return nil, err
	}
	if err := n.registerMetrics(); err != nil {
		return nil, err
	}
	advertise := "" // address of the listener, if the port was 0
	if cfg.Listener != nil {
		advertise = cfg.ClusterAddr // may be a host name, because its IP address may change later
	}
	n.mux, err = rpc.ListenMux(rpc.MuxConfig{Addr: cfg.ClusterAddr, Listener: cfg.Listener, Advertise: advertise, ClusterID: id, NodeKey: cfg.NodeKey, ClusterName: cfg.ClusterName, Dial: cfg.DialPeer, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	if n.calls, err = rpc.NewCalls(rpc.CallsConfig{Mux: n.mux, Lookup: n.addrOf, Cut: n.cut, Logger: cfg.Logger}); err != nil {
		return nil, errors.Join(err, n.mux.Close())
	}
	n.router = router{registry: &n.registry, node: cfg.NodeKey, catalog: n.catalog, calls: n.calls, alive: cfg.Alive, draining: &n.draining, clusterHash: clusterHashOf(id)}
	n.tiering.Connect(n.calls, n.mux.Limited())
	n.votersDisks = tiering.VotersDisks{Headroom: &n.headroom, Calls: n.calls, Self: cfg.NodeKey, Catalog: n.catalog, Replicas: n.registry.machines, Stopping: n.stopping}
	if err := program.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make the groups' directory: %w", err), n.mux.Close())
	}
	if n.cfg.LogStore, err = storage.ChooseLogStore(cfg.Dir, cfg.LogStore); err != nil {
		return nil, errors.Join(err, n.mux.Close())
	}
	if n.cfg.LogStore == storage.LogStoreShared {
		if n.log, err = storage.OpenNodeLog(cfg.Dir); err != nil {
			return nil, errors.Join(err, n.mux.Close())
		}
		n.rounds = propose.NewRounds(n.log.Expect)
	}
	n.growth = leadership.NewGrowth(leadership.GrowthConfig{
		Key: cfg.NodeKey, Catalog: n.catalog, Local: n.registry.growing, Space: &n.space, Logger: cfg.Logger, Limited: n.mux.Limited(),
	})
	room := tiering.HeadroomConfig{
		MemoryLimit: cfg.MemoryLimit, DiskReserve: cfg.DiskReserve, CollectorPercent: cfg.CollectorPercent,
		Tables: func() uint64 { return n.registry.tableBytes() + n.growth.ParkedBytes() }, Snapshots: n.registry.snapshotBytes, Kept: n.space.Kept, Free: n.space.Free, Logger: n.mux.Limited(),
	}
	if err := n.headroom.Watch(room, cfg.Metrics); err != nil {
		return nil, errors.Join(err, n.closeLog(), n.mux.Close())
	}
	if n.cold, err = n.tiering.OpenStore(cfg.Dir+"-cold", n.fatal); err != nil {
		n.headroom.Close()
		return nil, errors.Join(err, n.closeLog(), n.mux.Close())
	}
	if n.sets, err = n.tiering.OpenSets(members.Config{
		Dir: cmp.Or(cfg.MembersDir, cfg.Dir+"-members"), MemoryBytes: cfg.MembersMemory, Fatal: n.fatal, Groups: n.registry.withSets,
	}); err != nil {
		n.headroom.Close()
		return nil, errors.Join(err, n.cold.Close(), n.closeLog(), n.mux.Close())
	}
	n.turns = replica.NewSnapshotTurns(n.draining.Load)
	n.streams = stream.New(stream.Config{Mux: n.mux, Lookup: n.addrOf, Calls: n.calls})
	n.prover = leadership.NewProver(leadership.ProverConfig{
		Key: cfg.NodeKey, Find: n.registry.provable, Asking: &n.asking.WaitGroup, Call: n.streams.Call,
	})
	n.catalogClient = leadership.NewCatalogClient(leadership.CatalogConfig{
		Key: cfg.NodeKey, Catalog: n.catalog, Group: n.registry.catalogReplica, Calls: n.calls, Prover: n.prover, Fresh: &n.registry.metaFresh,
		Handlers: cfg.Handlers, Place: cfg.Place, Alive: cfg.Alive,
		DiskError: n.headroom.DiskError, Follow: n.follow, Draining: &n.draining,
	})
	n.router.newest = n.catalogClient.CatchUpView
	n.maintenance = leadership.NewMaintenance(leadership.MaintenanceConfig{
		Catalog: n.catalogClient, Self: n.record(), Builtin: kinds.Beginning(cfg.Shards, ShardsDefault, cfg.Texts), NodesWanted: cfg.NodesWanted, VotersWanted: cfg.VotersWanted, Stopping: n.stopping, Logger: cfg.Logger,
	})
	n.membership = leadership.NewMembership(leadership.MembershipConfig{
		Key: cfg.NodeKey, Catalog: n.catalog, Calls: n.calls, Replicas: &n.registry,
		Prove: n.prover.ProveTerm, Change: n.catalogClient.MustChange, Wake: n.wakeReconcile, Unfit: n.headroom.Unfit, Grower: n.growth,
		Stopping: n.stopping, Logger: cfg.Logger, Limited: n.mux.Limited(),
	})
	n.growth.Connect(n.membership, n.catalogClient)
	n.reader.router, n.reader.streams, n.reader.mu.batchers = &n.router, n.streams, map[string]*readBatchers{}
	n.writer = writer{router: &n.router, headroom: &n.headroom, streams: n.streams, asking: &n.asking, prover: n.prover}
	if err := n.start(); err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		return nil, errors.Join(err, n.Close(ctx))
	}
	return n, nil
}

// start opens the catalog's group and the groups in the local catalog, and starts the goroutines of
// the node.
func (n *Node) start() error {
	n.registry.dirs.Log, n.registry.dirs.Cold, n.registry.dirs.Members = n.log, n.cold, n.sets
	cfg := n.groupConfig(catalogGroup, 0, catalogName, n.catalog)
	if n.cfg.Bootstrap {
		cfg.Initial = []replica.Member{{ID: cfg.ID(), Addr: n.mux.Addr().String()}}
	}
	var err error
	if err = n.registry.dirs.FinishGivenUp(); err != nil {
		return err
	}
	if n.registry.meta, err = n.registry.dirs.Open(cfg); err != nil {
		return err
	}
	if err := n.registry.dirs.Forget(n.catalog.View().Dropped); err != nil { // View shows the catalog's snapshot on disk
		return err
	}
	if err := n.registerCluster(); err != nil {
		return err
	}
	n.serveCalls()
	if n.registry.meta.SoleVoter() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		if err := errs.WaitFor(ctx, n.registry.meta.Ready); err != nil {
			return fmt.Errorf("cannot open the catalog: %w", err)
		}
		if err := n.maintenance.Maintain(ctx); err != nil {
			return err
		}
	}
	if err := n.follow(); err != nil {
		return err
	}
	n.running.Go(n.runReconcile)
	n.running.Go(n.maintenance.Run)
	n.running.Go(replica.FailureDetector{Replicas: n.registry.Replicas, Logger: n.mux.Limited(), Stopping: n.stopping}.Run)
	n.running.Go(n.membership.RunRemoved)
	n.running.Go(n.votersDisks.Run)
	upkeep := &leadership.Upkeep{
		Shards: n.registry.kept, View: n.catalog.View, Cluster: n.router.clusterHash, CursorIdle: n.cfg.CursorIdle,
		DiskFull: &n.headroom.DiskFull, Logger: n.cfg.Logger, Stopping: n.stopping,
	}
	n.running.Go(upkeep.Clean)
	n.running.Go(upkeep.ForgetSources)
	n.running.Go(n.tiering.Run)
	n.running.Go(n.tiering.Scrub.Run)
	n.running.Go(n.tiering.Scrub.RunSuspects)
	n.running.Go(n.spill.Run)
	return nil
}

// record returns this node's entry for the catalog, without the field State.
func (n *Node) record() catalog.Node {
	return catalog.Node{
		Key: n.cfg.NodeKey, Name: n.cfg.NodeName, Zone: n.cfg.Zone,
		Version: n.cfg.Version, VersionMax: catalog.ClusterVersionMax,
		HTTPAddr: n.cfg.HTTPAddr, ClusterAddr: n.mux.Addr().String(), GossipAddr: n.cfg.GossipAddr,
	}
}

// Close refuses further requests, answers the waiting ones, writes snapshots that shorten the next
// start, and closes everything. If ctx ends first, Close returns ctx's error, and closing
// continues. A second Close does nothing, and does not wait for the first.
func (n *Node) Close(ctx context.Context) error {
	if n.draining.Swap(true) {
		return nil
	}
	close(n.stopping)
	return replica.Within(ctx, func() error { return n.close(ctx) })
}

func (n *Node) close(ctx context.Context) error {
	n.running.Wait()
	n.registry.changing.Lock()
	defer n.registry.changing.Unlock()
	table := n.registry.groups.Load()
	var closing errgroup.Group
	for _, g := range slices.Concat(table.all, table.dropped) {
		if r := cmp.Or(g.replica.Load(), g.closing.Load()); r != nil {
			closing.Go(func() error { return r.close(ctx, true) })
		}
	}
	err := closing.Wait()
	n.growth.Close()
	if n.registry.meta != nil {
		n.registry.metaFresh.Close()
		err = errors.Join(err, n.registry.meta.Close(ctx, true))
	}
	n.headroom.Close()
	n.reader.close()
	table = n.registry.groups.Load() // the catalog's replica may have replaced it until it was closed
	for _, g := range slices.Concat(table.all, table.dropped) {
		g.forward.Close()
	}
	n.prover.Close()
	n.streams.Leave()
	n.calls.Close()
	n.asking.Close()
	n.streams.Close()
	if err == nil { // after an error, a group may still apply entries, and then needs the stores
		err = errors.Join(n.cold.Close(), n.sets.Close(), n.closeLog())
	}
	return errors.Join(err, n.mux.Close())
}

func (n *Node) closeLog() error {
	if n.log == nil {
		return nil
	}
	return n.log.Close()
}

// serveCalls registers the handlers for calls of other nodes, and begins to answer.
func (n *Node) serveCalls() {
	for method, handle := range n.cfg.Handlers {
		n.calls.Handle(method, handle)
	}
	for method, handle := range n.cfg.Streams {
		n.calls.HandleStream(method, handle)
	}
	n.prover.Handle(n.calls)
	n.calls.Handle(methodRead, n.reader.serveReads)
	n.calls.Handle(methodPropose, n.writer.serveParts)
	n.calls.Handle(methodRelay, n.writer.serveRelay)
	n.calls.Handle(methodRelayRead, n.reader.serveRelayRead)
	n.membership.Handle()
	n.catalogClient.Handle()
	n.calls.Handle(methodReport, rpc.JSON(n.serveReport))
	n.votersDisks.Handle()
	n.calls.HandleStream(methodSnapshot, n.serveSnapshot)
	n.calls.Serve()
}

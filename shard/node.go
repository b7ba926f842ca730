package shard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/catalogclient"
	"github.com/countd/countd/shard/headroom"
	"github.com/countd/countd/shard/keyspace"
	"github.com/countd/countd/shard/membership"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/prover"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/retry"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/sourcesink"
	"github.com/countd/countd/shard/storage"
	"github.com/countd/countd/shard/stream"
	"github.com/countd/countd/shard/tiering"
)

// startTimeout bounds the first election and the making of the built-in
// keyspaces when a node that is a cluster by itself is opened.
const startTimeout = 30 * time.Second

// Node is all groups of one process: the catalog, and this node's replicas of
// the shards of every keyspace. It answers for all shards, wherever they are.
//
// Its goroutines: runReconcile, RunRemoved of membership, and run of maintenance, tiering,
// Spill, votersRoom, replica.FailureDetector, sweeper, memberPurger and scrub, which Open starts and Close
// stops and waits for; repairs of replicas, which runReconcile starts and Close likewise
// stops; removals of replicas that were dropped, which runReconcile starts and Close waits
// for; those of asking, which end at the deadline of what they ask.
type Node struct {
	registry registry
	router   router
	reader   reader
	writer   writer

	cfg           Config
	life          string // tells this life of the node from others
	mux           *rpc.Mux
	calls         *rpc.Calls
	streams       *stream.Streams
	beats         *replica.Beats
	rounds        *propose.Rounds
	catalog       *catalog.Catalog
	prover        *prover.Prover
	catalogClient *catalogclient.Client
	maintenance   *catalogclient.Maintenance
	membership    *membership.Membership
	metrics       *propose.Metrics

	log *raftstore.Log // of all groups; nil for a node whose groups have logs of their own

	cold    *cold.Store
	sets    *members.Store
	tiering *tiering.Tiering
	spill   *tiering.Spill
	sources *sourcesink.Sink

	headroom headroom.Headroom
	room     headroom.DiskRoom

	reconcileNow chan struct{} // one token
	stopping     chan struct{}
	running      sync.WaitGroup // the loops that start begins, repairs, removals
	asking       sync.WaitGroup // questions to other nodes
	repairing    atomic.Bool    // a replica is being repaired
	removing     atomic.Bool    // replicas of dropped keyspaces are being deleted
	draining     atomic.Bool
	fatalOnce    sync.Once
}

// Open opens the node's groups. A cluster of this node alone, new or not, can
// read its catalog when Open returns; a member of a larger one when it has found
// the others. The groups may not be ready to serve: see WaitReady.
func Open(cfg Config) (*Node, error) {
	cfg, id, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	n := &Node{
		cfg: cfg, life: newLife(), catalog: catalog.New(),
		reconcileNow: make(chan struct{}, 1), stopping: make(chan struct{}),
		rounds: propose.NewRounds(nil),
		beats:  replica.NewBeats(),
	}
	n.registry.dirs.Path, n.registry.dirs.Opened = cfg.Dir, cfg.Opened
	n.registry.dirs.OnlyNode = func() bool { return n.registry.meta != nil && n.registry.meta.SoleVoter() && n.router.alone() }
	n.prover = prover.New(prover.Config{
		Key: cfg.NodeKey, Find: n.registry.provable, Asking: &n.asking,
		Call: func(ctx context.Context, node, method string, request []byte, answerBytes int) ([]byte, error) {
			return n.streams.Call(ctx, node, method, request, answerBytes)
		},
	})
	n.sources = sourcesink.New(nodeSources{n})
	n.tiering = tiering.New(tiering.Config{
		Key: cfg.NodeKey, Cold: cfg.Cold, Catalog: n.catalog, Headroom: &n.headroom, Shards: n.registry.counters,
		Draining: &n.draining, Stopping: n.stopping, Logger: cfg.Logger,
	})
	n.spill = tiering.NewSpill(tiering.SpillConfig{
		Idle: cfg.FeedIdle, Catalog: n.catalog, Headroom: &n.headroom, Feeds: n.registry.feeds,
		Store: func() *cold.Store { return n.cold }, Stats: n.tiering.Stats, MayFreeze: n.tiering.MayFreeze, Stopping: n.stopping,
	})
	n.room.Free = func() (uint64, error) { return headroom.FreeBytes(cfg.Dir) }
	n.registry.keyspaces.Store(&keyspaceTable{})
	n.registry.groups.Store(&groupTable{byFirst: map[uint32][]*shardReplica{}, byNumber: map[uint32]*shardReplica{}})
	if n.metrics, err = propose.NewMetrics(cfg.Metrics); err != nil {
		return nil, err
	}
	if err := n.registerMetrics(); err != nil {
		return nil, err
	}
	n.mux, err = rpc.ListenMux(rpc.MuxConfig{Addr: cfg.ClusterAddr, Listener: cfg.Listener, ClusterID: id, NodeKey: cfg.NodeKey, ClusterName: cfg.ClusterName, ReadsNames: cfg.ReadsNames, Dial: cfg.DialPeer, Logger: cfg.Logger})
	if err != nil {
		return nil, err
	}
	if n.calls, err = rpc.NewCalls(rpc.CallsConfig{Mux: n.mux, Lookup: n.addrOf, Cut: n.cut, Logger: cfg.Logger}); err != nil {
		return nil, errors.Join(err, n.mux.Close())
	}
	n.router = router{&n.registry, cfg.NodeKey, n.catalog, n.calls, cfg.Alive, &n.draining, clusterHash(id)}
	n.tiering.Connect(n.calls, n.mux.Limited())
	n.catalogClient = catalogclient.New(catalogclient.Config{
		Key: cfg.NodeKey, Catalog: n.catalog, Group: func() *replica.Replica { return n.registry.meta }, Calls: n.calls, Prover: n.prover, Fresh: &n.registry.metaFresh,
		Handlers: cfg.Handlers, Place: cfg.Place, Alive: cfg.Alive,
		DiskError: n.headroom.DiskError, Follow: n.follow, Draining: &n.draining,
	})
	n.maintenance = catalogclient.NewMaintenance(catalogclient.MaintenanceConfig{
		Client: n.catalogClient, Self: n.record(), Builtin: keyspace.Builtin(cfg.Shards), NodesWanted: cfg.NodesWanted, Stopping: n.stopping, Logger: cfg.Logger,
	})
	n.membership = membership.New(membership.Config{
		Key: cfg.NodeKey, Catalog: n.catalog, Calls: n.calls, Replicas: &n.registry,
		Prove: n.prover.ProveTerm, Change: n.catalogClient.MustChange, Wake: n.wakeReconcile,
		Stopping: n.stopping, Logger: cfg.Logger, Limited: n.mux.Limited(),
	})
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make the groups' directory: %w", err), n.mux.Close())
	}
	if n.cfg.LogStore, err = storage.ChooseLogStore(cfg.Dir, cfg.LogStore); err != nil {
		return nil, errors.Join(err, n.mux.Close())
	}
	if n.cfg.LogStore == storage.LogStoreShared {
		if n.log, err = n.openLog(); err != nil {
			return nil, errors.Join(err, n.mux.Close())
		}
		n.rounds = propose.NewRounds(n.log.Expect)
	}
	room := headroom.Config{
		MemoryLimit: cfg.MemoryLimit, DiskReserve: cfg.DiskReserve, CollectorPercent: cfg.CollectorPercent,
		Tables: n.registry.tableBytes, Snapshots: n.registry.snapshotBytes, Free: n.room.Free, Logger: n.mux.Limited(),
	}
	if err := n.headroom.Watch(room, cfg.Metrics); err != nil {
		return nil, errors.Join(err, n.closeLog(), n.mux.Close())
	}
	if n.cold, err = n.tiering.OpenStore(cfg.Dir+"-cold", n.fatal); err != nil {
		n.headroom.Close()
		return nil, errors.Join(err, n.closeLog(), n.mux.Close())
	}
	if n.sets, err = members.Open(members.Config{
		Dir: cmp.Or(cfg.MembersDir, cfg.Dir+"-members"), MemoryBytes: cfg.MembersMemory, Logger: cfg.Logger, Fatal: n.fatal,
	}); err != nil {
		n.headroom.Close()
		return nil, errors.Join(err, n.cold.Close(), n.closeLog(), n.mux.Close())
	}
	n.streams = stream.New(stream.Config{
		Mux: n.mux, Lookup: n.addrOf, Allowed: func() bool { return n.catalog.View().SharesAppends() },
		Calls: n.calls,
	})
	n.reader.router, n.reader.streams, n.reader.asking, n.reader.mu.batchers = &n.router, n.streams, &n.asking, map[string]*readBatchers{}
	n.writer = writer{&n.router, cfg.Limits.KeyHorizon, &n.headroom, n.streams, cfg.outboxLimits(), &n.asking, n.prover}
	if err := n.start(); err != nil {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		return nil, errors.Join(err, n.Close(ctx))
	}
	return n, nil
}

// start opens the catalog and the groups that it names, as far as it is known
// here, and starts what follows it from then on.
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
	if err := n.registry.dirs.Forget(n.catalog.View().Dropped); err != nil { // as the catalog's snapshot on disk has it
		return err
	}
	if err := n.registerCluster(); err != nil {
		return err
	}
	n.serveCalls()
	if n.registry.meta.SoleVoter() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		if err := retry.WaitFor(ctx, n.registry.meta.Ready); err != nil {
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
	n.running.Go(n.votersRoom().run)
	n.running.Go(sweeper{&n.registry, n.cfg.CursorIdle, &n.headroom.DiskFull, n.cfg.Logger, n.stopping}.run)
	n.running.Go(sourceForgetter{&n.registry, n.catalog.View, n.router.clusterHash, &n.headroom.DiskFull, n.cfg.Logger, n.stopping}.run)
	n.running.Go(memberPurger{&n.registry, &n.headroom.DiskFull, n.cfg.Logger, n.stopping}.run)
	n.running.Go(n.tiering.Run)
	n.running.Go(n.tiering.Scrub.Run)
	n.running.Go(n.spill.Run)
	return nil
}

func (n *Node) groupConfig(group uint32, number uint64, keyspace string, fsm groupFSM) replica.Config {
	return replica.Config{
		Dir:      n.registry.dirs.Dir(group, number),
		Group:    group,
		NodeID:   n.cfg.NodeKey,
		Replica:  number,
		FSM:      fsm,
		Mux:      n.mux,
		Streams:  n.streams,
		Beats:    n.beats,
		Logger:   n.cfg.Logger.With("keyspace", keyspace),
		Fatal:    n.fatal,
		Addrs:    n.addrOf,
		LogStore: n.cfg.LogStore,
		NodeLog:  n.log,
		Room:     n.room.Take,
	}
}

func (n *Node) votersRoom() votersRoom {
	return votersRoom{n.cfg.NodeKey, &n.registry, &n.headroom, n.calls, n.stopping}
}

// cut closes the stream to a node that answers no pings.
func (n *Node) cut(node string) { n.streams.Cut(node) }

func (n *Node) fatal(err error) { n.fatalOnce.Do(func() { n.cfg.Fatal(err) }) }

// Ready returns nil when this node knows its cluster and each of its groups has
// a leader, and which has none otherwise.
func (n *Node) Ready() error {
	if n.draining.Load() {
		return ErrDraining
	}
	if n.membership.Removed.Load() {
		return ErrRemoved
	}
	view := n.catalog.View()
	if _, in := view.Nodes[n.cfg.NodeKey]; !in {
		if n.registry.meta.LastIndex() == 0 {
			return fmt.Errorf("%w: the cluster has not taken this node in yet", ErrNoLeader)
		}
		return fmt.Errorf("%w: the catalog as it is known here does not have this node: it replays its log, or waits for a member to tell whether it was removed", ErrNoLeader)
	}
	if err := n.registry.meta.Follows(); err != nil {
		return fmt.Errorf("group %d (%s): %w", catalogGroup, catalogName, err)
	}
	if len(n.Keyspaces()) == 0 {
		return fmt.Errorf("%w: %s", ErrNoLeader, n.waitsToBegin(len(view.Nodes)))
	}
	for _, g := range n.registry.groups.Load().all {
		if !view.MayHold(g.number, n.cfg.NodeKey) {
			continue // a replica that is to be deleted may hear of no leader any more
		}
		if r := g.replica.Load(); r != nil {
			if err := r.group.Follows(); err != nil {
				return fmt.Errorf("group %d (%s): %w", g.number, g.keyspace, err)
			}
		}
	}
	return nil
}

// waitsToBegin says why there are no keyspaces, of which every cluster has some.
func (n *Node) waitsToBegin(nodes int) string {
	if nodes < n.cfg.NodesWanted {
		return fmt.Sprintf("the cluster waits for %d nodes to begin, there are %d", n.cfg.NodesWanted, nodes)
	}
	return "this node replays the catalog's log, or the cluster is making its first keyspaces"
}

// WaitReady returns nil once Ready does, or the context's error.
func (n *Node) WaitReady(ctx context.Context) error { return retry.WaitFor(ctx, n.Ready) }

// record returns this node as the catalog should know it, but for its state.
func (n *Node) record() catalog.Node {
	return catalog.Node{
		Key: n.cfg.NodeKey, Name: n.cfg.NodeName, Zone: n.cfg.Zone,
		Version: n.cfg.Version, VersionMax: catalog.ClusterVersionMax,
		HTTPAddr: n.cfg.HTTPAddr, ClusterAddr: n.mux.Addr().String(), GossipAddr: n.cfg.GossipAddr,
	}
}

// HandOver has other nodes lead what this one leads, and returns when it leads
// nothing that another would, or with ctx's error. No other node hands over to this
// one from then on.
func (n *Node) HandOver(ctx context.Context) error {
	n.membership.HandingOver.Store(true)
	n.wakeReconcile()
	began, _ := n.membership.ToHandOver()
	err := retry.WaitFor(ctx, func() error {
		if n.draining.Load() {
			return ErrDraining
		}
		if led, heirless := n.membership.ToHandOver(); led > heirless {
			return fmt.Errorf("%d groups are still led here", led)
		}
		return nil
	})
	if led, _ := n.membership.ToHandOver(); began > 0 {
		n.cfg.Logger.Info("handed over what was led here", "groups", max(0, began-led), "kept", led)
	}
	return err
}

// Close refuses further requests, answers those that wait, writes the snapshots
// that are worth it and closes everything. It does not wait past ctx: then it
// returns ctx's error, with the rest stopping behind it. Closing again does
// nothing, and does not wait for the first.
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
	groups := slices.Concat(table.all, table.dropped)
	errs := make([]error, len(groups))
	var wg sync.WaitGroup
	for i, g := range groups {
		if r := g.replica.Load(); r != nil {
			wg.Go(func() { errs[i] = r.close(ctx, true) })
		}
	}
	wg.Wait()
	if n.registry.meta != nil {
		n.registry.metaFresh.Close()
		errs = append(errs, n.registry.meta.Close(ctx, true))
	}
	n.headroom.Close()
	n.closePeers()
	n.prover.Close()
	n.streams.Leave()
	n.calls.Close()
	n.asking.Wait()
	n.streams.Close()
	if errors.Join(errs...) == nil { // else a group may not have ended, and what it applies needs them
		errs = append(errs, n.cold.Close(), n.sets.Close(), n.closeLog())
	}
	return errors.Join(append(errs, n.mux.Close())...)
}

func (n *Node) closeLog() error {
	if n.log == nil {
		return nil
	}
	return n.log.Close()
}

package shard

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/engine/members"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/stream"
	"github.com/countd/countd/shard/tiering"
)

// startTimeout bounds how long the only node of a cluster waits in Open for its first election and
// for the built-in keyspaces. The node also logs a replica that takes longer than startTimeout to
// close.
const startTimeout = 30 * time.Second

// Node owns the replicas of one process: one of the catalog's group, and one of each shard that
// the node holds. It answers requests for all shards, including shards that only other nodes hold.
//
// Its goroutines:
//   - The goroutines of the method start: Open starts them; Close stops them and waits.
//   - Goroutines that repair, delete or close replicas: runReconcile starts them; Close waits for
//     them.
//   - Calls to other nodes, which the field asking counts: they end at their deadlines; Close
//     waits for them.
type Node struct {
	replicas
	reader reader

	life          string // identifies this run of the process
	catalogClient *leadership.CatalogClient
	maintenance   *leadership.Maintenance
	cold          *cold.Store

	opsWritten, idsRead atomic.Uint64 // see NodeReport
	asking              rpc.Questions // running questions to other nodes
}

// replicas opens this node's replicas of shards as the catalog wants, repairs them, and closes and
// deletes those that were removed. It serves no client.
type replicas struct {
	registry registry
	router   router
	writer   writer // replicas forward parts of writes through it

	cfg        Config
	mux        *rpc.Mux
	calls      *rpc.Calls
	streams    *stream.Streams
	turns      *replica.SnapshotTurns
	beats      *replica.Beats
	rounds     *propose.Rounds
	catalog    *catalog.Catalog
	prover     *leadership.Prover
	membership *leadership.Membership
	metrics    *propose.Metrics

	log *raftstore.Log // shared by all groups; nil if each group has its own log

	sets    *members.Store
	tiering *tiering.Tiering
	spill   *tiering.Spill

	headroom    tiering.Headroom
	votersDisks tiering.VotersDisks
	space       tiering.SnapshotSpace // free disk, divided among running snapshots
	growth      *leadership.Growth

	reconcileNow chan struct{} // holds a token while runReconcile should run at once
	stopping     chan struct{}
	running      sync.WaitGroup // the goroutines of start and runReconcile
	repairing    atomic.Bool    // a repair of a replica runs
	finishing    atomic.Bool    // a deletion of replicas that were moved aside runs
	draining     atomic.Bool
	fatalOnce    sync.Once
}

// cut closes the stream to a node that does not answer pings.
func (n *replicas) cut(node string) { n.streams.Cut(node) }

// isOnlyNode reports whether this node is the only one of its cluster, according to its open
// catalog.
func (n *replicas) isOnlyNode() bool {
	return n.registry.meta != nil && n.registry.meta.SoleVoter() && n.router.alone()
}

func (n *replicas) fatal(err error) { n.fatalOnce.Do(func() { n.cfg.Fatal(err) }) }

// Ready returns nil if clients should send requests to this node: it serves, and is neither
// stopping nor drained.
func (n *Node) Ready() error {
	if n.membership.HandingOver.Load() {
		return errs.ErrDraining
	}
	if n.catalog.View().Nodes[n.cfg.NodeKey].State == catalog.NodeDraining {
		return errs.ErrDrained
	}
	return n.serves()
}

// serves returns nil if this node knows its cluster and each of its groups has a leader.
func (n *Node) serves() error {
	if n.draining.Load() {
		return errs.ErrDraining
	}
	if n.membership.Removed.Load() {
		return leadership.ErrRemoved
	}
	view := n.catalog.View()
	if _, in := view.Nodes[n.cfg.NodeKey]; !in {
		if n.registry.meta.LastIndex() == 0 {
			return fmt.Errorf("%w: the cluster has not taken this node in yet", errs.ErrNoLeader)
		}
		return fmt.Errorf("%w: the catalog as it is known here does not have this node: it replays its log, or waits for a member to tell whether it was removed", errs.ErrNoLeader)
	}
	if err := n.registry.meta.Follows(); err != nil {
		return fmt.Errorf("group %d (%s): %w", catalogGroup, catalogName, err)
	}
	if len(n.Keyspaces()) == 0 {
		return fmt.Errorf("%w: %s", errs.ErrNoLeader, n.waitsToBegin(len(view.Nodes)))
	}
	for g, r := range n.registry.local() {
		if !view.MayHold(g.number, n.cfg.NodeKey) || r.group.Growth.Unborn() {
			continue // a replica that will be deleted may never hear from a leader again; the parent serves for an unborn shard
		}
		if err := r.group.Follows(); err != nil {
			return fmt.Errorf("group %d (%s): %w", g.number, g.keyspace, err)
		}
	}
	return nil
}

// waitsToBegin returns why the cluster has no keyspaces yet.
func (n *Node) waitsToBegin(nodes int) string {
	if nodes < n.cfg.NodesWanted {
		return fmt.Sprintf("the cluster waits for %d nodes to begin, there are %d", n.cfg.NodesWanted, nodes)
	}
	if n.cfg.VotersWanted > 0 {
		if voters := len(n.registry.meta.Voters()); voters < n.cfg.VotersWanted {
			return fmt.Sprintf("the cluster waits for %d voters of the catalog to begin, there are %d", n.cfg.VotersWanted, voters)
		}
	}
	return "this node replays the catalog's log, or the cluster is making its first keyspaces"
}

// WaitReady returns nil once this node serves, drained or not, or ctx's error if ctx ends before.
func (n *Node) WaitReady(ctx context.Context) error { return errs.WaitFor(ctx, n.serves) }

// HandOver hands this node's leaderships over to other nodes. It returns nil once this node leads
// only groups that no other voter can lead. If ctx ends before that, it returns ctx's error. From
// the call on, Ready returns ErrDraining, and other nodes hand no leadership to this node.
func (n *Node) HandOver(ctx context.Context) error {
	n.membership.HandingOver.Store(true)
	n.wakeReconcile()
	began, _ := n.membership.ToHandOver()
	err := errs.WaitFor(ctx, func() error {
		if n.draining.Load() {
			return errs.ErrDraining
		}
		if led, heirless := n.membership.ToHandOver(); led > heirless {
			return fmt.Errorf("%d groups are still led here", led)
		}
		return nil
	})
	if led, _ := n.membership.ToHandOver(); began > 0 {
		n.cfg.Logger.Info("handed over the groups that this node led", "groups", max(0, began-led), "kept", led)
	}
	return err
}

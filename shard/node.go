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
	"github.com/countd/countd/shard/catalogclient"
	"github.com/countd/countd/shard/headroom"
	"github.com/countd/countd/shard/membership"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/prover"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/retry"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/sourcesink"
	"github.com/countd/countd/shard/stream"
	"github.com/countd/countd/shard/tiering"
)

// startTimeout bounds the first election and the making of the built-in
// keyspaces when a node that is a cluster by itself is opened.
const startTimeout = 30 * time.Second

// Node is all groups of one process: the catalog, and this node's replicas of
// the shards of every keyspace. It answers for all shards, wherever they are.
//
// Its goroutines: runReconcile, RunRemoved of membership, run of maintenance, tiering, Spill,
// votersRoom, replica.FailureDetector and scrub, and those of upkeep, which Open starts and
// Close stops and waits for; repairs of replicas, which runReconcile starts and Close likewise
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

	cold                *cold.Store
	sets                *members.Store
	tiering             *tiering.Tiering
	spill               *tiering.Spill
	sources             *sourcesink.Sink
	*sourcesink.Changes // of the sources

	headroom headroom.Headroom
	space    headroom.SnapshotSpace // free disk, divided among running snapshots

	reconcileNow chan struct{} // one token
	stopping     chan struct{}
	running      sync.WaitGroup // the loops that start begins, repairs, removals
	asking       rpc.Questions  // to other nodes
	repairing    atomic.Bool    // a replica is being repaired
	finishing    atomic.Bool    // what was moved aside is being deleted
	draining     atomic.Bool
	fatalOnce    sync.Once
}

// cut closes the stream to a node that answers no pings.
func (n *Node) cut(node string) { n.streams.Cut(node) }

func (n *Node) fatal(err error) { n.fatalOnce.Do(func() { n.cfg.Fatal(err) }) }

// Ready returns nil when clients should send requests to this node: it serves, and it is
// neither stopping nor drained. Otherwise it returns the reason.
func (n *Node) Ready() error {
	if n.membership.HandingOver.Load() {
		return ErrDraining
	}
	if n.catalog.View().Nodes[n.cfg.NodeKey].State == catalog.NodeDraining {
		return ErrDrained
	}
	return n.serves()
}

// serves returns nil when this node knows its cluster and each of its groups has a leader.
// Otherwise it returns the reason.
func (n *Node) serves() error {
	if n.draining.Load() {
		return ErrDraining
	}
	if n.membership.Removed.Load() {
		return membership.ErrRemoved
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
	if n.cfg.VotersWanted > 0 {
		if voters := len(n.registry.meta.Voters()); voters < n.cfg.VotersWanted {
			return fmt.Sprintf("the cluster waits for %d voters of the catalog to begin, there are %d", n.cfg.VotersWanted, voters)
		}
	}
	return "this node replays the catalog's log, or the cluster is making its first keyspaces"
}

// WaitReady returns nil once this node serves, drained or not, or the context's error.
func (n *Node) WaitReady(ctx context.Context) error { return retry.WaitFor(ctx, n.serves) }

// HandOver has other nodes lead what this one leads, and returns when it leads
// nothing that another would, or with ctx's error. From then on Ready returns ErrDraining,
// and no other node hands over to this one.
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
		n.cfg.Logger.Info("handed over the groups that this node led", "groups", max(0, began-led), "kept", led)
	}
	return err
}

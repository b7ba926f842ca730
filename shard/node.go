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
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/headroom"
	"github.com/countd/countd/shard/membership"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/prover"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/sourcesink"
	"github.com/countd/countd/shard/stream"
	"github.com/countd/countd/shard/tiering"
)

// startTimeout bounds the first election, and the creation of the built-in keyspaces, when the only
// node of a cluster opens. The node logs a replica that takes longer than startTimeout to close.
const startTimeout = 30 * time.Second

// Node owns the replicas of one process: that of the catalog's group, and those of the shards of every
// keyspace. It answers requests for all shards, on whichever node they are.
//
// Its goroutines:
//   - those that start begins: Open starts them; Close stops them and waits.
//   - repairs, deletions and closings of replicas: runReconcile starts them; Close waits for them.
//   - the questions that asking counts: they end at their deadline; Close waits for them.
type Node struct {
	registry registry
	router   router
	reader   reader
	writer   writer

	cfg           Config
	life          string // identifies this run of the process
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

	log *raftstore.Log // shared by all groups; nil if each group has its own log

	cold                *cold.Store
	sets                *members.Store
	tiering             *tiering.Tiering
	spill               *tiering.Spill
	sources             *sourcesink.Sink
	*sourcesink.Changes // changes of sources

	headroom headroom.Headroom
	space    headroom.SnapshotSpace // free disk, divided among running snapshots

	reconcileNow chan struct{} // holds a token while runReconcile should run at once
	stopping     chan struct{}
	running      sync.WaitGroup // the goroutines of start and runReconcile
	asking       rpc.Questions  // running questions to other nodes
	repairing    atomic.Bool    // a repair of a replica runs
	finishing    atomic.Bool    // a deletion of replicas that were moved aside runs
	draining     atomic.Bool
	fatalOnce    sync.Once
}

// cut closes the stream to a node that does not answer pings.
func (n *Node) cut(node string) { n.streams.Cut(node) }

func (n *Node) fatal(err error) { n.fatalOnce.Do(func() { n.cfg.Fatal(err) }) }

// Ready returns nil if clients should send requests to this node: it serves, and is neither stopping
// nor drained. Otherwise it returns the reason.
func (n *Node) Ready() error {
	if n.membership.HandingOver.Load() {
		return ErrDraining
	}
	if n.catalog.View().Nodes[n.cfg.NodeKey].State == catalog.NodeDraining {
		return ErrDrained
	}
	return n.serves()
}

// serves returns nil if this node knows its cluster and each of its groups has a leader. Otherwise it
// returns the reason.
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
	for g, r := range n.registry.local() {
		if !view.MayHold(g.number, n.cfg.NodeKey) {
			continue // a replica that will be deleted may never hear of a leader again
		}
		if err := r.group.Follows(); err != nil {
			return fmt.Errorf("group %d (%s): %w", g.number, g.keyspace, err)
		}
	}
	return nil
}

// waitsToBegin returns why this node knows no keyspaces, although every cluster has some.
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
func (n *Node) WaitReady(ctx context.Context) error { return errs.WaitFor(ctx, n.serves) }

// HandOver hands the groups that this node leads to other nodes. It returns once this node leads only
// groups without a successor, or with ctx's error. From its call on, Ready returns ErrDraining, and no
// other node hands a group to this one.
func (n *Node) HandOver(ctx context.Context) error {
	n.membership.HandingOver.Store(true)
	n.wakeReconcile()
	began, _ := n.membership.ToHandOver()
	err := errs.WaitFor(ctx, func() error {
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

package leadership

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
)

// These are the methods of calls between nodes, with their requests → answers.
const (
	methodProgress    = "progress"    // []raftstore.ReplicaID → []uint64, the applied index of each
	methodTransfer    = "transfer"    // transfer → nothing
	methodLeaderViews = "leaderviews" // nothing → []LeaderView of the groups that the called node leads
	methodGone        = "gone"        // MemberQuery → whether the called node leads the group and no configuration has the replica
	methodUnknown     = "unknown"     // key of a node → whether the called node leads the catalog and the catalog lacks the node
	methodUnborn      = "unborn"      // as progress, asked by the leader of an unborn shard
	methodGrowth      = "growth"      // growthQuestion → growthAnswer
)

// Replicas gives access to this node's replicas, including the catalog's.
type Replicas interface {
	Replica(group uint32) *replica.Replica // nil for none
	Replicas() []*replica.Replica
	Damaged(group uint32) bool // reports whether the replica has cold rows that it cannot read
	LedBy(node string) int     // number of groups that a node leads, as far as this node knows
}

// MembershipConfig configures a Membership. Every field but Grower must be set.
type MembershipConfig struct {
	Key      string // key of this node
	Catalog  *catalog.Catalog
	Calls    *rpc.Calls
	Replicas Replicas
	// Prove returns nil if this node leads the group in the given term, and a majority of the
	// voters was in no later term at some moment after the call began.
	Prove    func(ctx context.Context, g *replica.Replica, term uint64) error
	Change   func(context.Context, *catalog.Command) error // changes the catalog
	Unfit    func() error                                  // returns an error if this node should lead no group, because writes to its disk fail or hang
	Wake     func()                                        // makes the node reconcile at once
	Grower   Grower                                        // nil if no shard of this node can split
	Stopping <-chan struct{}
	Logger   *slog.Logger
	Limited  *slog.Logger // rate-limited
}

// Membership changes the members of the groups that this node leads, and hands groups over. It
// needs no lock, because its state is atomic.
//
// The node runs RunRemoved in a goroutine, and waits for its end.
type Membership struct {
	cfg MembershipConfig

	HandingOver atomic.Bool   // this node must lead no group
	Removed     atomic.Bool   // another node has proved that this node is no longer in the catalog
	VotersLag   atomic.Uint64 // largest lag, in entries, of a voter of the groups that this node leads, as of the last leaderViewsHere
}

// NewMembership returns the Membership of a node.
func NewMembership(cfg MembershipConfig) *Membership { return &Membership{cfg: cfg} }

// Handle registers the handlers for calls of other nodes.
func (m *Membership) Handle() {
	m.cfg.Calls.Handle(methodProgress, rpc.JSON(m.serveProgress))
	m.cfg.Calls.Handle(methodTransfer, rpc.JSON(m.handOver))
	m.cfg.Calls.Handle(methodLeaderViews, rpc.JSON(m.leaderViewsHere))
	m.cfg.Calls.Handle(methodGone, rpc.JSON(m.ServeGone))
	m.cfg.Calls.Handle(methodUnknown, rpc.JSON(m.serveUnknown))
	m.cfg.Calls.Handle(methodUnborn, rpc.JSON(m.serveUnborn))
	m.cfg.Calls.Handle(methodGrowth, rpc.JSON(m.serveGrowth))
}

// Package membership owns the member sets of the groups that this node leads. It changes them step
// by step to what the catalog wants, and hands groups over. It also reports what a leader knows
// about replicas to other nodes and to the catalog.
//
// It never decides where replicas are placed, and it neither opens nor deletes a replica.
//
// Invariant: this node calls a replica removed only after it proved that it leads the group and
// that no configuration, committed or not, has the replica.
package membership

import (
	"context"
	"log/slog"
	"sync/atomic"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
)

// The methods of calls between nodes.
const (
	methodProgress    = "progress"    // []raftstore.ReplicaID → the last index that each has applied, []uint64
	methodTransfer    = "transfer"    // transfer → nothing; hands the leadership over
	methodLeaderViews = "leaderviews" // nothing → []LeaderView of the groups led there
	methodGone        = "gone"        // MemberQuery → whether the group's leader proved that no configuration has the replica
	methodUnknown     = "unknown"     // the key of a node → whether the catalog's leader proved that the catalog lacks it
)

// Replicas gives access to this node's replicas, the catalog's included.
type Replicas interface {
	Replica(group uint32) *replica.Replica // nil for none
	Replicas() []*replica.Replica
	Damaged(group uint32) bool // the replica has cold rows that it cannot read
	LedBy(node string) int     // how many groups a node leads, as far as this node knows
}

// Config configures a Membership. Every field must be set.
type Config struct {
	Key      string // of this node
	Catalog  *catalog.Catalog
	Calls    *rpc.Calls
	Replicas Replicas
	// Prove returns nil if this node still leads the group and, at a moment after the call, a
	// majority of the voters was in no later term.
	Prove    func(ctx context.Context, g *replica.Replica, term uint64) error
	Change   func(context.Context, *catalog.Command) error // changes the catalog
	Unfit    func() error                                  // returns why this node should lead nothing, because its disk takes no writes; or nil
	Wake     func()                                        // makes the node reconcile again at once
	Stopping <-chan struct{}
	Logger   *slog.Logger
	Limited  *slog.Logger // rate-limited
}

// Membership changes the members of groups that this node leads to those that the catalog wants,
// and answers other nodes about its replicas. It needs no lock: its state is atomic.
//
// The node runs RunRemoved in a goroutine, and waits for its end.
type Membership struct {
	cfg Config

	HandingOver atomic.Bool   // this node must lead nothing
	Removed     atomic.Bool   // a member has proved that this node is no longer in the catalog
	VotersLag   atomic.Uint64 // the largest lag of a voter of the groups led here, in entries, as of the last leaderViewsHere
}

// New returns the membership of a node.
func New(cfg Config) *Membership { return &Membership{cfg: cfg} }

// Handle registers the handlers for calls of other nodes.
func (m *Membership) Handle() {
	m.cfg.Calls.Handle(methodProgress, rpc.JSON(m.serveProgress))
	m.cfg.Calls.Handle(methodTransfer, rpc.JSON(m.handOver))
	m.cfg.Calls.Handle(methodLeaderViews, rpc.JSON(m.leaderViewsHere))
	m.cfg.Calls.Handle(methodGone, rpc.JSON(m.ServeGone))
	m.cfg.Calls.Handle(methodUnknown, rpc.JSON(m.serveUnknown))
}

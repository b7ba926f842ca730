// Package membership owns which nodes are members of the groups that this node leads: it
// changes them step by step to those that the catalog wants, hands groups over, and reports
// to other nodes and to the catalog what a leader knows about replicas.
//
// It never decides where replicas go, and it opens or deletes none.
//
// Invariant: a replica is only called removed after this node proved that it leads the
// group and that no configuration, committed or not, has the replica.
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
	methodProgress = "progress" // groups and numbers of replicas → the index that each has applied
	methodTransfer = "transfer" // a group and a node → its leadership handed over
	methodFacts    = "facts"    // → the groups led there, as JSON
	methodMember   = "member"   // a group and a node → whether it is in the configuration
	methodKnown    = "known"    // a node → whether it is in the catalog, which is led there
)

// groupsMax bounds the groups that one call names: all that a cluster can have.
const groupsMax = catalog.GroupsMax + 1

// Replicas are this node's replicas of groups, the catalog's included.
type Replicas interface {
	Replica(group uint32) *replica.Replica // nil for none
	Replicas() []*replica.Replica
	Damaged(group uint32) bool // cold rows of the replica cannot be read
	LedBy(node string) int     // how many groups a node leads, as far as this node knows
}

// Config configures a Membership. Every field must be set.
type Config struct {
	Key      string // of this node
	Catalog  *catalog.Catalog
	Calls    *rpc.Calls
	Replicas Replicas
	// Prove returns nil once a majority of a group's voters was in no later term at some
	// moment after the call, and this node leads the group still.
	Prove    func(ctx context.Context, g *replica.Replica, term uint64) error
	Change   func(context.Context, *catalog.Command) error // of the catalog
	Unfit    func() error                                  // why this node should lead nothing, nil if it may: its disk takes no writes
	Wake     func()                                        // has reconciling look again at once
	Stopping <-chan struct{}
	Logger   *slog.Logger
	Limited  *slog.Logger // limits what repeats
}

// Membership changes the members of groups that this node leads to those that the catalog
// wants, and answers other nodes about its replicas. It has no lock: its state is atomic.
//
// Its goroutine: RunRemoved, which the node starts and waits for.
type Membership struct {
	cfg Config

	HandingOver atomic.Bool   // this node is to lead nothing
	Removed     atomic.Bool   // a member has proved that this node is in the catalog no more
	VotersLag   atomic.Uint64 // of the groups led here, in entries, the most that LeaderViewsHere last found
}

// New returns the membership of a node.
func New(cfg Config) *Membership { return &Membership{cfg: cfg} }

// Handle answers the calls of other nodes.
func (m *Membership) Handle() {
	m.cfg.Calls.Handle(methodProgress, m.serveProgress)
	m.cfg.Calls.Handle(methodTransfer, m.serveTransfer)
	m.cfg.Calls.Handle(methodFacts, m.serveLeaderViews)
	m.cfg.Calls.Handle(methodMember, m.ServeMember)
	m.cfg.Calls.Handle(methodKnown, m.serveKnown)
}

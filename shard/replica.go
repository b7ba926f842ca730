package shard

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/tiering"
)

// shardReplica is one shard of a keyspace. This node may or may not hold a replica of it.
type shardReplica struct {
	number   uint32
	shard    int
	keyspace string
	kind     codec.Kind
	space    uint32                                                  // the keyspace's first group
	first    codec.Route                                             // route of the shard when its group was created
	parent   uint32                                                  // group of the shard of which a growth has made this one; 0 for none
	attempt  uint32                                                  // to split the parent; 0 if the growth ended before this node knew the shard
	grown    atomic.Bool                                             // no attempt is under way that may be abandoned: see orAbandoned
	perKey   uint64                                                  // raftfsm.Route.Divisor of the keyspace
	offset   uint64                                                  // the least id with key 0
	forward  *rpc.Batcher[*propose.ForwardedPart, *propose.Proposal] // sends parts of writes to the group's leader

	replica atomic.Pointer[localReplica] // this node's replica; nil if it has none
	opening atomic.Pointer[localReplica] // this node's replica while it opens
	// closing is a replica of this node that was removed from the field replica, but is not closed
	// yet. While it is set, this node opens no other replica of the group. It changes under
	// registry.changing.
	closing atomic.Pointer[localReplica]
	// hint is the key of the group's leader according to the last call. It is used while this
	// node's replica does not know the leader.
	hint    atomic.Pointer[string]
	guesses atomic.Uint32 // number of calls of nextHolder, so that holders take turns

	repairAt time.Time // earliest start of the next repair; only runReconcile uses it
	replayAt time.Time // the same for opening the parent again, so that it replays Split

	ends    atomic.Bool // the keyspace was dropped, and endDropped has started
	removed atomic.Bool // the keyspace was dropped, and this node has no open replica
}

// localReplica is this node's replica of one shard.
type localReplica struct {
	group *replica.Replica
	fsm   tiering.Machine
	cold  *cold.Group // nil for none
	// proposer is set before the replica is published. It is atomic only because tests replace it.
	proposer   atomic.Pointer[propose.Proposer]
	fresh      leadership.Freshness
	applying   atomic.Int64 // see propose.TimedFSM
	damage     tiering.Damage
	tier       *tiering.Shard // for tiering of counters; nil for other kinds
	closeFSM   sync.Once
	mustReopen atomic.Bool // runReconcile must open the replica again
	stuckAt    time.Time   // when runReconcile first saw that the replica is stuck at Split or Adopt
	unrepaired atomic.Bool // no other replica could repair this one
}

// growing returns the replica for leadership.Growth.
func (r *localReplica) growing(g *shardReplica) leadership.GrowthShard {
	return leadership.GrowthShard{Group: r.group, Machine: &r.fsm, Cold: r.cold, Kind: g.kind, Parent: g.parent, First: g.first}
}

// led returns this node's replica of the group. It returns an error unless that replica leads the
// group and may serve.
func (g *shardReplica) led() (*localReplica, error) {
	r := g.replica.Load()
	if r == nil {
		return nil, errs.ErrNoLeader
	}
	return r, r.group.Ready()
}

// leader returns the key of the node that leads the group, as far as this node knows, or "".
func (g *shardReplica) leader() string {
	if r := g.replica.Load(); r != nil {
		if leader := r.group.Leader(); leader != "" || r.group.InTouch() {
			return leader
		}
	}
	if hint := g.hint.Load(); hint != nil {
		return *hint
	}
	return ""
}

// neverWas reports whether the group has proved that it never acknowledged a write at the log index
// of a token. This replica must lead the group, its log must end before the index, and the voters
// must confirm its leadership. It suffices to lead at this moment, because the client already had
// the token.
func (r *localReplica) neverWas(index uint64, deadline time.Time) bool {
	if r.group.Ready() != nil || index <= r.group.LastIndex() {
		return false
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	committed, err := r.fresh.Confirm(ctx)
	return err == nil && index > committed
}

package shard

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/board"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/counters"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard/forward"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/prover"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/tiering"
)

// shardReplica is one shard of a keyspace, whether or not this node holds a replica of it.
type shardReplica struct {
	number   uint32
	shard    int
	keyspace string
	kind     codec.Kind
	route    raftfsm.Route                                  // of the keyspace
	forward  *rpc.Batcher[*forward.Part, *propose.Proposal] // sends parts of writes to the group's leader

	replica atomic.Pointer[localReplica] // this node's replica; nil for none
	opening atomic.Pointer[localReplica] // this node's replica while it opens
	// closing is a replica of this node that has left the field replica but is not closed yet.
	// While closing is set, this node opens no other replica of the group. It changes under
	// registry.changing.
	closing atomic.Pointer[localReplica]
	// hint is the key of the node that led the group according to the last call; used while the
	// replica here does not know the leader.
	hint    atomic.Pointer[string]
	guesses atomic.Uint32 // counts the calls of nextHolder, so that holders take turns

	ends    atomic.Bool // the keyspace was dropped, and endDropped has begun
	removed atomic.Bool // the keyspace was dropped, and no replica is open here
}

// localReplica is this node's copy of one shard.
type localReplica struct {
	group *replica.Replica
	fsm   raftfsm.Machine
	// proposer is set before others see the replica. Tests replace it while upkeep reads it.
	proposer atomic.Pointer[propose.Proposer]
	fresh    prover.Freshness
	// At most one of these is set: fsm, as the type of its kind.
	counters *counters.Machine
	unread   *unread.Machine
	feed     *feed.Machine
	board    *board.Machine
	// votersFull is set while this node leads the group and too few voters have free disk for writes.
	votersFull atomic.Bool
	damage     tiering.Damage
	tier       *tiering.Shard  // of counters; nil for other kinds
	spill      *tiering.Bodies // feeds or outboxes; nil for other kinds
	closeFSM   sync.Once
	mustReopen atomic.Bool // runReconcile must open the replica again
	repairAt   time.Time   // no repair begins earlier; only runReconcile uses it
}

// of returns the shard's route in the form of sections, reads and snapshots.
func (g *shardReplica) of() codec.Route {
	return codec.Route{Modulus: uint32(g.route.Shards), Residue: uint32(g.shard)}
}

// led returns this node's replica of the group. Its error is nil only if that replica leads the group
// and may serve.
func (g *shardReplica) led() (*localReplica, error) {
	r := g.replica.Load()
	if r == nil {
		return nil, ErrNoLeader
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

// neverWas reports whether no write of the group was ever acknowledged at index. This replica must
// lead the group, and its log must end before index. Another leader may have been elected
// meanwhile, so neverWas makes the voters confirm this one. That suffices, because the client had
// its token before it sent the read.
func (r *localReplica) neverWas(index uint64, deadline time.Time) bool {
	if r.group.Ready() != nil || index <= r.group.LastIndex() {
		return false
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	committed, err := r.fresh.Confirm(ctx)
	return err == nil && index > committed
}

package shard

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/shard/forward"
	"github.com/countd/countd/shard/keyspace"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/prover"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
	"github.com/countd/countd/shard/tiering"
)

// shardReplica is one shard of a keyspace as this node knows it, whether or not it
// holds a replica.
type shardReplica struct {
	number   uint32
	shard    int
	keyspace string
	kind     codec.Kind
	route    keyspace.Route                                 // of its keyspace
	forward  *rpc.Batcher[*forward.Part, *propose.Proposal] // to whichever node leads it

	replica atomic.Pointer[localReplica] // this node's; nil for none
	opening atomic.Pointer[localReplica] // this node's while it is opened
	// closing is this node's replica from when it leaves replica until it is closed. Until it is
	// nil, no other is opened. It changes under registry.changing.
	closing atomic.Pointer[localReplica]
	// hint is the key of the node that was last said to lead the group, for when
	// there is no replica here that would know.
	hint    atomic.Pointer[string]
	guesses atomic.Uint32 // counts them

	ends    atomic.Bool // its keyspace was dropped, and endDropped has begun
	removed atomic.Bool // its keyspace was dropped, and no replica is open here
}

// localReplica is this node's copy of one shard.
type localReplica struct {
	group *replica.Replica
	fsm   raftfsm.Machine
	// proposer is set before others see the replica. Tests put another in its place while
	// upkeep reads it.
	proposer atomic.Pointer[propose.Proposer]
	fresh    prover.Freshness
	// The fsm by its kind, for what only that kind can do: at most one is set.
	counters *raftfsm.Counters
	unread   *raftfsm.Unread
	feed     *raftfsm.Feed
	board    *raftfsm.Board
	// VotersFull is set while this node leads the group and too few voters have
	// room on their disks for writes.
	votersFull atomic.Bool
	damage     tiering.Damage
	tier       *tiering.Shard  // counters as tiering sees them; nil for other kinds
	spill      *tiering.Bodies // feeds and outboxes likewise
	closeFSM   sync.Once
	mustReopen atomic.Bool // it is opened again: runReconcile's to do
	repairAt   time.Time   // no repair begins earlier: runReconcile's
}

// of returns the route of the shard, as sections, reads and snapshots name it.
func (g *shardReplica) of() codec.Route {
	return codec.Route{Modulus: uint32(g.route.Shards), Residue: uint32(g.shard)}
}

// led returns the replica if this node leads the group and may serve.
func (g *shardReplica) led() (*localReplica, error) {
	r := g.replica.Load()
	if r == nil {
		return nil, ErrNoLeader
	}
	return r, r.group.Ready()
}

// leader returns the key of the node that leads the group, as far as this node
// knows, or "".
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

// neverWas reports whether no write was answered with an index of this group that
// is past what this replica, which leads it, has in its log. Another leader may
// have been elected since, so it has the others confirm that none was. A token
// that the client has was there before it asked.
func (r *localReplica) neverWas(index uint64, deadline time.Time) bool {
	if r.group.Ready() != nil || index <= r.group.LastIndex() {
		return false
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	committed, err := r.fresh.Confirm(ctx)
	return err == nil && index > committed
}

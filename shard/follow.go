package shard

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sync/errgroup"

	"github.com/countd/countd/engine/cold"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/board"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/feed"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/raftfsm/unread"
	"github.com/countd/countd/shard/keyspace"
	"github.com/countd/countd/shard/membership"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/tiering"
)

// follow updates the node's keyspaces and groups to match the catalog. The node then knows every
// shard, and has opened the replicas that it should hold.
func (n *Node) follow() error {
	n.registry.changing.Lock()
	defer n.registry.changing.Unlock()
	if n.draining.Load() {
		return ErrDraining
	}
	view, before := n.catalog.View(), n.registry.groups.Load()
	groups := &groupTable{byNumber: map[uint32]*shardReplica{}, byFirst: map[uint32][]*shardReplica{}}
	keyspaces := &keyspaceTable{byName: map[string]*Keyspace{}}
	for _, k := range view.KeyspacesByName() {
		shards := before.byFirst[k.FirstGroup]
		for s := len(shards); s < k.Shards; s++ {
			shards = append(shards, n.newShardReplica(&k, s))
		}
		groups.byFirst[k.FirstGroup] = shards
		groups.all = append(groups.all, shards...)
		known := keyspace.Of(&k)
		keyspaces.byName[k.Name] = known
		keyspaces.sorted = append(keyspaces.sorted, known)
	}
	for _, g := range groups.all {
		groups.byNumber[g.number] = g
	}
	for _, g := range slices.Concat(before.all, before.dropped) {
		if view.Dropped(g.number) && !g.removed.Load() {
			groups.dropped = append(groups.dropped, g)
		}
	}
	n.registry.groups.Store(groups) // before keyspaces: a reader that sees a keyspace finds its groups
	err := n.hold(groups.all, view)
	n.registry.keyspaces.Store(keyspaces)
	return err
}

func (n *Node) newShardReplica(k *catalog.Keyspace, shard int) *shardReplica {
	kind, _ := codec.KindOf(k.Kind) // the cluster version gates kinds that this program does not know
	g := &shardReplica{number: k.FirstGroup + uint32(shard), shard: shard, keyspace: k.Name, kind: kind, route: keyspace.NewRoute(k.Shards, k.Sharding)}
	g.forward = n.writer.newForwardBatcher(g)
	return g
}

// hold opens the replicas that should be here and are not open. It opens them concurrently, because
// each waits for the disk.
func (n *Node) hold(all []*shardReplica, view *catalog.View) error {
	var opening errgroup.Group
	for _, g := range all {
		if g.replica.Load() != nil || g.closing.Load() != nil {
			continue
		}
		if number, ok := n.replicaToHold(g.number, view); ok {
			opening.Go(func() error { return n.openReplica(g, number, view) })
		}
	}
	return opening.Wait()
}

// replicaToHold returns the number of the replica of a group that this node should have open, and
// false for none. A replica whose files are here stays open until it is deleted, because the group
// may need its vote. If no files are here, replicaToHold returns the replica that the catalog wants
// here, or a first voter of the group that is not retired. The other voters may need that first
// voter before they can move it to another node.
//
// A node never reuses the number of a replica that it deleted, because a new replica would not know
// the old one's votes. If the local catalog still has the old number, the node waits until the
// catalog assigns a new one.
func (n *Node) replicaToHold(group uint32, view *catalog.View) (number uint64, ok bool) {
	if number, here := n.registry.dirs.Number(group); here {
		return number, true
	}
	if n.registry.dirs.Unfinished(group) {
		return 0, false
	}
	placement := view.Groups[group]
	if placement.Numbered() {
		if number, ok = placement.Number(n.cfg.NodeKey); !ok {
			return 0, false
		}
	}
	initial := initialMembers(view, group, replica.RaftID(n.cfg.NodeKey, number)) != nil
	if !initial && !view.MayHold(group, n.cfg.NodeKey) {
		return 0, false
	}
	mayBegin, first := n.registry.dirs.MayBegin(group, number)
	if first {
		n.cfg.Logger.Warn("this node is to have a replica of a group and deleted the one with this Raft id before: it waits until the catalog gives it another",
			"group", group, "replica", replica.RaftID(n.cfg.NodeKey, number))
	}
	return number, mayBegin
}

// newReplica returns a replica before its first entry, and the store of its cold rows, which only
// counters have. Idle feeds and outboxes go to a store of their own (tiering.Spill).
func (n *Node) newReplica(g *shardReplica) (*localReplica, *cold.Group, error) {
	r, logger := &localReplica{}, n.cfg.Logger.With("group", g.number, "keyspace", g.keyspace, "shard", g.shard)
	r.damage.Logger = logger
	if g.kind != codec.KindCounters {
		r.fsm = kinds.All.New(g.kind, raftfsm.Places{Bodies: n.spill.Place(g.number)})
		r.unread, _ = r.fsm.(*unread.Machine)
		r.board, _ = r.fsm.(*board.Machine)
		if r.feed, _ = r.fsm.(*feed.Machine); r.feed != nil {
			r.spill = &tiering.Bodies{Shard: r.feed.Bodies(), Of: g.kind, Logger: logger}
			n.spill.Begin(r.spill.Shard)
		}
		return r, nil, nil
	}
	r.tier = &tiering.Shard{Group: g.number, Keyspace: g.keyspace, PerKey: g.route.PerKey(), Offset: g.route.IDOf(g.shard, 0), Damage: &r.damage}
	sets, err := n.sets.Group(g.number)
	if err != nil {
		return nil, nil, err
	}
	rows, err := n.tiering.OpenCounters(r.tier, sets, n.spill.Place(g.number))
	if err != nil {
		return nil, nil, err
	}
	r.counters = r.tier.FSM
	r.fsm, r.spill = r.counters, &tiering.Bodies{Shard: r.counters.Outboxes(), Of: g.kind, Logger: logger}
	n.spill.Begin(r.spill.Shard)
	return r, rows, nil
}

// openReplica opens this node's replica of a group. A new replica that is one of the group's first
// voters begins with their configuration. Any other new replica waits until the leader adds it. If
// an earlier replica of this node was a first voter, a later replica still is not.
func (n *Node) openReplica(g *shardReplica, number uint64, view *catalog.View) error {
	r, rows, err := n.newReplica(g)
	if err != nil {
		return err
	}
	r.fsm.SetRoute(g.of())
	cfg := n.groupConfig(g.number, number, g.keyspace, propose.TimedFSM{BatchingFSM: r.fsm, Metrics: n.metrics})
	cfg.StateBytes = r.fsm.Bytes
	switch {
	case r.feed != nil:
		cfg.StateBytes = r.feed.SnapshotBytes
	case r.counters != nil:
		cfg.StateBytes = r.counters.SnapshotBytes
	}
	cfg.Cold, cfg.Stuck, cfg.ColdDamaged = rows, r.fsm.Stuck, r.damage.Note
	if r.counters != nil {
		cfg.Members = r.counters.Members()
	}
	cfg.Reopen = func() { r.mustReopen.Store(true); n.wakeReconcile() }
	if mayBegin, _ := n.registry.dirs.MayBegin(g.number, number); mayBegin {
		cfg.Initial = initialMembers(view, g.number, cfg.ID())
	}
	g.opening.Store(r)
	defer g.opening.Store(nil)
	if r.group, err = n.registry.dirs.Open(cfg); err != nil {
		r.fsm.Close()
		return fmt.Errorf("shard %d of keyspace %s: %w", g.shard, g.keyspace, err)
	}
	if r.tier != nil {
		r.tier.Replica = r.group
	}
	r.proposer.Store(propose.New(n.proposerConfig(g, r)))
	r.fresh.Ask = func(ctx context.Context) (uint64, error) { return n.prover.AskFresh(ctx, r.group, r.fsm.Applied) }
	g.replica.Store(r)
	return nil
}

// proposerConfig configures the proposer of this node's replica of a group.
func (n *Node) proposerConfig(g *shardReplica, r *localReplica) propose.Config {
	logger := n.cfg.Logger.With("keyspace", g.keyspace)
	return propose.Config{
		Group: r.group, Rounds: n.rounds, Kind: g.kind, Clock: propose.NewClock(time.Now(), r.fsm.LogTime, logger),
		Limits: n.cfg.Limits, Metrics: n.metrics, Logger: n.mux.LimitedBy(logger),
	}
}

// initialMembers returns the first voters of a group if the replica of id is one of them, or nil.
func initialMembers(view *catalog.View, group uint32, id raft.ServerID) []replica.Member {
	placement := view.Groups[group]
	var members []replica.Member
	for i, key := range placement.Initial {
		members = append(members, replica.Member{ID: raft.ServerID(placement.InitialID(i)), Addr: view.Nodes[key].ClusterAddr})
	}
	if !slices.ContainsFunc(members, func(m replica.Member) bool { return m.ID == id }) {
		return nil
	}
	return members
}

// dropReplica closes this node's replica of a group and deletes it. If the group's
// leader has it as a member after all, or no leader answers, dropReplica opens the replica
// again: until it was closed, it may have acknowledged writes.
func (n *Node) dropReplica(g *shardReplica, r *localReplica) error {
	leader := g.leader() // without the replica, g knows only an older hint
	if !n.closeReplica(g, r) {
		return nil
	}
	n.registry.changing.Lock()
	defer n.registry.changing.Unlock()
	g.closing.Store(nil)
	id, number := r.group.ID(), r.group.Number()
	if view := n.catalog.View(); !n.membership.WasRemoved(g.number, number, leader, view) {
		n.cfg.Logger.Info("keeping this node's replica: it may still be in its group", "group", g.number, "replica", id)
		return n.openAgain(g, number)
	}
	n.cfg.Logger.Info("this node's replica was removed from its group and is deleted", "group", g.number, "replica", id)
	if err := n.registry.dirs.MoveAside(g.number, number); err != nil {
		return fmt.Errorf("cannot delete the replica of group %d: %w", g.number, err)
	}
	n.wakeReconcile() // to finish the deletion
	return nil
}

// closeReplica takes this node's replica of a group out of service, closes it, and reports true.
// The caller then sets g.closing to nil. closeReplica reports false if another goroutine closes the
// replica, or if the node stops. In the second case the node's Close waits for the replica.
//
// A close that fails ends the process, even if the machine lacks disk: g.closing stays set, so nobody
// would open the replica again.
//
// It waits as long as the replica takes to close, because its state machine may wait for disk. It
// holds no lock meanwhile.
func (n *Node) closeReplica(g *shardReplica, r *localReplica) (closed bool) {
	n.registry.changing.Lock()
	mine := !n.draining.Load() && g.replica.CompareAndSwap(r, nil)
	if mine {
		g.closing.Store(r)
	}
	n.registry.changing.Unlock()
	if !mine {
		return false
	}
	slow := time.AfterFunc(startTimeout, func() {
		n.mux.Limited().Warn("a replica is not closed yet: its disk hangs or is full", "group", g.number)
	})
	defer slow.Stop()
	ended := make(chan error, 1)
	go func() { ended <- r.close(context.Background(), false) }() // ends with the replica, or the process
	select {
	case err := <-ended:
		if err != nil {
			n.fatal(fmt.Errorf("cannot close the replica of group %d: %w", g.number, err))
		}
		return err == nil
	case <-n.stopping:
		return false
	}
}

// openAgain opens a closed replica of a group again, unless the node stops or the group was dropped.
// The caller holds registry.changing.
func (n *Node) openAgain(g *shardReplica, number uint64) error {
	if n.draining.Load() || n.registry.shardOf(g.number) != g {
		return nil
	}
	return n.openReplica(g, number, n.catalog.View())
}

// close answers the waiting requests, then stops the replica. If the group applies nothing any more,
// close stops the replica first, and the outcome of the requests in flight is unknown. A second call
// waits for the first.
func (r *localReplica) close(ctx context.Context, snapshot bool) error {
	r.damage.Close()
	r.group.EndWaits() // pending proposals may wait for these
	drained := make(chan struct{})
	go func() { r.proposer.Load().Close(); r.fresh.Close(); close(drained) }() // ends with the entries in flight
	// A ctx that ends is an error of the group's Close too.
	_, _ = r.group.AwaitAnswers(ctx, drained)
	if err := r.group.Close(ctx, snapshot); err != nil {
		return err
	}
	<-drained
	r.closeFSM.Do(r.fsm.Close)
	return nil
}

// addrOf returns the cluster address of a node, and whether the node is known. It returns "" if
// another node has taken the address. Gossip wins over the catalog, which learns of a new address
// only after somebody has reached the node there.
func (n *Node) addrOf(node string) (string, bool) {
	view := n.catalog.View()
	found, ok := view.Nodes[node]
	if membership.Displaced(view, node) {
		return "", true
	}
	if n.cfg.LiveAddr != nil {
		if addr := n.cfg.LiveAddr(node); addr != "" {
			return addr, true
		}
	}
	return found.ClusterAddr, ok
}

func (n *Node) groupConfig(group uint32, number uint64, keyspace string, fsm raft.BatchingFSM) replica.Config {
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
		Room:     n.space.Take,
		Hangs: func(hangs bool) {
			n.headroom.NoteHang(hangs)
			n.wakeReconcile()
		},
	}
}

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
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
	"github.com/countd/countd/raftfsm/dedup"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/leadership"
	"github.com/countd/countd/shard/propose"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/tiering"
)

// follow updates the node's keyspaces and groups from the catalog, and opens the replicas that
// this node should hold.
func (n *replicas) follow() error {
	n.registry.changing.Lock()
	defer n.registry.changing.Unlock()
	if n.draining.Load() {
		return errs.ErrDraining
	}
	view, before := n.catalog.View(), n.registry.groups.Load()
	groups := &groupTable{byNumber: map[uint32]*shardReplica{}, byFirst: map[uint32]*keyspaceShards{}}
	keyspaces := &keyspaceTable{byName: map[string]*Keyspace{}}
	for _, k := range view.KeyspacesByName() {
		known := keyspaceOf(&k)
		shards := n.shardsOf(&k, known, before.byNumber, view)
		groups.byFirst[k.FirstGroup()] = shards
		for _, g := range shards.all {
			if g != nil {
				groups.all = append(groups.all, g)
				groups.byNumber[g.number] = g
			}
		}
		keyspaces.byName[k.Name] = known
		keyspaces.sorted = append(keyspaces.sorted, known)
	}
	for _, g := range slices.Concat(before.all, before.dropped) {
		if view.Dropped(g.number) && !g.removed.Load() {
			groups.dropped = append(groups.dropped, g)
		}
	}
	n.registry.publish(groups) // store the groups first, so that a reader that sees a keyspace finds its groups
	err := n.hold(groups.all, view)
	for _, r := range n.registry.local() {
		r.fsm.CheckLimits(view)
	}
	n.registry.keyspaces.Store(keyspaces)
	return err
}

// shardsOf returns the shards of a keyspace, with the parts of parents that are being split. known has the
// shards that this node knows already, by group.
func (n *replicas) shardsOf(k *catalog.Keyspace, ks *Keyspace, known map[uint32]*shardReplica, view *catalog.View) *keyspaceShards {
	of, moduli := *ks, k.Moduli()
	if moduli != nil {
		of.Shards = k.Growth.Shards
	}
	of.Groups = make([]uint32, of.Shards)
	shards := &keyspaceShards{route: of.Route(), all: make([]*shardReplica, of.Shards)}
	if moduli != nil {
		shards.route = shards.route.Growing(moduli)
	}
	for s, group := range k.All() {
		g := known[group]
		if g == nil {
			of.Groups[s] = group
			g = n.newShardReplica(&of, s, k.FirstRoute(s))
			if parent, made := k.Parent(s); made {
				g.parent, g.attempt = k.Groups[parent], view.SplitOf(group).Attempt.Number
			}
		}
		if s < len(k.Groups) { // no growth that goes on has made it
			g.grown.Store(true)
		}
		shards.all[s] = g
	}
	return shards
}

func (n *replicas) newShardReplica(k *Keyspace, shard int, first codec.Route) *shardReplica {
	kind, _ := codec.KindOf(k.Kind) // the cluster version excludes kinds that this program does not know
	route := k.Route()
	g := &shardReplica{
		number: k.Groups[shard], shard: shard, keyspace: k.Name, kind: kind, space: k.FirstGroup, first: first,
		perKey: route.Divisor, offset: route.IDOf(shard, 0),
	}
	g.forward = n.writer.newForwardBatcher(g)
	return g
}

// hold opens the replicas that this node should hold and has not opened. It opens them
// concurrently, because each one waits for the disk.
func (n *replicas) hold(all []*shardReplica, view *catalog.View) error {
	var opening errgroup.Group
	for _, g := range all {
		if g.replica.Load() != nil || g.closing.Load() != nil {
			continue
		}
		if number, ok := n.membership.ToHold(g.number, &n.registry.dirs, view); ok {
			opening.Go(func() error { return n.openReplica(g, number, view) })
		}
	}
	return opening.Wait()
}

// newReplica returns an empty replica and the store of its cold rows, or a nil store if the kind
// has no cold rows. tiering.Spill stores the idle bodies of feeds and outboxes.
func (n *replicas) newReplica(g *shardReplica) (*localReplica, *cold.Group, error) {
	r, logger := &localReplica{}, n.cfg.Logger.With("group", g.number, "keyspace", g.keyspace, "shard", g.shard)
	r.damage.Logger, r.fsm.Damage, r.fsm.Group = logger, &r.damage, g.number
	var rows *cold.Group
	if kinds.All.Traits(g.kind.String()).ColdRows {
		r.tier = &tiering.Shard{Group: g.number, Keyspace: g.keyspace, PerKey: g.perKey, Offset: g.offset, Damage: &r.damage}
		sets, err := n.sets.Group(g.number)
		if err != nil {
			return nil, nil, err
		}
		if rows, err = n.tiering.OpenCounters(r.tier, sets, n.spill.Place(g.number)); err != nil {
			return nil, nil, err
		}
		r.fsm.Machine = r.tier.FSM
	} else {
		r.fsm.Machine = kinds.All.New(g.kind, raftfsm.Places{Bodies: n.spill.Place(g.number)})
	}
	if bodies := r.fsm.Bodies(); bodies != nil {
		r.fsm.Spilled = &tiering.Bodies{Shard: bodies, Of: g.kind, Logger: logger}
		n.spill.Begin(bodies)
	}
	return r, rows, nil
}

// openReplica opens this node's replica of a group. If a new replica is one of the group's first
// voters, it starts with the configuration of the first voters. Any other new replica waits until
// the leader adds it, even if an earlier replica of this node was a first voter.
func (n *replicas) openReplica(g *shardReplica, number uint64, view *catalog.View) error {
	r, rows, err := n.newReplica(g)
	if err != nil {
		return err
	}
	r.cold = rows
	r.fsm.SetRoute(g.first)
	r.fsm.SetGrowth(n.growth.MachineConfig(g.kind, g.parent, n.wakeReconcile))
	cfg := n.groupConfig(g.number, number, g.keyspace, propose.TimedFSM{BatchingFSM: r.fsm.Machine, Metrics: n.metrics, Applying: &r.applying})
	cfg.StateBytes, cfg.Members = r.fsm.SnapshotBytes, r.fsm.Members()
	cfg.Cold, cfg.Machine, cfg.ColdDamaged = rows, r.fsm.Machine, r.damage.Note
	cfg.Room = n.growth.Room(g.number, g.parent)
	cfg.Reopen = func() { r.mustReopen.Store(true); n.wakeReconcile() }
	if mayBegin, _ := n.registry.dirs.MayBegin(g.number, number); mayBegin {
		cfg.Initial = leadership.InitialMembers(view, g.number, cfg.ID())
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

func (n *replicas) proposerConfig(g *shardReplica, r *localReplica) propose.Config {
	logger := n.cfg.Logger.With("keyspace", g.keyspace)
	return propose.Config{
		Group: r.group, Rounds: n.rounds, Kind: g.kind, Clock: propose.NewClock(time.Now(), r.fsm.LogTime, logger),
		Limits: func() dedup.Limits { return n.limits(r) }, Metrics: n.metrics, Logger: n.mux.LimitedBy(logger),
	}
}

// limits returns the limits of a replica's request memory. Programs of cluster version 1 refuse more than
// KeysOfSection keys; a shard that has more of them proves a later version. A node without memory takes new keys
// only up to the same bound, as it makes no new rows.
func (n *replicas) limits(r *localReplica) dedup.Limits {
	l := n.cfg.Limits
	keys, _ := r.fsm.Remembered()
	if n.headroom.MemoryFull.Load() || keys <= dedup.KeysOfSection && !n.catalog.View().TakesGrowth() {
		l.KeysMax = min(l.KeysMax, dedup.KeysOfSection)
	}
	return l
}

// dropReplica closes this node's replica of a group and deletes it. If the group's leader still has
// the replica as a member, or no leader answers, dropReplica opens the replica again. It may have
// acknowledged writes before the close, which the group must not lose.
func (n *replicas) dropReplica(g *shardReplica, r *localReplica) error {
	leader := g.leader() // read the leader before the close; after it, g has only an older hint
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

// closeReplica takes this node's replica of a group out of service, closes it, and returns true.
// The caller must then set g.closing to nil. If another goroutine already closes the replica, or
// the node is stopping, closeReplica returns false. The Close of a stopping node waits for the
// replica.
//
// A failed close ends the process, even after a lack of disk space. Otherwise g.closing would stay
// set, and the replica would never be opened again.
//
// closeReplica waits without a timeout, because the replica's state machine may wait for disk
// space. It holds no lock while it waits.
func (n *replicas) closeReplica(g *shardReplica, r *localReplica) (closed bool) {
	n.registry.changing.Lock()
	mine := !n.draining.Load() && g.replica.CompareAndSwap(r, nil)
	if mine {
		g.closing.Store(r)
	}
	n.registry.changing.Unlock()
	if !mine {
		return false
	}
	n.growth.Closes(g.number)
	slow := time.AfterFunc(startTimeout, func() {
		n.mux.Limited().Warn("a replica is not closed yet: its disk hangs or is full", "group", g.number)
	})
	defer slow.Stop()
	ended := make(chan error, 1)
	go func() { ended <- r.close(context.Background(), false) }() // ends when the replica is closed, or with the process
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

// openAgain opens a closed replica of a group again, unless the node is stopping or the group was
// dropped. The caller holds registry.changing.
func (n *replicas) openAgain(g *shardReplica, number uint64) error {
	if n.draining.Load() || n.registry.shardOf(g.number) != g {
		return nil
	}
	return n.openReplica(g, number, n.catalog.View())
}

// close answers the waiting requests, and then stops the replica. If the group no longer applies
// entries, close stops the replica first, and the outcome of the requests in flight is unknown. A
// second call waits for the first.
func (r *localReplica) close(ctx context.Context, snapshot bool) error {
	r.damage.Close()
	r.group.EndWaits() // proposals may be pending because writes wait for disk space
	drain := func() { r.proposer.Load().Close(); r.fresh.Close() }
	// Ignore the error: if ctx ends, the group's Close returns an error too.
	_, _ = r.group.AwaitAnswers(ctx, drain)
	if err := r.group.Close(ctx, snapshot); err != nil {
		return err
	}
	drain() // after the close, all remaining requests get an answer
	r.closeFSM.Do(r.fsm.Close)
	return nil
}

// addrOf is leadership.AddrOf.
func (n *replicas) addrOf(node string) (string, bool) {
	return leadership.AddrOf(n.catalog.View(), n.cfg.LiveAddr, node)
}

func (n *replicas) groupConfig(group uint32, number uint64, keyspace string, fsm raft.BatchingFSM) replica.Config {
	return replica.Config{
		Dir:      n.registry.dirs.Dir(group, number),
		Group:    group,
		NodeID:   n.cfg.NodeKey,
		Replica:  number,
		FSM:      fsm,
		Mux:      n.mux,
		Streams:  n.streams,
		Beats:    n.beats,
		Turns:    n.turns,
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

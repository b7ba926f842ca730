package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/wire"
)

const (
	// reconcileTick is how often a node compares its groups with the catalog
	// when nothing tells it to.
	reconcileTick = 500 * time.Millisecond
	// reconcileTimeout bounds what one group's step asks of other nodes.
	reconcileTimeout = time.Second
)

// runReconcile keeps the groups of this node as the catalog has them: it holds
// replicas of those that it is a target of, drops those that it was removed
// from or whose keyspace was dropped, changes the members of those that it leads, and hands over what it
// should not lead. It keeps no state but theirs. Open starts it, Close stops and
// waits for it.
func (n *Node) runReconcile() {
	tick := time.NewTicker(reconcileTick)
	defer tick.Stop()
	for {
		changed := n.catalog.View().Changed()
		n.reconcile()
		select {
		case <-changed:
		case <-n.reconcileNow:
		case <-tick.C:
		case <-n.stopping:
			return
		}
	}
}

func (n *Node) reconcile() {
	if err := n.follow(); err != nil && !errors.Is(err, ErrDraining) {
		n.fatal(err)
		return
	}
	view := n.catalog.View()
	n.removeDropped(view)
	n.reconcileMembers(n.meta, view)
	tellCatalog := true // until it does not answer: the other groups are not to wait for it
	for _, g := range n.groups.Load().all {
		r := g.replica.Load()
		if r != nil && r.mustReopen.Load() {
			_ = n.reopen(g, r) // which has ended the process if it failed
			r = g.replica.Load()
		}
		if r == nil {
			continue
		}
		if !n.reconcileMembers(r.group, view) {
			n.dropIfRemoved(g, r, view)
		} else if tellCatalog {
			if err := n.reconcileNumbers(r.group, view); err != nil {
				tellCatalog = false
				n.cfg.Logger.Debug("the catalog was not told of a group's replicas", "group", g.number, "err", err)
			}
		}
		n.repairIfDamaged(g, r)
	}
}

// wantedMembers returns the replicas that the catalog wants to be voters of a group,
// and those of all nodes if each node is to have one. It reports false while the
// catalog here does not name the nodes or the numbers of all voters.
func wantedMembers(view *catalog.View, group uint32) (target, others []replica.Member, known bool) {
	placement := view.Groups[group]
	for _, key := range placement.Target {
		node, there := view.Nodes[key]
		id, numbered := memberID(&placement, key)
		if !there || !numbered {
			return nil, nil, false
		}
		target = append(target, replica.Member{ID: id, Addr: node.ClusterAddr})
	}
	if !view.EveryNode(group) {
		return target, nil, true
	}
	for key, node := range view.Nodes {
		if id, numbered := memberID(&placement, key); numbered && !displaced(view, key) {
			others = append(others, replica.Member{ID: id, Addr: node.ClusterAddr})
		}
	}
	return target, others, true
}

// reconcileMembers changes the members of a group that this node leads by one
// step, and hands the group over if this node is draining. It returns whether
// this node leads it.
func (n *Node) reconcileMembers(g *replica.Replica, view *catalog.View) bool {
	if g.Ready() != nil {
		n.shedStuck(g, view)
		return false
	}
	if _, placed := view.Groups[g.Group()]; !placed {
		return true // the catalog's own group, before the first node is in it
	}
	target, others, known := wantedMembers(view, g.Group())
	if !known || n.catalogIsBehind(g, view) {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), reconcileTimeout)
	defer cancel()
	step, err := g.MembersStep(ctx, target, others, func(ctx context.Context, id raft.ServerID) (uint64, error) {
		return n.behind(ctx, g, id)
	})
	shedding := err == nil && step == ""
	if shedding {
		step, err = n.shed(ctx, g, view)
	}
	switch {
	case err != nil:
		n.mux.Limited().Warn("a change of members failed and is tried again", "group", g.Group(), "step", step, "err", err)
	case step != "":
		level := slog.LevelInfo
		if shedding {
			level = slog.LevelDebug // a drained node hands over many: see Health
		}
		n.cfg.Logger.Log(ctx, level, "members", "group", g.Group(), "step", step)
		n.wakeReconcile()
	}
	return true
}

// shed hands a group over that this node should not lead: it is draining, or cannot
// read all rows.
func (n *Node) shed(ctx context.Context, g *replica.Replica, view *catalog.View) (string, error) {
	if view.Nodes[n.cfg.NodeKey].State == catalog.NodeActive && !n.handingOver.Load() && !n.isDamaged(g.Group()) && g.Stuck() == nil {
		return "", nil
	}
	to, hope := n.successor(ctx, g, view)
	g.Heirless.Store(!hope)
	if to.ID == "" {
		return "", nil
	}
	return "handed over to " + string(to.ID), g.Transfer(to)
}

// shedStuck hands a group over that this node leads and whose entries it does not
// apply.
func (n *Node) shedStuck(g *replica.Replica, view *catalog.View) {
	if g.Stuck() == nil || !g.Leads() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), reconcileTimeout)
	defer cancel()
	if step, err := n.shed(ctx, g, view); step != "" || err != nil {
		n.cfg.Logger.Info("members", "group", g.Group(), "step", step, "err", err)
	}
}

// successor returns the voter that is nearest to having this group's whole log,
// and of those that have it the one that leads the least, as far as is known
// here. None that is draining or stopping, or that does not answer, is chosen.
// There is no hope of one if all others will not lead: some say so, and the rest do
// not answer.
func (n *Node) successor(ctx context.Context, g *replica.Replica, view *catalog.View) (best replica.Member, hope bool) {
	bestLed, unwilling := 0, false
	for _, id := range g.Voters() {
		key := replica.NodeOf(id)
		node, known := view.Nodes[key]
		if key == n.cfg.NodeKey || !known {
			continue
		}
		lag, err := n.behind(ctx, g, id)
		switch {
		case node.State != catalog.NodeActive || errors.Is(err, ErrDraining):
			unwilling = true
			continue
		case err != nil:
			continue
		case lag > replica.CaughtUpEntries:
			hope = true
			continue
		}
		hope = true
		if led := n.ledBy(key); best.ID == "" || led < bestLed {
			best, bestLed = replica.Member{ID: id, Addr: node.ClusterAddr}, led
		}
	}
	return best, hope || !unwilling
}

// ledBy counts the groups that a node leads, as far as this node knows.
func (n *Node) ledBy(node string) int {
	led := 0
	for _, g := range n.groups.Load().all {
		if g.leader() == node {
			led++
		}
	}
	return led
}

// handOver hands a group that this node leads to another node.
func (n *Node) handOver(number uint32, node string) error {
	g := n.replicaOf(number)
	if g == nil {
		return fmt.Errorf("%w: group %d is not here", ErrNoLeader, number)
	}
	if err := g.Ready(); err != nil {
		return err
	}
	for _, s := range g.Configuration().Servers {
		if replica.NodeOf(s.ID) == node && s.Suffrage == raft.Voter {
			return g.Transfer(replica.Member{ID: s.ID, Addr: string(s.Address)})
		}
	}
	return &ArgumentError{"to", fmt.Sprintf("node %s has no vote in group %d", node, number)}
}

// dropIfRemoved closes and deletes a replica that will never be a member of its group
// again: the catalog has retired its number, and the group's leader says that it is in
// no configuration. A replica that merely missed a message is not.
func (n *Node) dropIfRemoved(g *shardReplica, r *localReplica, view *catalog.View) {
	if !n.wasRemoved(g, r.group.Number(), g.leader(), view) {
		return
	}
	if err := n.dropReplica(g, r); err != nil {
		n.fatal(err)
	}
}

// wasRemoved reports whether the catalog has retired a replica's number, and asks the
// group's leader whether the replica is in a configuration.
//
// A replica that was removed while it was down, or whose leader died in that moment,
// hears of no leader again. So it asks all nodes, of which only the leader answers. The
// leader may be about to leave, and not be in the target any more, or be retired itself:
// it waits for the next replica on this node, which begins once this one is deleted.
func (n *Node) wasRemoved(g *shardReplica, number uint64, leader string, view *catalog.View) bool {
	placement := view.Groups[g.number]
	if !placement.Retired(n.cfg.NodeKey, number) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), reconcileTimeout)
	defer cancel()
	all := slices.Sorted(maps.Keys(view.Nodes))
	for _, node := range append([]string{leader}, without(all, leader)...) {
		if node == "" || node == n.cfg.NodeKey || n.calls.Doubtful(node) {
			continue
		}
		if in, err := n.isMember(ctx, node, g.number, replica.RaftID(n.cfg.NodeKey, number)); err == nil {
			return !in
		}
	}
	return false
}

func without(keys []string, key string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return k == key })
}

// catalogIsBehind reports whether the group has a member whose number the catalog here
// has not given yet. A node that was just started may know an older catalog than the one
// by which the members were chosen, and would undo that.
func (n *Node) catalogIsBehind(g *replica.Replica, view *catalog.View) bool {
	placement := view.Groups[g.Group()]
	return slices.ContainsFunc(g.Configuration().Servers, func(s raft.Server) bool {
		_, number := catalog.ParseReplicaID(string(s.ID))
		return number > 0 && number >= placement.NextReplica
	})
}

// wakeReconcile has runReconcile look again at once.
func (n *Node) wakeReconcile() {
	select {
	case n.reconcileNow <- struct{}{}:
	default:
	}
}

// isMember asks a group's leader whether a replica is in its configuration.
func (n *Node) isMember(ctx context.Context, leader string, number uint32, id raft.ServerID) (bool, error) {
	request := binary.AppendUvarint(nil, uint64(number))
	answer, err := n.calls.Call(ctx, leader, methodMember, wire.AppendBytes(request, []byte(id)))
	if err != nil {
		return false, err
	}
	return len(answer) != 1 || answer[0] != 0, nil
}

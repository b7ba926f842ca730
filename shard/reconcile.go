package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm"
)

const (
	// reconcileTick is how often a node compares its groups with the catalog
	// when nothing tells it to.
	reconcileTick = 500 * time.Millisecond
	// reconcileTimeout bounds what one group's step asks of other nodes.
	reconcileTimeout = time.Second
	// transferMax is how long raft may refuse writes because it believes that it
	// hands its leadership over: it waits for a call and two election timeouts,
	// and past that it will for ever.
	transferMax = 3 * rpcTimeout
)

// runReconcile keeps the groups of this node as the catalog has them: it holds
// replicas of those that it is a target of, drops those that it was removed
// from, changes the members of those that it leads, and hands over what it
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
	n.reconcileMembers(n.meta, view, n.members(view))
	for _, g := range n.groups.Load().all {
		r := g.replica.Load()
		if r != nil && r.mustReopen.Load() {
			_ = n.reopen(g, r) // which has ended the process if it failed
			r = g.replica.Load()
		}
		if r == nil {
			continue
		}
		var others []member
		if view.EveryNode(g.number) {
			others = n.members(view)
		}
		if !n.reconcileMembers(r.group, view, others) {
			n.dropIfRemoved(g, r, view)
		}
		n.repairIfDamaged(g, r)
	}
}

// members returns all nodes, as members of the catalog's group, but for those that
// others have taken the place of.
func (n *Node) members(view *raftfsm.CatalogView) []member {
	all := make([]member, 0, len(view.Nodes))
	for key, node := range view.Nodes {
		if !displaced(view, key) {
			all = append(all, member{key, node.ClusterAddr})
		}
	}
	return all
}

// reconcileMembers changes the members of a group that this node leads by one
// step, and hands the group over if this node is draining. It returns whether
// this node leads it.
func (n *Node) reconcileMembers(g *group, view *raftfsm.CatalogView, others []member) bool {
	if g.ready() != nil {
		n.shedStuck(g, view)
		return false
	}
	placement, placed := view.Groups[g.cfg.Group]
	if !placed {
		return true // the catalog's own group, before the first node is in it
	}
	target := make([]member, 0, len(placement.Target))
	for _, key := range placement.Target {
		node, known := view.Nodes[key]
		if !known {
			return true
		}
		target = append(target, member{key, node.ClusterAddr})
	}
	ctx, cancel := context.WithTimeout(context.Background(), reconcileTimeout)
	defer cancel()
	step, err := g.membersStep(ctx, target, others, func(ctx context.Context, node string) (uint64, error) {
		return n.behind(ctx, g, node)
	})
	if err == nil && step == "" {
		step, err = n.shed(ctx, g, view)
	}
	switch {
	case err != nil:
		n.cfg.Logger.Warn("a change of members failed and is tried again", "group", g.cfg.Group, "step", step, "err", err)
	case step != "":
		level := slog.LevelInfo
		if n.handingOver.Load() {
			level = slog.LevelDebug // HandOver tells how many
		}
		n.cfg.Logger.Log(ctx, level, "members", "group", g.cfg.Group, "step", step)
		n.wakeReconcile()
	}
	return true
}

// shed hands a group over that this node should not lead: it is draining, or cannot
// read all rows.
func (n *Node) shed(ctx context.Context, g *group, view *raftfsm.CatalogView) (string, error) {
	if view.Nodes[n.cfg.NodeKey].State == raftfsm.NodeActive && !n.handingOver.Load() && !n.isDamaged(g.cfg.Group) && g.stuck() == nil {
		return "", nil
	}
	to, hope := n.successor(ctx, g, view)
	g.heirless.Store(!hope)
	if to.key == "" {
		return "", nil
	}
	return "handed over to " + to.key, g.transfer(to)
}

// shedStuck hands a group over that this node leads and whose entries it does not
// apply.
func (n *Node) shedStuck(g *group, view *raftfsm.CatalogView) {
	if g.stuck() == nil || g.raft.State() != raft.Leader {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), reconcileTimeout)
	defer cancel()
	if step, err := n.shed(ctx, g, view); step != "" || err != nil {
		n.cfg.Logger.Info("members", "group", g.cfg.Group, "step", step, "err", err)
	}
}

// successor returns the voter that is nearest to having this group's whole log,
// and of those that have it the one that leads the least, as far as is known
// here. None that is draining or stopping, or that does not answer, is chosen.
// There is no hope of one if all others will not lead: some say so, and the rest do
// not answer.
func (n *Node) successor(ctx context.Context, g *group, view *raftfsm.CatalogView) (best member, hope bool) {
	bestLed, unwilling := 0, false
	for _, id := range g.voters() {
		key := string(id)
		node, known := view.Nodes[key]
		if key == n.cfg.NodeKey || !known {
			continue
		}
		lag, err := n.behind(ctx, g, key)
		switch {
		case node.State != raftfsm.NodeActive || errors.Is(err, ErrDraining):
			unwilling = true
			continue
		case err != nil:
			continue
		case lag > caughtUpEntries:
			hope = true
			continue
		}
		hope = true
		if led := n.ledBy(key); best.key == "" || led < bestLed {
			best, bestLed = member{key, node.ClusterAddr}, led
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
	if err := g.ready(); err != nil {
		return err
	}
	for _, s := range g.configuration().Servers {
		if string(s.ID) == node && s.Suffrage == raft.Voter {
			return g.transfer(member{node, string(s.Address)})
		}
	}
	return &ArgumentError{"to", fmt.Sprintf("node %s has no vote in group %d", node, number)}
}

// dropIfRemoved closes and deletes a replica that the catalog has nowhere near
// this node once the group's leader says that it is in no configuration. A
// replica that merely missed a message is not.
func (n *Node) dropIfRemoved(g *counterGroup, r *replica, view *raftfsm.CatalogView) {
	if !n.wasRemoved(g, g.leader(), view) {
		return
	}
	if err := n.dropReplica(g, r); err != nil {
		n.fatal(err)
	}
}

// wasRemoved asks a group's leader whether this node is in no configuration of it,
// if the catalog has it in none.
// A replica that was removed while it was down, or whose leader died in that
// moment, hears of no leader again: all that are to hold the group are asked, of
// whom only the leader answers.
func (n *Node) wasRemoved(g *counterGroup, leader string, view *raftfsm.CatalogView) bool {
	placement, placed := view.Groups[g.number]
	if !placed || view.EveryNode(g.number) || slices.Contains(placement.Target, n.cfg.NodeKey) {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), reconcileTimeout)
	defer cancel()
	for _, node := range append([]string{leader}, without(placement.Target, leader)...) {
		if node == "" || node == n.cfg.NodeKey || n.calls.doubtful(node) {
			continue
		}
		if in, err := n.isMember(ctx, node, g.number); err == nil {
			return !in
		}
	}
	return false
}

func without(keys []string, key string) []string {
	return slices.DeleteFunc(slices.Clone(keys), func(k string) bool { return k == key })
}

// wakeReconcile has runReconcile look again at once.
func (n *Node) wakeReconcile() {
	select {
	case n.reconcileNow <- struct{}{}:
	default:
	}
}

// isMember asks a group's leader whether this node is in its configuration.
func (n *Node) isMember(ctx context.Context, leader string, number uint32) (bool, error) {
	request := binary.AppendUvarint(nil, uint64(number))
	answer, err := n.calls.call(ctx, leader, methodMember, appendBytes(request, []byte(n.cfg.NodeKey)))
	if err != nil {
		return false, err
	}
	return len(answer) != 1 || answer[0] != 0, nil
}

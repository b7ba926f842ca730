package shard

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
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
	}
}

// members returns all nodes, as members of the catalog's group.
func (n *Node) members(view *raftfsm.CatalogView) []member {
	all := make([]member, 0, len(view.Nodes))
	for key, node := range view.Nodes {
		all = append(all, member{key, node.ClusterAddr})
	}
	return all
}

// reconcileMembers changes the members of a group that this node leads by one
// step, and hands the group over if this node is draining. It returns whether
// this node leads it.
func (n *Node) reconcileMembers(g *group, view *raftfsm.CatalogView, others []member) bool {
	if g.ready() != nil {
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
		n.cfg.Logger.Info("members", "group", g.cfg.Group, "step", step)
		n.wakeReconcile()
	}
	return true
}

// shed hands a group over that this node, draining, should not lead.
func (n *Node) shed(ctx context.Context, g *group, view *raftfsm.CatalogView) (string, error) {
	if view.Nodes[n.cfg.NodeKey].State == raftfsm.NodeActive && !n.handingOver.Load() {
		return "", nil
	}
	to, err := n.successor(ctx, g, view)
	if err != nil || to.key == "" {
		return "", err
	}
	return "handed over to " + to.key, g.transfer(to)
}

// successor returns the voter that is nearest to having this group's whole log,
// and of those that have it the one that leads the least, as far as is known
// here. None that is draining, or that does not answer, is chosen.
func (n *Node) successor(ctx context.Context, g *group, view *raftfsm.CatalogView) (member, error) {
	best, bestLed := member{}, 0
	for _, id := range g.voters() {
		key := string(id)
		node, known := view.Nodes[key]
		if key == n.cfg.NodeKey || !known || node.State != raftfsm.NodeActive {
			continue
		}
		lag, err := n.behind(ctx, g, key)
		if err != nil || lag > caughtUpEntries {
			continue
		}
		if led := n.ledBy(key); best.key == "" || led < bestLed {
			best, bestLed = member{key, node.ClusterAddr}, led
		}
	}
	return best, nil
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
	placement, placed := view.Groups[g.number]
	leader := g.leader()
	if !placed || view.EveryNode(g.number) || slices.Contains(placement.Target, n.cfg.NodeKey) || leader == "" || leader == n.cfg.NodeKey {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), reconcileTimeout)
	defer cancel()
	if in, err := n.isMember(ctx, leader, g.number); err != nil || in {
		return
	}
	n.cfg.Logger.Info("this node's replica was removed from its group and is deleted", "group", g.number)
	if err := n.dropReplica(g, r); err != nil {
		n.fatal(fmt.Errorf("cannot delete the replica of group %d: %w", g.number, err))
	}
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

package shard

import (
	"slices"

	"github.com/countd/countd/shard/tiering"
)

// Health is the state whose changes are logged for operators.
type Health struct {
	// Leaders maps a group to the key of its leader; "" if this node knows no leader that may
	// serve. It omits groups of which this node has no replica, or should have none.
	Leaders map[uint32]string
	Disk    tiering.Usage // a full disk stops writes
	Memory  tiering.Usage // full memory stops new rows
	// VotersFull lists, ascending, the groups led by this node that accept no writes, because too
	// few voters have free disk space.
	VotersFull []uint32
}

// Health returns the present state, as far as this node knows it.
func (n *Node) Health() Health {
	view := n.catalog.View()
	h := Health{Leaders: map[uint32]string{}, Disk: n.headroom.Disk(), Memory: n.headroom.Memory()}
	for _, g := range n.registry.Replicas() {
		switch {
		case g != n.registry.meta && !view.MayHold(g.Group(), n.cfg.NodeKey): // a replica that this node should not have may never hear from a leader again
		case g.Follows() != nil:
			h.Leaders[g.Group()] = ""
		default:
			h.Leaders[g.Group()] = g.Leader()
		}
	}
	for g, r := range n.registry.local() {
		if r.fsm.VotersFull.Load() {
			h.VotersFull = append(h.VotersFull, g.number)
		}
	}
	slices.Sort(h.VotersFull)
	return h
}

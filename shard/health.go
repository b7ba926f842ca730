package shard

import (
	"slices"

	"github.com/countd/countd/shard/headroom"
)

// Health is what an operator should hear of when it changes.
type Health struct {
	// Leaders has the groups of which this node has, and is to have, a replica, by number:
	// the key of the node whose replica may serve as far as this node knows, "" for none.
	Leaders map[uint32]string
	Disk    headroom.Usage // a full one stops writes
	Memory  headroom.Usage // full memory stops new rows
	// VotersFull are the groups led here that take no writes because too few of their
	// voters have room on their disks, ascending.
	VotersFull []uint32
}

// Health returns what this node knows now. It asks no other node.
func (n *Node) Health() Health {
	view := n.catalog.View()
	h := Health{Leaders: map[uint32]string{}, Disk: n.headroom.Disk(), Memory: n.headroom.Memory()}
	for _, g := range n.registry.Replicas() {
		switch {
		case g != n.registry.meta && !view.MayHold(g.Group(), n.cfg.NodeKey): // it may hear of no leader any more
		case g.Follows() != nil:
			h.Leaders[g.Group()] = ""
		default:
			h.Leaders[g.Group()] = g.Leader()
		}
	}
	for g, r := range n.registry.local() {
		if r.votersFull.Load() {
			h.VotersFull = append(h.VotersFull, g.number)
		}
	}
	slices.Sort(h.VotersFull)
	return h
}

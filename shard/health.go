package shard

import (
	"slices"

	"github.com/countd/countd/shard/headroom"
)

// Health is the state whose changes an operator should hear of.
type Health struct {
	// Leaders maps a group to the key of its leader, or to "" if this node knows no leader that may
	// serve. It covers the groups of which this node holds, and should hold, a replica.
	Leaders map[uint32]string
	Disk    headroom.Usage // a full disk stops writes
	Memory  headroom.Usage // full memory stops new rows
	// VotersFull are the groups led here that take no writes because too few of their voters have free
	// disk, ascending.
	VotersFull []uint32
}

// Health returns the present state. It asks no other node.
func (n *Node) Health() Health {
	view := n.catalog.View()
	h := Health{Leaders: map[uint32]string{}, Disk: n.headroom.Disk(), Memory: n.headroom.Memory()}
	for _, g := range n.registry.Replicas() {
		switch {
		case g != n.registry.meta && !view.MayHold(g.Group(), n.cfg.NodeKey): // the replica may never hear of a leader again
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

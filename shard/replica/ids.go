package replica

import (
	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
)

// RaftID returns the Raft id of one lifetime of a node's replica (see
// raftfsm.ReplicaID).
func RaftID(node string, number uint64) raft.ServerID {
	return raft.ServerID(catalog.ReplicaID(node, number))
}

// NodeOf returns the key of the node that a Raft id names.
func NodeOf(id raft.ServerID) string {
	node, _ := catalog.ParseReplicaID(string(id))
	return node
}

// Contains reports whether a configuration has a replica, with a vote or without.
func Contains(servers []raft.Server, id raft.ServerID) bool { return SuffrageOf(servers, id) != Absent }

// ID returns the Raft id of this node's replica.
func (g *Replica) ID() raft.ServerID { return g.cfg.ID() }

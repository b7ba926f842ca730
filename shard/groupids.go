package shard

import (
	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
)

// raftID returns the Raft id of one lifetime of a node's replica (see
// raftfsm.ReplicaID).
func raftID(node string, number uint64) raft.ServerID {
	return raft.ServerID(catalog.ReplicaID(node, number))
}

// nodeOf returns the key of the node that a Raft id names.
func nodeOf(id raft.ServerID) string {
	node, _ := catalog.ParseReplicaID(string(id))
	return node
}

// contains reports whether a configuration has a replica, with a vote or without.
func contains(servers []raft.Server, id raft.ServerID) bool { return suffrageOf(servers, id) != absent }

// id returns the Raft id of this node's replica.
func (g *group) id() raft.ServerID { return g.cfg.id() }

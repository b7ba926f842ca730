package replica

import (
	"slices"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
)

// RaftID returns the Raft id of a node's replica with that number (see catalog.ReplicaID).
func RaftID(node string, number uint64) raft.ServerID {
	return raft.ServerID(catalog.ReplicaID(node, number))
}

// NodeOf returns the node key in a Raft id.
func NodeOf(id raft.ServerID) string {
	node, _ := catalog.ParseReplicaID(string(id))
	return node
}

// Contains reports whether a configuration has a replica, as a voter or not.
func Contains(servers []raft.Server, id raft.ServerID) bool { return SuffrageOf(servers, id) != Absent }

// Outlived reports whether a configuration has a later replica of the same node, which proves that
// the replica id was deleted. A node has one replica of a group at a time, and its next replica
// gets a number only once no configuration has the previous one (see catalog.RetireEntry).
func Outlived(servers []raft.Server, id raft.ServerID) bool {
	node, number := catalog.ParseReplicaID(string(id))
	return slices.ContainsFunc(servers, func(s raft.Server) bool {
		other, later := catalog.ParseReplicaID(string(s.ID))
		return other == node && later > number
	})
}

// Member is a wanted replica of a group, with the address of its node.
type Member struct {
	ID   raft.ServerID
	Addr string
}

const Absent = raft.ServerSuffrage(-1)

func SuffrageOf(servers []raft.Server, id raft.ServerID) raft.ServerSuffrage {
	for _, s := range servers {
		if s.ID == id {
			return s.Suffrage
		}
	}
	return Absent
}

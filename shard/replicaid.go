package shard

import (
	"encoding/binary"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/wire"
)

// memberID returns the Raft id under which a node is, or is to become, a member of a
// group. It returns false while the catalog has given the node no number.
func memberID(p *catalog.Placement, node string) (raft.ServerID, bool) {
	if !p.Numbered() {
		return replica.RaftID(node, 0), true
	}
	number, has := p.Number(node)
	return replica.RaftID(node, number), has
}

// groupReplica names a node's replica of a group in a call to that node.
type groupReplica struct {
	group  uint32
	number uint64
}

// allZero reports whether all numbers are 0, as they are until the cluster version has
// groups be numbered.
func allZero(replicas []groupReplica) bool {
	for _, r := range replicas {
		if r.number != 0 {
			return false
		}
	}
	return true
}

func groupsOfReplicas(replicas []groupReplica) []uint32 {
	groups := make([]uint32, len(replicas))
	for i, r := range replicas {
		groups[i] = r.group
	}
	return groups
}

func appendReplicas(dst []byte, replicas []groupReplica) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(replicas)))
	for _, r := range replicas {
		dst = binary.AppendUvarint(dst, uint64(r.group))
		dst = binary.AppendUvarint(dst, r.number)
	}
	return dst
}

func parseReplicas(b []byte) ([]groupReplica, error) {
	r := wire.Reader{Rest: b}
	replicas := make([]groupReplica, readGroups(&r, 2))
	for i := range replicas {
		replicas[i] = groupReplica{uint32(r.UintTo(1<<32 - 1)), r.Uint()}
	}
	return replicas, r.End()
}

// readGroups reads how many groups follow that take at least size bytes each.
func readGroups(r *wire.Reader, size int) int {
	n := r.Count(size)
	if n > groupsMax {
		r.Fail("too many groups")
		return 0
	}
	return n
}

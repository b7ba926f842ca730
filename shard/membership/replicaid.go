package membership

import (
	"encoding/binary"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/internal/wire"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/raftstore"
	"github.com/countd/countd/shard/replica"
)

// MemberID returns the Raft id of a node's current or future member of a group. It returns false
// while the catalog has assigned no number.
func MemberID(p *catalog.Placement, node string) (raft.ServerID, bool) {
	if !p.Numbered() {
		return replica.RaftID(node, 0), true
	}
	number, has := p.Number(node)
	return replica.RaftID(node, number), has
}

func AppendReplicas(dst []byte, replicas []raftstore.ReplicaID) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(replicas)))
	for _, r := range replicas {
		dst = binary.AppendUvarint(dst, uint64(r.Group))
		dst = binary.AppendUvarint(dst, r.Number)
	}
	return dst
}

func ParseReplicas(b []byte) ([]raftstore.ReplicaID, error) {
	r := wire.Reader{Rest: b}
	replicas := make([]raftstore.ReplicaID, r.CountTo(2, groupsMax))
	for i := range replicas {
		replicas[i] = raftstore.ReplicaID{Group: uint32(r.UintTo(1<<32 - 1)), Number: r.Uint()}
	}
	return replicas, r.End()
}

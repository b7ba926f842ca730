package leadership

import (
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/replica"
)

// ToHold returns the number of the replica of a group that this node should have open, or
// false if it should have none. A replica with files on this node stays open until it is deleted,
// because the group may need its vote. For a group without files, ToHold returns the replica
// that the catalog wants on this node. If this node's replica was a first voter and is not retired,
// it returns that one, because the group may need its vote even to replace it.
//
// A node never reuses the number of a deleted replica, because a new replica would not know the
// votes of the old one. If the local catalog still has the old number, the node waits until the
// catalog assigns a new number.
func (m *Membership) ToHold(group uint32, dirs *replica.Dirs, view *catalog.View) (number uint64, ok bool) {
	if number, here := dirs.Number(group); here {
		return number, true
	}
	if dirs.Unfinished(group) {
		return 0, false
	}
	placement := view.Groups[group]
	if placement.Numbered() {
		if number, ok = placement.Number(m.cfg.Key); !ok {
			return 0, false
		}
	}
	initial := InitialMembers(view, group, replica.RaftID(m.cfg.Key, number)) != nil
	if !initial && !view.MayHold(group, m.cfg.Key) {
		return 0, false
	}
	mayBegin, first := dirs.MayBegin(group, number)
	if first {
		m.cfg.Logger.Warn("this node is to have a replica of a group and deleted the one with this Raft id before: it waits until the catalog gives it another",
			"group", group, "replica", replica.RaftID(m.cfg.Key, number))
	}
	return number, mayBegin
}

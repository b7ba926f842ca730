package catalog

import (
	"fmt"
	"slices"
)

// Group is the number of the group that holds the catalog.
const Group = 0

// ReplicasMax bounds the voters of a group. A group of five survives the loss of any two. With more
// voters, every write would wait for more disks.
const ReplicasMax = 5

// Placement names the nodes of a group. The group's leader changes the Raft configuration to match
// it, one member at a time.
type Placement struct {
	// Initial holds the keys of the first voters, which bootstrap the group. It never changes, and
	// may name removed nodes.
	Initial []string `json:"initial"`
	// Target holds the keys of the nodes that should be voters.
	Target []string `json:"target"`
	// Replicas maps the key of a node to the number of its replica, if the replica is a member of
	// the group or may become one. See ReplicaID.
	Replicas map[string]uint64 `json:"replicas,omitempty"`
	// NextReplica is the number of the group's next replica. It only rises, so no
	// number is used twice. It is 0 until the group is numbered.
	NextReplica uint64 `json:"next_replica,omitempty"`
	// FirstReplica is the number of the first replica of Initial. The other replicas of Initial
	// have the next numbers. If FirstReplica is 0, all replicas of Initial have number 0.
	FirstReplica uint64 `json:"first_replica,omitempty"`
	// Revision counts the changes of Target and of Keyspace.Everywhere since the group was numbered,
	// the ends of attempts to split the group's shard, and the withdrawals of growths.
	Revision uint64 `json:"revision,omitempty"`
}

// PlaceEntry changes a group's target. The catalog refuses it unless the current target equals Was,
// including the order. So two planners do not undo each other's changes. For the catalog's own
// group, the first PlaceEntry sets Initial too.
type PlaceEntry struct {
	Group  uint32   `json:"group"`
	Target []string `json:"target"`
	Was    []string `json:"was"`
}

func (c *PlaceEntry) apply(v *View) (Result, bool) {
	p, exists := v.Groups[c.Group]
	if !exists && c.Group != Group {
		return refused("there is no group %d", c.Group)
	}
	if v.Frozen(c.Group) {
		return refused("group %d is frozen, because its shard is being split", c.Group)
	}
	if !slices.Equal(p.Target, c.Was) {
		return refused("the target of group %d is %q, not %q", c.Group, p.Target, c.Was)
	}
	if err := v.checkReplicas(c.Target); err != nil {
		return refused("group %d: %v", c.Group, err)
	}
	if !exists {
		p.Initial = c.Target
	}
	p.Target = c.Target
	if p.Numbered() {
		p.Revision++
	}
	v.Groups[c.Group] = p
	return Result{}, !slices.Equal(c.Target, c.Was)
}

// checkReplicas returns an error if these nodes cannot be the voters of a group.
func (v *View) checkReplicas(keys []string) error {
	if len(keys) < 1 || len(keys) > ReplicasMax {
		return fmt.Errorf("%d replicas are not 1…%d", len(keys), ReplicasMax)
	}
	for i, key := range keys {
		if _, known := v.Nodes[key]; !known {
			return fmt.Errorf("there is no node %q", key)
		}
		if slices.Contains(keys[:i], key) {
			return fmt.Errorf("node %q is there twice", key)
		}
	}
	return nil
}

// shardsPlaced returns the number of shards of all keyspaces. It includes the shards that growths
// will create.
func (v *View) shardsPlaced() (n int) {
	for _, k := range v.Keyspaces {
		n += k.shardsAfter()
	}
	return n
}

func tooManyShards(placed int) (Result, bool) {
	return pastBound(BoundGroups, "there are %d shards, and a cluster takes at most %d", placed, GroupsMax)
}

// revise counts a change in Placement.Revision.
func (v *View) revise(group uint32) {
	p := v.Groups[group]
	p.Revision++
	v.Groups[group] = p
}

package catalog

import (
	"maps"
	"slices"
	"strconv"
	"strings"
)

// A replica's Raft id names one lifetime of the replica. A lifetime begins without a log, and ends
// when the node deletes the replica's files. A vote or an acknowledgement belongs to one lifetime.
// A replica that begins anew on the same node has lost the votes of the old id. So it needs a new
// id.
//
// The id is the key of the node, '#', and a number. The catalog gives each number to only one
// replica of the group, ever. With number 0, the id is the key alone. The replicas of the catalog's
// own group have such ids, because a node never begins a second replica of that group.

// ReplicaID returns the Raft id of a node's replica of a group.
func ReplicaID(node string, number uint64) string {
	if number == 0 {
		return node
	}
	return node + "#" + strconv.FormatUint(number, 10)
}

// ParseReplicaID returns the node and the number from which ReplicaID made id. A node's key
// contains no '#'.
func ParseReplicaID(id string) (node string, number uint64) {
	node, digits, numbered := strings.Cut(id, "#")
	if !numbered {
		return node, 0
	}
	number, err := strconv.ParseUint(digits, 10, 64)
	if err != nil {
		return id, 0 // ReplicaID does not return such an id
	}
	return node, number
}

// Numbered reports whether the catalog numbers the group's replicas. It numbers the replicas of
// every group but its own.
func (p *Placement) Numbered() bool { return p.NextReplica > 0 }

// Number returns the number of the node's replica. It returns false if the node has no number, for
// example because the catalog has retired it.
func (p *Placement) Number(node string) (uint64, bool) {
	number, has := p.Replicas[node]
	return number, has
}

// Retired reports whether a node's replica of this number can never be a member again. In a view that
// is too old to know the number, it reports false.
func (p *Placement) Retired(node string, number uint64) bool {
	current, has := p.Replicas[node]
	return number < p.NextReplica && (!has || current != number)
}

// InitialID returns the Raft id of the i-th of the Initial voters.
func (p *Placement) InitialID(i int) string {
	if p.FirstReplica == 0 {
		return ReplicaID(p.Initial[i], 0)
	}
	return ReplicaID(p.Initial[i], p.FirstReplica+uint64(i))
}

// MayHold reports whether the catalog wants a node to have a replica of a group, with or without a
// vote. The replica begins once the catalog has given it a number, which frozen groups delay.
func (v *View) MayHold(group uint32, node string) bool {
	if slices.Contains(v.Groups[group].Target, node) {
		return true
	}
	_, known := v.Nodes[node]
	return known && v.EveryNode(group)
}

// RetireEntry retires the number of a node's replica that has left its group, so that the node may
// delete the replica. The group's leader first reads Revision. Then it proves that no configuration
// of the group, committed or not, contains the replica. Only then it proposes the entry. The
// catalog refuses the entry if the placement has changed since the leader read Revision, because
// the replica may become a member again.
type RetireEntry struct {
	Group    uint32 `json:"group"`
	Node     string `json:"node"`
	Number   uint64 `json:"number"`
	Revision uint64 `json:"revision"` // Placement.Revision
}

func (c *RetireEntry) apply(v *View) (Result, bool) {
	p := v.Groups[c.Group]
	number, has := p.Number(c.Node)
	switch {
	case !has || number != c.Number:
		return Result{}, false // the number is retired already
	case p.Revision != c.Revision:
		return refused("the placement of group %d has changed since", c.Group)
	case v.MayHold(c.Group, c.Node):
		return refused("node %q is to have a replica of group %d", c.Node, c.Group)
	}
	p.Replicas = maps.Clone(p.Replicas)
	delete(p.Replicas, c.Node)
	v.Groups[c.Group] = p
	return Result{}, true
}

// numberReplicas gives a number to each replica that the catalog wants and that has none. It skips
// frozen groups, which get no members. View.After calls it after every command that changed the view.
func (v *View) numberReplicas() {
	for _, k := range v.Keyspaces {
		var all []string
		if k.everyNode() {
			all = slices.Sorted(maps.Keys(v.Nodes))
		}
		for _, group := range k.All() {
			p, cloned := v.Groups[group], false
			if !p.Numbered() || k.frozen(group) {
				continue
			}
			nodes := p.Target
			if len(all) > 0 {
				nodes = slices.Concat(nodes, all)
			}
			for _, node := range nodes {
				if _, has := p.Replicas[node]; has {
					continue
				}
				if !cloned {
					p.Replicas, cloned = maps.Clone(p.Replicas), true
				}
				p.Replicas[node] = p.NextReplica
				p.NextReplica++
			}
			if cloned {
				v.Groups[group] = p
			}
		}
	}
}

// newPlacement returns the placement of a new group at these nodes.
func newPlacement(keys []string) Placement {
	p := Placement{Initial: keys, Target: keys, FirstReplica: 1, NextReplica: 1, Replicas: map[string]uint64{}}
	for _, key := range keys {
		p.Replicas[key] = p.NextReplica
		p.NextReplica++
	}
	return p
}

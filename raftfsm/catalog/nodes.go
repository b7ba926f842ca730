package catalog

import (
	"fmt"
	"maps"
	"slices"
)

const (
	// NodesMax bounds the nodes of a cluster. Each node is a member of the catalog's group, and the
	// leader of that group sends heartbeats and every change to all of them. cluster/DESIGN.md
	// lists the costs that grow with the number of nodes, up to 500.
	NodesMax = 512
	// nodeTextBytesMax bounds each text of a node. The longest valid text is an address: a host
	// name of up to 253 bytes and a port.
	nodeTextBytesMax = 260
)

// Node is one member of the cluster.
type Node struct {
	Key         string    `json:"key"`  // identifies it in placements and Raft configurations; never reused
	Name        string    `json:"name"` // for people; unique among nodes that are not leaving
	Zone        string    `json:"zone"` // nodes of one zone fail together; "" counts as a zone
	HTTPAddr    string    `json:"http_addr"`
	ClusterAddr string    `json:"cluster_addr"`
	GossipAddr  string    `json:"gossip_addr"`
	Version     string    `json:"version"`     // version of its program, for people
	VersionMax  int       `json:"version_max"` // highest cluster version that its program supports
	State       NodeState `json:"state"`
}

// NodeState is the role of a node in the cluster.
type NodeState string

const (
	NodeActive   NodeState = "active"
	NodeDraining NodeState = "draining" // should lead no group and gets no more replicas, but keeps the replicas that it has
	NodeLeaving  NodeState = "leaving"  // its replicas move away, then the cluster removes it
)

// PutNodeEntry adds an active node, or updates an existing node, which keeps its state and name.
// Replaces is the key of an earlier node of the same name, or "" for none. That node becomes
// leaving.
type PutNodeEntry struct {
	Node     Node   `json:"node"`
	Replaces string `json:"replaces,omitempty"`
}

// SetNodeStateEntry sets the state of a node.
type SetNodeStateEntry struct {
	Key   string    `json:"key"`
	State NodeState `json:"state"`
}

// RemoveNodeEntry removes a node that is leaving and in no group's target.
type RemoveNodeEntry struct {
	Key string `json:"key"`
}

func (c *PutNodeEntry) apply(v *View) (Result, bool) {
	node := c.Node
	was, exists := v.Nodes[node.Key]
	node.State = NodeActive
	if exists {
		node.State = was.State
	}
	if err := node.check(); err != nil {
		return refused("%v", err)
	}
	switch {
	case exists && was.Name != node.Name:
		return refused("node %q is named %q, not %q", node.Key, was.Name, node.Name)
	case !exists && len(v.Nodes) >= NodesMax:
		return refused("there are %d nodes, the most that a cluster has", NodesMax)
	case node.VersionMax < v.ClusterVersion:
		return refused("the cluster speaks version %d, node %q at most %d", v.ClusterVersion, node.Key, node.VersionMax)
	}
	other := v.holderOf(&node)
	if other != "" && other != c.Replaces {
		return refused("node %q has the name %q", other, node.Name)
	}
	if other != "" {
		old := v.Nodes[other]
		old.State = NodeLeaving
		v.Nodes[other] = old
	}
	v.Nodes[node.Key] = node
	return Result{}, !exists || node != was || other != ""
}

func (c *SetNodeStateEntry) apply(v *View) (Result, bool) {
	node, exists := v.Nodes[c.Key]
	if !exists {
		return Result{Missing: true}, false
	}
	was := node.State
	node.State = c.State
	if err := node.check(); err != nil {
		return refused("%v", err)
	}
	if other := v.holderOf(&node); other != "" {
		return refused("node %q has the name %q", other, node.Name)
	}
	v.Nodes[c.Key] = node
	return Result{}, node.State != was
}

// holderOf returns the key of another node that has n's name, or "". It ignores leaving nodes,
// because any number of them may share a name.
func (v *View) holderOf(n *Node) string {
	if n.State == NodeLeaving {
		return ""
	}
	for key, other := range v.Nodes {
		if key != n.Key && other.Name == n.Name && other.State != NodeLeaving {
			return key // at most one node that is not leaving has the name
		}
	}
	return ""
}

func (c *RemoveNodeEntry) apply(v *View) (Result, bool) {
	node, exists := v.Nodes[c.Key]
	if !exists {
		return Result{Missing: true}, false
	}
	if node.State != NodeLeaving {
		return refused("node %q is %s, not leaving", c.Key, node.State)
	}
	for _, group := range slices.Sorted(maps.Keys(v.Groups)) {
		if slices.Contains(v.Groups[group].Target, c.Key) {
			return refused("node %q is in the target of group %d", c.Key, group)
		}
	}
	delete(v.Nodes, c.Key)
	return Result{}, true
}

// check returns an error for a node that no cluster can have.
func (n *Node) check() error {
	if n.Key == "" || n.Name == "" {
		return fmt.Errorf("a node with key %q and name %q", n.Key, n.Name)
	}
	for _, text := range []string{n.Key, n.Name, n.Zone, n.HTTPAddr, n.ClusterAddr, n.GossipAddr, n.Version} {
		if len(text) > nodeTextBytesMax {
			return fmt.Errorf("%d bytes in a text of node %.64q, the most are %d", len(text), n.Key, nodeTextBytesMax)
		}
	}
	if n.VersionMax < firstClusterVersion {
		return fmt.Errorf("node %q speaks cluster version %d", n.Key, n.VersionMax)
	}
	switch n.State {
	case NodeActive, NodeDraining, NodeLeaving:
		return nil
	}
	return fmt.Errorf("node %q in state %q", n.Key, n.State)
}

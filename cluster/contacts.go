package cluster

import (
	"slices"
)

// contacts holds the clusters that a node without a cluster may join. It also holds other nodes
// without a cluster. If such a node gets a cluster, this node may join that cluster. Gossip from
// other nodes adds no contacts, because another cluster may search for a former member at this
// node's address. That must not make this node join.
//
// Invariant: each cluster and node is from an answer of a configured address that this node
// dialled, or from Identity.Joining or Identity.Promised.
type contacts struct {
	clusters map[string]bool // by id
	nodes    map[string]bool // by key; at most membersMax
	// answers holds the members of each answer that arrived while this node dialled. One answer is
	// from the dialled address; all others are from nodes that dialled this node.
	answers  [][]Member
	dialling bool
}

// newContacts returns contacts with the values of Identity.Joining and Identity.Promised, so that
// these remain contacts after a restart.
func newContacts(joining string, promised []string) contacts {
	c := contacts{clusters: map[string]bool{}, nodes: map[string]bool{}}
	if joining != "" {
		c.clusters[joining] = true
	}
	c.add(promised)
	return c
}

// add adds nodes, by their keys.
func (c *contacts) add(keys []string) {
	for _, key := range keys {
		if len(c.nodes) < membersMax {
			c.nodes[key] = true
		}
	}
}

// has reports whether this node may join m's cluster. If m has no cluster yet, it reports whether
// this node may join the cluster that m will get.
func (c *contacts) has(m *Member) bool { return c.nodes[m.Key] || c.clusters[m.ClusterID] }

// recordAnswer keeps an answer, if this node is dialling.
func (c *contacts) recordAnswer(answer []Member) {
	if c.dialling {
		c.answers = append(c.answers, answer)
	}
}

// dial starts to collect answers. Call it before dialling a configured address.
func (c *contacts) dial() { c.dialling, c.answers = true, nil }

// dialled stops collecting answers. It adds the members that all answers share, because only one of
// the answers is from the dialled node. It reports whether it added a cluster.
func (c *contacts) dialled(addr string, answered bool) (added bool) {
	answers := c.answers
	c.dialling, c.answers = false, nil
	if !answered || len(answers) == 0 {
		return false
	}
	inAll := func(same func(Member) bool) bool {
		return !slices.ContainsFunc(answers, func(answer []Member) bool { return !slices.ContainsFunc(answer, same) })
	}
	for _, m := range answers[0] {
		switch {
		case m.ClusterID == "" && m.GossipAddr == addr && inAll(func(o Member) bool { return o.Key == m.Key }):
			c.add([]string{m.Key})
		case m.ClusterID != "" && !c.clusters[m.ClusterID] && inAll(func(o Member) bool { return o.ClusterID == m.ClusterID }):
			c.clusters[m.ClusterID], added = true, true
		}
	}
	return added
}

package cluster

import "slices"

// contacts holds the clusters that a node without a cluster may join, and the nodes whose
// cluster it may join once they have one. Gossip alone adds none: another cluster may still
// search for a former member at this node's address, and its gossip must not make this node
// join.
//
// Invariant: each cluster and each node was in the answer of a configured address that this
// node dialled itself, or the node promised itself to it before.
type contacts struct {
	clusters map[string]bool // by id
	nodes    map[string]bool // by key; at most membersMax
	// answers holds the members of each answer that arrived while this node dialled. One of the
	// answers is from the address dialled; the others are from nodes that dialled this one.
	answers  [][]Member
	dialling bool
}

// newContacts returns the contacts of a node with that identity. The clusters and nodes that
// it promised itself to remain contacts after a restart.
func newContacts(joining string, promised []string) contacts {
	c := contacts{clusters: map[string]bool{}, nodes: map[string]bool{}}
	if joining != "" {
		c.clusters[joining] = true
	}
	c.add(promised)
	return c
}

// add lets the node join the clusters of these nodes.
func (c *contacts) add(keys []string) {
	for _, key := range keys {
		if len(c.nodes) < membersMax {
			c.nodes[key] = true
		}
	}
}

// has reports whether the node may join m's cluster, now or once m has one.
func (c *contacts) has(m *Member) bool { return c.nodes[m.Key] || c.clusters[m.ClusterID] }

// recordAnswer keeps an answer that arrived while this node dials.
func (c *contacts) recordAnswer(answer []Member) {
	if c.dialling {
		c.answers = append(c.answers, answer)
	}
}

// dial starts to collect answers, before this node dials a configured address.
func (c *contacts) dial() { c.dialling, c.answers = true, nil }

// dialled ends what dial started, and reports whether it added a cluster. It adds the members that
// all answers share, because one of the answers is that of the node dialled.
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

package cluster

import (
	"fmt"
	"slices"
	"strings"
)

// formStep is the action that decide chooses.
type formStep struct {
	why     string   // why the node must wait
	err     error    // set if only the operator can help
	rival   Member   // a node of the same name that has precedence over this node
	cluster string   // the cluster to join; "" for none
	members []Member // members of cluster that can answer a JoinRequest
	set     []Member // nodes with which to form a cluster, by key, ascending; includes this node
	// initiate is set if this node is the initiator for set.
	initiate bool
}

// decide returns the next step of self, a node that has no cluster and sees these members. It is a
// pure function.
func decide(self Identity, expect int, members []Member) formStep {
	var clustered, bare []Member
	clusters := map[string]string{} // a member of each cluster, by cluster id
	for _, m := range members {
		switch {
		case !m.Alive || m.Key == self.Key():
		case m.ClusterID != "":
			clustered = append(clustered, m)
			clusters[m.ClusterID] = m.Key
		default:
			bare = append(bare, m)
		}
	}
	if len(clusters) > 1 {
		return formStep{err: fmt.Errorf("%w: %s", ErrTwoClusters, describeClusters(clusters))}
	}
	if rival, ok := findRival(self, clustered, bare); ok {
		return formStep{rival: rival, why: fmt.Sprintf("node %q at %s has the name %q: stop one of the two, or give this one another --node-id and data directory",
			rival.Key, rival.GossipAddr, self.NodeID)}
	}
	if len(clustered) > 0 {
		return decideJoin(self, clustered)
	}
	if self.Joining != "" {
		return formStep{why: fmt.Sprintf("a node of cluster %s, which this one has asked to admit it", self.Joining)}
	}
	if expect == 0 {
		return formStep{why: "a node that has a cluster; none is reached at the addresses of --join"}
	}
	return decideForm(self, expect, bare)
}

// findRival returns a living member that has this node's name and has precedence over this node. A
// member with a cluster has precedence, and so has a member with a lower key.
func findRival(self Identity, clustered, bare []Member) (Member, bool) {
	for _, m := range clustered {
		if m.Name == self.NodeID {
			return m, true
		}
	}
	for _, m := range bare {
		if m.Name == self.NodeID && m.Key < self.Key() {
			return m, true
		}
	}
	return Member{}, false
}

func decideJoin(self Identity, clustered []Member) formStep {
	cluster := clustered[0].ClusterID
	if self.Joining != "" && self.Joining != cluster {
		return formStep{why: fmt.Sprintf("a node of cluster %s, which this one has asked to admit it; it sees cluster %s, which it can join only with a new data directory",
			self.Joining, cluster)}
	}
	return formStep{cluster: cluster, members: clustered, why: fmt.Sprintf("cluster %s to admit this node", cluster)}
}

// decideForm returns the next step of a node with --bootstrap-expect when no living member has a
// cluster. Members without --bootstrap-expect do not count, because they wait for a cluster to
// join.
func decideForm(self Identity, expect int, bare []Member) formStep {
	set := []Member{{Key: self.Key(), Name: self.NodeID, Alive: true}}
	for _, m := range bare {
		switch {
		case m.Expect == 0:
			continue
		case int(m.Expect) != expect:
			return formStep{why: fmt.Sprintf("all nodes to have the same --bootstrap-expect: node %q has %d, this one %d", m.Name, m.Expect, expect)}
		case slices.ContainsFunc(set, func(other Member) bool { return other.Name == m.Name }):
			return formStep{why: fmt.Sprintf("one of the two nodes %q to be stopped", m.Name)}
		}
		set = append(set, m)
	}
	slices.SortFunc(set, func(a, b Member) int { return strings.Compare(a.Key, b.Key) })
	names := strings.Join(namesOf(set), ", ")
	switch {
	case len(set) < expect:
		return formStep{why: fmt.Sprintf("%d nodes with --bootstrap-expect %d; reached are %d: %s", expect, expect, len(set), names)}
	case len(set) > expect:
		return formStep{why: fmt.Sprintf("%d nodes with --bootstrap-expect %d, but there are %d: %s; start those too many with --join alone", expect, expect, len(set), names)}
	case set[0].Key != self.Key():
		return formStep{set: set, why: fmt.Sprintf("node %q to form the cluster of %s", set[0].Name, names)}
	}
	return formStep{set: set, initiate: true, why: fmt.Sprintf("nodes %s to agree on a cluster", names)}
}

func namesOf(members []Member) []string {
	names := make([]string, len(members))
	for i, m := range members {
		names[i] = m.Name
	}
	return names
}

func describeClusters(clusters map[string]string) string {
	var parts []string
	for id, key := range clusters {
		parts = append(parts, fmt.Sprintf("%s (node %q)", id, key))
	}
	slices.Sort(parts)
	return strings.Join(parts, ", ")
}

// keySet returns the keys of a set in the form of Identity.Promised.
func keySet(set []Member) string { return strings.Join(keysOf(set), ",") }

// splitSet returns the keys of a set in the form of keySet.
func splitSet(set string) []string {
	if set == "" {
		return nil
	}
	return strings.Split(set, ",")
}

func keysOf(set []Member) []string {
	keys := make([]string, len(set))
	for i, m := range set {
		keys[i] = m.Key
	}
	return keys
}

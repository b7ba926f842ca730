package cluster

import "fmt"

// versionOfClusterNames is the cluster version whose programs read the name of a cluster
// in gossip, in prefaces of connections and in requests to join.
const versionOfClusterNames = 5

// clusterNameBytesMax bounds the name of a cluster, so that metaBytesMax leaves room for
// what later versions say.
const clusterNameBytesMax = 32

// ValidClusterName reports whether s may name a cluster: as a node id of up to 32
// characters, or empty for none.
func ValidClusterName(s string) bool {
	return s == "" || ValidNodeID(s) && len(s) <= clusterNameBytesMax
}

// namesAgree reports whether two nodes may be of one cluster by the names that they were
// given. Two members may differ in whether they have a name, so that a cluster gets one
// by restarts of one node after the other. The cluster's id proves that they are members.
func namesAgree(a, b string, members bool) bool {
	return a == b || members && (a == "" || b == "")
}

// describeCluster returns a cluster as logs and errors name it.
func describeCluster(id, name string) string {
	text := "no cluster yet"
	if id != "" {
		text = "cluster " + id
	}
	if name != "" {
		return fmt.Sprintf("%s (--cluster-name %s)", text, name)
	}
	return text + " (no --cluster-name)"
}

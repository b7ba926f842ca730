package cluster

import "fmt"

// clusterNameBytesMax bounds the name of a cluster, so that metaBytesMax leaves room for the
// fields of later versions.
const clusterNameBytesMax = 32

// ValidClusterName reports whether s may name a cluster: it is a valid node id of up to 32
// characters, or empty for no name.
func ValidClusterName(s string) bool {
	return s == "" || ValidNodeID(s) && len(s) <= clusterNameBytesMax
}

// namesAgree reports whether two nodes may belong to one cluster, judged by their
// --cluster-name. Two members may differ in whether they have a name at all, so that a
// rolling restart can introduce one: the cluster id proves that they are members.
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

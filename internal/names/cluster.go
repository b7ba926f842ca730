package names

import "fmt"

// ClusterBytesMax bounds the name of a cluster: its length takes one byte, any peer that connects may send
// a name, and the metadata in gossip needs space for other fields.
const ClusterBytesMax = 32

// ClustersAgree reports whether two nodes may belong to one cluster, judged by their --cluster-name.
// Two different names never agree.
// Members may differ in whether they have a name at all, so that rolling restarts can introduce
// one: the cluster id proves that they are members.
func ClustersAgree(a, b string, members bool) bool {
	return a == b || members && (a == "" || b == "")
}

// DescribeCluster returns the text for a cluster in logs and errors. An empty id means no cluster.
func DescribeCluster(id, name string) string {
	text := "no cluster yet"
	if id != "" {
		text = "cluster " + id
	}
	if name != "" {
		return fmt.Sprintf("%s (--cluster-name %s)", text, name)
	}
	return text + " (no --cluster-name)"
}

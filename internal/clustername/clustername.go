// Package clustername owns the rules of --cluster-name, which keeps the nodes of two clusters apart. It
// knows no node.
//
// Invariant: two different names never agree. A name and none agree only between members.
package clustername

import "fmt"

// BytesMax bounds the name of a cluster: its length takes one byte, any peer that connects may send
// a name, and the metadata in gossip needs space for other fields.
const BytesMax = 32

// Agree reports whether two nodes may belong to one cluster, judged by their --cluster-name.
// Members may differ in whether they have a name at all, so that rolling restarts can introduce
// one: the cluster id proves that they are members.
func Agree(a, b string, members bool) bool {
	return a == b || members && (a == "" || b == "")
}

// Describe returns the text for a cluster in logs and errors. An empty id means no cluster.
func Describe(id, name string) string {
	text := "no cluster yet"
	if id != "" {
		text = "cluster " + id
	}
	if name != "" {
		return fmt.Sprintf("%s (--cluster-name %s)", text, name)
	}
	return text + " (no --cluster-name)"
}

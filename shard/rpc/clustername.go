package rpc

import (
	"encoding/hex"
	"errors"
	"fmt"
)

// errOtherCluster is returned for a connection from a node of another cluster.
var errOtherCluster = errors.New("the cluster port is not for other clusters")

// checkCluster returns why a preface does not belong to this node's cluster, or nil.
func (c *MuxConfig) checkCluster(p *preface) error {
	none := [16]byte{}
	theirs := DescribeCluster(clusterHex(p.cluster), p.name)
	switch {
	case p.cluster == c.ClusterID && ClustersAgree(p.name, c.ClusterName, c.ClusterID != none):
		return nil
	case p.cluster != c.ClusterID && c.ClusterID == none:
		return fmt.Errorf("%w: it is of %s, this node has none yet", ErrEarly, theirs)
	case p.cluster != c.ClusterID && p.cluster == none:
		return fmt.Errorf("%w: it is of a node that has no cluster yet", ErrEarly)
	}
	ours := clusterHex(c.ClusterID)
	return fmt.Errorf("%w: it is of %s, this node of %s%s", errOtherCluster, theirs, DescribeCluster(ours, c.ClusterName), AfterRecovery(clusterHex(p.cluster), ours))
}

// AfterRecovery returns a text for the end of a refusal if countctl recover made one of the two
// clusters from the other, and "" if not. A recovery keeps the first half of the cluster's id, which
// no other two clusters share.
func AfterRecovery(a, b string) string {
	const half = 16 // hex digits
	if len(a) != 2*half || len(b) != 2*half || a == b || a[:half] != b[:half] {
		return ""
	}
	return "; countctl recover made one of these clusters from the other: start a node that it did not recover on a new --data-dir"
}

// clusterHex returns a cluster's id in hex, or "" for the zero id.
func clusterHex(id [16]byte) string {
	if id == [16]byte{} {
		return ""
	}
	return hex.EncodeToString(id[:])
}

// ClusterNameBytesMax bounds the name of a cluster. Its encoded length has one byte, any peer that
// connects may send a name, and the gossip metadata needs space for other fields.
const ClusterNameBytesMax = 32

// ClustersAgree reports whether the --cluster-name of two nodes allows them to be in one cluster.
// Two different names never agree. If their cluster id proves that both are members of one cluster
// (members is true), one node may lack a name, so that rolling restarts can introduce a name.
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

package rpc

import (
	"encoding/hex"
	"errors"
	"fmt"
)

// ClusterNameBytesMax bounds the name of a cluster: it has one byte for its length, and a
// node reads it from any peer that connects.
const ClusterNameBytesMax = 32

// errOtherCluster is returned for a connection from a node of another cluster.
var errOtherCluster = errors.New("the cluster port is not for other clusters")

// checkCluster returns why a preface does not belong to this node's cluster, or nil. Members may
// differ in whether they have a name, so that rolling restarts can give a cluster a name. Nodes
// without a cluster may not differ.
func (c *MuxConfig) checkCluster(p *preface) error {
	none := [16]byte{}
	switch {
	case p.cluster == c.ClusterID && (p.name == c.ClusterName || c.ClusterID != none && (p.name == "" || c.ClusterName == "")):
		return nil
	case p.cluster != c.ClusterID && c.ClusterID == none:
		return fmt.Errorf("%w: it is of %s, this node has none yet", ErrEarly, clusterText(p.cluster, p.name))
	case p.cluster != c.ClusterID && p.cluster == none:
		return fmt.Errorf("%w: it is of a node that has no cluster yet", ErrEarly)
	}
	return fmt.Errorf("%w: it is of %s, this node of %s", errOtherCluster, clusterText(p.cluster, p.name), clusterText(c.ClusterID, c.ClusterName))
}

// clusterText returns the text for a cluster in errors.
func clusterText(id [16]byte, name string) string {
	text := "no cluster yet"
	if id != [16]byte{} {
		text = "cluster " + hex.EncodeToString(id[:])
	}
	if name != "" {
		return fmt.Sprintf("%s (--cluster-name %s)", text, name)
	}
	return text + " (no --cluster-name)"
}

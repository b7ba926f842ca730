package rpc

import (
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/countd/countd/internal/names"
)

// errOtherCluster is returned for a connection from a node of another cluster.
var errOtherCluster = errors.New("the cluster port is not for other clusters")

// checkCluster returns why a preface does not belong to this node's cluster, or nil.
func (c *MuxConfig) checkCluster(p *preface) error {
	none := [16]byte{}
	theirs := names.DescribeCluster(clusterHex(p.cluster), p.name)
	switch {
	case p.cluster == c.ClusterID && names.ClustersAgree(p.name, c.ClusterName, c.ClusterID != none):
		return nil
	case p.cluster != c.ClusterID && c.ClusterID == none:
		return fmt.Errorf("%w: it is of %s, this node has none yet", ErrEarly, theirs)
	case p.cluster != c.ClusterID && p.cluster == none:
		return fmt.Errorf("%w: it is of a node that has no cluster yet", ErrEarly)
	}
	return fmt.Errorf("%w: it is of %s, this node of %s", errOtherCluster, theirs, names.DescribeCluster(clusterHex(c.ClusterID), c.ClusterName))
}

// clusterHex returns the id of a cluster in hex, or "" for none.
func clusterHex(id [16]byte) string {
	if id == [16]byte{} {
		return ""
	}
	return hex.EncodeToString(id[:])
}

package cluster

import (
	"context"
	"slices"
	"time"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
)

// findNode returns the node with a name or key. If a leaving node shares its name with another
// node, the server lists the leaving node under its key. So the name always means the other node.
func findNode(nodes []admin.ClusterNode, called string) (admin.ClusterNode, bool) {
	i := slices.IndexFunc(nodes, func(n admin.ClusterNode) bool { return n.Key == called || n.ID == called })
	if i < 0 {
		return admin.ClusterNode{}, false
	}
	return nodes[i], true
}

// nodeNow returns the current state of a node.
func nodeNow(ctx context.Context, server *client.Client, key string) (admin.ClusterNode, bool, error) {
	seen, err := admin.New(server).ClusterNodes(ctx)
	if err != nil {
		return admin.ClusterNode{}, false, err
	}
	n, there := findNode(seen.Nodes, key)
	return n, there, nil
}

// condition returns the state of a node in a word or two.
func condition(n admin.ClusterNode) string {
	switch {
	case !n.Alive:
		return "dead"
	case !n.Answers:
		return "silent"
	case n.NotReady != "":
		return "not ready"
	case n.State != "active":
		return n.State
	}
	return "alive"
}

const (
	// drainWait is enough time to transfer the leadership of some tens of groups.
	drainWait = 2 * time.Minute
	// moveWait is enough time to copy many replicas one by one.
	moveWait = 24 * time.Hour
)

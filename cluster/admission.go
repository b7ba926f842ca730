package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/rpc"
)

// For unseenFor after its start, a member does not treat a node as dead only because gossip has not
// named the node yet.
const unseenFor = 30 * time.Second

// errNotSure is returned for a request that may succeed if it is repeated later.
var errNotSure = errors.New("ask again")

// NodeCatalog is the part of the catalog that Admission needs.
type NodeCatalog interface {
	Nodes() map[string]catalog.Node
	// PutNode proposes the entry. Any node may call it, because it forwards the entry to the
	// catalog's leader. refused is the reason of a refusal, or "". If PutNode returns an error, the
	// entry may or may not have been applied.
	PutNode(ctx context.Context, entry catalog.PutNodeEntry) (refused string, err error)
}

// Admission answers the JoinRequests that a member of a cluster receives. The catalog decides on
// each request. Admission uses gossip only to check that a node of the same name, which the joining
// node replaces, is dead.
type Admission struct {
	clusterID   string
	clusterName string
	catalog     NodeCatalog
	view        MemberView
	began       time.Time
}

// NewAdmission returns the Admission of a member of the cluster. clusterName is empty if the
// member was started without --cluster-name.
func NewAdmission(clusterID, clusterName string, catalog NodeCatalog, view MemberView) *Admission {
	return &Admission{clusterID: clusterID, clusterName: clusterName, catalog: catalog, view: view, began: time.Now()}
}

// HandleJoin answers a JoinRequest. It is safe for concurrent use. If it returns an error, the
// joining node repeats the request.
func (a *Admission) HandleJoin(ctx context.Context, r JoinRequest) (JoinAnswer, error) {
	switch {
	case r.ClusterID != a.clusterID:
		return JoinAnswer{Refused: fmt.Sprintf("this is a node of cluster %s, not %s%s", a.clusterID, r.ClusterID, rpc.AfterRecovery(a.clusterID, r.ClusterID))}, nil
	case !rpc.ClustersAgree(a.clusterName, r.ClusterName, false):
		return JoinAnswer{Refused: fmt.Sprintf("the node asks for %s, this is a node of %s",
			rpc.DescribeCluster(r.ClusterID, r.ClusterName), rpc.DescribeCluster(a.clusterID, a.clusterName))}, nil
	case NodeOfKey(r.Node.Key) == "" || r.Node.Name != NodeOfKey(r.Node.Key):
		return JoinAnswer{Refused: fmt.Sprintf("%q with the name %q is no node's key", r.Node.Key, r.Node.Name)}, nil
	case !ValidZone(r.Node.Zone):
		return JoinAnswer{Refused: fmt.Sprintf("%q is no zone", r.Node.Zone)}, nil
	}
	replaced, err := a.replaced(&r.Node)
	if err != nil {
		return JoinAnswer{}, err
	}
	refused, err := a.catalog.PutNode(ctx, catalog.PutNodeEntry{Node: r.Node, Replaces: replaced})
	return JoinAnswer{Admitted: refused == "" && err == nil, Refused: refused}, err
}

// replaced returns the key of the dead node that has n's name, or "" if there is none. It
// returns errNotSure while that node may be alive.
func (a *Admission) replaced(n *catalog.Node) (key string, err error) {
	nodes := a.catalog.Nodes()
	if _, known := nodes[n.Key]; known {
		return "", nil // n is itself the member of that name, and reports new addresses
	}
	for _, other := range nodes {
		if other.Name != n.Name || other.State == catalog.NodeLeaving {
			continue
		}
		alive, seen := a.seen(other.Key)
		switch {
		case alive:
			// Do not refuse yet, because gossip may not have noticed that the other node died. The
			// joining node itself detects a living rival (see rivalFor).
			return "", fmt.Errorf("node %q has the name %q and is not found dead yet: %w", other.Key, other.Name, errNotSure)
		case !seen && time.Since(a.began) < unseenFor:
			return "", fmt.Errorf("cannot tell whether node %q lives: %w", other.Key, errNotSure)
		}
		return other.Key, nil
	}
	return "", nil
}

func (a *Admission) seen(key string) (alive, seen bool) {
	for _, m := range a.view.Members() {
		if m.Key == key {
			return m.Alive, true
		}
	}
	return false, false
}

package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/countd/countd/raftfsm/catalog"
)

// JoinRequest requests that a member of a cluster add a node to the catalog, or update the node's
// entry. It may be repeated.
type JoinRequest struct {
	ClusterID string `json:"cluster_id"` // cluster id of the member
	// ClusterName is the --cluster-name of the requesting node; "" for none.
	ClusterName string       `json:"cluster_name,omitempty"`
	Node        catalog.Node `json:"node"`
}

// JoinAnswer answers a JoinRequest. If Admitted is set, the catalog contains the node as requested.
// Otherwise Refused is the reason, as text for people.
type JoinAnswer struct {
	Admitted bool   `json:"admitted"`
	Refused  string `json:"refused,omitempty"`
}

// ErrNobodyAnswered is returned by Join if no member answered. The node may or may not have been
// admitted.
var ErrNobodyAnswered = errors.New("no member of the cluster answered")

// Join sends the request to members of the cluster, one after the other in random order, until one
// answers. It returns nil once the catalog contains the node. Otherwise it returns ErrRefused with
// the cluster's reason, or ErrNobodyAnswered. Join may be repeated.
func Join(ctx context.Context, asker Asker, members []Member, r JoinRequest) error {
	err := errors.New("none is known")
	for _, i := range rand.Perm(len(members)) {
		if ctx.Err() != nil {
			break
		}
		var answer JoinAnswer
		once, cancel := context.WithTimeout(ctx, joinTimeout)
		answer, err = asker.Join(once, members[i].ClusterAddr, r)
		cancel()
		switch {
		case err == nil && !answer.Admitted:
			return fmt.Errorf("cluster %s: %w: %s", r.ClusterID, ErrRefused, answer.Refused)
		case err == nil:
			return nil
		}
		err = fmt.Errorf("node %q: %w", members[i].Name, err)
	}
	return fmt.Errorf("cannot join cluster %s: %w: %w", r.ClusterID, ErrNobodyAnswered, err)
}

// join requests admission to the cluster and then records the cluster. Before the request, it
// records the cluster as Joining, because the answer may get lost.
func (r *formRun) join(ctx context.Context, cluster string, members []Member) (Identity, error) {
	if err := r.setJoining(cluster); err != nil {
		return Identity{}, err
	}
	err := Join(ctx, r.cfg.Asker, members, JoinRequest{ClusterID: cluster, ClusterName: r.cfg.ClusterName, Node: r.cfg.Node})
	switch {
	case errors.Is(err, ErrNobodyAnswered):
		r.retryLater(err.Error())
		return Identity{}, nil
	case err != nil:
		return Identity{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.cfg.Store.SetCluster(cluster, false); err != nil {
		return Identity{}, err
	}
	r.mu.over = true
	r.hasClusterLocked(cluster, false)
	r.cfg.Logger.Info("joined the cluster", "cluster_id", cluster)
	return r.mu.identity, nil
}

func (r *formRun) setJoining(cluster string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.identity.Joining == cluster {
		return nil
	}
	if err := r.cfg.Store.SetJoining(cluster); err != nil {
		return err
	}
	r.mu.identity.Joining = cluster
	return nil
}

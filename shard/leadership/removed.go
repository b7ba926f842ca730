package leadership

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/rpc"
)

// ErrRemoved is returned by Ready once another node has proved that this node was removed from the
// cluster. It is final, because node keys are never reused.
var ErrRemoved = errors.New("this node was removed from the cluster, by an operator or because it was gone for longer than --replace-after; " +
	"start it with a new --data-dir and --join: it joins as a new node")

// If a node knows no leader of the catalog, or is not in the catalog, it asks every
// removedLookEvery whether it was removed. The interval may be long, because only operators wait
// for the answer.
const removedLookEvery = 2 * time.Second

// RunRemoved detects that this node was removed while it was down, because no other node reports
// that to it. RunRemoved sets Removed, changes nothing else, and then returns. Open starts it;
// Close stops it and waits.
func (m *Membership) RunRemoved() {
	tick := time.NewTicker(removedLookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-m.cfg.Stopping:
			return
		}
		if by := m.RemovedBy(); by != "" {
			m.Removed.Store(true)
			m.cfg.Logger.Error(ErrRemoved.Error(), "node", m.cfg.Key, "told_by", by)
			return
		}
	}
}

// RemovedBy returns the key of a node that has proved that this node is no longer in the catalog,
// or "". It asks only if this node was in the catalog before: its catalog's log is then not empty,
// because the leader sends entries only to nodes in the catalog.
func (m *Membership) RemovedBy() string {
	view := m.cfg.Catalog.View()
	_, in := view.Nodes[m.cfg.Key]
	meta := m.cfg.Replicas.Replica(catalog.Group)
	if in && meta.Follows() == nil || meta.LastIndex() == 0 {
		return ""
	}
	ctx, cancel := context.WithTimeout(context.Background(), reconcileTimeout)
	defer cancel()
	for _, node := range m.catalogMembers(view, meta) {
		if m.cfg.Calls.Doubtful(node) {
			continue
		}
		if unknown, err := m.IsUnknown(ctx, node); err == nil {
			if unknown {
				return node
			}
			return ""
		}
	}
	return ""
}

// catalogMembers returns the other nodes that this node knows and that may lead the catalog.
func (m *Membership) catalogMembers(view *catalog.View, meta *replica.Replica) []string {
	may := map[string]bool{}
	for key := range view.Nodes {
		may[key] = true
	}
	for _, s := range meta.Configuration().Servers {
		may[replica.NodeOf(s.ID)] = true
	}
	delete(may, m.cfg.Key)
	return slices.Collect(maps.Keys(may))
}

// IsUnknown asks another node whether the catalog lacks this node. The asked node, the argument
// leader, must lead the catalog.
func (m *Membership) IsUnknown(ctx context.Context, leader string) (bool, error) {
	return rpc.CallJSON[bool](ctx, m.cfg.Calls, leader, methodUnknown, m.cfg.Key)
}

// serveUnknown answers methodUnknown. This node must prove that it leads the catalog, because then
// it has applied every command that added a node.
func (m *Membership) serveUnknown(ctx context.Context, node string) (unknown bool, err error) {
	meta := m.cfg.Replicas.Replica(catalog.Group)
	term := meta.ReadyTerm()
	if err := meta.Ready(); err != nil {
		return false, err
	}
	_, known := m.cfg.Catalog.View().Nodes[node]
	return !known, m.cfg.Prove(ctx, meta, term)
}

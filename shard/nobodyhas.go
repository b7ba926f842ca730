package shard

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// errNobodyHas is returned, beside ErrNoQuorum, for a stale read of a shard of which
// no living node has a replica: to wait for a leader would not help.
var errNobodyHas = errors.New("no living node has a replica of it")

// nobodyHas returns errNobodyHas if a stale read of a shard that is not here cannot be
// answered because all nodes that are to hold it are dead. Any other read waits for a
// leader, and gets what that is told.
func (n *Node) nobodyHas(g *shardReplica, opt *ReadOptions) error {
	if opt.Consistency != Stale || n.cfg.Alive == nil || g.replica.Load() != nil {
		return nil
	}
	view := n.catalog.View()
	dead := []string{}
	for _, key := range n.readers(g) {
		if n.cfg.Alive(key) {
			return nil
		}
		name := view.Nodes[key].Name
		if name == "" {
			name = key
		}
		dead = append(dead, name)
	}
	slices.Sort(dead)
	return fmt.Errorf("%w: shard %d of keyspace %s: %w (%s dead)", ErrNoQuorum, g.shard, g.keyspace, errNobodyHas, strings.Join(dead, ", "))
}

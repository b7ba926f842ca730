package shard

import (
	"context"
	"fmt"
	"time"

	"github.com/countd/countd/raftfsm/catalog"
)

// maintenanceTick is how often what the catalog should hold is looked at when it does
// not change.
const maintenanceTick = time.Second

// runMaintenance keeps this node's record in the catalog true, makes the built-in
// keyspaces of a new cluster, and keeps the catalog's snapshot new, so that a
// node that starts again knows its cluster before it has found the others.
// Open starts it, Close stops and waits for it.
func (n *Node) runMaintenance() {
	tick := time.NewTicker(maintenanceTick)
	defer tick.Stop()
	kept := uint64(0)
	for {
		select {
		case <-n.catalog.View().Changed():
		case <-tick.C:
		case <-n.stopping:
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		go func() { // ends with the round
			select {
			case <-n.stopping:
				cancel()
			case <-ctx.Done():
			}
		}()
		if err := n.maintainCatalog(ctx); err != nil {
			n.cfg.Logger.Debug("the catalog could not be brought up to date", "err", err)
		}
		cancel()
		if applied := n.catalog.Applied(); applied > kept {
			if err := n.meta.TakeSnapshot(); err == nil {
				kept = applied
			}
		}
	}
}

// maintainCatalog brings the catalog up to date with this node and, if it leads the
// catalog, with the program. It does nothing that was done.
func (n *Node) maintainCatalog(ctx context.Context) error {
	view := n.catalog.View()
	self := n.self()
	was, in := view.Nodes[self.Key]
	self.State = was.State
	leads := n.meta.Ready() == nil
	if in && was != self || !in && leads {
		if err := n.mustChange(ctx, &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: self}}); err != nil {
			return fmt.Errorf("cannot put the node into the catalog: %w", err)
		}
	}
	if !leads {
		return nil
	}
	if _, placed := view.Groups[catalogGroup]; !placed {
		place := &catalog.PlaceEntry{Group: catalogGroup, Target: []string{self.Key}}
		if err := n.mustChange(ctx, &catalog.Command{Place: place}); err != nil {
			return fmt.Errorf("cannot place the catalog: %w", err)
		}
	}
	if len(n.catalog.View().Nodes) < n.cfg.NodesWanted && len(view.Keyspaces) == 0 {
		return nil
	}
	if err := n.beginVersion(ctx); err != nil {
		return err
	}
	return n.createBuiltin(ctx)
}

// beginVersion gives a cluster that has nothing yet the highest version that all
// nodes speak, so that it begins with all keyspaces. One that has something is
// raised with its program, or held.
func (n *Node) beginVersion(ctx context.Context) error {
	view := n.catalog.View()
	most := view.VersionMax()
	if len(view.Keyspaces) > 0 || view.VersionHeld || most <= view.ClusterVersion {
		return nil
	}
	if err := n.mustChange(ctx, &catalog.Command{SetVersion: &catalog.SetVersionEntry{Version: most}}); err != nil {
		return fmt.Errorf("cannot set the cluster version: %w", err)
	}
	return nil
}

// self is this node as the catalog should know it, but for its state.
func (n *Node) self() catalog.Node {
	return catalog.Node{
		Key: n.cfg.NodeKey, Name: n.cfg.NodeName, Zone: n.cfg.Zone,
		Version: n.cfg.Version, VersionMax: catalog.ClusterVersionMax,
		HTTPAddr: n.cfg.HTTPAddr, ClusterAddr: n.mux.Addr().String(), GossipAddr: n.cfg.GossipAddr,
	}
}

// createBuiltin makes the built-in keyspaces that are not there: all of them
// when a cluster is new, the rest when it was stopped on the way or when its version
// was raised to one that has more.
func (n *Node) createBuiltin(ctx context.Context) error {
	view := n.catalog.View()
	for _, k := range builtin {
		if _, there := view.Keyspaces[k.Name]; there || !view.Takes(k.Kind) {
			continue
		}
		if k.Name == KeyspaceUnread && view.TakesFloors() {
			k.Floors = map[string]int64{} // a badge never shows less than nothing
			for _, column := range k.Columns {
				k.Floors[column] = 0
			}
		}
		if shards, ok := n.cfg.Shards[k.Name]; ok {
			k.Shards = shards
		}
		if err := n.mustChange(ctx, &catalog.Command{Create: &catalog.CreateEntry{Keyspace: k}}); err != nil {
			return fmt.Errorf("cannot create keyspace %s: %w", k.Name, err)
		}
	}
	return nil
}

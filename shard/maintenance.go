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

// maintenance keeps the catalog's record of this node true and, where this node leads the
// catalog, what every cluster has.
//
// Its goroutine: run, which Node starts and waits for.
type maintenance struct {
	cfg      *Config
	self     catalog.Node // this node as the catalog should know it, but for its state
	catalog  *catalog.Catalog
	registry *registry
	change   func(context.Context, *catalog.Command) error
	stopping <-chan struct{}
}

// run keeps this node's record in the catalog true, makes the built-in
// keyspaces of a new cluster, and keeps the catalog's snapshot new, so that a
// node that starts again knows its cluster before it has found the others.
// Open starts it, Close stops and waits for it.
func (m *maintenance) run() {
	tick := time.NewTicker(maintenanceTick)
	defer tick.Stop()
	kept := uint64(0)
	for {
		select {
		case <-m.catalog.View().Changed():
		case <-tick.C:
		case <-m.stopping:
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		go func() { // ends with the round
			select {
			case <-m.stopping:
				cancel()
			case <-ctx.Done():
			}
		}()
		if err := m.maintainCatalog(ctx); err != nil {
			m.cfg.Logger.Debug("the catalog could not be brought up to date", "err", err)
		}
		cancel()
		if applied := m.catalog.Applied(); applied > kept {
			if err := m.registry.meta.TakeSnapshot(); err == nil {
				kept = applied
			}
		}
	}
}

// maintainCatalog brings the catalog up to date with this node and, if it leads the
// catalog, with the program. It does nothing that was done.
func (m *maintenance) maintainCatalog(ctx context.Context) error {
	view := m.catalog.View()
	self := m.self
	was, in := view.Nodes[self.Key]
	self.State = was.State
	leads := m.registry.meta.Ready() == nil
	if in && was != self || !in && leads {
		if err := m.change(ctx, &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: self}}); err != nil {
			return fmt.Errorf("cannot put the node into the catalog: %w", err)
		}
	}
	if !leads {
		return nil
	}
	if _, placed := view.Groups[catalogGroup]; !placed {
		place := &catalog.PlaceEntry{Group: catalogGroup, Target: []string{self.Key}}
		if err := m.change(ctx, &catalog.Command{Place: place}); err != nil {
			return fmt.Errorf("cannot place the catalog: %w", err)
		}
	}
	if len(m.catalog.View().Nodes) < m.cfg.NodesWanted && len(view.Keyspaces) == 0 {
		return nil
	}
	if err := m.beginVersion(ctx); err != nil {
		return err
	}
	return m.createBuiltin(ctx)
}

// beginVersion gives a cluster that has nothing yet the highest version that all
// nodes speak, so that it begins with all keyspaces. One that has something is
// raised with its program, or held.
func (m *maintenance) beginVersion(ctx context.Context) error {
	view := m.catalog.View()
	most := view.VersionMax()
	if len(view.Keyspaces) > 0 || view.VersionHeld || most <= view.ClusterVersion {
		return nil
	}
	if err := m.change(ctx, &catalog.Command{SetVersion: &catalog.SetVersionEntry{Version: most}}); err != nil {
		return fmt.Errorf("cannot set the cluster version: %w", err)
	}
	return nil
}

// record returns this node as the catalog should know it, but for its state.
func (n *Node) record() catalog.Node {
	return catalog.Node{
		Key: n.cfg.NodeKey, Name: n.cfg.NodeName, Zone: n.cfg.Zone,
		Version: n.cfg.Version, VersionMax: catalog.ClusterVersionMax,
		HTTPAddr: n.cfg.HTTPAddr, ClusterAddr: n.mux.Addr().String(), GossipAddr: n.cfg.GossipAddr,
	}
}

// createBuiltin makes the built-in keyspaces that are not there: all of them
// when a cluster is new, the rest when it was stopped on the way or when its version
// was raised to one that has more.
func (m *maintenance) createBuiltin(ctx context.Context) error {
	view := m.catalog.View()
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
		if shards, ok := m.cfg.Shards[k.Name]; ok {
			k.Shards = shards
		}
		if err := m.change(ctx, &catalog.Command{Create: &catalog.CreateEntry{Keyspace: k}}); err != nil {
			return fmt.Errorf("cannot create keyspace %s: %w", k.Name, err)
		}
	}
	return nil
}

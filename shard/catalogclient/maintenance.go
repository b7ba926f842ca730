package catalogclient

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/codec"
)

// maintenanceTick is how often Run checks the catalog while it does not change.
const maintenanceTick = time.Second

// beginTick replaces it while there are no keyspaces: somebody waits for the new cluster.
const beginTick = 100 * time.Millisecond

// maintenanceTimeout bounds one round.
const maintenanceTimeout = 30 * time.Second

// MaintenanceConfig configures a Maintenance.
type MaintenanceConfig struct {
	Client *Client
	Self   catalog.Node // this node as the catalog should know it, but for its state
	// Builtin are the keyspaces that every cluster begins with.
	Builtin []catalog.Keyspace
	// A new cluster waits for so many nodes, and so many voters of the catalog, until it makes them.
	NodesWanted, VotersWanted int
	Stopping                  <-chan struct{}
	Logger                    *slog.Logger
}

// Maintenance keeps the catalog's record of this node true and, where this node leads the
// catalog, what every cluster has.
//
// Its goroutine: Run, which the node starts and waits for.
type Maintenance struct {
	cfg     MaintenanceConfig
	catalog *catalog.Catalog
}

// NewMaintenance returns the maintenance of a node's part of the catalog.
func NewMaintenance(cfg MaintenanceConfig) *Maintenance {
	return &Maintenance{cfg, cfg.Client.cfg.Catalog}
}

// Run keeps this node's record in the catalog true, makes the built-in
// keyspaces of a new cluster, and keeps the catalog's snapshot new, so that a
// node that starts again knows its cluster before it has found the others.
// Stopping ends it.
func (m *Maintenance) Run() {
	tick := time.NewTicker(beginTick)
	defer tick.Stop()
	kept := uint64(0)
	for begun := false; ; {
		if !begun && len(m.catalog.View().Keyspaces) > 0 {
			begun = true
			tick.Reset(maintenanceTick)
		}
		select {
		case <-m.catalog.View().Changed():
		case <-tick.C:
		case <-m.cfg.Stopping:
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), maintenanceTimeout)
		go func() { // ends with the round
			select {
			case <-m.cfg.Stopping:
				cancel()
			case <-ctx.Done():
			}
		}()
		if err := m.Maintain(ctx); err != nil {
			m.cfg.Logger.Debug("the catalog could not be brought up to date", "err", err)
		}
		cancel()
		if applied := m.catalog.Applied(); applied > kept {
			if err := m.cfg.Client.cfg.Group().TakeSnapshot(); err == nil {
				kept = applied
			}
		}
	}
}

// Maintain brings the catalog up to date with this node and, if it leads the
// catalog, with the program. It does nothing that was done.
func (m *Maintenance) Maintain(ctx context.Context) error {
	view := m.catalog.View()
	self := m.cfg.Self
	was, in := view.Nodes[self.Key]
	self.State = was.State
	leads := m.cfg.Client.cfg.Group().Ready() == nil
	if in && was != self || !in && leads {
		if err := m.cfg.Client.MustChange(ctx, &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: self}}); err != nil {
			return fmt.Errorf("cannot put the node into the catalog: %w", err)
		}
	}
	if !leads {
		return nil
	}
	if _, placed := view.Groups[catalog.Group]; !placed {
		place := &catalog.PlaceEntry{Group: catalog.Group, Target: []string{self.Key}}
		if err := m.cfg.Client.MustChange(ctx, &catalog.Command{Place: place}); err != nil {
			return fmt.Errorf("cannot place the catalog: %w", err)
		}
	}
	if len(view.Keyspaces) == 0 && (len(m.catalog.View().Nodes) < m.cfg.NodesWanted || m.voters() < m.cfg.VotersWanted) {
		return nil
	}
	if err := m.beginVersion(ctx); err != nil {
		return err
	}
	return m.createBuiltin(ctx)
}

// voters returns how many voters the catalog has for certain, 0 while that changes.
func (m *Maintenance) voters() (voters int) {
	if at := m.cfg.Client.cfg.Group().ConfigurationInForce(); at != nil {
		for _, s := range at.Servers {
			if s.Suffrage == raft.Voter {
				voters++
			}
		}
	}
	return voters
}

// beginVersion gives a cluster that has nothing yet the highest version that all
// nodes speak, so that it begins with all keyspaces. One that has something is
// raised with its program, or held.
func (m *Maintenance) beginVersion(ctx context.Context) error {
	view := m.catalog.View()
	most := view.VersionMax()
	if len(view.Keyspaces) > 0 || view.VersionHeld || most <= view.ClusterVersion {
		return nil
	}
	if err := m.cfg.Client.MustChange(ctx, &catalog.Command{SetVersion: &catalog.SetVersionEntry{Version: most}}); err != nil {
		return fmt.Errorf("cannot set the cluster version: %w", err)
	}
	return nil
}

// createBuiltin makes the built-in keyspaces that are not there: all of them
// when a cluster is new, the rest when it was stopped on the way or when its version
// was raised to one that has more.
func (m *Maintenance) createBuiltin(ctx context.Context) error {
	view := m.catalog.View()
	for _, k := range m.cfg.Builtin {
		if _, there := view.Keyspaces[k.Name]; there {
			continue
		}
		if k.Kind == codec.KindUnread.String() {
			k.Floors = map[string]int64{} // a badge never shows less than nothing
			for _, column := range k.Columns {
				k.Floors[column] = 0
			}
		}
		if err := m.cfg.Client.MustChange(ctx, &catalog.Command{Create: &catalog.CreateEntry{Keyspace: k}}); err != nil {
			return fmt.Errorf("cannot create keyspace %s: %w", k.Name, err)
		}
	}
	return nil
}

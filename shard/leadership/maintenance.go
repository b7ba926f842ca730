package leadership

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/hashicorp/raft"

	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/kinds"
)

// maintenanceTick is the interval at which Run checks the catalog if the catalog does not change.
const maintenanceTick = time.Second

// maintenanceTimeout bounds one round.
const maintenanceTimeout = 30 * time.Second

// MaintenanceConfig configures a Maintenance.
type MaintenanceConfig struct {
	Catalog *CatalogClient
	Self    catalog.Node // this node's entry for the catalog; its State is ignored
	// Builtin has the keyspaces that every cluster begins with.
	Builtin []catalog.Keyspace
	// A new cluster creates Builtin once it has NodesWanted nodes and the catalog has VotersWanted
	// voters.
	NodesWanted, VotersWanted int
	Stopping                  <-chan struct{}
	Logger                    *slog.Logger
}

// Maintenance keeps the catalog's entry of this node up to date. On the catalog's leader, it also
// sets up a new cluster.
//
// The node runs Run in a goroutine, and waits for its end.
type Maintenance struct {
	cfg     MaintenanceConfig
	catalog *catalog.Catalog
}

// NewMaintenance returns the Maintenance of cfg.
func NewMaintenance(cfg MaintenanceConfig) *Maintenance {
	return &Maintenance{cfg, cfg.Catalog.cfg.Catalog}
}

// Run maintains the catalog until Stopping closes. It also takes a snapshot of the catalog after
// each change, so that a restarted node knows its cluster before it finds other nodes.
func (m *Maintenance) Run() {
	kept := uint64(0)
	warned := false
	for {
		view := m.catalog.View()
		select {
		case <-view.Changed():
		case <-time.After(view.Pace(maintenanceTick)):
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
		if numbers := kinds.NotTexts(m.catalog.View(), m.cfg.Builtin); len(numbers) > 0 && !warned {
			warned = true
			m.cfg.Logger.Warn("--ids has no effect on keyspaces that exist: their ids are numbers", "keyspaces", numbers)
		}
		if applied := m.catalog.Applied(); applied > kept {
			if err := m.cfg.Catalog.cfg.Group().Snapshotter().Take(); err == nil {
				kept = applied
			}
		}
	}
}

// Maintain updates this node's entry in the catalog. If this node leads the catalog, it also places
// the catalog's group. Once a new cluster has enough nodes and voters, it sets the version and
// creates the built-in keyspaces. It is idempotent.
func (m *Maintenance) Maintain(ctx context.Context) error {
	view := m.catalog.View()
	self := m.cfg.Self
	was, in := view.Nodes[self.Key]
	self.State = was.State
	leads := m.cfg.Catalog.cfg.Group().Ready() == nil
	if in && was != self || !in && leads {
		if err := m.cfg.Catalog.MustChange(ctx, &catalog.Command{PutNode: &catalog.PutNodeEntry{Node: self}}); err != nil {
			return fmt.Errorf("cannot put the node into the catalog: %w", err)
		}
	}
	if !leads {
		return nil
	}
	if _, placed := view.Groups[catalog.Group]; !placed {
		place := &catalog.PlaceEntry{Group: catalog.Group, Target: []string{self.Key}}
		if err := m.cfg.Catalog.MustChange(ctx, &catalog.Command{Place: place}); err != nil {
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

// voters returns the number of voters of the catalog's committed configuration, or 0 while a
// change is in progress.
func (m *Maintenance) voters() (voters int) {
	if at := m.cfg.Catalog.cfg.Group().ConfigurationInForce(); at != nil {
		for _, s := range at.Servers {
			if s.Suffrage == raft.Voter {
				voters++
			}
		}
	}
	return voters
}

// beginVersion gives a cluster without keyspaces the highest version that all nodes support, so
// that all built-in keyspaces can be created. It never changes the version of a cluster with
// keyspaces.
func (m *Maintenance) beginVersion(ctx context.Context) error {
	view := m.catalog.View()
	most := view.VersionMax()
	if len(view.Keyspaces) > 0 || view.VersionHeld || most <= view.ClusterVersion {
		return nil
	}
	if err := m.cfg.Catalog.MustChange(ctx, &catalog.Command{SetVersion: &catalog.SetVersionEntry{Version: most}}); err != nil {
		return fmt.Errorf("cannot set the cluster version: %w", err)
	}
	return nil
}

// createBuiltin creates the missing built-in keyspaces. A new cluster lacks all of them. An older
// cluster lacks some if their creation was interrupted, or if an upgrade has added built-in
// keyspaces.
func (m *Maintenance) createBuiltin(ctx context.Context) error {
	for range m.cfg.Builtin {
		k := kinds.Missing(m.catalog.View(), m.cfg.Builtin)
		if k == nil {
			break
		}
		if err := m.cfg.Catalog.MustChange(ctx, &catalog.Command{Create: &catalog.CreateEntry{Keyspace: *k}}); err != nil {
			return fmt.Errorf("cannot create keyspace %s: %w", k.Name, err)
		}
	}
	return nil
}

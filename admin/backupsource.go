package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/countd/countd/backup"
	"github.com/countd/countd/client"
	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/shard"
)

// errNoSources is returned by backupSource.Sources on a node without Config.SavedSources.
var errNoSources = errors.New("this node cannot list the sources")

// backupSource is what a backup by this node reads. Its lists include every change that was acknowledged
// before the call, and are as the API shows them.
type backupSource struct{ a *Cluster }

// ID returns the id of the cluster.
func (b backupSource) ID(context.Context) (string, error) {
	n, err := b.a.cfg.Node()
	if err != nil {
		return "", err
	}
	return n.Status().ClusterID, nil
}

// Keyspaces lists all keyspaces.
func (b backupSource) Keyspaces(ctx context.Context) ([]client.Keyspace, error) {
	n, err := b.fresh(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot list the keyspaces: %w", err)
	}
	return decoded[[]client.Keyspace](n.Keyspaces())
}

// Groups returns the numbers of the groups of all shards.
func (b backupSource) Groups(ctx context.Context) (map[string]uint32, error) {
	n, err := b.fresh(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot list the groups: %w", err)
	}
	view, numbers := n.Catalog(), map[string]uint32{}
	for _, k := range view.Keyspaces {
		for shard, number := range k.All() {
			if _, placed := view.Groups[number]; placed {
				numbers[backup.GroupName(k.Name, shard)] = number
			}
		}
	}
	return numbers, nil
}

// Sources lists all sources.
func (b backupSource) Sources(ctx context.Context) ([]clientadmin.SavedSource, error) {
	if b.a.cfg.SavedSources == nil {
		return nil, errNoSources
	}
	ctx, cancel := context.WithTimeout(ctx, backupListTimeout)
	defer cancel()
	saved, err := b.a.cfg.SavedSources(ctx)
	if err != nil {
		return nil, fmt.Errorf("cannot list the sources: %w", err)
	}
	return decoded[[]clientadmin.SavedSource](saved)
}

// Snapshot begins a snapshot of a group on its leader; see Cluster.snapshot.
func (b backupSource) Snapshot(ctx context.Context, group uint32) (*clientadmin.Snapshot, error) {
	return b.a.snapshot(ctx, group)
}

// fresh returns this node once it knows every acknowledged change of the catalog.
func (b backupSource) fresh(ctx context.Context) (*shard.Node, error) {
	n, err := b.a.cfg.Node()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, backupListTimeout)
	defer cancel()
	return n, n.CatchUp(ctx)
}

// decoded converts a value by its JSON, the common form of the node's types and the client's.
func decoded[T any](value any) (to T, err error) {
	raw, err := json.Marshal(value)
	if err == nil {
		err = json.Unmarshal(raw, &to)
	}
	return to, err
}

package shard

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/countd/countd/client/column"
	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/scarce"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/raftfsm/kinds"
	"github.com/countd/countd/shard/errs"
)

// Keyspaces returns all keyspaces, ascending by name. The caller must not change the slice.
func (n *Node) Keyspaces() []*Keyspace { return n.registry.keyspaces.Load().sorted }

// Layout returns the present route of a keyspace, and the group of each shard; 0 for a part that has no ids yet.
func (n *Node) Layout(ks *Keyspace) (raftfsm.Route, []uint32) {
	shards := n.registry.groups.Load().byFirst[ks.FirstGroup]
	if shards == nil { // it is being created or was dropped, so its writes are refused
		return ks.Route(), ks.Groups
	}
	groups := make([]uint32, len(shards.all))
	for s, g := range shards.all {
		if shards.route.Exists(s) {
			groups[s] = g.number
		}
	}
	return shards.route, groups
}

// Keyspace returns the keyspace with that name, or nil.
func (n *Node) Keyspace(name string) *Keyspace { return n.registry.keyspaces.Load().byName[name] }

// CreateKeyspace creates a keyspace of kind kinds.Created, and returns it once this node can serve
// it. The name, the columns with their settings, the shards, the sharding and IDs come from k. If a
// keyspace with these values exists, CreateKeyspace returns that keyspace. Shards 0 means
// ShardsDefault, and Sharding "" means ShardingModulo; for an existing keyspace, both match any
// value.
//
// CreateKeyspace waits until the new cluster has all its nodes, because the catalog distributes the
// shards among the nodes that it knows at that moment.
func (n *Node) CreateKeyspace(ctx context.Context, k Keyspace) (*Keyspace, error) {
	if err := k.check(); err != nil {
		return nil, err
	}
	anyShards := k.Shards == 0
	if anyShards {
		k.Shards = ShardsDefault
	}
	want := catalog.Keyspace{Name: k.Name, Kind: kinds.Created, Columns: slices.Clone(k.Columns), Divisor: k.Shards, Limits: k.Limits, Settings: k.Settings}
	if k.Sharding == ShardingHash {
		want.Sharding = ShardingHash
	}
	if k.IDs == IDsText {
		want.Names = catalog.NamesOf(k.Name)
	}
	if !errs.RetryUntil(ctx, func() bool { return len(n.catalog.View().Keyspaces) > 0 }) {
		return nil, fmt.Errorf("%w: %s", errs.ErrNoLeader, n.waitsToBegin(len(n.catalog.View().Nodes)))
	}
	r, index, err := n.catalogClient.Change(ctx, &catalog.Command{Create: &catalog.CreateEntry{Keyspace: want}})
	switch {
	case err != nil:
		return nil, err
	case r.Bound == catalog.BoundKeyspaces:
		return nil, &errs.ArgumentError{Field: "name", Problem: r.Refused}
	case r.Bound == catalog.BoundGroups:
		return nil, &errs.ArgumentError{Field: "shards", Problem: r.Refused}
	case r.Refused != "":
		return nil, fmt.Errorf("%w: %w: %s", errs.ErrNoLeader, errs.ErrRefused, r.Refused)
	}
	sameShards := (anyShards || len(r.Keyspace.Groups) == k.Shards) && (k.Sharding == "" || r.Keyspace.Sharding == want.Sharding)
	sameColumns := slices.Equal(r.Keyspace.ColumnNames(), k.Columns) && column.Equal(r.Keyspace.Settings, k.Settings)
	if r.Exists && (r.Keyspace.Kind != kinds.Created || r.Keyspace.Names != want.Names || !sameShards || !sameColumns) {
		return nil, errs.ErrKeyspaceExists
	}
	made, err := n.served(ctx, k.Name, index)
	if err == nil && made.Names != "" {
		_, err = n.served(ctx, made.Names, index)
	}
	if err != nil {
		return nil, err
	}
	warned := *made
	warned.Warning = n.SkewWarning(made)
	return &warned, nil
}

// SkewWarning returns a warning if some shards of a keyspace would get most of its ids, or "".
func (n *Node) SkewWarning(k *Keyspace) string {
	layout := n.cfg.Cold.Layouts[k.Name]
	if !kinds.All.Traits(k.Kind).ColdRows || k.Sharding == ShardingHash || k.Shards%2 != 0 || layout.Shift == 0 || k.Names != "" {
		return ""
	}
	return fmt.Sprintf("%d shards by modulo spread ids of layout %s by their lowest bits, which are often zeros: "+
		"an odd number, or sharding %s, spreads them evenly", k.Shards, layout, ShardingHash)
}

// AddColumns adds the columns that the keyspace lacks, changes the given settings of the existing
// columns, and returns the keyspace. Counts of a new column are 0. If the kind has the trait
// FloorZero, a new column without a given floor has the floor 0.
func (n *Node) AddColumns(ctx context.Context, name string, columns []column.Column) (*Keyspace, error) {
	names, changes := column.Changes(columns)
	if err := checkColumns(names); err != nil {
		return nil, err
	}
	k := n.Keyspace(name)
	if k != nil && !kinds.All.Traits(k.Kind).Columns {
		return nil, &errs.ArgumentError{Field: "name", Problem: fmt.Sprintf("keyspace %s, of kind %s, has no columns", name, k.Kind)}
	}
	if k != nil && kinds.All.Traits(k.Kind).FloorZero {
		for _, c := range names {
			if _, given := changes.Floors[c]; !given && k.Column(c) < 0 {
				changes.Put(column.Floor, c, new(int64))
			}
		}
	}
	r, index, err := n.catalogClient.Change(ctx, &catalog.Command{AddColumns: &catalog.AddColumnsEntry{Keyspace: name, Columns: names, Settings: changes}})
	switch {
	case err != nil:
		return nil, err
	case r.Missing:
		return nil, errs.ErrUnknownKeyspace
	case r.Refused != "":
		return nil, &errs.ArgumentError{Field: "columns", Problem: r.Refused}
	case r.Full:
		return nil, &errs.ArgumentError{Field: "columns", Problem: fmt.Sprintf("a keyspace has at most %d columns, those that were dropped included", engine.ColumnsMax)}
	}
	return n.served(ctx, name, index)
}

// ChangeSetting makes a change of a setting of a keyspace, a SetEverywhere or SetLimits, and returns the keyspace. It
// does not wait until the new replicas of SetEverywhere are members of their groups and have caught up.
func (n *Node) ChangeSetting(ctx context.Context, name, field string, change *catalog.Command) (*Keyspace, error) {
	r, index, err := n.catalogClient.Change(ctx, change)
	switch {
	case err != nil:
		return nil, err
	case r.Missing:
		return nil, errs.ErrUnknownKeyspace
	case r.Refused != "":
		return nil, &errs.ArgumentError{Field: field, Problem: r.Refused}
	}
	return n.served(ctx, name, index)
}

// served returns a changed keyspace once this node knows the change and its replicas of the
// keyspace can serve. It also waits, for at most rpc.AskTimeout, until the other living nodes know
// the change. The catalog has already changed, so served returns no error that means a refused
// change.
func (n *Node) served(ctx context.Context, name string, index uint64) (*Keyspace, error) {
	err := n.follow()
	if errors.Is(err, errs.ErrDraining) || scarce.Is(err) {
		return nil, fmt.Errorf("%w: %w", errs.ErrOutcomeUnknown, err)
	}
	if err != nil {
		return nil, err
	}
	k := n.Keyspace(name)
	if k == nil {
		return nil, errs.ErrUnknownKeyspace // the keyspace was dropped in the meantime
	}
	err = errs.WaitFor(ctx, func() error {
		shards, err := n.router.shardsOf(k)
		if errors.Is(err, errs.ErrUnknownKeyspace) {
			return nil // the keyspace was dropped, so there is nothing to wait for
		} else if err != nil {
			return err
		}
		for _, g := range shards.all {
			if g == nil {
				continue
			} else if r := g.replica.Load(); r != nil && !r.group.Growth.Unborn() {
				err = errors.Join(err, r.group.Follows())
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errs.ErrOutcomeUnknown, err)
	}
	if n.catalog.View().Dropped(k.FirstGroup) {
		return nil, errs.ErrUnknownKeyspace
	}
	n.catalogClient.Tell(ctx, index)
	return k, nil
}

package shard

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/countd/countd/engine"
	"github.com/countd/countd/internal/scarce"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard/catalogclient"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/keyspace"
)

// Keyspaces returns all keyspaces, ascending by name. The caller must not change the slice.
func (n *Node) Keyspaces() []*Keyspace { return n.registry.keyspaces.Load().sorted }

// Keyspace returns the keyspace of a name, or nil.
func (n *Node) Keyspace(name string) *Keyspace { return n.registry.keyspaces.Load().byName[name] }

// CreateKeyspace creates a keyspace of counters with the name, columns, floors, shards and sharding of
// k, and returns it once this node can serve it. If the keyspace exists with the same values, it
// returns that one. Shards 0 means ShardsDefault, and Sharding "" means ShardingModulo; for an
// existing keyspace, both match any value.
//
// CreateKeyspace waits until the cluster has begun, because the catalog places the groups on the
// nodes that it knows at that moment.
func (n *Node) CreateKeyspace(ctx context.Context, k Keyspace) (*Keyspace, error) {
	if err := k.Check(); err != nil {
		return nil, err
	}
	anyShards := k.Shards == 0
	if anyShards {
		k.Shards = ShardsDefault
	}
	want := catalog.Keyspace{Name: k.Name, Kind: KindCounters, Columns: slices.Clone(k.Columns), Shards: k.Shards, Floors: maps.Clone(k.Floors)}
	if k.Sharding == ShardingHash {
		want.Sharding = ShardingHash
	}
	if !errs.RetryUntil(ctx, func() bool { return len(n.catalog.View().Keyspaces) > 0 }) {
		return nil, fmt.Errorf("%w: %s", ErrNoLeader, n.waitsToBegin(len(n.catalog.View().Nodes)))
	}
	r, index, err := n.catalogClient.Change(ctx, &catalog.Command{Create: &catalog.CreateEntry{Keyspace: want}})
	switch {
	case err != nil:
		return nil, err
	case r.Bound == catalog.BoundKeyspaces:
		return nil, &ArgumentError{Field: "name", Problem: r.Refused}
	case r.Bound == catalog.BoundGroups:
		return nil, &ArgumentError{Field: "shards", Problem: r.Refused}
	case r.Refused != "":
		return nil, fmt.Errorf("%w: %w: %s", ErrNoLeader, catalogclient.ErrRefused, r.Refused)
	}
	sameShards := (anyShards || r.Keyspace.Shards == k.Shards) && (k.Sharding == "" || r.Keyspace.Sharding == want.Sharding)
	sameColumns := slices.Equal(r.Keyspace.Names(), k.Columns) && maps.Equal(r.Keyspace.Floors, k.Floors)
	if r.Exists && (r.Keyspace.Kind != KindCounters || !sameShards || !sameColumns) {
		return nil, ErrKeyspaceExists
	}
	made, err := n.served(ctx, k.Name, index)
	if err != nil {
		return nil, err
	}
	warned := *made
	warned.Warning = n.SkewWarning(made)
	return &warned, nil
}

// SkewWarning returns a warning if the ids of a keyspace will crowd in some of its shards, or "".
func (n *Node) SkewWarning(k *Keyspace) string {
	layout := n.cfg.Cold.Layouts[k.Name]
	if k.Kind != KindCounters || k.Sharding == ShardingHash || k.Shards%2 != 0 || layout.Shift == 0 {
		return ""
	}
	return fmt.Sprintf("%d shards by modulo spread ids of layout %s by their lowest bits, which are often zeros: "+
		"an odd number, or sharding %s, spreads them evenly", k.Shards, layout, ShardingHash)
}

// AddColumns appends the columns that the keyspace lacks, and returns the keyspace. Counts of a new
// column are 0. floors sets the floors of new and old columns by name: nil removes a floor, and other
// columns keep theirs. A new column of unread numbers has the floor 0 unless floors names it.
func (n *Node) AddColumns(ctx context.Context, name string, columns []string, floors map[string]*int64) (*Keyspace, error) {
	if err := keyspace.CheckColumns(columns); err != nil {
		return nil, err
	}
	k := n.Keyspace(name)
	if k != nil && k.Kind != KindCounters && k.Kind != KindUnread {
		return nil, &ArgumentError{Field: "name", Problem: fmt.Sprintf("keyspace %s, of kind %s, has no columns", name, k.Kind)}
	}
	if k != nil && k.Kind == KindUnread {
		floors = withDefaultFloors(floors, columns, k)
	}
	r, index, err := n.catalogClient.Change(ctx, &catalog.Command{AddColumns: &catalog.AddColumnsEntry{Keyspace: name, Columns: columns, Floors: floors}})
	switch {
	case err != nil:
		return nil, err
	case r.Missing:
		return nil, ErrUnknownKeyspace
	case r.Refused != "":
		return nil, &ArgumentError{Field: "columns", Problem: r.Refused}
	case r.Full:
		return nil, &ArgumentError{Field: "columns", Problem: fmt.Sprintf("a keyspace has at most %d columns, those that were dropped included", engine.ColumnsMax)}
	}
	return n.served(ctx, name, index)
}

// withDefaultFloors returns floors, with 0 for the new columns that it does not name.
func withDefaultFloors(floors map[string]*int64, columns []string, k *Keyspace) map[string]*int64 {
	all := make(map[string]*int64, len(columns))
	for _, column := range columns {
		if k.Column(column) < 0 {
			all[column] = new(int64)
		}
	}
	maps.Copy(all, floors)
	return all
}

// SetEverywhere makes every node hold a replica of each shard of a keyspace, or only the voters,
// and returns the keyspace. It does not wait for the new replicas. They are complete once they are
// members of their groups and have caught up.
func (n *Node) SetEverywhere(ctx context.Context, name string, everywhere bool) (*Keyspace, error) {
	if k := n.Keyspace(name); k != nil && k.Kind == KindBoard {
		return nil, &ArgumentError{Field: "name", Problem: fmt.Sprintf("keyspace %s, of kind %s, is everywhere, always", name, k.Kind)}
	}
	r, index, err := n.catalogClient.Change(ctx, &catalog.Command{SetEverywhere: &catalog.SetEverywhereEntry{Keyspace: name, Everywhere: everywhere}})
	switch {
	case err != nil:
		return nil, err
	case r.Missing:
		return nil, ErrUnknownKeyspace
	case r.Refused != "":
		return nil, &ArgumentError{Field: "everywhere", Problem: r.Refused}
	}
	return n.served(ctx, name, index)
}

// served returns the keyspace of a name once this node knows it and this node's replicas of it can
// serve. It also waits until the other living nodes know the keyspace, for at most rpc.AskTimeout. The
// catalog has already changed. So an error must not read as if nothing had happened.
func (n *Node) served(ctx context.Context, name string, index uint64) (*Keyspace, error) {
	err := n.follow()
	if errors.Is(err, ErrDraining) || scarce.Is(err) {
		return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	if err != nil {
		return nil, err
	}
	k := n.Keyspace(name)
	if k == nil {
		return nil, ErrUnknownKeyspace // the keyspace was dropped meanwhile
	}
	err = errs.WaitFor(ctx, func() error {
		groups, err := n.router.groupsOf(k)
		for _, g := range groups {
			if r := g.replica.Load(); r != nil {
				err = errors.Join(err, r.group.Follows())
			}
		}
		if errors.Is(err, ErrUnknownKeyspace) {
			return nil // the keyspace was dropped: nothing to wait for
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
	}
	if n.catalog.View().Dropped(k.FirstGroup) {
		return nil, ErrUnknownKeyspace
	}
	n.catalogClient.Tell(ctx, index)
	return k, nil
}

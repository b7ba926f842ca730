package backup

import (
	"context"

	"github.com/countd/countd/client"
	"github.com/countd/countd/client/admin"
)

// Cluster is what a backup reads. The backup repeats Snapshot after an error that client.Retryable reports as
// temporary, and fails after any other error.
type Cluster interface {
	// ID returns the id of the cluster.
	ID(ctx context.Context) (string, error)
	// Keyspaces lists all keyspaces. The list includes every change that was acknowledged before the call.
	Keyspaces(ctx context.Context) ([]client.Keyspace, error)
	// Groups returns the numbers of all groups, by GroupName. It is as new as Keyspaces.
	Groups(ctx context.Context) (map[string]uint32, error)
	// Sources lists all sources, with the partitions for which a shard may have a position.
	Sources(ctx context.Context) ([]admin.SavedSource, error)
	// Snapshot begins a snapshot of a group on its leader. It includes every write of the group that was acknowledged
	// before the call. The caller reads and closes it.
	Snapshot(ctx context.Context, group uint32) (*Snapshot, error)
}

// Snapshot is a stream with the state of one shard.
type Snapshot = admin.Snapshot

package api

import (
	"context"
	"io"

	"github.com/countd/countd/admin"
	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/tiering"
	"github.com/countd/countd/sources"
)

// Sources lists and changes the sources of the cluster; *sources.Sources implements it. Each node
// can answer for all nodes.
type Sources interface {
	List(ctx context.Context) ([]sources.Source, error)
	Get(ctx context.Context, name string) (*sources.Source, error)
	// Put creates a source, or replaces its configuration, which is JSON or YAML.
	Put(ctx context.Context, name string, text []byte) (*sources.Source, error)
	Pause(ctx context.Context, name string) (*sources.Source, error)
	Resume(ctx context.Context, name string) (*sources.Source, error)
	// Seek sets where partitions of a paused source continue. It parses the positions.
	Seek(ctx context.Context, name string, to map[uint32]string) (*sources.Source, error)
	Delete(ctx context.Context, name string) error
	// Save returns the sources for a backup. RestoreSaved creates one of them, paused.
	Save(ctx context.Context) ([]sources.Saved, error)
	RestoreSaved(ctx context.Context, text []byte) (*sources.Source, error)
	// Past returns the effects of messages on the rows of a keyspace. from is the text of the
	// first position.
	Past(ctx context.Context, name, keyspace string, partition uint32, from string) (*sources.Past, error)
	// Rows returns rows, and the positions of the source in their shards.
	Rows(ctx context.Context, name, keyspace string, ids []uint64) (*sources.Rows, error)
}

// Admin shows and changes the cluster for its operators; *admin.Cluster implements it. Each node
// can answer for all nodes: it forwards to the catalog's leader what only that node can do. Any
// goroutine may call the methods at any time. The caller owns the results.
type Admin interface {
	// View joins the catalog with the reports of the nodes that answer within a second.
	View(ctx context.Context) (*admin.View, error)
	// Plan returns the next steps of the placement.
	Plan(ctx context.Context) ([]clientadmin.PlanStep, error)
	// Change begins a change, or reports that there is nothing to do. It does not wait
	// until data is moved.
	Change(ctx context.Context, change admin.Change) (*clientadmin.Changed, error)
	// Cold returns the reports about rows on disk of the nodes that answer within a second.
	Cold(ctx context.Context) ([]admin.ColdNode, error)
	// OrderCold starts a tiering order on all nodes, if every node that answers can run it.
	// It does not wait for the end.
	OrderCold(ctx context.Context, order tiering.TieringJob) (*clientadmin.ColdOrdered, error)
	// OpenSnapshot takes a snapshot of a shard. It returns an admin.ElsewhereError when
	// another node leads the group. The caller closes the snapshot.
	OpenSnapshot(ctx context.Context, group uint32) (*shard.Snapshot, error)
	// RestoreShard replaces the rows of a shard by those of a snapshot.
	RestoreShard(ctx context.Context, group uint32, stream io.Reader, o shard.RestoreOptions) (raftfsm.SnapshotFacts, error)
}

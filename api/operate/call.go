// Package operate has the calls of operators about keyspaces, the cluster, sources and users, and a
// node's descriptions of itself. It turns the JSON of requests into calls of the node and of the
// cluster, and the results into JSON. It owns the strict decoding of bodies, which other rare calls
// use too. It never reads or answers a request, and does not depend on HTTP.
//
// Invariant: a call finds every fault of its body before it changes anything.
package operate

import (
	"context"
	"io"

	"github.com/countd/countd/admin"
	"github.com/countd/countd/auth"
	clientadmin "github.com/countd/countd/client/admin"
	"github.com/countd/countd/client/column"
	"github.com/countd/countd/raftfsm"
	"github.com/countd/countd/raftfsm/catalog"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/shard/errs"
	"github.com/countd/countd/shard/replica"
	"github.com/countd/countd/shard/tiering"
	"github.com/countd/countd/sources"
)

// Call has everything that a call needs besides its body.
type Call struct {
	Node    Node
	Admin   Admin
	Sources Sources
	Audit   *auth.AuditLog
	Auth    *auth.Authorizer // nil lets everybody do everything
	Caller  *auth.Caller     // nil for a caller without a token
	Version string           // of the program

	Name, Column string // names of the path
	Limit        int    // of a list; 0 if not given
	HasCursor    bool   // whether a cursor is given
	Fresh        bool   // whether the answer must be as new as the catalog's leader
}

// Nothing is the body of a call that needs no body: {} or nothing at all.
type Nothing struct{}

// invalid returns the error for a bad value of a request. field is its JSON path, or the name of a
// parameter.
func invalid(field, problem string) error {
	return &errs.ArgumentError{Field: field, Problem: problem}
}

// Node has the methods of a node that calls about keyspaces and users need; *shard.Node implements it.
type Node interface {
	// Keyspaces returns all keyspaces sorted by name.
	Keyspaces() []*shard.Keyspace
	// CatchUp waits until Keyspaces includes every change that any node acknowledged before the
	// call.
	CatchUp(ctx context.Context) error
	Status() shard.Status
	CreateKeyspace(ctx context.Context, k shard.Keyspace) (*shard.Keyspace, error)
	AddColumns(ctx context.Context, name string, columns []column.Column) (*shard.Keyspace, error)
	ChangeSetting(ctx context.Context, name, field string, change *catalog.Command) (*shard.Keyspace, error)
	DropKeyspace(ctx context.Context, name string) (*shard.Keyspace, error)
	DropColumn(ctx context.Context, name, column string) (*shard.Keyspace, error)
	// The methods of Cluster access the users.
	auth.Cluster
}

// Sources lists and changes the sources of the cluster; *sources.Sources implements it. It covers
// the whole cluster, at every node.
type Sources interface {
	List(ctx context.Context) ([]sources.Source, error)
	Get(ctx context.Context, name string) (*sources.Source, error)
	// Put creates a source, or replaces its configuration, which is JSON or YAML.
	Put(ctx context.Context, name string, text []byte) (*sources.Source, error)
	Pause(ctx context.Context, name string) (*sources.Source, error)
	Resume(ctx context.Context, name string) (*sources.Source, error)
	// Seek sets the positions, as text, from which partitions of a paused source continue.
	Seek(ctx context.Context, name string, to map[uint32]string) (*sources.Source, error)
	Delete(ctx context.Context, name string) error
	// Save returns the sources for a backup. RestoreSaved creates one source from a backup, paused.
	Save(ctx context.Context) ([]sources.Saved, error)
	RestoreSaved(ctx context.Context, text []byte) (*sources.Source, error)
	// Past returns the effects of a partition's messages on the rows of a keyspace. It begins at
	// the position from.
	Past(ctx context.Context, name, keyspace string, partition uint32, from string) (*sources.Past, error)
	// Rows returns the rows of ids, and the positions that the shards of these rows store for the
	// source.
	Rows(ctx context.Context, name, keyspace string, ids []string) (*sources.Rows, error)
}

// Admin shows and changes the cluster for its operators; *admin.Cluster implements it. Every node
// serves these calls, and forwards them to the catalog's leader if necessary. Any goroutine may
// call the methods at any time. The caller owns the results.
type Admin interface {
	// View combines the catalog with the reports of the nodes. It leaves out nodes that do not
	// answer within a second.
	View(ctx context.Context) (*admin.View, error)
	// Digests returns the digests of replicas. It leaves out nodes that do not answer within a
	// second.
	Digests(ctx context.Context) ([]clientadmin.GroupDigests, error)
	// Plan returns the next steps of the cluster's plan.
	Plan(ctx context.Context) ([]clientadmin.PlanStep, error)
	// Change begins a change, or reports that no change is necessary. It does not wait until data
	// is moved.
	Change(ctx context.Context, change admin.Change) (*clientadmin.Changed, error)
	// Grow makes a keyspace grow, withdraws a growth, or returns what a growth would do. It does not
	// wait until the growth ends.
	Grow(ctx context.Context, o admin.GrowOrder) (*clientadmin.Growth, error)
	// Cold returns the reports about cold rows, the rows that are on disk only. It leaves out nodes
	// that do not answer within a second.
	Cold(ctx context.Context) ([]admin.ColdNode, error)
	// OrderCold starts a tiering job on all nodes, if every node that answers can run it. It does
	// not wait until the job ends.
	OrderCold(ctx context.Context, order tiering.TieringJob) (*clientadmin.ColdOrdered, error)
	// OpenSnapshot creates a snapshot of a shard. It returns an admin.ElsewhereError when another
	// node leads the group. The caller closes the snapshot.
	OpenSnapshot(ctx context.Context, group uint32) (*replica.Snapshot, error)
	// RestoreShard restores a shard from a snapshot.
	RestoreShard(ctx context.Context, group uint32, stream io.Reader, o admin.RestoreOptions) (raftfsm.SnapshotFacts, error)
}

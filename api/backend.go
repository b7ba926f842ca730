package api

import (
	"context"

	"github.com/countd/countd/auth"
	"github.com/countd/countd/shard"
	"github.com/countd/countd/timeline"
	"github.com/countd/countd/unread"
)

// Backend is the node that the API serves; *shard.Node implements it. Any goroutine may call any
// method at any time. A method keeps none of its arguments after it returns. Nothing changes a
// result afterwards.
type Backend interface {
	// Node answers queries and writes. Write applies w.Ops and overwrites w.Rows,
	// len(Ops)*Width values. Keyspace takes no lock.
	unread.Node
	timeline.Node
	// Keyspaces returns all keyspaces sorted by name.
	Keyspaces() []*shard.Keyspace
	// CatchUp waits until Keyspace knows every change that any node acknowledged before
	// the call.
	CatchUp(ctx context.Context) error
	CreateKeyspace(ctx context.Context, k shard.Keyspace) (*shard.Keyspace, error)
	AddColumns(ctx context.Context, name string, columns []string, floors map[string]*int64) (*shard.Keyspace, error)
	SetEverywhere(ctx context.Context, name string, everywhere bool) (*shard.Keyspace, error)
	DropKeyspace(ctx context.Context, name string) (*shard.Keyspace, error)
	DropColumn(ctx context.Context, name, column string) (*shard.Keyspace, error)
	Status() shard.Status
	// Cluster holds the users.
	auth.Cluster
	// Ready returns nil when every group can serve, else the reason why one cannot.
	Ready() error
}

// gated refuses a write whose caller has lost the right to it, before the write reaches a shard.
type gated struct{ Backend }

// Write implements Backend.
func (g gated) Write(ks *shard.Keyspace, w *shard.Write) error {
	if err := w.Permitted(); err != nil {
		return err
	}
	return g.Backend.Write(ks, w)
}

// node is a Backend, with the unread numbers and timelines that are computed from it.
type node struct {
	Backend
	unread    *unread.Numbers
	timelines *timeline.Timelines
}

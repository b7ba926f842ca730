package redis

import (
	"context"

	"github.com/countd/countd/shard"
	"github.com/countd/countd/timeline"
	"github.com/countd/countd/unread"
)

// Backend is what the server needs of a node; *shard.Node implements it. Its methods are
// safe for concurrent use and keep none of their arguments. Nothing changes a result
// afterwards.
type Backend interface {
	// Node answers queries and writes. See shard.ReadError and shard.PartialError.
	unread.Node
	timeline.Node
	// Keyspaces returns all keyspaces sorted by name.
	Keyspaces() []*shard.Keyspace
	// CatchUp waits until Keyspace knows every change that any node acknowledged before
	// the call.
	CatchUp(ctx context.Context) error
	Status() shard.Status
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
